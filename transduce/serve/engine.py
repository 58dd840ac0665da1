"""The thread of a model, which computes queued requests in batches, and streams beside them."""

import asyncio
import logging
import math
import threading
from bisect import insort
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Generator, Hashable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from operator import attrgetter
from statistics import StatisticsError, fmean, linear_regression
from time import monotonic
from typing import Any, NamedTuple

import anyio
from starlette.exceptions import HTTPException

from transduce.errors import InputError
from transduce.serve.config import ServeConfig

logger = logging.getLogger("transduce")

END = object()
"""Follows the last piece of an output."""

MAX_STREAMS = 4
"""Streams that take turns with the batch, a piece each."""

QUEUE_SHARE = 0.75
"""Share of the queue that one client's inputs count as at most."""

ADMIT_UNTIL = 0.7
"""Share of the deadline by which an admitted request should be done, at the recent pace."""

Work = Callable[[Any, list[Any]], Generator[tuple[int, Any], None, None]]
"""Computes payloads of one kind: yields the number of a payload with a piece of its output,
of which END or an exception is the last."""


class Busy(HTTPException):
    """The queue is full."""

    def __init__(self, retry_after: int) -> None:
        message = f"too many requests wait for this model; try again in {retry_after} s"
        super().__init__(429, message, {"Retry-After": str(retry_after)})


class Late(HTTPException):
    """The first piece, or the next one, did not come before the deadline."""

    def __init__(self) -> None:
        message = "there was no answer before the deadline, so the request was dropped; try again"
        super().__init__(503, message, {"Retry-After": "1"})


@dataclass(eq=False)
class Request:
    """A client's request: inputs of one kind, which is computed together, and their outputs."""

    inputs: Sequence[Any]
    kind: Hashable = None
    costs: Sequence[int] = ()
    """The part of a batch that each input takes, in texts; 1 if empty."""
    stream: bool = False
    """Compute each input beside the batches: it takes long, or its pieces are sent one by one."""
    cancelled: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.costs = self.costs or [1] * len(self.inputs)
        self.arrived = monotonic()
        self.extend(math.inf)
        self._loop = asyncio.get_running_loop()
        self._pieces = asyncio.Queue[tuple[int, Any]]()

    def extend(self, seconds: float) -> None:
        """Let the next piece be due in so many seconds, and each later one in as many after it."""
        self.seconds = seconds
        self.deadline = monotonic() + seconds

    def put(self, i: int, piece: Any) -> None:
        """Send a piece of an output, END or an exception from the thread of the model."""
        self.extend(self.seconds)
        with suppress(RuntimeError):  # the loop is closed: nobody reads
            self._loop.call_soon_threadsafe(self._pieces.put_nowait, (i, piece))

    @property
    def expired(self) -> bool:
        """Whether nobody waits for the outputs any more."""
        return self.cancelled or monotonic() > self.deadline

    async def pieces(self) -> AsyncIterator[tuple[int, Any]]:
        """Yield the number of an input and a piece of its output, as they come; those of streams in
        the order of the inputs. To close the iterator cancels the request.

        Raises:
            Late: the deadline passed.
            InputError: an input cannot be used.
        """
        n_open = len(self.inputs)
        try:
            while n_open:
                i, piece = await self._next()
                if isinstance(piece, Exception):
                    raise piece
                if piece is END:
                    n_open -= 1
                else:
                    yield i, piece
        finally:
            self.cancelled = True

    async def _next(self) -> tuple[int, Any]:
        while self._pieces.empty():
            if (left := self.deadline - monotonic()) <= 0:
                raise Late
            with anyio.move_on_after(left):
                return await self._pieces.get()
        return self._pieces.get_nowait()


class Pace:
    """Seconds that batches take by their size: a line fitted to the last 16."""

    def __init__(self) -> None:
        self._batches = deque[tuple[int, float]](maxlen=16)

    def add(self, n: int, seconds: float) -> None:
        """Learn from a batch of n texts."""
        self._batches.append((n, seconds))

    def seconds(self, batches: int, n: int) -> float:
        """Estimate the seconds of so many batches with n texts in all; 0 before the first batch.

        While all batches had one size, larger ones are taken to be as fast: only a full queue
        proves otherwise.
        """
        if not self._batches:
            return 0.0
        sizes, seconds = zip(*self._batches, strict=True)
        size = fmean(sizes)
        time = fmean(seconds)
        try:
            slope = min(max(0.0, linear_regression(sizes, seconds).slope), time / size)
        except StatisticsError:  # batches of one size
            slope = 0.0
        return batches * (time - slope * size) + n * slope


class _Input(NamedTuple):
    """An input of a request in the queue."""

    request: Request
    i: int
    cost: int
    turn: float


