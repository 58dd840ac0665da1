"""What comes with a request: read within bounds, checked, and told in the form that the client expects."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from hmac import compare_digest
from typing import Any, TypeVar

from fastapi import HTTPException, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.datastructures import UploadFile
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from transduce.serve.config import ServeConfig

BodyT = TypeVar("BodyT", bound=BaseModel)

PER_CHARACTER, BESIDE = 12, 65_536
"""Bytes that a character takes at most, as JSON and forms escape it, and those of all else that a text comes with."""


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


def body(model: type[BodyT]) -> Callable[[Request], AsyncIterator[BodyT]]:
    """What reads a body, JSON or a form, as this model; for Depends.

    Raises:
        HTTPException: it is neither, too large, too slow, or lacks the token.
        RequestValidationError: fields have wrong values.
    """

    async def read(request: Request) -> AsyncIterator[BodyT]:
        if "api_key" not in model.model_fields:  # then the body cannot hold the token: a stranger's is not read
            request.app.state.access.check(request)
        try:
            found = await _read(request, model)
            yield found
        finally:
            await request.close()

    return read


async def _read(request: Request, model: type[BodyT]) -> BodyT:
    deadline = request.app.state.config.deadline
    try:
        plain = await asyncio.wait_for(_fields(request), deadline)
    except (asyncio.TimeoutError, TimeoutError) as error:
        raise HTTPException(408, f"an upload may take {deadline:g} s, but it is not here yet; try again") from error
    except ClientDisconnect as error:
        raise HTTPException(400, "the upload ended before its end; send it again") from error
    request.app.state.access.check(request, plain.get("api_key"))
    try:
        return model.model_validate(plain)
    except ValidationError as error:
        raise RequestValidationError(error.errors(include_input=False, include_url=False)) from error


async def _fields(request: Request) -> dict[str, Any]:
    """The fields of a body; those of a form that come several times, or are called NAME[], are lists."""
    if "json" in request.headers.get("content-type", ""):
        try:
            plain = json.loads(await request.body())
            json.dumps(plain, ensure_ascii=False).encode()  # half a character cannot be told again
        except (ValueError, RecursionError) as error:
            raise HTTPException(400, "the body must be JSON, but it cannot be read as such; correct it") from error
        if not isinstance(plain, dict):
            raise HTTPException(400, "the body must be an object of JSON, but it is something else; put it into {}")
        return plain
    form = await request.form(max_files=1, max_fields=100)
    return {
        name: form.getlist(name) if name.endswith("[]") or len(form.getlist(name)) > 1 else form[name] for name in form
    }


def described(model: type[BaseModel], *kinds: str) -> dict[str, Any]:
    """What OpenAPI says of a body that `body` reads, in these content types."""
    schema = model.model_json_schema()
    return {"requestBody": {"required": True, "content": {kind: {"schema": schema} for kind in kinds}}}


async def content(upload: UploadFile) -> bytes:
    """The bytes of an upload; its name is nothing to us."""
    found: bytes = await upload.read()
    await upload.close()
    return found


class Bounds:
    """Cuts bodies that are too large while they are read; what is answered before its end is closed."""

    def __init__(self, app: ASGIApp, config: ServeConfig) -> None:
        self.app, self.config = app, config

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers, seen, more = dict(scope["headers"]), 0, True
        text = PER_CHARACTER * self.config.characters + BESIDE
        is_form = b"multipart" in headers.get(b"content-type", b"")
        bound = round(self.config.upload_mb * 1e6) + BESIDE if is_form else text

        has_body = b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"

        async def bounded() -> Message:
            nonlocal seen, more
            message = await receive()
            seen, more = seen + len(message.get("body", b"")), message.get("more_body", False)
            if seen > bound:
                while seen < 3 * bound and message.get(
                    "more_body"
                ):  # most clients read no answer before they have sent all
                    message = await receive()
                    seen += len(message.get("body", b""))
                raise HTTPException(413, f"a body may have {bound} bytes, but this one has more; send it in parts")
            return message

        async def closing(message: Message) -> None:
            if message["type"] == "http.response.start" and more and has_body:
                message["headers"] = [*message.get("headers", []), (b"connection", b"close")]
            await send(message)

        await self.app(scope, bounded, closing)


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
