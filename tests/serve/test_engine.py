"""What an engine does with what waits, shown with work that is told when to go on."""

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from transduce.serve import ServeConfig
from transduce.serve.engine import COUNTED_FOR, Busy, Engine, Late, Request


class Upper:
    """Work that writes down what it was given, and waits at a gate."""

    def __init__(self) -> None:
        self.batches: list[tuple[Any, list[Any]]] = []
        self.began, self.gate, self.left = threading.Event(), threading.Event(), threading.Event()
        self.gate.set()

    def __call__(self, kind: Any, texts: list[str]) -> Iterator[tuple[int, Any]]:
        """Every text in capitals; "bad" cannot be used, "endless" has no end."""
        self.batches.append((kind, texts))
        self.began.set()
        assert self.gate.wait(20)
        if "bad" in texts:
            raise ValueError("bad cannot be used")
        for i, text in enumerate(texts):
            yield i, text.upper()
            if text.startswith("paused"):
                for _ in range(5):
                    time.sleep(0.05)
                    yield i, text
            try:
                while text == "endless":
                    yield i, text
            except GeneratorExit:
                self.left.set()
                raise


@contextmanager
def running(work: Upper, **config: Any) -> Iterator[Engine]:
    """An engine at work, which stops at the end."""
    engine = Engine("test", work, ServeConfig(**config))
    engine.start()
    try:
        yield engine
    finally:
        work.gate.set()
        engine.stop()
        engine.join(20)
        assert not engine.is_alive()


async def _outputs_of(engine: Engine, texts: Sequence[str], **how: Any) -> list[Any]:
    """What every input of a request gets: its pieces."""
    return await engine.outputs(Request(texts, **how))


def test_inputs_of_one_kind_are_batched():
    async def run(engine: Engine) -> list[Any]:
        first = asyncio.create_task(_outputs_of(engine, "x"))
        await asyncio.to_thread(work.began.wait, 20)
        kinds = zip("abcdefg", (1, 2, 1, 1, 2, 1, 1), strict=True)
        others = [asyncio.create_task(_outputs_of(engine, text, kind=kind)) for text, kind in kinds]
        await asyncio.sleep(0)
        work.gate.set()
        return await asyncio.gather(first, *others)

    work = Upper()
    work.gate.clear()
    with running(work, batch=3, wait_ms=0.0) as engine:
        assert asyncio.run(run(engine)) == [[[each]] for each in "XABCDEFG"]
    assert work.batches == [(None, ["x"]), (1, ["a", "c", "d"]), (2, ["b", "e"]), (1, ["f", "g"])]


def test_requests_join_a_waiting_batch(monkeypatch):
    async def run(engine: Engine) -> None:
        first = asyncio.create_task(_outputs_of(engine, "a"))
        assert await asyncio.to_thread(waits.wait, 20)
        await _outputs_of(engine, "b")
        await first

    work, waits = Upper(), threading.Event()
    with running(work, batch=2, wait_ms=1000.0) as engine:
        wait_for_more = engine._wait_for_more
        monkeypatch.setattr(engine, "_wait_for_more", lambda: waits.set() or wait_for_more())
        asyncio.run(run(engine))
    assert work.batches == [(None, ["a", "b"])]


def test_invalid_input_fails_alone():
    async def run(engine: Engine) -> list[Any]:
        first = asyncio.create_task(_outputs_of(engine, "x"))
        await asyncio.to_thread(work.began.wait, 20)
        others = [asyncio.create_task(_outputs_of(engine, [text])) for text in ("a", "bad", "b")]
        await asyncio.sleep(0)
        work.gate.set()
        return await asyncio.gather(first, *others, return_exceptions=True)

    work = Upper()
    work.gate.clear()
    with running(work) as engine:
        got = asyncio.run(run(engine))
    assert work.batches[1] == (None, ["a", "bad", "b"])
    assert got[1::2] == [[["A"]], [["B"]]]
    assert isinstance(got[2], ValueError) and str(got[2]) == "bad cannot be used"


def test_full_queue_refuses_requests_and_keeps_the_others():
    async def run(engine: Engine) -> None:
        working = asyncio.create_task(_outputs_of(engine, ["a", "b"]))
        await asyncio.to_thread(work.began.wait, 20)
        waiting = asyncio.create_task(_outputs_of(engine, ["c", "d", "e"]))
        await asyncio.sleep(0)
        with pytest.raises(Busy, match="too many requests wait for this model; try again in a second"):
            engine.submit(Request("fg"))
        last = asyncio.create_task(_outputs_of(engine, ["h"]))
        await asyncio.sleep(0)
        work.gate.set()
        assert [*await working, *await waiting, *await last] == [[each] for each in "ABCDEH"]

    work = Upper()
    work.gate.clear()
    with running(work, batch=2, queue=2) as engine:
        asyncio.run(run(engine))


def test_cancelled_requests_free_the_queue_at_once():
    async def run(engine: Engine) -> None:
        working = asyncio.create_task(_outputs_of(engine, ["a"]))
        await asyncio.to_thread(work.began.wait, 20)
        leaving = asyncio.create_task(_outputs_of(engine, ["b", "c"]))
        await asyncio.sleep(0)
        assert engine.is_full()
        leaving.cancel()
        await asyncio.sleep(2 * COUNTED_FOR)
        assert engine.waiting == 0 and not engine.is_full()
        last = asyncio.create_task(_outputs_of(engine, ["d"]))
        await asyncio.sleep(0)
        work.gate.set()
        assert [*await working, *await last] == [["A"], ["D"]]

    work = Upper()
    work.gate.clear()
    with running(work, batch=1, queue=2) as engine:
        asyncio.run(run(engine))
    assert [texts for _, texts in work.batches] == [["a"], ["d"]]


