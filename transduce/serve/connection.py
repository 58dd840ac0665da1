"""Connections of the server, with time limits for request heads and for reading answers."""

import asyncio
from collections import OrderedDict
from contextlib import suppress
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0
"""Time limit for the head of a connection's first request; see also timeout_keep_alive."""

WRITE_SECONDS = 60.0
"""Time in which a client must read some of an answer, if timeout_graceful_shutdown is not set."""


class Connection(H11Protocol):
    """A connection that is closed if its request is late, or if other clients need its place before
    its request is complete. Closing it cancels the work for an answer that has not begun.

    uvicorn limits the bytes of a head, but not its time: any byte ends the timer of an idle
    connection.
    """

    def connection_made(self, transport: Any) -> None:  # uvloop's is not an asyncio.Transport
        """Start the timer; if there are too many connections, close the one that has waited
        longest."""
        super().connection_made(transport)
        self.application = self.app
        self.app = self._answer
        self.answering: asyncio.Task[None] | None = None
        self.by_age = self.app_state.setdefault("by_age", OrderedDict())
        """All connections of this server; the first has waited longest for its request."""
        self.by_age[self] = None
        self.timeout_keep_alive_task = self.loop.call_later(
            HEAD_SECONDS, self.timeout_keep_alive_handler
        )
        if self.limit_concurrency and len(self.connections) >= 0.9 * self.limit_concurrency:
            while not (oldest := self.by_age.popitem(last=False)[0]).unready:
                pass  # `on_response_complete` adds it again
            oldest.transport.abort()

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        """Run the application; close the connection if the answer starts before the body is
        complete."""

        async def send_answer(message: Any) -> None:
            if message["type"] == "http.response.start" and self.cycle.more_body:
                message["headers"] = [*message["headers"], (b"connection", b"close")]
            await send(message)

        self.answering = asyncio.current_task()
        with suppress(asyncio.CancelledError):
            await self.application(scope, receive, send_answer)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the work for a client that has disconnected; a stream detects that itself."""
        super().connection_lost(exc)
        self.by_age.pop(self, None)
        if self.answering and not self.cycle.response_started:
            self.answering.cancel()

    @property
    def idle(self) -> bool:
        """Whether no request has begun since the last answer."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def unready(self) -> bool:
        """Whether the connection is open, and waits for a request or for the rest of one."""
        return (self.idle or self.cycle.more_body) and not self.transport.is_closing()

    def data_received(self, data: bytes) -> None:
        """Keep the timer running until the head of a request is complete."""
        timer = self.timeout_keep_alive_task
        self.timeout_keep_alive_task = None
        super().data_received(data)
        if timer and self.idle and not self.timeout_keep_alive_task:
            self.timeout_keep_alive_task = timer
        elif timer:
            timer.cancel()

    def pause_writing(self) -> None:
        """Start a timer for a client that reads an answer too slowly."""
        super().pause_writing()
        seconds = self.config.timeout_graceful_shutdown or WRITE_SECONDS
        self.write_timer = self.loop.call_later(seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """End that timer."""
        self.write_timer.cancel()
        super().resume_writing()

    def on_response_complete(self) -> None:
        """Wait for the next request, as the newest connection."""
        self.by_age[self] = None
        self.by_age.move_to_end(self)
        super().on_response_complete()
