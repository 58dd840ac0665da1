"""The server as an ASGI application: its routes, errors, health and metrics."""

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from time import monotonic
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from fastapi_offline import FastAPIOffline
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from transduce.errors import InputError
from transduce.serve import audio, completions, libretranslate, page
from transduce.serve.config import ServeConfig
from transduce.serve.http import TOKEN, ServerState, State, error_body, http_error
from transduce.serve.models import Served


def create_app(
    runs: Sequence[Served[Any]],
    config: ServeConfig | None = None,
    *,
    token: str = "",
    cors: Sequence[str] = (),
    hosts: Sequence[str] = (),
    wyoming: socket.socket | None = None,
    records: Mapping[str, Path] | None = None,
) -> FastAPI:
    """The application that serves these runs; it starts and stops their engines.

    Args:
        token: what requests must show, if it is not empty.
        cors: origins whose pages may send requests.
        hosts: names of the server that requests may have in their header Host; any, if empty. A
            page that reaches this machine by a name of its own (DNS rebinding) is refused.
        wyoming: a listening socket for clients of the Wyoming protocol.
        records: directories of further runs, whose training the page shows, by name.
    """
    state = ServerState(runs, config or ServeConfig(), token, records or {})
    app = FastAPIOffline(  # /docs with its scripts, which FastAPI itself takes from elsewhere
        redoc_url=None,
        title="transduce",
        version=version("transduce"),
        lifespan=partial(_lifespan, state, wyoming),
        description="Translation, speech to text, and text generation.",
    )
    app.state.server = state
    _measure_engines(runs, state.metrics)
    app.add_middleware(_MeasureRequests, registry=state.metrics)
    if cors:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(cors), allow_methods=["*"], allow_headers=["*"]
        )
    if hosts:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))
    for kind in (StarletteHTTPException, InputError, Exception):
        app.add_exception_handler(kind, _answer_error)
    for module in (audio, libretranslate, completions, page):
        app.include_router(module.router)
    app.include_router(audio.whisper)
    app.include_router(router)
    return app


@asynccontextmanager
async def _lifespan(
    state: ServerState, wyoming: socket.socket | None, app: FastAPI
) -> AsyncIterator[None]:
    """Start the engines, and stop them when the requests that wait are answered."""
    engines = [run.engine for run in state.runs]
    for engine in engines:
        engine.start()
    if wyoming is None:
        yield
    else:
        from transduce.serve.wyoming import wyoming_port

        async with wyoming_port(state, wyoming):
            yield
    for engine in engines:
        engine.stop()
    for engine in engines:
        await asyncio.to_thread(engine.join)


async def _answer_error(request: Request, exception: Exception) -> Response:
    """The body may not have been read, so the connection ends."""
    error = http_error(exception)
    headers = {**(error.headers or {}), "Connection": "close"}
    return JSONResponse(error_body(request.url.path, error), error.status_code, headers)


router = APIRouter(tags=["server"])


@router.get("/health")
async def health() -> dict[str, str]:
    """Whether the server runs; it answers at once, however many requests wait."""
    return {"status": "ok"}


@router.get("/metrics", response_class=PlainTextResponse, dependencies=TOKEN)
async def metrics(state: State) -> Response:
    """Counts and times for Prometheus."""
    return Response(generate_latest(state.metrics), media_type=CONTENT_TYPE_LATEST)


def _measure_engines(runs: Sequence[Served[Any]], registry: CollectorRegistry) -> None:
    waiting = Gauge(
        "transduce_waiting",
        "Texts that wait; a segment of sound counts as four.",
        ["model"],
        registry=registry,
    )
    sizes = Histogram(
        "transduce_batch_inputs",
        "Inputs computed together.",
        ["model"],
        registry=registry,
        buckets=[2**i for i in range(9)],
    )
    for run in runs:
        waiting.labels(run.name).set_function(partial(getattr, run.engine, "waiting"))
        run.engine.on_batch = sizes.labels(run.name).observe


class _MeasureRequests:
    """Middleware that counts requests and their seconds.

    It also answers HEAD as GET, whose body uvicorn leaves out.
    """

    def __init__(self, app: ASGIApp, registry: CollectorRegistry) -> None:
        self.app = app
        self.requests = Counter(
            "transduce_requests", "Requests answered.", ["path", "status"], registry=registry
        )
        self.seconds = Histogram(
            "transduce_request_seconds",
            "From a request to its answer.",
            ["path"],
            registry=registry,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope.get("method") == "HEAD":
            scope = {**scope, "method": "GET"}
        began = monotonic()
        status = 499  # nginx's status of a client that left before its answer

        async def send_measured(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self.app(scope, receive, send_measured)
        finally:
            if scope["type"] == "http":
                path = getattr(scope.get("route"), "path", "other")
                self.requests.labels(path, status).inc()
                self.seconds.labels(path).observe(monotonic() - began)
