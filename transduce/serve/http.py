"""What endpoints share over HTTP: the server's state, errors as clients read them, bodies.

Bodies are read within bounds of size and time, and checked by pydantic.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from hmac import compare_digest
from io import BytesIO
from typing import Annotated, Any, TypeVar

import anyio
from fastapi import Depends, HTTPException, Request
from fastapi.responses import StreamingResponse
from fastapi.security import HTTPBearer
from prometheus_client import CollectorRegistry
from pydantic import BaseModel, ValidationError
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.formparsers import FormParser, MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect

from transduce.errors import InputError
from transduce.serve.config import ServeConfig
from transduce.serve.engine import Late
from transduce.serve.models import VERBS, Served, TaskT

Json = dict[str, Any]

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
    """An error with its status, message and headers."""
    if isinstance(error, StarletteHTTPException):
        return error
    if isinstance(error, InputError):
        return HTTPException(400, str(error))
    return HTTPException(500, "the server failed, and its log says why; please report it")


def error_body(path: str, error: StarletteHTTPException) -> Json:
    """An error as the clients of this path read it."""
    if not path.startswith("/v1/"):
        return {"error": error.detail}
    status = error.status_code
    kind = "server_error" if status >= 500 else OPENAI_TYPES.get(status, "invalid_request_error")
    return OpenAIError(error=Detail(message=error.detail, type=kind)).model_dump()


def events(items: AsyncIterator[Json], *, last: str = "") -> StreamingResponse:
    """Send items as server-sent events, as OpenAI does; an error is the last of them."""

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


MAX_DECODERS = 2
"""Uploads that are decoded at a time, beside the threads of the models."""

MAX_UPLOADS = 4
"""The largest uploads that are read at a time; there may be more of smaller ones."""


class BearerToken(HTTPBearer):
    """Checks a server's token, if it has one."""

    def __init__(self, token: str = "") -> None:
        super().__init__(auto_error=False)
        self.token = token

    async def check(self, request: Request, api_key: str = "") -> None:
        """Raise HTTPException unless the header, or LibreTranslate's api_key, has the token."""
        credentials = await self(request)
        shown = (credentials.credentials if credentials else "", api_key)
        if self.token and not any(
            compare_digest(each.encode(), self.token.encode()) for each in shown
        ):
            message = "this server needs its token: send 'Authorization: Bearer TOKEN'"
            raise HTTPException(401, message, {"WWW-Authenticate": "Bearer"})


class ServerState:
    """The state that all endpoints share."""

    def __init__(
        self, runs: Sequence[Served[Any]], config: ServeConfig, token: str, hosts: Sequence[str]
    ) -> None:
        self.runs = runs
        self.hosts = hosts
        self.config = config
        self.token = BearerToken(token)
        self.metrics = CollectorRegistry()
        self.decoders = asyncio.Semaphore(MAX_DECODERS)
        self._free_bytes = MAX_UPLOADS * config.upload_bytes

    @asynccontextmanager
    async def upload_memory(self, request: Request) -> AsyncIterator[None]:
        """Wait for memory for the body of a request, which is read afterwards, and hold it.

        Raises:
            Late: there is none before the deadline.
        """
        n_bytes = self.config.upload_bytes
        length = request.headers.get("content-length", "")
        if length.isdecimal() and "transfer-encoding" not in request.headers:
            n_bytes = min(n_bytes, int(length))
        with anyio.move_on_after(self.config.deadline):
            while self._free_bytes < n_bytes:
                await asyncio.sleep(0.02)
        if self._free_bytes < n_bytes:
            raise Late
        self._free_bytes -= n_bytes
        try:
            yield
        finally:
            self._free_bytes += n_bytes

    def find(self, name: str, kind: type[TaskT] | None = None) -> Served[TaskT]:
        """The run of this name and kind of task. Names are only compared: no path is made of one.

        Raises:
            HTTPException: there is none.
        """
        runs = [run for run in self.runs if kind is None or isinstance(run.task, kind)]
        for run in runs:
            if run.name == name:
                return run
        names = ", ".join(run.name for run in runs) or "no run"
        purpose = f"to {VERBS[kind]}, " if kind else ""
        raise HTTPException(
            404, f"{purpose}this server has {names}, but not {name[:40]!r}; see /v1/models"
        )


async def _server_state(request: Request) -> ServerState:
    """The state of the application that received the request."""
    state: ServerState = request.app.state.server
    return state


State = Annotated[ServerState, Depends(_server_state)]


async def _check_token(request: Request, state: State) -> None:
    await state.token.check(request)


TOKEN = [Depends(_check_token)]
"""Dependencies of routes that need the token, before a body is read."""


BodyT = TypeVar("BodyT", bound=BaseModel)


