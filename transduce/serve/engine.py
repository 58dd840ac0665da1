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
from typing import Any

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


class Deadline:
    """The moment by which a client's inputs must get their next piece; each piece renews it."""

    def __init__(self, seconds: float = math.inf) -> None:
        self.seconds = seconds
        self.arrived = monotonic()
        self.renew()

    def renew(self) -> None:
        """Begin anew."""
        self.moment = monotonic() + self.seconds

    @property
    def left(self) -> float:
        """Seconds to the deadline."""
        return self.moment - monotonic()


@dataclass(eq=False)
class Request:
    """An input that waits for its output. Those of one kind are computed together."""

    payload: Any
    kind: Hashable = None
    cost: int = field(default=1, kw_only=True)
    """Its part of a batch, in texts."""
    stream: bool = field(default=False, kw_only=True)
    """Compute it beside the batches, as it takes long, or its pieces are sent as they come."""
    deadline: Deadline = field(default_factory=Deadline, init=False)
    """Shared by all inputs of a client's request."""
    turn: float = field(default=0.0, init=False)
    """Its place in the queue."""
    cancelled: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._pieces = asyncio.Queue[Any]()

    def put(self, piece: Any) -> None:
        """Send a piece of the output, END or an exception from the thread of the model."""
        self.deadline.renew()
        with suppress(RuntimeError):  # the loop is closed: nobody reads
            self._loop.call_soon_threadsafe(self._pieces.put_nowait, piece)

    @property
    def expired(self) -> bool:
        """Whether nobody waits for the output any more."""
        return self.cancelled or self.deadline.left < 0

    async def next_piece(self) -> Any:
        """Wait for the next piece, END or exception.

        Raises:
            Late: it does not come before the deadline.
        """
        while self._pieces.empty():
            if (left := self.deadline.left) <= 0:
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
        size, time = fmean(sizes), fmean(seconds)
        try:
            slope = min(max(0.0, linear_regression(sizes, seconds).slope), time / size)
        except StatisticsError:  # batches of one size
            slope = 0.0
        return batches * (time - slope * size) + n * slope


class Engine(threading.Thread):
    """The thread of one model, and its queue."""

    def __init__(self, name: str, work: Work, config: ServeConfig) -> None:
        super().__init__(name=f"transduce {name}", daemon=True)
        self.work = work
        self.config = config
        self.on_batch: Callable[[int], object] = lambda n: None
        """Called with the number of inputs of every batch."""
        self._queue: list[Request] = []
        """Inputs that wait, in the order of their turns."""
        self._turns = {False: 0.0, True: 0.0}
        """The turns that batches and streams have come to, by `stream`."""
        self._jobs: dict[Generator[None, None, None], Request] = {}
        """Batches and streams that are being computed, each with its first input."""
        self._changed = threading.Condition()
        self._stopping = False
        self._pace = Pace()

    @property
    def waiting(self) -> int:
        """The cost of the inputs that wait, in texts."""
        return sum(self._costs().values())

    def _costs(self) -> Counter[Deadline]:
        """The cost of the inputs that wait, by client's request."""
        costs = Counter[Deadline]()
        for request in self._queue:
            if not request.expired:
                costs[request.deadline] += request.cost
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
        done = self._pace.seconds(1 + batches, config.batch + before + cost)  # with the batch that is being computed
        if taken + cost > capacity or done > ADMIT_UNTIL * config.deadline:
            seconds = self._pace.seconds(math.ceil(before / config.batch), before)
            raise Busy(max(1, math.ceil(min(seconds, config.deadline))))

    def submit(self, requests: Sequence[Request]) -> AsyncIterator[tuple[int, Any]]:
        """Queue the inputs of one client's request, all or none.

        Returns:
            The number of each input with a piece of its output, one input after the other, as they
            come; to close the iterator cancels the request.

        Raises:
            Busy: the queue is full.
            Late: the deadline passed, in the iterator.
            InputError: an input cannot be used, in the iterator.
        """
        deadline = Deadline(self.config.deadline)
        with self._changed:
            self.check_room(sum(request.cost for request in requests))
            turns = dict(self._turns)  # start-time fair queueing (Goyal et al. 1996)
            for request in requests:
                request.deadline = deadline
                request.turn = turns[request.stream]
                turns[request.stream] += request.cost
                insort(self._queue, request, key=attrgetter("turn"))
            self._changed.notify()
        return self._outputs(requests)

    async def _outputs(self, requests: Sequence[Request]) -> AsyncIterator[tuple[int, Any]]:
        try:
            for i, request in enumerate(requests):
                while (piece := await request.next_piece()) is not END:
                    if isinstance(piece, Exception):
                        raise piece
                    yield i, piece
        finally:
            for request in requests:
                request.cancelled = True

    async def outputs(self, requests: Sequence[Request]) -> list[list[Any]]:
        """All pieces of every input."""
        outputs: list[list[Any]] = [[] for _ in requests]
        async for i, piece in self.submit(requests):
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

    def _compute(self, requests: list[Request]) -> Generator[None, None, None]:
        """Hand over one piece a step; if one of several inputs fails, compute each by itself."""
        began = monotonic()
        pending = dict(enumerate(requests))
        try:
            with closing(self.work(requests[0].kind, [request.payload for request in requests])) as pieces:
                for i, piece in pieces:
                    requests[i].put(piece)
                    if piece is END or isinstance(piece, Exception):
                        del pending[i]
                    yield
                    if all(request.expired for request in pending.values()):
                        break
        except Exception as error:
            if len(requests) > 1:
                for request in pending.values():
                    if not request.expired:
                        yield from self._compute([request])
                return
            if not isinstance(error, InputError):
                logger.exception("a request failed")
            requests[0].put(error)
        if not requests[0].stream:
            self._pace.add(sum(request.cost for request in requests), monotonic() - began)

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
        for requests in filter(None, groups):
            self.on_batch(len(requests))
            self._jobs[self._compute(requests)] = requests[0]
        return True

    def _wait_for_more(self) -> None:
        """Let a batch that is not full wait a few milliseconds for others."""
        moments = [request.deadline.arrived for request in self._queue if not request.stream]
        until = min(moments, default=0.0) + self.config.wait_ms / 1000
        while (left := until - monotonic()) > 0 and not self._stopping and self.waiting < self.config.batch:
            self._changed.wait(left)

    def _take(self) -> list[list[Request]]:
        """Take the inputs whose turn it is: a batch of one kind, and a stream of each client.

        Expired inputs are dropped.
        """
        clients = {first.deadline for first in self._jobs.values() if first.stream}
        batch_runs = len(clients) < len(self._jobs)
        batch, others = list[Request](), list[Request]()
        groups = [batch]
        for request in self._queue:
            is_full = batch and (request.kind != batch[0].kind or sum(each.cost for each in batch) >= self.config.batch)
            if request.expired:
                continue
            if request.stream and request.deadline not in clients and len(clients) < MAX_STREAMS:
                clients.add(request.deadline)
                groups.append([request])
            elif not (request.stream or batch_runs or is_full):
                batch.append(request)
            else:
                others.append(request)
                continue
            self._turns[request.stream] = request.turn
        self._queue = others
        return groups
