"""OpenAI's list of models, and completions of prompts."""

import secrets
from collections.abc import AsyncIterator
from math import ceil
from time import time
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field, model_validator

from transduce.serve.config import ServeConfig
from transduce.serve.engine import Request
from transduce.serve.http import (
    TOKEN,
    Json,
    OpenAIError,
    State,
    body,
    body_schema,
    check_bound,
    events,
    responses,
)
from transduce.serve.models import (
    Ending,
    GenerationRequest,
    Prompt,
    Served,
    ending,
    truncate_at_stop,
)
from transduce.tasks.config import GenerationConfig
from transduce.tasks.generate import Generator
from transduce.tasks.search import last_position

router = APIRouter(tags=["OpenAI"], responses=responses(OpenAIError), dependencies=TOKEN)

TOKENS_PER_TEXT = 128
"""Tokens to generate that cost as much as a text to translate."""

UNSUPPORTED = (
    "best_of",
    "frequency_penalty",
    "presence_penalty",
    "logit_bias",
    "logprobs",
    "suffix",
)
"""Fields of OpenAI that a request may only have at values that change nothing."""


class CompletionBody(BaseModel):
    """Prompts, and how to continue them."""

    model: str
    prompt: str | list[str] = ""
    max_tokens: int = Field(16, ge=1)
    temperature: float = Field(1.0, ge=0, le=100)
    top_p: float = Field(1.0, gt=0, le=1)
    n: int = Field(1, ge=1)
    seed: int = Field(default_factory=lambda: secrets.randbits(32), ge=0)
    stop: str | list[str] = ""
    """A text ends before it; at most four."""
    stream: bool = False
    stream_options: dict[str, bool | None] | None = None
    """Only with stream. include_usage: a last event, without choices, has the usage."""
    echo: bool = False
    """Whether the prompt stands before its text."""
    best_of: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: int | None = None
    suffix: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, fields: Any) -> Any:
        is_object = isinstance(fields, dict)
        return (
            {name: value for name, value in fields.items() if value is not None}
            if is_object
            else fields
        )

    @property
    def prompts(self) -> list[str]:
        """One or several."""
        return [self.prompt] if isinstance(self.prompt, str) else self.prompt

    @property
    def stops(self) -> tuple[str, ...]:
        """None, one or several."""
        return tuple(filter(None, [self.stop] if isinstance(self.stop, str) else self.stop))

    def generation(self, limits: ServeConfig) -> GenerationConfig:
        """The configuration of the generation.

        Raises:
            HTTPException: the request is too large, or has fields that are not supported.
            InputError: its numbers do not go together.
        """
        neutral = {"best_of": self.n, "logprobs": None}  # of n texts, all are the best
        values = {name: getattr(self, name) for name in UNSUPPORTED}
        names = [
            name for name in values if values[name] not in (None, {}, "", neutral.get(name, 0))
        ]
        if names:
            raise HTTPException(400, f"this server does not know {', '.join(names)}; leave it out")
        if self.stream_options is not None and not self.stream:
            message = (
                "stream_options go with stream, but stream is not true; leave them out, or stream"
            )
            raise HTTPException(400, message)
        check_bound(sum(map(len, self.prompts)), limits.characters, "characters of prompts")
        check_bound(len(self.prompts) * self.n, limits.texts, "texts")
        check_bound(self.max_tokens, limits.max_tokens, "max_tokens")
        check_bound(len(self.stops), 4, "stops")
        return GenerationConfig(
            max_length=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            n=self.n,
            seed=self.seed,
        )


@router.get("/v1/models")
async def models(state: State) -> Json:
    """The runs that are served, by the names of their directories."""
    return {"object": "list", "data": [_model(run) for run in state.runs]}


@router.get("/v1/models/{name}")
async def model(state: State, name: str) -> Json:
    """One run."""
    return _model(state.find(name))


def _model(run: Served[Any]) -> Json:
    return {"id": run.name, "object": "model", "created": run.created, "owned_by": "transduce"}


@router.post(
    "/v1/completions",
    openapi_extra=body_schema(CompletionBody, "application/json"),
    response_model=None,
)
async def complete(
    state: State, query: Annotated[CompletionBody, Depends(body(CompletionBody))]
) -> Response:
    """The texts that continue each prompt."""
    run = state.find(query.model, Generator)
    config = query.generation(state.config)
    n_read = _count_tokens(run.task, query.prompts)
    head = {
        "id": f"cmpl-{secrets.token_hex(12)}",
        "object": "text_completion",
        "created": int(time()),
        "model": run.name,
    }
    request = _request(query, config)
    if query.stream:
        return events(_chunks(head, run.engine.submit(request), query, n_read), last="[DONE]")
    choices = list[Json]()
    n_written = 0
    for prompt, (outputs,) in zip(request.inputs, await run.engine.outputs(request), strict=True):
        for output in outputs:
            end = ending(output, query.stops)
            n_written += end.n_tokens
            text = prompt.text * query.echo + truncate_at_stop(output.text, query.stops)
            choices.append(_choice(len(choices), text, end.reason))
    return JSONResponse({**head, "choices": choices, "usage": _usage(n_read, n_written)})


def _request(query: CompletionBody, config: GenerationConfig) -> Request:
    """An input for every prompt and part of its n texts; as a stream, for every text."""
    size = 1 if query.stream else config.batch_size
    prompts = [
        Prompt(text, number, first, min(size, config.n - first))
        for number, text in enumerate(query.prompts)
        for first in range(0, config.n, size)
    ]
    costs = [prompt.n * ceil(config.max_length / TOKENS_PER_TEXT) for prompt in prompts]
    return Request(
        prompts, GenerationRequest(config, query.stops, query.stream), costs, query.stream
    )


def _count_tokens(generator: Generator, prompts: list[str]) -> int:
    """The tokens of all prompts.

    Raises:
        HTTPException: one has more than the model has positions.
    """
    counts = [len(generator.encode_whole(prompt)) for prompt in prompts]
    bound = last_position(*generator.engines)
    if max(counts, default=0) > bound:
        raise HTTPException(
            400, f"a prompt may have {bound} tokens here, but one has {max(counts)}; shorten it"
        )
    return sum(counts)


def _usage(n_read: int, n_written: int) -> dict[str, int]:
    return {
        "prompt_tokens": n_read,
        "completion_tokens": n_written,
        "total_tokens": n_read + n_written,
    }


def _choice(index: int, text: str, reason: str | None = None) -> Json:
    return {"index": index, "text": text, "finish_reason": reason, "logprobs": None}


async def _chunks(
    head: Json, pieces: AsyncIterator[tuple[int, Any]], query: CompletionBody, n_read: int
) -> AsyncIterator[Json]:
    """Yield the events of a stream: the pieces of each text with its reason to end, the usage."""
    with_usage = (query.stream_options or {}).get("include_usage")
    if with_usage:
        head = {**head, "usage": None}
    n_written = 0
    if query.echo:
        for index in range(len(query.prompts) * query.n):
            yield {**head, "choices": [_choice(index, query.prompts[index // query.n])]}
    async for index, piece in pieces:
        if isinstance(piece, Ending):
            n_written += piece.n_tokens
            choice = _choice(index, "", piece.reason)
        else:
            choice = _choice(index, piece)
        yield {**head, "choices": [choice]}
    if with_usage:
        yield {**head, "choices": [], "usage": _usage(n_read, n_written)}
