"""The server as an ASGI application: the runs, all routes, the page, errors, health and metrics."""

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from time import monotonic
from typing import Any, Literal

from fastapi import APIRouter, FastAPI, HTTPException, Request
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
from pydantic import BaseModel
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from transduce.data.features import FeatureExtractor
from transduce.errors import InputError
from transduce.report.record import Record, record
from transduce.serve import ServeConfig, audio, completions, translation
from transduce.serve.engine import Busy, Engine
from transduce.serve.http import (
    TOKEN,
    VERBS,
    Languages,
    PlainError,
    Served,
    ServerState,
    State,
    error_body,
    http_error,
    responses,
)
from transduce.tasks.generate import Generator
from transduce.tasks.search import SearchTask
from transduce.tasks.transcribe import Transcriber
from transduce.tasks.translate import Translator

TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors "
    "'none'",
    "Permissions-Policy": "microphone=(self), camera=(), geolocation=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}
"""Tell browsers to load nothing from other hosts, to run no inline scripts, and to allow no
frames."""

FILES = {
    file.name: (file.read_bytes(), TYPES[file.suffix])
    for file in Path(__file__).with_name("page").iterdir()
    if file.is_file()
}
"""The content and the type of each file of the page."""

WORK: dict[type, Any] = {
    Translator: translation.translate_lines,
    Transcriber: audio.transcribe_sounds,
    Generator: completions.generate_texts,
}

WORK_PATHS = {
    "/translate",
    "/page/translate",
    "/inference",
    "/v1/completions",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
}
"""Paths whose requests wait for a model."""

router = APIRouter(tags=["server"])
page = APIRouter(tags=["page"], responses=responses(PlainError))


def serve_run(
    name: str,
    task: Any,
    config: ServeConfig,
    languages: Sequence[Languages] = (),
    directory: Path | None = None,
) -> Served[Any]:
    """A run with its own engine; see `Served`.

    Raises:
        InputError: the run fills masks, takes vectors, or does not support the languages.
    """
    if type(task) not in WORK:
        raise InputError(
            f"a server translates, transcribes and generates, but {name} fills masks; leave it out"
        )
    if isinstance(task, Transcriber) and not isinstance(task.feature_extractor, FeatureExtractor):
        raise InputError(f"a server transcribes sound, but {name} takes vectors; leave it out")
    computes: Any = task
    if isinstance(task, Translator):
        computes = {pair: translation.in_languages(task, pair) for pair in languages}
    if isinstance(task, SearchTask) and task.decoding.sample:
        # samples depend on an input's index in its batch, so each batch has one input
        config = replace(config, batch=1, queue=config.queue * config.batch)
    engine = Engine(name, partial(WORK[type(task)], computes), config)
    return Served(name, task, engine, tuple(languages), directory)


def create_app(
    runs: Sequence[Served[Any]],
    config: ServeConfig | None = None,
    *,
    token: str = "",
    cors: Sequence[str] = (),
    hosts: Sequence[str] = (),
    wyoming: socket.socket | None = None,
    records: dict[str, Path] | None = None,
) -> FastAPI:
    """The application that serves these runs; it starts and stops their engines.

    Args:
        token: the bearer token that requests must send, if it is not empty.
        cors: origins whose pages may send requests.
        hosts: host names that requests may have in their Host header; any, if empty. This refuses
            pages that reach this machine under their own host name (DNS rebinding).
        wyoming: a listening socket for clients of the Wyoming protocol.
        records: directories of further runs, whose training the page shows, by name.
    """
    state = ServerState(runs, config or ServeConfig(), token, records or {})
    app = FastAPIOffline(  # serves the scripts of /docs itself, which FastAPI loads from a CDN
        redoc_url=None,
        title="transduce",
        version=version("transduce"),
        lifespan=partial(_lifespan, state, wyoming),
        description="Translation, speech to text, and text generation.",
    )
    app.state.server = state
    _measure_engines(runs, state.metrics)
    app.add_middleware(_MeasureRequests, state=state)
    if cors:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(cors), allow_methods=["*"], allow_headers=["*"]
        )
    if hosts:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))
    for kind in (StarletteHTTPException, InputError, Exception):
        app.add_exception_handler(kind, _answer_error)
    routers = (translation.router, translation.page, audio.router, audio.whisper)
    for each in (*routers, completions.router, page, router):
        app.include_router(each)
    return app


