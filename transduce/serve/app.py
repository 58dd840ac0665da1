"""The server as an ASGI application: its routes, its errors, its health."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from http import HTTPStatus
from importlib.metadata import version
from time import monotonic

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from fastapi_offline import FastAPIOffline
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from pydantic import BaseModel
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from transduce.errors import InputError
from transduce.serve import audio, completions, libretranslate, page
from transduce.serve.body import Access, CloseUnread, Leaving, Memory
from transduce.serve.config import ServeConfig
from transduce.serve.engine import Busy, Late
from transduce.serve.errors import plain_error, told
from transduce.serve.models import Served

DECODERS = 2
"""Uploads that are decoded at a time, beside the threads of the models."""


UPLOADS = 4
"""The largest uploads that are read at a time; smaller ones are more."""


class Health(BaseModel):
    """Whether the server can answer."""

    status: str


def create_app(
    served: Sequence[Served],
    config: ServeConfig | None = None,
    *,
    token: str = "",
    cors: Sequence[str] = (),
    hosts: Sequence[str] = (),
    wyoming: socket.socket | None = None,
) -> FastAPI:
    """The application that serves these runs; it starts their engines, and stops them at the end.

    Args:
        token: what requests must show, if it is not empty.
        cors: origins whose pages may ask.
        hosts: the names by which the server is asked for; any, if empty.
        wyoming: what listens for clients of the Wyoming protocol, if anything.
    """
    config = config or ServeConfig()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        for each in served:
            each.engine.start()
        async with _wyoming(served, config, wyoming) if wyoming else nullcontext():
            yield
        for each in served:
            each.engine.stop()
        for each in served:
            await asyncio.to_thread(each.engine.join)

    app = FastAPIOffline(  # /docs with its scripts, which FastAPI itself takes from elsewhere
        redoc_url=None,
        title="transduce",
        version=version("transduce"),
        dependencies=[Depends(_check_host)],
        lifespan=lifespan,
        description="Translation, speech to text, and text that goes on.",
    )
    app.state.served, app.state.config, app.state.access = list(served), config, Access(token)
    app.state.hosts, app.state.memory = hosts, Memory(UPLOADS * config.upload_bytes)
    app.state.decoders = asyncio.Semaphore(DECODERS)
    registry = _metrics(app, served)
    app.add_middleware(Leaving)
    app.add_middleware(CloseUnread)
    if cors:
        app.add_middleware(CORSMiddleware, allow_origins=list(cors), allow_methods=["*"], allow_headers=["*"])
    for kind in (AnyHTTPException, RequestValidationError, InputError, Busy, Late, Exception):
        app.add_exception_handler(kind, _refused)
    for router in (audio.router, audio.whisper, libretranslate.router, completions.router, page.router):
        app.include_router(router)

    @app.get("/health", tags=["server"])
    async def health() -> Health:
        """Whether the server is there; it answers at once, however much waits."""
        return Health(status="ok")

    @app.get("/metrics", tags=["server"], response_class=PlainTextResponse)
    async def metrics(request: Request) -> Response:
        """Counts and times, as Prometheus reads them."""
        app.state.access.check(request)
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return app


def _wyoming(
    served: Sequence[Served], config: ServeConfig, listening: socket.socket
) -> AbstractAsyncContextManager[None]:
    from transduce.serve.wyoming import wyoming_port

    return wyoming_port(served, config, listening)


def _check_host(request: Request) -> None:
    """Refuse pages that reach this machine by a name of their own (DNS rebinding)."""
    host, hosts = request.headers.get("host", ""), request.app.state.hosts
    if host and hosts and re.sub(r":\d*$", "", host).strip("[]").lower() not in hosts:
        raise HTTPException(
            400, f"Host must be one of {', '.join(hosts)}, but it is {host[:80]!r}; with --token-file it may be any"
        )


async def _refused(request: Request, error: Exception) -> Response:
    status, message, headers = told(error)
    if message == HTTPStatus(status).phrase:
        ways = f" by {request.method}, but by {headers['Allow']}" if "Allow" in headers else ""
        message = f"there is nothing at {request.url.path[:80]!r}{ways}; /docs describes what there is"
    return JSONResponse(plain_error(request.url.path, status, message), status, headers)


class _Measured:
    """Counts requests, and how long they take."""

    def __init__(self, app: ASGIApp, requests: Counter, seconds: Histogram) -> None:
        self.app, self.requests, self.seconds = app, requests, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request; HEAD is GET, whose body is not sent."""
        scope = {**scope, "method": "GET"} if scope.get("method") == "HEAD" else scope
        began, status = monotonic(), 499  # what nginx counts where a client has left before its answer

        async def sent(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self.app(scope, receive, sent)
        finally:
            if scope["type"] == "http":
                path = getattr(scope.get("route"), "path", "other")
                self.requests.labels(path, status).inc()
                self.seconds.labels(path).observe(monotonic() - began)


def _metrics(app: FastAPI, served: Sequence[Served]) -> CollectorRegistry:
    """What is counted of this application."""
    registry = CollectorRegistry()
    requests = Counter("transduce_requests", "Requests answered.", ["path", "status"], registry=registry)
    seconds = Histogram("transduce_request_seconds", "From a request to its answer.", ["path"], registry=registry)
    waiting = Gauge(
        "transduce_waiting", "Texts that wait; a segment of sound counts as four.", ["model"], registry=registry
    )
    sizes = Histogram(
        "transduce_batch_inputs",
        "Inputs worked on together.",
        ["model"],
        registry=registry,
        buckets=[2**i for i in range(9)],
    )
    for each in served:
        waiting.labels(each.name).set_function(partial(getattr, each.engine, "waiting"))
        each.engine.on_batch = sizes.labels(each.name).observe
    app.add_middleware(_Measured, requests=requests, seconds=seconds)
    return registry
