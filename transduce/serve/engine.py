"""One thread owns a model, and works on what has arrived in batches; streams go on beside them, a piece at a time."""

import asyncio
import logging
import math
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Hashable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

from transduce.errors import InputError
from transduce.serve.config import ServeConfig

logger = logging.getLogger("transduce")

END = object()
"""What follows the last piece of an output."""

STREAMS = 4
"""Inputs that a model works on alone, each a piece at a time, in turn with the batch."""

COUNTED = 0.1
"""Seconds after which what waits is counted anew, as somebody may have left; in between, what comes and goes is added."""

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
    """There was no answer before the deadline."""


class Ask:
    """One input, which waits for its output.

    Inputs of the same kind are worked on together; one that is `alone` is not, as it takes long, or somebody waits for its
    pieces.
    """

    def __init__(self, payload: Any, kind: Hashable = None, *, cost: int = 1, alone: bool = False) -> None:
        self.payload, self.kind, self.cost, self.alone = payload, kind, cost, alone
        self.arrived, self.expires, self.gone = monotonic(), math.inf, False
        self._loop, self._pieces = asyncio.get_running_loop(), asyncio.Queue[Any]()

    def put(self, piece: Any) -> None:
        """Hand over a piece of the output, its END or an exception, from the model's thread."""
        with suppress(RuntimeError):  # nobody listens any more: the loop is closed
            self._loop.call_soon_threadsafe(self._pieces.put_nowait, piece)

    @property
    def useless(self) -> bool:
        """Whether nobody waits for the output any more."""
        return self.gone or monotonic() > self.expires

    async def pieces(self) -> AsyncIterator[Any]:
        """The pieces of the output as they come. Whoever stops asking stops the work.

        Raises:
            Late: the deadline has passed.
            InputError: the input is at fault.
        """
        try:
            while True:
                piece = await asyncio.wait_for(self._pieces.get(), self.expires - monotonic())
                if isinstance(piece, Exception):
                    raise piece
                if piece is END:
                    return
                yield piece
        except (asyncio.TimeoutError, TimeoutError) as error:
            raise Late from error
        finally:
            self.gone = True


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
        self._waiting: dict[bool, deque[Ask]] = {False: deque(), True: deque()}
        self._jobs: list[_Job] = []
        self._changed = threading.Condition()
        self._stopping = False
        self._pace = Pace()
        self._cost, self._counted = 0, -math.inf

    @property
    def waiting(self) -> int:
        """The cost of what waits, in texts."""
        if monotonic() - self._counted > COUNTED:
            self._cost = sum(ask.cost for queue in self._waiting.values() for ask in [*queue] if not ask.useless)
            self._counted = monotonic()
        return self._cost

    def check_room(self, cost: int = 1) -> None:
        """Raise Busy if so much more cannot wait, or not be done by the deadline; where nothing waits, anything can."""
        if not (waiting := self.waiting):
            return
        config = self.config
        batches = math.ceil((waiting + cost) / config.batch)
        done = self._pace.seconds(1 + batches, config.batch + waiting + cost)  # with the batch that is worked on
        if waiting + cost > config.queue * config.batch or done > SURE * config.deadline:
            seconds = self._pace.seconds(math.ceil(waiting / config.batch), waiting)
            raise Busy(max(1, math.ceil(min(seconds, config.deadline))))

    def submit(self, asks: Sequence[Ask]) -> None:
        """Queue the inputs of one request, all or none.

        Raises:
            Busy: the queue is full.
        """
        expires = monotonic() + self.config.deadline
        with self._changed:
            self.check_room(sum(ask.cost for ask in asks))
            for ask in asks:
                ask.expires = expires
                self._waiting[ask.alone].append(ask)
                self._cost += ask.cost
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
            room = max(0, STREAMS - sum(job.alone for job in self._jobs))
            streams = [self._waiting[True].popleft() for _ in range(min(room, len(self._waiting[True])))]
            if batch or streams:
                self._counted = -math.inf
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
        queue, batch, others, cost = self._waiting[False], list[Ask](), list[Ask](), 0
        while queue and cost < self.config.batch:
            ask = queue.popleft()
            if ask.useless:
                continue
            if batch and ask.kind != batch[0].kind:
                others.append(ask)
                continue
            batch.append(ask)
            cost += ask.cost
        queue.extendleft(reversed(others))
        return batch
