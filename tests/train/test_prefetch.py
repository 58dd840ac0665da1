"""Batches made beforehand are the same batches."""

import threading

import pytest
import torch

from transduce.train.prefetch import prefetch


def test_everything_comes_once_and_in_order():
    assert list(prefetch(lambda i: i * i, [3, 1, 2, 0, 7])) == [9, 1, 4, 0, 49]
    assert list(prefetch(lambda i: i, [], n=3)) == []


def test_a_thread_makes_them_while_the_first_is_used():
    made = threading.Event()

    def make(i: int) -> int:
        if i == 1:
            made.set()
        return i

    batches = prefetch(make, range(3), n=1)
    assert next(batches) == 0
    assert made.wait(timeout=10)  # nobody has asked for 1 yet
    assert list(batches) == [1, 2]


def test_no_more_than_n_are_made_beforehand():
    made: list[int] = []
    batches = prefetch(lambda i: made.append(i), range(100), n=2)
    next(batches)
    batches.close()
    assert max(made) <= 3


def test_an_error_comes_at_its_turn():
    def make(i: int) -> int:
        if i == 1:
            raise ValueError("the second is bad")
        return i

    batches = prefetch(make, range(3))
    assert next(batches) == 0
    with pytest.raises(ValueError, match="the second is bad"):
        next(batches)


def test_the_cores_of_whoever_uses_them_stay_as_they_were():
    threads = torch.get_num_threads()
    inside = list(prefetch(lambda i: torch.get_num_threads(), range(2)))
    assert inside == [1, 1] and torch.get_num_threads() == threads
