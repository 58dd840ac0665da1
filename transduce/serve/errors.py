"""Errors in the forms that clients expect."""

import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from transduce.errors import InputError

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


def http_error(error: Exception) -> HTTPException:
    """An error with its status, message and headers."""
    if isinstance(error, HTTPException):
        return error
    if isinstance(error, InputError):
        return HTTPException(400, str(error))
    return HTTPException(500, "the server failed, and its log says why; please report it")


def error_body(path: str, error: HTTPException) -> Json:
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

    return StreamingResponse(lines(), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