class Engine(threading.Thread):
    """The thread of one model, and its queue."""

    def __init__(self, name: str, work: Work, config: ServeConfig) -> None:
        super().__init__(name=f"transduce {name}", daemon=True)
        self.work = work
        self.config = config
        self.on_batch: Callable[[int], object] = lambda n: None
        """Called with the number of inputs of every batch."""
        self._queue: list[_Input] = []
        """Inputs that wait, in the order of their turns."""
        self._turns = {False: 0.0, True: 0.0}
        """The turns that batches and streams have come to, by `stream`."""
        self._jobs: dict[Generator[None, None, None], Request] = {}
        """Batches and streams that are being computed, each with the request of its first input."""
        self._changed = threading.Condition()
        self._stopping = False
        self._pace = Pace()

    @property
    def waiting(self) -> int:
        """The cost of the inputs that wait, in texts."""
        return sum(self._costs().values())

    def _costs(self) -> Counter[Request]:
        """The cost of the inputs that wait, by request."""
        costs = Counter[Request]()
        for each in self._queue:
            if not each.request.expired:
                costs[each.request] += each.cost
        return costs

    def check_room(self, cost: int = 1) -> None:
        """Raise Busy unless so much more fits into the queue and can be done by the deadline.

        An empty queue takes everything. Clients take turns, so a large request neither fills the
        queue for others nor is done before them.
        """
        if not (costs := self._costs()):
            return
        config = self.config
        capacity = config.queue * config.batch
        taken = sum(min(each, QUEUE_SHARE * capacity) for each in costs.values())
        before = sum(min(each, cost) for each in costs.values())
        batches = math.ceil((before + cost) / config.batch)
        done = self._pace.seconds(
            1 + batches, config.batch + before + cost
        )  # with the batch that is being computed
        if taken + cost > capacity or done > ADMIT_UNTIL * config.deadline:
            seconds = self._pace.seconds(math.ceil(before / config.batch), before)
            raise Busy(max(1, math.ceil(min(seconds, config.deadline))))

    def submit(self, request: Request) -> AsyncIterator[tuple[int, Any]]:
        """Queue the inputs of a request, all or none, and return its `pieces`.

        Raises:
            Busy: the queue is full.
        """
        with self._changed:
            self.check_room(sum(request.costs))
            request.extend(self.config.deadline)
            turn = self._turns[request.stream]  # start-time fair queueing (Goyal et al. 1996)
            for i, cost in enumerate(request.costs):
                insort(self._queue, _Input(request, i, cost, turn), key=attrgetter("turn"))
                turn += cost
            self._changed.notify()
        return request.pieces()

    async def outputs(self, request: Request) -> list[list[Any]]:
        """All pieces of every input."""
        outputs: list[list[Any]] = [[] for _ in request.inputs]
        async for i, piece in self.submit(request):
            outputs[i].append(piece)
        return outputs

    def stop(self) -> None:
        """Compute the inputs that wait, and end."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def run(self) -> None:
        """Compute until `stop`."""
        while self._admit():
            for job in [*self._jobs]:
                if next(job, END) is END:
                    del self._jobs[job]

    def _compute(self, inputs: list[_Input]) -> Generator[None, None, None]:
        """Hand over one piece a step; if one of several inputs fails, compute each by itself."""
        began = monotonic()
        first = inputs[0].request
        pending = dict(enumerate(inputs))
        try:
            with closing(
                self.work(first.kind, [each.request.inputs[each.i] for each in inputs])
            ) as pieces:
                for k, piece in pieces:
                    inputs[k].request.put(inputs[k].i, piece)
                    if piece is END or isinstance(piece, Exception):
                        del pending[k]
                    yield
                    if all(each.request.expired for each in pending.values()):
                        break
        except Exception as error:
            if len(inputs) > 1:
                for each in pending.values():
                    if not each.request.expired:
                        yield from self._compute([each])
                return
            if not isinstance(error, InputError):
                logger.exception("a request failed")
            first.put(inputs[0].i, error)
        if not first.stream:
            self._pace.add(sum(each.cost for each in inputs), monotonic() - began)

    def _admit(self) -> bool:
        """Wait for inputs, and begin those that fit beside the running jobs; False at the end."""
        with self._changed:
            while not (self._jobs or self._queue):
                if self._stopping:
                    return False
                self._changed.wait()
            if not self._jobs:
                self._wait_for_more()
            groups = self._take()
        for inputs in filter(None, groups):
            self.on_batch(len(inputs))
            self._jobs[self._compute(inputs)] = inputs[0].request
        return True

    def _wait_for_more(self) -> None:
        """Let a batch that is not full wait a few milliseconds for others."""
        moments = [each.request.arrived for each in self._queue if not each.request.stream]
        until = min(moments, default=0.0) + self.config.wait_ms / 1000
        while (
            (left := until - monotonic()) > 0
            and not self._stopping
            and self.waiting < self.config.batch
        ):
            self._changed.wait(left)

    def _take(self) -> list[list[_Input]]:
        """Take the inputs whose turn it is: a batch of one kind, and a stream of each request.

        Expired inputs are dropped.
        """
        streams = {request for request in self._jobs.values() if request.stream}
        batch_runs = len(streams) < len(self._jobs)
        batch = list[_Input]()
        others = list[_Input]()
        groups = [batch]
        cost = 0
        for each in self._queue:
            request = each.request
            fits = cost < self.config.batch and (not batch or request.kind == batch[0].request.kind)
            if request.expired:
                continue
            if request.stream and request not in streams and len(streams) < MAX_STREAMS:
                streams.add(request)
                groups.append([each])
            elif fits and not (request.stream or batch_runs):
                batch.append(each)
                cost += each.cost
            else:
                others.append(each)
                continue
            self._turns[request.stream] = each.turn
        self._queue = others
        return groups
