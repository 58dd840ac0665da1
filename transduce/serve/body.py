"""Bodies of requests: read within bounds of size and time, and checked by pydantic."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from io import BytesIO
from typing import TypeVar

import anyio
from fastapi import HTTPException, Request
from pydantic import BaseModel, ValidationError
from starlette.datastructures import UploadFile
from starlette.formparsers import FormParser, MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect

from transduce.serve.errors import Json
from transduce.serve.state import server_state

BodyT = TypeVar("BodyT", bound=BaseModel)


class _Multipart(MultiPartParser):
    """A parser that holds files in memory, which is bounded: a disk may be full."""

    spool_max_size = 0


FORMS: dict[str, Callable[..., FormParser | MultiPartParser]] = {
    "application/x-www-form-urlencoded": partial(FormParser, max_fields=100),
    "multipart/form-data": partial(_Multipart, max_files=1, max_fields=100),
}


def body(model: type[BodyT]) -> Callable[[Request], Awaitable[BodyT]]:
    """A dependency that reads a body of text as this model."""

    async def read(request: Request) -> BodyT:
        return await read_body(request, model, server_state(request).config.text_bytes)

    return read


def body_schema(model: type[BaseModel], *content_types: str) -> Json:
    """The description of such a body in OpenAPI."""
    schema = model.model_json_schema()
    content = {content_type: {"schema": schema} for content_type in content_types}
    return {"requestBody": {"required": True, "content": content}}


async def read_body(request: Request, model: type[BodyT], n_bytes: int) -> BodyT:
    """Read JSON or a form of at most so many bytes.

    Raises:
        HTTPException: it is neither, too large, too slow, has wrong fields or lacks the token.
    """
    state = server_state(request)
    if misplaced := sorted(model.model_fields.keys() & request.query_params.keys()):
        names = ", ".join(misplaced)
        raise HTTPException(400, f"fields stand in the body, but the address has {names}; move them")
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
                raise HTTPException(415, f"{rule}, but its Content-Type is {content_type[:40]!r}; name it")
    except TimeoutError as error:
        message = f"an upload may take {state.config.deadline:g} s, but it is not here yet; try again"
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
    return {name: each if name.endswith("[]") or len(each) > 1 else each[0] for name, each in fields.items()}


async def _bounded(request: Request, n_bytes: int) -> AsyncGenerator[bytes, None]:
    """Yield the chunks of a body unless it is too large."""
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size <= n_bytes:
            yield chunk
        elif size > 3 * n_bytes:  # until then, read on: most clients read no answer before they have sent all
            break
    if size > n_bytes:
        raise HTTPException(413, f"a body may have {n_bytes} bytes, but this one has more; send it in parts")


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
    rule = "a string or a list of strings" if is_text else error["msg"].removeprefix("Input should be ")
    return f"{name} must be {rule}, but it is {value}; correct it"


def check_bound(n: int, bound: int, noun: str) -> None:
    """Raise HTTPException if a request has more than it may."""
    if n > bound:
        raise HTTPException(400, f"a request may have {bound} {noun}, but it has {n}; ask for less")
