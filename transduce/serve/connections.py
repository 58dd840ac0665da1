"""Connections and the log of a server: what they may cost before a request is there, and how much strangers may write."""

import logging
import sys
from time import monotonic
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

FIRST = 10.0
"""Seconds within which the head of a connection's first request is there; later ones have timeout_keep_alive."""

UNREAD = 60.0
"""Seconds in which a client reads some of an answer, where timeout_graceful_shutdown says nothing."""

SPARE = 64
"""Descriptors for other things than connections."""

MOST = 1000
"""Connections at most, even where more descriptors are allowed."""

PERIOD, RECORDS = 60.0, 50
"""In so many seconds, so many records are written."""


def connection_limit() -> int:
    """How many connections the descriptors of this process are enough for; there are made as many as it may have."""
    if sys.platform == "win32":
        return MOST
    import resource

    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST + SPARE
    if limit != resource.RLIM_INFINITY and limit < wanted:
        limit = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
    return MOST if limit == resource.RLIM_INFINITY else max(SPARE, min(MOST, limit - SPARE))


class Connection(H11Protocol):
    """One that ends if a request does not come in time, or where others need its place before a request of it is whole.

    uvicorn bounds the bytes of a head, but not its time: any byte ends the timer of an idle connection.
    """

    def connection_made(self, transport: Any) -> None:  # uvloop's is no asyncio.Transport
        """A client has come."""
        super().connection_made(transport)
        self.since = monotonic()
        self.timeout_keep_alive_task = self.loop.call_later(FIRST, self.timeout_keep_alive_handler)
        if self.limit_concurrency and len(self.connections) >= 0.9 * self.limit_concurrency:
            others = [each for each in self.connections if isinstance(each, Connection)]
            unready = [
                each for each in others if (each.idle or each.cycle.more_body) and not each.transport.is_closing()
            ]
            min(unready, key=lambda each: each.since).transport.abort()

    @property
    def idle(self) -> bool:
        """Whether no request has begun since the last answer."""
        return self.cycle is None or self.cycle.response_complete

    def data_received(self, data: bytes) -> None:
        """Some bytes have come: the timer goes on until they are the head of a request."""
        timer, self.timeout_keep_alive_task = self.timeout_keep_alive_task, None
        super().data_received(data)
        if timer and self.idle and not self.timeout_keep_alive_task:
            self.timeout_keep_alive_task = timer
        elif timer:
            timer.cancel()

    def pause_writing(self) -> None:
        """The client reads too little of an answer: where it goes on like that, it has left."""
        super().pause_writing()
        self.unread = self.loop.call_later(self.config.timeout_graceful_shutdown or UNREAD, self.transport.abort)

    def resume_writing(self) -> None:
        """It has read enough."""
        self.unread.cancel()
        super().resume_writing()

    def on_response_complete(self) -> None:
        """An answer is sent: the connection is idle."""
        self.since = monotonic()
        super().on_response_complete()


class LogRate(logging.Filter):
    """Lets so many records through in a period, and says how many it held back."""

    def __init__(self) -> None:
        super().__init__()
        self.began, self.n = monotonic(), 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether this one is written."""
        if monotonic() > self.began + PERIOD:
            held = self.n - RECORDS
            self.began, self.n = monotonic(), 0
            if held > 0:
                record.msg, record.args = f"{record.getMessage()} ({held} messages before it were left out)", ()
        self.n += 1
        return self.n <= RECORDS
