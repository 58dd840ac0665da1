"""Connections and log of a server: what clients may cost before and after their requests."""

import asyncio
import logging
import sys
from contextlib import suppress
from time import monotonic
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0
"""The head of a connection's first request must come by then; see also timeout_keep_alive."""

WRITE_SECONDS = 60.0
"""A client must read some of an answer by then, if timeout_graceful_shutdown is not set."""

SPARE_DESCRIPTORS = 64
"""File descriptors that are no connections."""

MAX_CONNECTIONS = 1000
"""Even if more descriptors are allowed."""

LOG_PERIOD = 60.0
"""Seconds in which MAX_RECORDS are written."""

MAX_RECORDS = 50


def connection_limit() -> int:
    """Raise the limit of descriptors as far as needed; return how many connections it allows."""
    if sys.platform == "win32":
        return MAX_CONNECTIONS
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS + SPARE_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return max(SPARE_DESCRIPTORS, min(MAX_CONNECTIONS, soft - SPARE_DESCRIPTORS))


class Connection(H11Protocol):
    """A connection that ends if its request is late, or if others need its place before its request
    is whole, and whose end cancels the work for an answer that has not begun.

    uvicorn bounds the bytes of a head, but not its time: any byte ends the timer of an idle
    connection.
    """

    def connection_made(self, transport: Any) -> None:  # uvloop's is no asyncio.Transport
        """Start the timer; where places run out, close the connection that has waited longest."""
        super().connection_made(transport)
        self.application = self.app
        self.app = self._answer
        self.answering: asyncio.Task[None] | None = None
        self.idle_since = monotonic()
        self.timeout_keep_alive_task = self.loop.call_later(
            HEAD_SECONDS, self.timeout_keep_alive_handler
        )
        if self.limit_concurrency and len(self.connections) >= 0.9 * self.limit_concurrency:
            connections = [each for each in self.connections if isinstance(each, Connection)]
            unready = [
                each
                for each in connections
                if (each.idle or each.cycle.more_body) and not each.transport.is_closing()
            ]
            min(unready, key=lambda each: each.idle_since).transport.abort()

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        """Run the application; close the connection if the body is not here by then."""

        async def send_answer(message: Any) -> None:
            if message["type"] == "http.response.start" and self.cycle.more_body:
                message["headers"] = [*message["headers"], (b"connection", b"close")]
            await send(message)

        self.answering = asyncio.current_task()
        with suppress(asyncio.CancelledError):
            await self.application(scope, receive, send_answer)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the work for a client that has left; a stream notices that by itself."""
        super().connection_lost(exc)
        if self.answering and not self.cycle.response_started:
            self.answering.cancel()

    @property
    def idle(self) -> bool:
        """Whether no request has begun since the last answer."""
        return self.cycle is None or self.cycle.response_complete

    def data_received(self, data: bytes) -> None:
        """Let the timer run until the head of a request is whole."""
        timer = self.timeout_keep_alive_task
        self.timeout_keep_alive_task = None
        super().data_received(data)
        if timer and self.idle and not self.timeout_keep_alive_task:
            self.timeout_keep_alive_task = timer
        elif timer:
            timer.cancel()

    def pause_writing(self) -> None:
        """Start a timer for a client that reads too little of an answer."""
        super().pause_writing()
        seconds = self.config.timeout_graceful_shutdown or WRITE_SECONDS
        self.write_timer = self.loop.call_later(seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """End that timer."""
        self.write_timer.cancel()
        super().resume_writing()

    def on_response_complete(self) -> None:
        """Note since when the connection is idle."""
        self.idle_since = monotonic()
        super().on_response_complete()


class LogRate(logging.Filter):
    """Lets MAX_RECORDS pass in a period, and counts those that it held back."""

    def __init__(self) -> None:
        super().__init__()
        self.began = monotonic()
        self.n_records = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is written."""
        if monotonic() > self.began + LOG_PERIOD:
            n_held = self.n_records - MAX_RECORDS
            self.began = monotonic()
            self.n_records = 0
            if n_held > 0:
                record.msg = f"{record.getMessage()} ({n_held} messages before it were left out)"
                record.args = ()
        self.n_records += 1
        return self.n_records <= MAX_RECORDS
