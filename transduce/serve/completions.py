"""OpenAI's list of models, and text that goes on from a prompt."""

import secrets
from collections.abc import AsyncIterator
from dataclasses import replace
from math import ceil
from time import time
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field

from transduce.serve.body import body, described
from transduce.serve.config import ServeConfig
from transduce.serve.engine import Ask
from transduce.serve.errors import OpenAIError, events, responses
from transduce.serve.models import Ending, Going, Prompt, Served, cut, ending
from transduce.tasks.config import GenerationConfig
from transduce.tasks.generate import Generator
from transduce.tasks.search import last_position

router = APIRouter(tags=["OpenAI"], responses=responses(OpenAIError))


TOKENS = 128
"""Tokens to generate that are worth a text."""


class Complete(BaseModel):
    """Prompts, and how to go on from them."""

    model: str
    prompt: str | list[str] = ""
    max_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=100)
    top_p: float | None = Field(None, gt=0, le=1)
    n: int | None = Field(None, ge=1)
    seed: int | None = Field(None, ge=0)
    stop: str | list[str] | None = None
    """Where a text ends before it; at most four."""
    stream: bool | None = None
    stream_options: dict[str, bool | None] | None = None
    """Only with stream. include_usage: a last event, without choices, has the usage."""
    echo: bool | None = None
    """Whether the prompt stands before its text."""
    best_of: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: int | None = None
    suffix: str | None = None

    @property
    def prompts(self) -> list[str]:
        """One or several."""
        return [self.prompt] if isinstance(self.prompt, str) else self.prompt

    @property
    def stops(self) -> list[str]:
        """What texts end before."""
        return [stop for stop in ([self.stop] if isinstance(self.stop, str) else self.stop or []) if stop]


UNKNOWN = ("best_of", "frequency_penalty", "presence_penalty", "logit_bias", "logprobs", "suffix")
"""Fields of OpenAI that mean nothing here."""


@router.get("/v1/models")
async def models(request: Request) -> dict[str, Any]:
    """The runs that are served, by the names of their directories."""
    request.app.state.access.check(request)
    return {"object": "list", "data": [_model(each) for each in request.app.state.served]}


@router.get("/v1/models/{name}")
async def model(request: Request, name: str) -> dict[str, Any]:
    """One run."""
    request.app.state.access.check(request)
    for each in request.app.state.served:
        if each.name == name:
            return _model(each)
    raise HTTPException(404, f"a model must be one of /v1/models, but it is {name[:40]!r}; choose one of them")


def _model(served: Served) -> dict[str, Any]:
    return {"id": served.name, "object": "model", "created": served.created, "owned_by": "transduce"}


@router.post("/v1/completions", openapi_extra=described(Complete, "application/json"), response_model=None)
async def complete(request: Request, asked: Annotated[Complete, Depends(body(Complete))]) -> Response:
    """What follows each prompt."""
    able = [each for each in request.app.state.served if isinstance(each.task, Generator)]
    served = next((each for each in able if each.name == asked.model), None)
    if served is None:
        told = ", ".join(each.name for each in able) or "no run"
        raise HTTPException(404, f"{told} goes on from prompts here, but not {asked.model[:40]!r}; see /v1/models")
    going = _checked(asked, request.app.state.config)
    n_read = _count_prompts(served, asked.prompts)
    about = {"id": f"cmpl-{secrets.token_hex(12)}", "object": "text_completion", "created": int(time())}
    about["model"] = served.name
    size = 1 if asked.stream else going.batch_size
    asks = [
        Ask(
            Prompt(prompt, i, first),
            Going(replace(going, n=min(size, going.n - first)), tuple(asked.stops), bool(asked.stream)),
            cost=min(size, going.n - first) * ceil(going.max_length / TOKENS),
            alone=bool(asked.stream),
        )
        for i, prompt in enumerate(asked.prompts)
        for first in range(0, going.n, size)
    ]
    if asked.stream:
        served.engine.check_room(sum(ask.cost for ask in asks))
        return events(_chunks(about, served, asks, asked, n_read), last="[DONE]")
    choices, n_tokens = list[dict[str, Any]](), 0
    for ask, (outputs,) in zip(asks, await served.outputs(asks), strict=True):
        for output in outputs:
            end = ending(output, asked.stops)
            n_tokens += end.n_tokens
            text = ask.payload.text * bool(asked.echo) + cut(output.text, asked.stops)[0]
            choices.append(_choice(len(choices), text, end.reason))
    return JSONResponse({**about, "choices": choices, "usage": _usage(n_read, n_tokens)})


