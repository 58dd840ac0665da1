"""What comes with a request: read within bounds, checked, and told in the form that the client expects."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from hmac import compare_digest
from time import monotonic
from typing import Any, TypeVar

from fastapi import HTTPException, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.datastructures import FormData, Headers
from starlette.formparsers import FormParser, MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from transduce.serve.engine import Late

BodyT = TypeVar("BodyT", bound=BaseModel)


@dataclass(frozen=True)
class Access:
    """What a request must show, if anything."""

    token: str = ""

    def check(self, request: Request, api_key: object = None) -> None:
        """Raise HTTPException unless the token stands in the header, or as LibreTranslate's clients send it."""
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        shown = [given.strip() if scheme.lower() == "bearer" else "", api_key if isinstance(api_key, str) else ""]
        if self.token and not any(compare_digest(each.encode(), self.token.encode()) for each in shown):
            raise HTTPException(
                401, "this server needs its token: send 'Authorization: Bearer TOKEN'", {"WWW-Authenticate": "Bearer"}
            )


def body(model: type[BodyT]) -> Callable[[Request], Awaitable[BodyT]]:
    """What reads a body of text as this model; for Depends."""

    async def read(request: Request) -> BodyT:
        return await read_body(request, model, request.app.state.config.text_bytes)

    return read


async def read_body(request: Request, model: type[BodyT], n_bytes: int) -> BodyT:
    """A body of so many bytes at most, JSON or a form, as this model.

    Raises:
        HTTPException: it is neither, too large, too slow, or lacks the token.
        RequestValidationError: fields have wrong values.
    """
    if "api_key" not in model.model_fields:  # then the body cannot hold the token: a stranger's is not read
        request.app.state.access.check(request)
    if misplaced := sorted(model.model_fields.keys() & request.query_params.keys()):
        raise HTTPException(400, f"fields stand in the body, but the address has {', '.join(misplaced)}; move them")
    deadline = request.app.state.config.deadline
    try:
        plain = await asyncio.wait_for(_fields(request, n_bytes), deadline)
    except (asyncio.TimeoutError, TimeoutError) as error:
        raise HTTPException(408, f"an upload may take {deadline:g} s, but it is not here yet; try again") from error
    except ClientDisconnect as error:
        raise HTTPException(400, "the upload ended before its end; send it again") from error
    request.app.state.access.check(request, plain.get("api_key"))
    try:
        return model.model_validate(plain)
    except ValidationError as error:
        raise RequestValidationError(error.errors(include_context=False, include_url=False)) from error


async def _chunks(request: Request, n_bytes: int) -> AsyncGenerator[bytes]:
    """What a body consists of, as long as it is not too large; most clients read no answer before they have sent all."""
    seen = 0
    async for chunk in request.stream():
        seen += len(chunk)
        if seen <= n_bytes:
            yield chunk
        elif seen > 3 * n_bytes:
            break
    if seen > n_bytes:
        raise HTTPException(413, f"a body may have {n_bytes} bytes, but this one has more; send it in parts")


@dataclass(frozen=True)
class Uploaded:
    """A file of a form."""

    name: str
    content: bytes = field(repr=False)


class _Multipart(MultiPartParser):
    """One whose files stay in memory, which is bounded: a disk may be full."""

    spool_max_size = 0


async def _fields(request: Request, n_bytes: int) -> dict[str, Any]:
    """The fields of a body; those of a form that come several times, or are called NAME[], are lists."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    chunks, parser = _chunks(request, n_bytes), FORMS.get(kind)
    try:
        if parser:
            plain = await _form_fields(await parser(request.headers, chunks).parse())
        elif kind == "application/json":
            plain = json.loads(b"".join([chunk async for chunk in chunks]))
        else:
            raise HTTPException(
                415, f"the body must be application/json or a form, but its Content-Type is {kind[:40]!r}; name it"
            )
        json.dumps(plain, ensure_ascii=False, default=str).encode()  # half a character cannot be answered
    except (MultiPartException, ValueError, RecursionError) as error:
        shape = "a form with one file and 100 fields at most" if parser else "JSON"
        raise HTTPException(400, f"the body must be {shape}, but it cannot be read as such; correct it") from error
    if not isinstance(plain, dict):
        raise HTTPException(400, "the body must be an object of JSON, but it is something else; put it into {}")
    return plain


async def _form_fields(form: FormData) -> dict[str, Any]:
    fields: dict[str, list[str | Uploaded]] = {}
    for name, value in form.multi_items():
        read = value if isinstance(value, str) else Uploaded(value.filename or "", await value.read())
        fields.setdefault(name, []).append(read)
    await form.close()
    return {name: each if name.endswith("[]") or len(each) > 1 else each[0] for name, each in fields.items()}


FORMS: dict[str, Callable[[Headers, AsyncGenerator[bytes]], FormParser | MultiPartParser]] = {
    "application/x-www-form-urlencoded": partial(FormParser, max_fields=100),
    "multipart/form-data": partial(_Multipart, max_files=1, max_fields=100),
}


def described(model: type[BaseModel], *kinds: str) -> dict[str, Any]:
    """What OpenAPI says of a body that `body` reads, in these content types."""
    schema = model.model_json_schema()
    return {"requestBody": {"required": True, "content": {kind: {"schema": schema} for kind in kinds}}}


class Memory:
    """Bytes of uploads that are read and decoded at a time; others wait, and are not read."""

    def __init__(self, n_bytes: int) -> None:
        self.free = n_bytes

    @asynccontextmanager
    async def upload(self, request: Request, model: type[BodyT]) -> AsyncIterator[BodyT]:
        """An upload, while there is room for it.

        Raises:
            Late: there is none before the deadline.
        """
        request.app.state.access.check(request)
        n_bytes: int = request.app.state.config.upload_bytes
        length = request.headers.get("content-length", "")
        is_known = length.isdecimal() and "transfer-encoding" not in request.headers
        wanted = min(n_bytes, int(length)) if is_known else n_bytes
        until = monotonic() + request.app.state.config.deadline
        while self.free < wanted:
            if monotonic() > until:
                raise Late
            await asyncio.sleep(0.02)
        self.free -= wanted
        try:
            yield await read_body(request, model, n_bytes)
        finally:
            self.free += wanted


class CloseUnread:
    """Closes a connection whose body was not read to its end before the answer."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers, more = dict(scope["headers"]), True
        has_body = b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"

        async def reading() -> Message:
            nonlocal more
            message = await receive()
            more = message.get("more_body", False)
            return message

        async def closing(message: Message) -> None:
            if message["type"] == "http.response.start" and more and has_body:
                message["headers"] = [*message.get("headers", []), (b"connection", b"close")]
            await send(message)

        await self.app(scope, reading, closing)


class Leaving:
    """Ends the work for a client that leaves before its answer begins; a stream sees by itself that nobody reads it."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        read, started = asyncio.Event(), False

        async def reading() -> Message:
            if read.is_set():
                return await asyncio.shield(left)
            message = await receive()
            if not message.get("more_body", False):
                read.set()
            return message

        async def leaving() -> Message:
            await read.wait()
            return await receive()

        async def sending(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        left = asyncio.ensure_future(leaving())
        answer = asyncio.ensure_future(self.app(scope, reading, sending))
        try:
            await asyncio.wait({answer, left}, return_when=asyncio.FIRST_COMPLETED)
            if started or answer.done():
                await answer
        finally:
            left.cancel()
            answer.cancel()
            with suppress(asyncio.CancelledError, Exception):  # it was told above, if anybody is there to hear it
                await answer