class _Multipart(MultiPartParser):
    """A parser that holds files in memory, which is bounded: a disk may be full."""

    spool_max_size = 0


FORMS: dict[str, Callable[..., FormParser | MultiPartParser]] = {
    "application/x-www-form-urlencoded": partial(FormParser, max_fields=100),
    "multipart/form-data": partial(_Multipart, max_files=1, max_fields=100),
}


def body(model: type[BodyT]) -> Callable[[Request, ServerState], Awaitable[BodyT]]:
    """A dependency that reads a body of text as this model."""

    async def read(request: Request, state: State) -> BodyT:
        return await read_body(request, state, model, state.config.text_bytes)

    return read


def body_schema(model: type[BaseModel], *content_types: str) -> Json:
    """The description of such a body in OpenAPI."""
    schema = model.model_json_schema()
    content = {content_type: {"schema": schema} for content_type in content_types}
    return {"requestBody": {"required": True, "content": content}}


async def read_body(
    request: Request, state: ServerState, model: type[BodyT], n_bytes: int
) -> BodyT:
    """Read JSON or a form of at most so many bytes.

    Raises:
        HTTPException: it is neither, too large, too slow, has wrong fields or lacks the token.
    """
    if misplaced := sorted(model.model_fields.keys() & request.query_params.keys()):
        names = ", ".join(misplaced)
        raise HTTPException(
            400, f"fields stand in the body, but the address has {names}; move them"
        )
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    chunks = _bounded(request, n_bytes)
    try:
        with anyio.fail_after(state.config.deadline):
            if parser := FORMS.get(content_type):
                checked = model.model_validate(await _form_fields(parser(request.headers, chunks)))
            elif content_type == "application/json":
                checked = model.model_validate_json(b"".join([chunk async for chunk in chunks]))
            else:
                rule = "the body must be application/json or a form"
                raise HTTPException(
                    415, f"{rule}, but its Content-Type is {content_type[:40]!r}; name it"
                )
    except TimeoutError as error:
        message = (
            f"an upload may take {state.config.deadline:g} s, but it is not here yet; try again"
        )
        raise HTTPException(408, message) from error
    except ClientDisconnect as error:
        raise HTTPException(400, "the upload ended before its end; send it again") from error
    except ValidationError as error:
        raise HTTPException(400, _wrong_field(error)) from error
    except (MultiPartException, ValueError) as error:
        rule = "the body must be a form with one file and 100 fields at most"
        raise HTTPException(400, f"{rule}, but it cannot be read as such; correct it") from error
    await state.token.check(request, getattr(checked, "api_key", None) or "")
    return checked


async def _form_fields(parser: FormParser | MultiPartParser) -> Json:
    """The fields of a form; those that come several times, or are called NAME[], are lists."""
    fields: Json = {}
    form = await parser.parse()
    for name, value in form.multi_items():
        if isinstance(value, UploadFile):
            value = UploadFile(BytesIO(await value.read()), filename=value.filename)
        fields.setdefault(name, []).append(value)
    await form.close()
    return {
        name: each if name.endswith("[]") or len(each) > 1 else each[0]
        for name, each in fields.items()
    }


async def _bounded(request: Request, n_bytes: int) -> AsyncGenerator[bytes, None]:
    """Yield the chunks of a body unless it is too large."""
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size <= n_bytes:
            yield chunk
        elif (
            size > 3 * n_bytes
        ):  # until then, read on: most clients read no answer before they have sent all
            break
    if size > n_bytes:
        raise HTTPException(
            413, f"a body may have {n_bytes} bytes, but this one has more; send it in parts"
        )


def _wrong_field(errors: ValidationError) -> str:
    """The rule for the first field that breaks one, and its value."""
    error = errors.errors(include_context=False, include_url=False)[0]
    kind = error["type"]
    if not error["loc"]:
        rule = "the body must be an object of JSON"
        return f"{rule}, but it cannot be read as such ({error['msg']}); correct it"
    name = error["loc"][0]
    value = repr(error["input"])[:40]
    if kind == "missing":
        return f"{name} is missing; send it"
    if kind.endswith("too_short"):
        return f"{name} must not be empty, but it is {value}; send a text"
    if kind == "value_error":
        return f"{name} must be a file, but it is {value}; send it as curl -F {name}=@talk.wav does"
    is_text = {"str", "list[str]"} & set(error["loc"])
    rule = (
        "a string or a list of strings"
        if is_text
        else error["msg"].removeprefix("Input should be ")
    )
    return f"{name} must be {rule}, but it is {value}; correct it"


def check_bound(n: int, bound: int, noun: str) -> None:
    """Raise HTTPException if a request has more than it may."""
    if n > bound:
        raise HTTPException(400, f"a request may have {bound} {noun}, but it has {n}; ask for less")
