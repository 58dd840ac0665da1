"""One thread owns a model, and works on what has arrived in batches; streams go on beside them, a piece at a time."""

import asyncio
import logging
import math
import threading
from bisect import insort
from collections import Counter
from collections.abc import AsyncIterator, Callable, Generator, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from time import monotonic
from typing import Any

from transduce.errors import InputError
from transduce.serve.config import ServeConfig

logger = logging.getLogger("transduce")

END = object()
"""What follows the last piece of an output."""

STREAMS = 4
"""Inputs that a model works on alone, each of another request and a piece at a time, in turn with the batch."""

SHARE = 0.75
"""Share of the queue that one request takes at most in the eyes of the others."""

SURE = 0.7
"""Share of the deadline by which what is let in should be done, at the pace of the last batches."""

Work = Callable[[Any, list[Any]], Generator[tuple[int, Any], None, None]]
"""From the kind of some inputs, and the inputs, to pieces of output, each with the number of its input; END, or an
exception, is the last."""


class Busy(Exception):
    """The queue is full."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"too many requests wait for this model; try again in {retry_after} s")
        self.retry_after = retry_after
        """Seconds."""


class Late(Exception):
    """There was no answer before the deadline, or it did not go on."""


@dataclass(eq=False)
class Limit:
    """Until when the inputs of one request must have their next piece: every piece of any of them moves it."""

    seconds: float = math.inf
    expires: float = math.inf

    def renew(self) -> None:
        """Wait anew."""
        self.expires = monotonic() + self.seconds


class Ask:
    """One input, which waits for its output.

    Inputs of the same kind are worked on together; one that is `alone` is not, as it takes long, or somebody waits for its
    pieces.
    """

    def __init__(self, payload: Any, kind: Hashable = None, *, cost: int = 1, alone: bool = False) -> None:
        self.payload, self.kind, self.cost, self.alone = payload, kind, cost, alone
        self.arrived, self.limit, self.gone = monotonic(), Limit(), False
        self.turn = 0.0
        """Where it stands in the queue."""
        self._loop, self._pieces = asyncio.get_running_loop(), asyncio.Queue[Any]()

    def put(self, piece: Any) -> None:
        """Hand over a piece of the output, its END or an exception, from the model's thread."""
        self.limit.renew()
        with suppress(RuntimeError):  # nobody listens any more: the loop is closed
            self._loop.call_soon_threadsafe(self._pieces.put_nowait, piece)

    @property
    def useless(self) -> bool:
        """Whether nobody waits for the output any more."""
        return self.gone or monotonic() > self.limit.expires

    async def pieces(self) -> AsyncIterator[Any]:
        """The pieces of the output as they come. Whoever stops asking stops the work.

        Raises:
            Late: the deadline has passed before the first piece of the request, or once more after the last one.
            InputError: the input is at fault.
        """
        try:
            while True:
                piece = await self._next()
                if isinstance(piece, Exception):
                    raise piece
                if piece is END:
                    return
                yield piece
        finally:
            self.gone = True

    async def _next(self) -> Any:
        while self._pieces.empty():
            if (left := self.limit.expires - monotonic()) <= 0:
                raise Late
            with suppress(asyncio.TimeoutError, TimeoutError):
                return await asyncio.wait_for(self._pieces.get(), left)
        return self._pieces.get_nowait()


class _Job:
    """Inputs that are worked on together."""

    def __init__(self, asks: Sequence[Ask], work: Work) -> None:
        self.asks, self.began = list(asks), monotonic()
        self.alone = self.asks[0].alone
        self._open = set(range(len(self.asks)))
        self._results = work(self.asks[0].kind, [ask.payload for ask in self.asks])

    def step(self) -> list[Ask] | None:
        """Hand over one piece; at the end, the inputs that must be tried again one by one, for one of them is at fault."""
        if all(self.asks[i].useless for i in self._open):
            return []
        try:
            i, piece = next(self._results)
        except StopIteration:
            return []
        except Exception as error:
            asks = [self.asks[i] for i in sorted(self._open)]
            if len(self.asks) > 1:
                return asks
            if not isinstance(error, InputError):
                logger.exception("a request failed")
            asks[0].put(error)
            return []
        self.asks[i].put(piece)
        if piece is END or isinstance(piece, Exception):
            self._open.discard(i)
        return None

    def close(self) -> None:
        """Let go of what it was worked on with."""
        self._results.close()


class Pace:
    """How long batches take by their size: a line through the last ones, of which older ones count less and less."""

    def __init__(self) -> None:
        self._sums = [0.0] * 5

    def add(self, n: int, seconds: float) -> None:
        """Learn from a batch of n texts."""
        new = (1.0, n, seconds, n * n, n * seconds)
        self._sums = [0.8 * old + more for old, more in zip(self._sums, new, strict=True)]

    def seconds(self, batches: int, n: int) -> float:
        """Of so many batches with n texts in all; 0 where no batch is known yet.

        As long as all known batches have one size, larger ones are taken to be as fast: only a full queue proves otherwise.
        """
        weight, *sums = self._sums
        if not weight:
            return 0.0
        size, time, squares, products = (each / weight for each in sums)
        spread = squares - size * size
        slope = (products - size * time) / spread if spread > 1e-6 * squares else 0.0
        slope = min(max(0.0, slope), time / size)
        return batches * (time - slope * size) + n * slope