def test_request_larger_than_an_empty_queue_is_accepted():
    with running(Upper(), batch=1, queue=1) as engine:
        assert asyncio.run(_outputs_of(engine, ["a", "b", "c"])) == [["A"], ["B"], ["C"]]


def test_empty_request_does_not_affect_others():
    async def run(engine: Engine) -> list[Any]:
        engine.submit(Request([]))
        assert await _outputs_of(engine, []) == []
        return await _outputs_of(engine, ["a"])

    with running(Upper()) as engine:
        assert asyncio.run(run(engine)) == [["A"]]


def test_expired_requests_are_dropped_before_work_begins():
    async def run(engine: Engine) -> list[Any]:
        working = asyncio.create_task(_outputs_of(engine, ["a"]))
        await asyncio.to_thread(work.began.wait, 20)
        got = await asyncio.gather(_outputs_of(engine, ["b"]), working, return_exceptions=True)
        work.gate.set()
        engine.config = ServeConfig()
        return [*got, *await _outputs_of(engine, ["c"])]

    work = Upper()
    work.gate.clear()
    with running(work, deadline=0.1) as engine:
        b, a, c = asyncio.run(run(engine))
    assert isinstance(a, Late) and isinstance(b, Late) and c == ["C"]
    assert [texts for _, texts in work.batches] == [["a"], ["c"]]


def test_streams_do_not_block_batches_and_end_when_closed():
    async def run(engine: Engine) -> None:
        pieces = engine.submit(Request(["endless"], stream=True))
        assert await anext(pieces) == (0, "ENDLESS")
        assert await _outputs_of(engine, ["a"]) == [["A"]]
        assert await anext(pieces) == (0, "endless")
        assert not work.left.is_set()
        await pieces.aclose()
        assert await asyncio.to_thread(work.left.wait, 20)

    work = Upper()
    with running(work) as engine:
        asyncio.run(run(engine))


def test_started_streams_continue_beyond_the_deadline():
    """It takes 0.25 s, with a piece every 0.05 s; and its second input waits longer than the deadline, but the stream goes on."""

    async def run(engine: Engine) -> list[Any]:
        return await _outputs_of(engine, ["paused", "paused too"], stream=True)

    with running(Upper(), deadline=0.15) as engine:
        first, second = asyncio.run(run(engine))
    assert first == ["PAUSED", *["paused"] * 5] and second == ["PAUSED TOO", *["paused too"] * 5]


def test_finished_outputs_can_be_read_after_the_deadline():
    async def run(engine: Engine) -> list[Any]:
        pieces = engine.submit(Request("a"))
        await asyncio.sleep(0.3)
        return [piece async for piece in pieces]

    with running(Upper(), deadline=0.1) as engine:
        assert asyncio.run(run(engine)) == [(0, "A")]


def test_stalled_streams_time_out():
    async def run(engine: Engine) -> None:
        pieces = engine.submit(Request(["endless"], stream=True))
        await anext(pieces)
        work.gate.clear()
        engine.submit(Request("a"))  # the thread waits with it at the gate
        with pytest.raises(Late):
            _ = [piece async for piece in pieces]

    work = Upper()
    with running(work, deadline=0.2) as engine:
        asyncio.run(run(engine))


def test_large_requests_do_not_block_small_ones():
    """Twenty inputs wait in a queue of four batches: a small request is let in, and done with the next batch."""

    async def run(engine: Engine) -> None:
        large = asyncio.create_task(_outputs_of(engine, [f"large {i}" for i in range(20)]))
        assert await asyncio.to_thread(work.began.wait, 20)
        small = asyncio.create_task(_outputs_of(engine, ["small"]))
        await asyncio.sleep(0)
        work.gate.set()
        assert await small == [["SMALL"]] and len(await large) == 20

    work = Upper()
    work.gate.clear()
    with running(work, batch=2, queue=4, wait_ms=0.0) as engine:
        asyncio.run(run(engine))
    assert ["small" in texts for _, texts in work.batches][:3].count(True) == 1


def test_one_request_runs_one_stream_at_a_time():
    """Each takes six turns; were all of the large one worked on, the small one would wait for a free place."""

    async def run(engine: Engine) -> None:
        large = asyncio.create_task(_outputs_of(engine, ["endless"] * 10, stream=True))
        assert await asyncio.to_thread(work.began.wait, 20)
        assert await _outputs_of(engine, ["small"], stream=True) == [["SMALL"]]
        large.cancel()
        with suppress(asyncio.CancelledError):
            await large

    work = Upper()
    with running(work) as engine:
        asyncio.run(run(engine))
    assert [texts for _, texts in work.batches][:2] == [["endless"], ["small"]]


def test_waiting_requests_are_finished_on_stop():
    async def run(engine: Engine) -> list[Any]:
        asked = asyncio.create_task(_outputs_of(engine, ["a", "b", "c"]))
        await asyncio.to_thread(work.began.wait, 20)
        engine.stop()
        work.gate.set()
        return await asked

    work = Upper()
    work.gate.clear()
    with running(work, batch=1) as engine:
        assert asyncio.run(run(engine)) == [["A"], ["B"], ["C"]]
