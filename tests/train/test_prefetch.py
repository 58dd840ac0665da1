"""Batches made beforehand are the same batches."""

import os
import signal
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from transduce.errors import InputError
from transduce.train.host import load_batches, prefetch


def test_prefetch_keeps_all_items_in_order():
    assert list(prefetch(iter([3, 1, 2, 0, 7]))) == [3, 1, 2, 0, 7]
    assert list(prefetch(iter([]), n=3)) == []


def test_next_batch_is_made_in_a_thread_meanwhile():
    made = threading.Event()

    def make(i: int) -> int:
        if i == 1:
            made.set()
        return i

    batches = prefetch(map(make, range(3)), n=1)
    assert next(batches) == 0
    assert made.wait(timeout=10)  # nobody has asked for 1 yet
    assert list(batches) == [1, 2]


def test_at_most_n_batches_are_prefetched():
    made: list[int] = []
    batches = prefetch(map(made.append, range(100)), n=2)
    next(batches)
    batches.close()
    assert max(made) <= 3


def test_errors_are_raised_at_their_batch():
    def make(i: int) -> int:
        if i == 1:
            raise ValueError("the second is bad")
        return i

    batches = prefetch(map(make, range(3)))
    assert next(batches) == 0
    with pytest.raises(ValueError, match="the second is bad"):
        next(batches)


def test_prefetch_does_not_change_the_callers_threads():
    threads = torch.get_num_threads()
    inside = list(prefetch(torch.get_num_threads() for _ in range(2)))
    assert inside == [1, 1] and torch.get_num_threads() == threads


@dataclass(frozen=True)
class Made(Sequence[Any]):
    """Batches that tell which process made them, and whether it ignores SIGINT."""

    bad: int = -1

    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> tuple[int, int, int]:  # type: ignore[override]
        if i == self.bad:
            raise ValueError("the third is bad")
        os.kill(os.getpid(), signal.SIGINT) if os.getpid() != HERE else None
        return i, os.getpid(), torch.get_num_threads()


HERE = os.getpid()
few_cores = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def test_batches_without_workers_are_made_on_demand():
    made: list[int] = []

    class Noting(Made):
        def __getitem__(self, i: int) -> int:  # type: ignore[override]
            made.append(i)
            return i

    batches = load_batches(0, Noting(), [3, 1, 2])
    assert next(batches) == 3 and made == [3] and list(batches) == [1, 2]


def test_the_arguments_of_a_data_loader(monkeypatch):
    """A stand-in for DataLoader checks its arguments: single items, unchanged, SIGINT ignored, errors as values."""
    arguments = {}

    def loader(batches, **how):
        arguments.update(how)
        return [how["collate_fn"](batches[i]) for i in how["sampler"]]

    monkeypatch.setattr("transduce.train.host.DataLoader", loader)
    batches = load_batches(2, Made(bad=2), [3, 1, 2, 0])
    assert [next(batches)[0] for _ in range(2)] == [3, 1]
    with pytest.raises(ValueError, match=r"^the third is bad$"):
        next(batches)
    assert (arguments["num_workers"], arguments["batch_size"]) == (2, None)
    assert arguments["multiprocessing_context"] == "fork"  # what makes a batch need not be pickled
    before = signal.getsignal(signal.SIGINT)
    try:
        arguments["worker_init_fn"](0)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@few_cores
@pytest.mark.process
def test_workers_keep_the_order_and_ignore_ctrl_c():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever the test process has inherited
    try:
        got = list(load_batches(2, Made(), [3, 1, 2, 0, 7, 5]))
    finally:
        signal.signal(signal.SIGINT, before)
    assert [i for i, _, _ in got] == [3, 1, 2, 0, 7, 5]
    makers = {process for _, process, _ in got}
    assert len(makers) == 2 and HERE not in makers and {n for _, _, n in got} == {1}


@few_cores
@pytest.mark.process
def test_worker_errors_are_raised_at_their_batch():
    batches = load_batches(2, Made(bad=2), [3, 1, 2, 0])
    assert [next(batches)[0] for _ in range(2)] == [3, 1]
    with pytest.raises(ValueError, match=r"^the third is bad$"):
        next(batches)


@pytest.mark.process
@few_cores
def test_full_shared_memory_is_an_error(monkeypatch):
    """As when /dev/shm is full, which has 64 MB in a container."""

    def full(_: object) -> None:
        raise RuntimeError("unable to allocate")

    monkeypatch.setattr("torch.UntypedStorage._share_fd_cpu_", full)
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it waits"))
    signal.alarm(20)
    try:
        with pytest.raises(InputError) as error:
            list(load_batches(2, [torch.ones(3)], [0]))
        assert str(error.value) == (
            "data_workers send batches by shared memory, but unable to allocate; give a container more "
            "(docker run --shm-size 2g), or set data_workers=0"
        )
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
