"""The thread of a model, which computes queued requests in batches, and streams in between."""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Hashable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from operator import attrgetter
from time import monotonic
from typing import Any

import anyio
from starlette.exceptions import HTTPException

from transduce.errors import InputError, logger
from transduce.serve import ServeConfig

END = object()
"""Sent to a client after the last piece of an output."""

MAX_STREAMS = 4
"""Maximum number of streams that alternate with the batch, one piece at a time."""

QUEUE_SHARE = 0.75
"""Largest share of the queue that one request's inputs count for."""

COUNTED_FOR = 0.1
"""Seconds until a full queue is counted again, as clients may have disconnected."""

Pieces = Generator[tuple[int, Any], None, None]
"""The index of an input with its output, or an exception; for a single input, with the pieces of
its output, one by one."""

Work = Callable[[Any, list[Any]], Pieces]
"""Computes inputs of one kind."""


class Busy(HTTPException):
    """The queue is full."""

    def __init__(self) -> None:
        message = "too many requests wait for this model; try again in a second"
        super().__init__(429, message, {"Retry-After": "1"})


class Late(HTTPException):
    """The first piece, or the next one, did not come before the deadline."""

    def __init__(self) -> None:
        message = "there was no answer before the deadline, so the request was dropped; try again"
        super().__init__(503, message, {"Retry-After": "1"})


@dataclass(eq=False)
class Request:
    """A client's request: its inputs, which can be batched with others of the same kind, and their
    outputs."""

    inputs: Sequence[Any]
    kind: Hashable = None
    costs: Sequence[int] = ()
    """The part of a batch that each input takes, in texts; 1 if empty."""
    stream: bool = False
    """Compute each input beside the batches: it takes long, or its pieces are sent one by one."""

    def __post_init__(self) -> None:
        self.costs = self.costs or [1] * len(self.inputs)
        self.n_taken = 0
        """The number of inputs that no longer wait."""
        self.cancelled = not self.inputs  # there is nothing to compute
        self.arrived = monotonic()
        self._loop = asyncio.get_running_loop()
        self._messages = asyncio.Queue[tuple[int, Sequence[Any]]]()

    @property
    def cost(self) -> int:
        """The cost of the inputs that wait."""
        return sum(self.costs[self.n_taken :])

    @property
    def waits(self) -> bool:
        """Whether it has inputs that wait."""
        return self.n_taken < len(self.inputs)

    def take(self) -> "Input":
        """Take the next input from those that wait."""
        self.n_taken += 1
        return self, self.n_taken - 1

    def extend(self, seconds: float) -> None:
        """Set the deadline of the next piece to this many seconds from now, and that of each later
        piece to as many after the one before."""
        self.seconds = seconds
        self.deadline = monotonic() + seconds

    def put(self, i: int, *pieces: Any) -> None:
        """Send pieces of an output, END or an exception from the thread of the model."""
        self.extend(self.seconds)
        with suppress(RuntimeError):  # the loop is closed, so there is no reader
            self._loop.call_soon_threadsafe(self._messages.put_nowait, (i, pieces))

    @property
    def expired(self) -> bool:
        """Whether the client no longer waits for the outputs."""
        return self.cancelled or monotonic() > self.deadline

    async def pieces(self) -> AsyncIterator[tuple[int, Any]]:
        """Yield the index of an input and a piece of its output, as they come; streams come in the
        order of the inputs. Closing the iterator cancels the request.

        Raises:
            Late: the deadline passed.
            InputError: an input cannot be used.
        """
        n_open = len(self.inputs)
        try:
            while n_open:
                with anyio.move_on_after(self.deadline - monotonic()) as wait:
                    i, pieces = await self._messages.get()
                if wait.cancelled_caught:
                    raise Late
                for piece in pieces:
                    if isinstance(piece, Exception):
                        raise piece
                    if piece is END:
                        n_open -= 1
                    else:
                        yield i, piece
        finally:
            self.cancelled = True


Input = tuple[Request, int]
"""A request, and the index of one of its inputs."""


