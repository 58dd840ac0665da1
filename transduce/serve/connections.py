"""Connections and log of a server: what clients may cost before and after their requests."""

import asyncio
import logging
import sys
from contextlib import suppress
from time import monotonic
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0
"""The head of a connection's first request must come by then; of later ones, by timeout_keep_alive."""

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
    """Raise this process's limit of descriptors as far as needed, and return how many connections it allows."""
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
    """A connection that ends if its request is late, or if others need its place before its request is whole.

    uvicorn bounds the bytes of a head, but not its time: any byte ends the timer of an idle connection.
    """

    def connection_made(self, transport: Any) -> None:  # uvloop's is no asyncio.Transport
        """Start the timer; where places run out, close the connection that has waited longest."""
        super().connection_made(transport)
        self.idle_since = monotonic()
        self.timeout_keep_alive_task = self.loop.call_later(HEAD_SECONDS, self.timeout_keep_alive_handler)
        if self.limit_concurrency and len(self.connections) >= 0.9 * self.limit_concurrency:
            connections = [each for each in self.connections if isinstance(each, Connection)]
            unready = [
                each for each in connections if (each.idle or each.cycle.more_body) and not each.transport.is_closing()
            ]
            min(unready, key=lambda each: each.idle_since).transport.abort()

    @property
    def idle(self) -> bool:
        """Whether no request has begun since the last answer."""
        return self.cycle is None or self.cycle.response_complete

    def data_received(self, data: bytes) -> None:
        """Let the timer run until the head of a request is whole."""
        timer, self.timeout_keep_alive_task = self.timeout_keep_alive_task, None
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


class CancelOnDisconnect:
    """Middleware that cancels the work for a client that leaves before its answer begins.

    A stream notices that by itself. A connection is closed if the body was not read before the answer.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        has_body = "transfer-encoding" in headers or headers.get("content-length", "0") != "0"
        body_read = asyncio.Event()
        started = False

        async def disconnect() -> Message:
            await body_read.wait()
            return await receive()

        async def receive_body() -> Message:
            if body_read.is_set():
                return await asyncio.shield(disconnected)
            message = await receive()
            if not message.get("more_body", False):
                body_read.set()
            return message

        async def send_answer(message: Message) -> None:
            nonlocal started
            started = True
            if message["type"] == "http.response.start" and has_body and not body_read.is_set():
                message["headers"] = [*message["headers"], (b"connection", b"close")]
            await send(message)

        disconnected = asyncio.ensure_future(disconnect())
        answer = asyncio.ensure_future(self.app(scope, receive_body, send_answer))
        try:
            await asyncio.wait({answer, disconnected}, return_when=asyncio.FIRST_COMPLETED)
            if started or answer.done():
                await answer
        finally:
            disconnected.cancel()
            answer.cancel()
            with suppress(asyncio.CancelledError, Exception):  # raised above, if it was awaited there
                await answer


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
