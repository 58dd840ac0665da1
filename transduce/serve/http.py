"""What HTTP endpoints share: the server's state, its token, request bodies, errors.

Bodies are limited in size and time, and validated by pydantic.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from hmac import compare_digest
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar
from urllib.parse import parse_qsl

import anyio
from fastapi import Depends, HTTPException, Request
from fastapi.responses import StreamingResponse
from prometheus_client import CollectorRegistry
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive

from transduce.config import Json
from transduce.errors import InputError
from transduce.serve import ServeConfig
from transduce.serve.engine import Engine
from transduce.tasks.generate import Generator
from transduce.tasks.transcribe import Transcriber
from transduce.tasks.translate import Translator

ANY_SPEECH_MODEL = "whisper-1"
"""OpenAI's name of a model, which selects the first speech run."""

OPENAI_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
"""OpenAI's types of errors; others below 500 are invalid requests."""


class PlainError(BaseModel):
    """An error."""

    error: str


class Detail(BaseModel):
    """An error as OpenAI describes it."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class OpenAIError(BaseModel):
    """An error as OpenAI's clients read it."""

    error: Detail


def responses(model: type[BaseModel]) -> dict[int | str, Json]:
    """The description of errors in OpenAPI."""
    return {status: {"model": model} for status in (400, 401, 404, 408, 413, 415, 429, 503)}


def http_error(error: Exception) -> StarletteHTTPException:
    """Turn an error into one with status, message and headers; an InputError has status 400."""
    if isinstance(error, StarletteHTTPException):
        return error
    if isinstance(error, InputError):
        return HTTPException(400, str(error))
    return HTTPException(500, "the server failed, see its log for the reason; please report it")


def error_body(path: str, error: StarletteHTTPException) -> Json:
    """The body of an error, in the format for the clients of this path."""
    if not path.startswith("/v1/"):
        return {"error": error.detail}
    status = error.status_code
    kind = "server_error" if status >= 500 else OPENAI_TYPES.get(status, "invalid_request_error")
    return OpenAIError(error=Detail(message=error.detail, type=kind)).model_dump()


def events(items: AsyncIterator[Json], *, last: str = "") -> StreamingResponse:
    """Send items, then `last`, as server-sent events, as OpenAI does; an error is the last item."""

    async def lines() -> AsyncIterator[str]:
        try:
            async for item in items:
                yield f"data: {json.dumps(item, ensure_ascii=False)}\n\n"
        except Exception as error:
            yield f"data: {json.dumps(error_body('/v1/', http_error(error)))}\n\n"
        if last:
            yield f"data: {last}\n\n"

    return StreamingResponse(
        lines(), media_type="text/event-stream", headers={"Cache-Control": "no-cache"}
    )


VERBS: dict[type, Any] = {
    Translator: "translate",
    Transcriber: "transcribe",
    Generator: "generate",
}
TaskT = TypeVar("TaskT", bound=Translator | Transcriber | Generator)


@dataclass(frozen=True)
class Languages:
    """The languages that a run translates from and to: ISO 639 codes, such as en."""

    source: str
    target: str


@dataclass(frozen=True)
class Served(Generic[TaskT]):
    """A run that is served: its name, its task, and the engine that computes it."""

    name: str
    task: TaskT
    engine: Engine
    languages: tuple[Languages, ...] = ()
    """The language pairs that it translates."""
    directory: Path | None = None
    """Directory of the run, or of the first run of an ensemble."""


MAX_DECODERS = 2
"""Maximum number of uploads that are decoded at the same time, beside the models' threads."""


class ServerState:
    """The state that all endpoints share."""

    def __init__(
        self,
        runs: Sequence[Served[Any]],
        config: ServeConfig,
        token: str,
        records: dict[str, Path],
    ) -> None:
        self.runs = runs
        self.records = {run.name: run.directory for run in runs if run.directory} | records
        """Directories of the runs whose training the page shows, by name."""
        self.translators: dict[Languages, Served[Translator]] = {}
        """The first run of each pair of languages."""
        for run in runs:
            for pair in run.languages:
                self.translators.setdefault(pair, run)
        self.config = config
        self.token = token
        self.metrics = CollectorRegistry()
        self.decoders = asyncio.Semaphore(MAX_DECODERS)

    def find(self, name: str, kind: type[TaskT] | None = None) -> Served[TaskT]:
        """The run of this name and kind of task. Names are only compared, never used as paths.

        Raises:
            HTTPException: there is none.
        """
        runs = [run for run in self.runs if kind is None or isinstance(run.task, kind)]
        for run in runs:
            if run.name == name or (kind is Transcriber and name == ANY_SPEECH_MODEL):
                return run
        names = ", ".join(run.name for run in runs) or "no run"
        purpose = f"to {VERBS[kind]}, " if kind else ""
        raise HTTPException(
            404, f"{purpose}this server has {names}, but not {name[:40]!r}; see /v1/models"
        )

    def check_token(self, request: Request, api_key: str = "") -> None:
        """Raise HTTPException unless the header, or LibreTranslate's api_key, has the token."""
        credentials = request.headers.get("authorization", "").partition(" ")[2]
        if self.token and not any(
            compare_digest(each.encode(), self.token.encode()) for each in (credentials, api_key)
        ):
            message = "this server needs its token: send 'Authorization: Bearer TOKEN'"
            raise HTTPException(401, message, {"WWW-Authenticate": "Bearer"})


