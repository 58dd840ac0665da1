"""Batches that are computed at a time: outputs, order, errors and threads are those of one after the other."""

import ctypes
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Thread, get_ident

import pytest
import torch

import transduce as td
from tests.language_runs import language_run
from tests.runs import ENGLISH, LITTLE
from transduce.engine.cpu import CPUEngine
from transduce.engine.stack import CPUStack
from transduce.kernels import library
from transduce.model.transformer import Transformer
from transduce.tasks.base import PIECE, balanced

LINES = [" ".join(ENGLISH[i % len(ENGLISH)].split()[: 1 + i % 5]) for i in range(40)]
FEW = {"batch_tokens": 40, "max_source_length": 30, "max_length": 12}


@pytest.fixture
def set_threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def translator(text_run):
    return td.load_translator(text_run)


@pytest.mark.parametrize("settings", [{"beam_size": 1}, {"beam_size": 3, "n_best": 2}, {"sample": True, "n_best": 2}])
def test_parallel_batches_equal_sequential_ones(translator, set_threads, settings):
    set_threads(1)
    want = translator.translate(LINES, **FEW, **settings)
    for n in (2, 3, 9):
        set_threads(n)
        assert translator.translate(LINES, **FEW, **settings) == want, n
        assert torch.get_num_threads() == n


def test_parallel_generation_equals_sequential_generation(tmp_path, set_threads):
    generator = td.load_generator(language_run(tmp_path))
    prompts, config = ["All", "A", "Al", "", "At", "All all"], td.GenerationConfig(n=2, max_length=9, batch_size=2)
    set_threads(1)
    want = [[each.text for each in texts] for texts in generator.generate(prompts, config)]
    set_threads(3)
    assert [[each.text for each in texts] for texts in generator.generate(prompts, config)] == want


class Refuses(Exception):
    pass


@pytest.mark.parametrize("n", [1, 2, 3])
def test_an_error_in_a_batch_ends_the_call(translator, set_threads, n):
    set_threads(n)

    def work(batch):
        if batch == 5:
            raise Refuses
        return -batch

    results, done = translator._map_parallel(range(99), work), []
    with pytest.raises(Refuses):
        done.extend(results)
    assert done == [(i, -i) for i in range(5)]


def test_closed_iterators_start_no_further_batches(translator, set_threads):
    set_threads(2)
    begun = []
    results = translator._map_parallel(range(99), begun.append)
    next(results)
    results.close()
    assert sorted(begun) == list(range(len(begun))) and len(begun) <= 6


def test_interrupted_batches_end_at_their_next_step(translator, set_threads):
    """As on Ctrl-C, of batches that would decode for minutes."""
    set_threads(2)
    memory = translator.engine.encode(torch.tensor([[3, 4, 5]]))

    def work(_):
        while True:
            translator.engine.decoder_states(torch.tensor([[1]]), memory=memory)

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(KeyboardInterrupt):
            next(translator._map_parallel(range(9), work))
    finally:
        signal.signal(signal.SIGALRM, before)


def test_threads_started_meanwhile_keep_the_thread_count(translator, set_threads):
    """A thread takes over the number of its process when it first computes, whatever others do then."""
    set_threads(3)
    got = []

    def begin_others(_):
        for _ in range(10):
            thread = Thread(target=lambda: got.append(torch.get_num_threads()))
            thread.start()
            thread.join()

    for _ in range(10):
        list(translator._map_parallel(range(3), begin_others))
    assert got == [3] * 300


def test_each_worker_uses_its_share_of_threads(translator, set_threads):
    set_threads(5)
    inside = [
        share for _, share in translator._map_parallel(range(20), lambda _: (get_ident(), torch.get_num_threads()))
    ]
    assert {n for _, n in inside} == {1} and get_ident() not in dict(inside)  # 5 threads, 4 at a time
    (alone,) = translator._map_parallel([0], lambda _: (get_ident(), torch.get_num_threads()))
    assert alone == (0, (get_ident(), 5))


def test_custom_rules_run_in_the_calling_thread(translator, set_threads):
    set_threads(2)
    translator.rules = [lambda *_: None]
    assert {ident for _, ident in translator._map_parallel(range(9), lambda _: get_ident())} == {get_ident()}


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_last_batches_are_balanced_over_threads(n):
    for sizes in ([], [3], [20], [50, 50, 50], [9, 90, 20, 7, 40], [5, 6, 7, 8]):
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        some = [list(range(start, start + size)) for start, size in zip(starts, sizes, strict=True)]
        got = balanced(some, n)
        assert sorted(row for rows in got for row in rows) == list(range(sum(sizes)))
        assert got[: len(sizes) // n * n] == some[: len(sizes) // n * n]
        assert all(len(rows) >= PIECE or rows in some for rows in got)
        if len(sizes) % n == 1 and sizes[-1] >= n * PIECE:
            assert len(got) % n == 0


@pytest.mark.skipif(library() is None, reason="no C++")
@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_position_tables_are_not_freed_while_threads_read_them(positions):
    """Addresses go to C++, which sees no bounds: numbers stay as long as what points to them."""
    model = Transformer(replace(LITTLE, positions=positions)).eval()
    engine = CPUEngine(model)
    stack = engine.decoder
    assert isinstance(stack, CPUStack)
    want = {stop: _table(CPUEngine(model).decoder, stop) for stop in (5, 200, 700)}

    def reads(stop):
        return all(torch.equal(_table(stack, stop), want[stop]) for _ in range(20))

    for _ in range(5):
        with ThreadPoolExecutor(3) as pool:
            assert all(pool.map(reads, want))


def _table(stack, stop):
    struct = stack.position_struct(2, stop)
    width = stack.struct.d_model if struct.added else stack.struct.d_head // 2
    n = (stop - 2) * width
    start = struct.added or struct.cosines
    return torch.tensor((ctypes.c_float * n).from_address(start)[:])


def test_wide_models_run_one_batch_at_a_time(translator, set_threads, monkeypatch):
    set_threads(2)
    width = translator.model.config.d_model
    for widest, at_once in ((width, 2), (width - 1, 1)):
        monkeypatch.setattr("transduce.tasks.base.WIDEST", widest)
        assert translator._n_parallel == at_once