class Engine(threading.Thread):
    """The thread of one model, and what waits for it."""

    def __init__(self, name: str, work: Work, config: ServeConfig) -> None:
        super().__init__(name=f"transduce {name}", daemon=True)
        self.work, self.config = work, config
        self.on_batch: Callable[[int], object] = lambda n: None
        """Called with the number of inputs of every batch."""
        self._waiting: dict[bool, list[Ask]] = {False: [], True: []}
        """Batches, and what is worked on alone: each by turns."""
        self._turns = {False: 0.0, True: 0.0}
        """How far each queue has come."""
        self._jobs: list[_Job] = []
        self._changed = threading.Condition()
        self._stopping = False
        self._pace = Pace()

    @property
    def waiting(self) -> int:
        """The cost of what waits, in texts."""
        return sum(self._costs().values())

    def _costs(self) -> Counter[Limit]:
        """The cost of what waits, by request."""
        costs = Counter[Limit]()
        for ask in [*self._waiting[False], *self._waiting[True]]:
            if not ask.useless:
                costs[ask.limit] += ask.cost
        return costs

    def check_room(self, cost: int = 1) -> None:
        """Raise Busy if so much more cannot wait, or not be done by the deadline; where nothing waits, anything can.

        Requests take turns, so a large one neither fills the queue for others nor is done before them.
        """
        if not (costs := self._costs()):
            return
        config, room = self.config, self.config.queue * self.config.batch
        taken = sum(min(each, SHARE * room) for each in costs.values())
        before = sum(min(each, cost) for each in costs.values())
        batches = math.ceil((before + cost) / config.batch)
        done = self._pace.seconds(1 + batches, config.batch + before + cost)  # with the batch that is worked on
        if taken + cost > room or done > SURE * config.deadline:
            seconds = self._pace.seconds(math.ceil(before / config.batch), before)
            raise Busy(max(1, math.ceil(min(seconds, config.deadline))))

    def submit(self, asks: Sequence[Ask]) -> None:
        """Queue the inputs of one request, all or none.

        Raises:
            Busy: the queue is full.
        """
        limit = Limit(self.config.deadline)
        limit.renew()
        with self._changed:
            self.check_room(sum(ask.cost for ask in asks))
            turns = dict(self._turns)  # start-time fair queueing (Goyal et al. 1996)
            for ask in asks:
                ask.limit, ask.turn = limit, turns[ask.alone]
                turns[ask.alone] += ask.cost
                insort(self._waiting[ask.alone], ask, key=attrgetter("turn"))
            self._changed.notify()

    def stop(self) -> None:
        """Do what waits, and end."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def run(self) -> None:
        """Work until `stop`."""
        while self._admit():
            for job in [*self._jobs]:
                again = job.step()
                if again is not None:
                    self._jobs.remove(job)
                    job.close()
                    self._jobs += [_Job([ask], self.work) for ask in again]
                    if not (job.alone or again):
                        self._pace.add(sum(ask.cost for ask in job.asks), monotonic() - job.began)

    def _admit(self) -> bool:
        """Begin with what waits and has room, as soon as there is something to do; False at the end."""
        with self._changed:
            while not (self._jobs or any(self._waiting.values())):
                if self._stopping:
                    return False
                self._changed.wait()
            if not self._jobs and self._waiting[False]:
                self._wait_for_more()
            batch = self._batch() if all(job.alone for job in self._jobs) else []
            streams = self._streams()
        for asks in (batch, *([ask] for ask in streams)):
            if asks := [ask for ask in asks if not ask.useless]:
                self.on_batch(len(asks))
                self._jobs.append(_Job(asks, self.work))
        return True

    def _wait_for_more(self) -> None:
        """Let a batch that is not full wait a few milliseconds for others."""
        until = self._waiting[False][0].arrived + self.config.wait_ms / 1000
        while (left := until - monotonic()) > 0 and not self._stopping and self.waiting < self.config.batch:
            self._changed.wait(left)

    def _batch(self) -> list[Ask]:
        """The inputs that have waited longest and are of one kind, as many as a batch has."""
        batch, others, cost = list[Ask](), list[Ask](), 0
        for ask in self._waiting[False]:
            if cost >= self.config.batch or (batch and ask.kind != batch[0].kind):
                others.append(ask)
            elif not ask.useless:
                batch.append(ask)
                cost += ask.cost
        return self._take(False, batch, others)

    def _streams(self) -> list[Ask]:
        """The inputs to be worked on alone that have waited longest, one of each request."""
        running = {ask.limit for job in self._jobs if job.alone for ask in job.asks}
        streams, others = list[Ask](), list[Ask]()
        for ask in self._waiting[True]:
            if len(running) >= STREAMS or ask.limit in running:
                others.append(ask)
            elif not ask.useless:
                streams.append(ask)
                running.add(ask.limit)
        return self._take(True, streams, others)

    def _take(self, alone: bool, asks: list[Ask], others: list[Ask]) -> list[Ask]:
        """These out of a queue, which the others stay in."""
        self._turns[alone] = asks[-1].turn if asks else self._turns[alone]
        self._waiting[alone] = others
        return asks