async def _server_state(request: Request) -> ServerState:
    """The state of the application that received the request."""
    state: ServerState = request.app.state.server
    return state


State = Annotated[ServerState, Depends(_server_state)]


async def _check_token(request: Request, state: State) -> None:
    state.check_token(request)


TOKEN = [Depends(_check_token)]
"""Dependencies of routes that check the token before a body is read."""


BodyT = TypeVar("BodyT", bound=BaseModel)

FORM = "application/x-www-form-urlencoded"
FORMS = (FORM, "multipart/form-data")


def body_schema(model: type[BaseModel], *content_types: str) -> Json:
    """The description of a body in OpenAPI."""
    schema = model.model_json_schema()
    content = {content_type: {"schema": schema} for content_type in content_types}
    return {"requestBody": {"required": True, "content": content}}


async def read_body(
    request: Request, state: ServerState, model: type[BodyT], n_bytes: int = 0
) -> BodyT:
    """Read JSON or a form of at most `n_bytes`; 0: the limit for a body of text.

    Raises:
        HTTPException: the token is missing or wrong, or the body is neither JSON nor a form, or is
            too large or too slow.
        InputError: the body cannot be read, or has wrong fields.
    """
    fields: Any = None
    bounded = Request(request.scope, _bounded(request, n_bytes or state.config.text_bytes))
    try:
        with anyio.fail_after(state.config.deadline):
            fields = await _read_fields(bounded)
        return model.model_validate(fields)
    except Exception as error:
        await bounded.close()
        raise _refusal(error, state.config) from None
    finally:  # without the token, a client gets no other error
        api_key = fields.get("api_key") if isinstance(fields, dict) else ""
        state.check_token(request, str(api_key or ""))


def _refusal(error: Exception, config: ServeConfig) -> Exception:
    """The error for a body that could not be read."""
    if isinstance(error, TimeoutError):
        message = f"an upload may take {config.deadline:g} s, but it is not complete; try again"
        return HTTPException(408, message)
    if isinstance(error, ValidationError):
        return InputError(_invalid_field(error))
    if isinstance(error, ClientDisconnect | LookupError | ValueError):
        return InputError(
            "the body must be an object of JSON, or a form, but it cannot be read as such "
            f"({error}); correct it"
        )
    return error


async def _read_fields(request: Request) -> Any:
    """Read JSON, or the fields of a form; fields that are repeated, or are named NAME[], are
    lists."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type == "application/json":
        return from_json(await request.body())
    in_url = not content_type and bool(request.url.query)  # as deep-translator sends a form
    if content_type not in FORMS and not in_url:
        raise HTTPException(
            415,
            "the body must be application/json or a form, but its Content-Type is "
            f"{content_type[:40]!r}; send the right one",
        )
    if in_url or content_type == FORM:  # UTF-8, which curl -d sends; Starlette decodes Latin-1
        body = request.url.query if in_url else (await request.body()).decode()
        pairs: Any = parse_qsl(body, keep_blank_values=True, errors="strict", max_num_fields=100)
    else:
        pairs = (await request.form(max_files=1, max_fields=100)).multi_items()
    fields: dict[str, list[Any]] = {}
    for name, value in pairs:
        fields.setdefault(name, []).append(value)
    return {
        name: each if name.endswith("[]") or len(each) > 1 else each[0]
        for name, each in fields.items()
    }


def _bounded(request: Request, n_bytes: int) -> Receive:
    """Receive a body, and raise HTTPException if it is too large."""
    size = 0

    async def receive() -> Message:
        nonlocal size
        message = await request.receive()
        size += len(message.get("body", b""))
        if size <= n_bytes:
            return message
        if message.get("more_body") and size <= 3 * n_bytes:
            return {**message, "body": b""}  # most clients read an answer only after sending all
        raise HTTPException(
            413, f"a body may have {n_bytes} bytes, but this one has more; send it in parts"
        )

    return receive


def _invalid_field(errors: ValidationError) -> str:
    """The rule that a field breaks, and its value, for the first such field."""
    error = errors.errors(include_context=False, include_url=False)[0]
    name = ".".join(map(str, error["loc"])) or "the body"
    if error["type"] == "missing":
        return f"{name} is missing; send it"
    if error["type"].endswith("too_short"):
        return f"{name} must not be empty, but it is {error['input']!r}; send a text"
    return f"{name}: {error['msg']}, but it is {error['input']!r:.40}; correct it"


def check_bound(n: int, bound: int, noun: str) -> None:
    """Raise InputError if a request exceeds a limit."""
    if n > bound:
        raise InputError(f"a request may have {bound} {noun}, but it has {n}; ask for less")