def _count_prompts(served: Served, prompts: list[str]) -> int:
    """Tokens of all prompts.

    Raises:
        HTTPException: one has more than the model has positions.
    """
    assert isinstance(served.task, Generator)
    n_read = [len(served.task.encode_whole(prompt)) for prompt in prompts]
    room = last_position(*served.task.engines)
    if max(n_read, default=0) > room:
        raise HTTPException(400, f"a prompt may have {room} tokens here, but one has {max(n_read)}; shorten it")
    return sum(n_read)


def _usage(n_read: int, n_tokens: int) -> dict[str, int]:
    return {"prompt_tokens": n_read, "completion_tokens": n_tokens, "total_tokens": n_read + n_tokens}


def _checked(asked: Complete, config: ServeConfig) -> GenerationConfig:
    """How to go on.

    Raises:
        HTTPException: too much is asked, or what there is not.
        InputError: numbers do not go together.
    """
    n, n_tokens = asked.n or 1, asked.max_tokens or 16
    usual = {"best_of": n, "logprobs": None}  # of as many as are wanted, all are the best
    if unknown := [name for name in UNKNOWN if getattr(asked, name) not in (None, usual.get(name, 0), {}, "")]:
        raise HTTPException(400, f"this server does not know {', '.join(unknown)}; leave it out")
    if asked.stream_options is not None and not asked.stream:
        raise HTTPException(400, "stream_options go with stream, but stream is not true; leave them out, or stream")
    bounds = {
        "characters of prompts": (sum(map(len, asked.prompts)), config.characters),
        "texts": (len(asked.prompts) * n, config.texts),
        "max_tokens": (n_tokens, config.max_tokens),
        "stops": (len(asked.stops), 4),
    }
    for name, (given, bound) in bounds.items():
        if given > bound:
            raise HTTPException(400, f"a request may have {bound} {name}, but it has {given}; ask for less")
    return GenerationConfig(
        max_length=n_tokens,
        temperature=1.0 if asked.temperature is None else asked.temperature,
        top_p=1.0 if asked.top_p is None else asked.top_p,
        n=n,
        seed=secrets.randbits(32) if asked.seed is None else asked.seed,
    )


def _choice(index: int, text: str, reason: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "finish_reason": reason, "logprobs": None}


async def _chunks(
    about: dict[str, Any], served: Served, asks: list[Ask], asked: Complete, n_read: int
) -> AsyncIterator[dict[str, Any]]:
    """The events of a stream: pieces of one text after the other, with its reason to end behind the last; then the usage."""
    with_usage = (asked.stream_options or {}).get("include_usage")
    about, n_tokens = {**about, "usage": None} if with_usage else about, 0
    for index, ask in enumerate(asks if asked.echo else []):
        yield {**about, "choices": [_choice(index, ask.payload.text, None)]}
    async for index, piece in served.stream(asks):
        if isinstance(piece, Ending):
            n_tokens += piece.n_tokens
            yield {**about, "choices": [_choice(index, "", piece.reason)]}
        else:
            yield {**about, "choices": [_choice(index, piece, None)]}
    if with_usage:
        yield {**about, "choices": [], "usage": _usage(n_read, n_tokens)}
