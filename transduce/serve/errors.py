"""Errors in the forms that clients expect."""

import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi.exceptions import RequestValidationError
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from transduce.errors import InputError
from transduce.serve.engine import Busy, Late

TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
"""What OpenAI calls errors; others below 500 are invalid requests."""


class PlainError(BaseModel):
    """What was wrong."""

    error: str


class Detail(BaseModel):
    """What was wrong, as OpenAI says it."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class OpenAIError(BaseModel):
    """What was wrong, as OpenAI's clients read it."""

    error: Detail


def responses(model: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """What OpenAPI says of errors."""
    return {status: {"model": model} for status in (400, 401, 404, 408, 413, 415, 429, 503)}


def told(error: Exception) -> tuple[int, str, dict[str, str]]:
    """The status, the message and the headers that an error is answered with."""
    match error:
        case Busy():
            return 429, str(error), {"Retry-After": str(error.retry_after)}
        case Late():
            return (
                503,
                "there was no answer before the deadline, so the request was dropped; try again",
                {"Retry-After": "1"},
            )
        case RequestValidationError():
            return 400, _wrong_field(error.errors()[0]), {}
        case HTTPException():
            return error.status_code, str(error.detail), dict(error.headers or {})
        case InputError():
            return 400, str(error), {}
    return 500, "the server failed, and its log says why; please report it", {}


def _wrong_field(error: dict[str, Any]) -> str:
    """What a field must be, and is not."""
    place, kind = error["loc"], error["type"]
    name, given = str(place[0]), repr(error["input"])[:40]
    if kind == "missing":
        return f"{name} is missing; send it"
    if kind.endswith("too_short"):
        return f"{name} must not be empty, but it is {given}; send a text"
    if kind == "is_instance_of":
        return f"{name} must be a file, but it is {given}; send it as curl -F {name}=@talk.wav does"
    texts = "Input should be a string or a list of strings"
    rule = texts if "list[str]" in place or "str" in place else error["msg"]
    return f"{rule.replace('Input should', f'{name} must')}, but it is {given}; correct it"


def plain_error(path: str, status: int, message: str) -> dict[str, Any]:
    """An error as the clients of this path read it."""
    if not path.startswith("/v1/"):
        return {"error": message}
    kind = "server_error" if status >= 500 else TYPES.get(status, "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


def events(found: AsyncIterator[dict[str, Any]], *, last: str = "") -> StreamingResponse:
    """Server-sent events, in the form of OpenAI; what goes wrong is the last of them."""

    async def lines() -> AsyncIterator[str]:
        try:
            async for each in found:
                yield f"data: {json.dumps(each, ensure_ascii=False)}\n\n"
        except Exception as error:
            status, message, _ = told(error)
            yield f"data: {json.dumps(plain_error('/v1/', status, message))}\n\n"
        if last:
            yield f"data: {last}\n\n"

    return StreamingResponse(lines(), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