@asynccontextmanager
async def _lifespan(
    state: ServerState, wyoming: socket.socket | None, app: FastAPI
) -> AsyncIterator[None]:
    """Start the engines; at the end, stop them after the waiting requests are answered."""
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
    error = http_error(exception)
    return JSONResponse(error_body(request.scope["path"], error), error.status_code, error.headers)


@router.get("/health")
async def health(state: State) -> dict[str, str]:
    """Whether the server and its models run; answers at once, even if many requests wait."""
    if not all(run.engine.is_alive() for run in state.runs):
        raise HTTPException(
            503, "a model has ended, see the log for the reason; start the server again"
        )
    return {"status": "ok"}


@router.get("/metrics", response_class=PlainTextResponse, dependencies=TOKEN)
async def metrics(state: State) -> Response:
    """Counts and times for Prometheus."""
    return Response(generate_latest(state.metrics), media_type=CONTENT_TYPE_LATEST)


def _measure_engines(runs: Sequence[Served[Any]], registry: CollectorRegistry) -> None:
    waiting = Gauge(
        "transduce_waiting",
        "Waiting texts; a segment of sound counts as four.",
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
    """Middleware that counts requests and measures their durations.

    It also answers HEAD as GET, whose body uvicorn leaves out. While all queues are full, it
    refuses requests that would wait, without reading their bodies: under load, most requests are
    refused.
    """

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self.app = app
        self.state = state
        registry = state.metrics
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
        refused = self._is_refused(scope)
        status = 499  # nginx's status for a client that disconnected before its answer

        async def send_measured(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            if refused:
                response = await _answer_error(Request(scope), Busy())
                await response(scope, receive, send_measured)
            else:
                await self.app(scope, receive, send_measured)
        finally:
            if scope["type"] == "http":
                known = scope["path"] if refused else "other"
                path = getattr(scope.get("route"), "path", known)
                self.requests.labels(path, status).inc()
                self.seconds.labels(path).observe(monotonic() - began)

    def _is_refused(self, scope: Scope) -> bool:
        """Whether a request would wait, but all queues are full; not if a token must be checked
        first."""
        is_work = not self.state.token and scope.get("path") in WORK_PATHS
        runs = self.state.runs
        return is_work and bool(runs) and all(run.engine.is_full() for run in runs)


class RunInfo(BaseModel):
    """A run that is served, its task, and a language pair if it translates."""

    name: str
    does: Literal["translate", "transcribe", "generate"]
    source: str = ""
    """The language that it translates from, if it translates text."""
    target: str = ""
    word_times: bool = False
    """Whether it gives word times."""


class PageInfo(BaseModel):
    """The runs that the page offers, and the limits of requests."""

    runs: list[RunInfo]
    records: list[str]
    """Names of the runs whose training it shows."""
    seconds: float
    upload_mb: float
    max_tokens: int


@page.get("/page/runs", dependencies=TOKEN)
async def runs(state: State) -> PageInfo:
    """The runs that are served."""
    infos = [
        RunInfo(
            name=run.name,
            does=VERBS[type(run.task)],
            source=pair.source,
            target=pair.target,
            word_times=isinstance(run.task, Transcriber) and run.task.has_word_times,
        )
        for run in state.runs
        for pair in run.languages or [Languages("", "")]
    ]
    return PageInfo(
        runs=infos,
        records=list(state.records),
        seconds=state.config.seconds,
        upload_mb=state.config.upload_mb,
        max_tokens=state.config.max_tokens,
    )


@page.get("/page/runs/{name}", dependencies=TOKEN)
async def run(state: State, name: str) -> Record:
    """The record of a training: learning curve, samples and scores, as far as the run has them."""
    if name not in state.records:
        raise HTTPException(404, f"there is no run {name[:40]!r}; see /page/runs")
    return await asyncio.to_thread(record, state.records[name])


@page.get("/", include_in_schema=False)
@page.get("/page/{name}", include_in_schema=False)
async def part(name: str = "index.html") -> Response:
    """The page, or one of its files; all were read at the start, so no request opens a file by
    name."""
    if name not in FILES:
        raise HTTPException(404)
    content, media_type = FILES[name]
    return Response(content, media_type=media_type, headers=HEADERS)