class Engine(threading.Thread):
    """The thread of one model, and its queue."""

    def __init__(self, name: str, work: Work, config: ServeConfig) -> None:
        super().__init__(name=f"transduce {name}", daemon=True)
        self.work = work
        self.config = config
        self.on_batch: Callable[[int], object] = lambda n: None
        """Called with the number of inputs of every batch."""
        self.capacity = config.queue * config.batch
        """Maximum cost of the inputs that wait, in texts."""
        self._queue: list[Request] = []
        """Requests with inputs that wait for a batch or as streams, in the order in which they are
        served."""
        self._jobs: dict[Generator[None, None, None], Request] = {}
        """Batches and streams that are being computed, each with the request of its first input."""
        self._load = self._counted = 0.0
        """Upper bound of the waiting cost (last count plus later requests), and the time of that
        count."""
        self._changed = threading.Condition()
        self._stopping = False

    @property
    def waiting(self) -> int:
        """The cost of the inputs that wait, in texts."""
        return sum(each.cost for each in self._waiting)

    @property
    def _waiting(self) -> list[Request]:
        return [each for each in self._queue if not each.expired]

    def is_full(self, cost: int = 1) -> bool:
        """Whether inputs of this cost do not fit into the queue; an empty queue takes any
        request."""
        if self._load + cost > self.capacity and monotonic() > self._counted + COUNTED_FOR:
            self._count()
        return 0 < self._load > self.capacity - cost

    def _count(self) -> None:
        self._load = sum(self._share(each) for each in self._waiting)
        self._counted = monotonic()

    def _share(self, request: Request) -> float:
        """What a request counts for in the queue; it is capped, so that a large one does not block
        others."""
        return min(request.cost, QUEUE_SHARE * self.capacity)

    def submit(self, request: Request) -> AsyncIterator[tuple[int, Any]]:
        """Queue the inputs of a request, all or none, and return its `pieces`.

        Raises:
            Busy: the queue is full.
        """
        with self._changed:
            if self.is_full(request.cost):
                raise Busy
            request.extend(self.config.deadline)
            self._queue.append(request)
            self._load += self._share(request)
            self._changed.notify()
        return request.pieces()

    async def outputs(self, request: Request) -> list[list[Any]]:
        """All pieces of every input."""
        outputs: list[list[Any]] = [[] for _ in request.inputs]
        async for i, piece in self.submit(request):
            outputs[i].append(piece)
        return outputs

    def stop(self) -> None:
        """Compute the inputs that wait, then end."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def run(self) -> None:
        """Compute until `stop`."""
        while self._admit():
            for job in [*self._jobs]:
                if next(job, END) is END:
                    del self._jobs[job]

    def _compute(self, inputs: list[Input]) -> Generator[None, None, None]:
        """Send one piece per step; if one of several inputs fails, compute each one separately."""
        pending = dict(enumerate(inputs))
        request, i = inputs[0]
        is_single = len(inputs) == 1
        try:
            with closing(self.work(request.kind, [each.inputs[n] for each, n in inputs])) as pieces:
                for k, piece in pieces:
                    if is_single:
                        request.put(i, piece)
                    else:
                        each, n = pending.pop(k)
                        each.put(n, piece, END)
                    yield
                    if all(each.expired for each, _ in pending.values()):
                        return
            request.put(i, END)
        except Exception as error:
            if is_single:
                if not isinstance(error, InputError):
                    logger.exception("a request failed")
                request.put(i, error)
                return
            for one in pending.values():
                if not one[0].expired:
                    yield from self._compute([one])

    def _admit(self) -> bool:
        """Wait for inputs, and start those that fit beside the running jobs; False when stopped."""
        batch_runs = any(not request.stream for request in self._jobs.values())
        if batch_runs and not any(request.stream for request in self._queue):
            return True
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._queue or self._stopping)
            if not (self._jobs or self._queue):
                return False
            if not self._jobs:
                self._wait_for_more()
            waiting = self._waiting
            groups = self._take_streams(waiting) + ([] if batch_runs else self._take_batch(waiting))
            served = {request for inputs in groups for request, _ in inputs}
            # requests that were served go behind the others
            self._queue = sorted(filter(attrgetter("waits"), waiting), key=served.__contains__)
            self._count()
        for inputs in groups:
            self.on_batch(len(inputs))
            self._jobs[self._compute(inputs)] = inputs[0][0]
        return True

    def _wait_for_more(self) -> None:
        """Wait a few milliseconds for more inputs if a batch is not full."""
        first = min(each.arrived for each in self._queue)
        left = first + self.config.wait_ms / 1000 - monotonic()
        self._changed.wait_for(lambda: self._stopping or self.waiting >= self.config.batch, left)

    def _take_streams(self, waiting: list[Request]) -> list[list[Input]]:
        """Take an input of each stream request that has none among the running jobs."""
        streams = {request for request in self._jobs.values() if request.stream}
        ready = [each for each in waiting if each.stream and each not in streams]
        return [[each.take()] for each in ready[: MAX_STREAMS - len(streams)]]

    def _take_batch(self, waiting: list[Request]) -> list[list[Input]]:
        """Take a batch of inputs of one kind, from each request in turn."""
        batch: list[Input] = []
        ready = deque(each for each in waiting if not each.stream)
        cost = 0
        while ready and cost < self.config.batch:
            request = ready.popleft()
            if batch and request.kind != batch[0][0].kind:
                continue
            cost += request.costs[request.n_taken]
            batch.append(request.take())
            if request.waits:
                ready.append(request)
        return [batch] if batch else []
