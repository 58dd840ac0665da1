"""Threads that compute on one core do not change the number of threads of later ones."""

from concurrent.futures import ThreadPoolExecutor
from threading import Thread

import pytest
import torch

from transduce.process import use_one_core
from transduce.train.host import prefetch


def threads_of_a_new_thread():
    got = []
    thread = Thread(target=lambda: got.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return got[0]


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_prefetching_uses_one_core_and_other_threads_all():
    inside = [(torch.get_num_threads(), threads_of_a_new_thread()) for _ in prefetch(iter(range(3)))]
    assert inside == [(2, 2)] * 3
    assert [*prefetch(torch.get_num_threads() for _ in range(3))] == [1, 1, 1]
    assert (torch.get_num_threads(), threads_of_a_new_thread()) == (2, 2)


def test_feature_computation_uses_one_core_per_thread():
    """Repeated, as two threads that begin at once must not mistake one's setting for the default."""
    for _ in range(50):
        with ThreadPoolExecutor(2, initializer=use_one_core) as pool:  # as FeatureCache.fill has it
            assert [*pool.map(lambda _: torch.get_num_threads(), range(3))] == [1, 1, 1]
        assert (torch.get_num_threads(), threads_of_a_new_thread()) == (2, 2)
