"""OpenAI's list of models, and completions of prompts."""

import secrets
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from math import ceil
from time import time
from typing import Any, Literal

import fastapi
from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field, NonNegativeInt, model_validator

from transduce.config import Json
from transduce.errors import InputError
from transduce.serve import ServeConfig
from transduce.serve.engine import Pieces, Request
from transduce.serve.http import (
    TOKEN,
    OpenAIError,
    Served,
    State,
    body_schema,
    check_bound,
    events,
    read_body,
    responses,
)
from transduce.tasks.base import last_position
from transduce.tasks.config import GenerationConfig
from transduce.tasks.generate import Generator as TextGenerator
from transduce.tasks.outputs import Output

router = APIRouter(tags=["OpenAI"], responses=responses(OpenAIError), dependencies=TOKEN)

STARTED = int(time())
"""When the server started, in Unix seconds."""

TOKENS_PER_TEXT = 128
"""Tokens to generate that cost as much as a text to translate."""


class CompletionBody(BaseModel):
    """Prompts, and how to continue them.

    Fields that the server does not support, such as penalties, may only have neutral values.
    """

    model: str
    prompt: str | list[str] = ""
    max_tokens: int = Field(16, ge=1)
    temperature: float = Field(1.0, ge=0, le=100)
    top_p: float = Field(1.0, gt=0, le=1)
    min_p: float = Field(0.0, ge=0, le=1)
    top_k: int = 0
    repetition_penalty: float = 1.0
    min_length: int = Field(0, alias="min_tokens", ge=0)
    """These four are as in vLLM, where a top_k of -1 is off, too; the run's own values are the
    defaults."""
    n: int = Field(1, ge=1)
    seed: int = Field(default_factory=lambda: secrets.randbits(32), ge=0)
    stop: str | list[str] = ""
    """Strings before which a text ends; at most four."""
    stream: bool = False
    stream_options: dict[str, bool | None] | None = None
    """Only with stream. include_usage: a last event without choices reports the usage."""
    echo: bool = False
    """Whether a text includes its prompt."""
    best_of: int | None = None
    frequency_penalty: float = Field(0.0, ge=0, le=0)
    presence_penalty: float = Field(0.0, ge=0, le=0)
    logit_bias: dict[NonNegativeInt, float] = {}
    """Values to add to the logits of tokens, by token id."""
    logprobs: None = None
    suffix: str = Field("", max_length=0)
    max_completion_tokens: None = None
    max_new_tokens: None = None
    n_predict: None = None
    ignore_eos: Literal[False] | None = None
    beam_size: None = None
    use_beam_search: Literal[False] | None = None
    length_penalty: float = Field(1.0, ge=1, le=1)
    repeat_penalty: float = Field(1.0, ge=1, le=1)
    typical_p: float = Field(1.0, ge=1, le=1)
    stop_token_ids: list[int] = Field([], max_length=0)
    response_format: dict[Literal["type"], Literal["text"]] = {}

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, fields: Any) -> Any:
        if not isinstance(fields, dict):
            return fields
        return {name: value for name, value in fields.items() if value is not None}

    @property
    def prompts(self) -> list[str]:
        """The prompts, one or several."""
        return [self.prompt] if isinstance(self.prompt, str) else self.prompt

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings, possibly none."""
        return tuple(filter(None, [self.stop] if isinstance(self.stop, str) else self.stop))

    def generation(self, limits: ServeConfig, decoding: GenerationConfig) -> GenerationConfig:
        """The configuration of the generation: the run's own, except for fields that have defaults
        at OpenAI and fields that are given.

        Raises:
            InputError: the request is too large, or its numbers conflict.
        """
        if self.best_of not in (None, self.n):  # all n texts are returned
            raise InputError(f"best_of must be n, but it is {self.best_of}; leave it out")
        check_bound(sum(map(len, self.prompts)), limits.characters, "characters of prompts")
        check_bound(len(self.prompts) * self.n, limits.texts, "texts")
        if not self.temperature:
            check_bound(self.n, 1, "texts per prompt at temperature 0")
        check_bound(self.max_tokens, limits.max_tokens, "max_tokens")
        check_bound(self.min_length, self.max_tokens, "min_tokens")
        check_bound(len(self.stops), 4, "stops")
        named = self.model_dump(
            include={"top_k", "min_p", "repetition_penalty", "min_length", "logit_bias"},
            exclude_unset=True,
        )
        if self.top_k == -1:
            named["top_k"] = 0
        return decoding.changed(
            max_length=self.max_tokens,
            beam_size=1,
            **self.model_dump(include={"temperature", "top_p", "n", "seed"}),
            **named,
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
    return {"id": run.name, "object": "model", "created": STARTED, "owned_by": "transduce"}


@router.post(
    "/v1/completions",
    openapi_extra=body_schema(CompletionBody, "application/json"),
    response_model=None,
)
async def complete(http: fastapi.Request, state: State) -> Response:
    """The texts that continue each prompt."""
    query = await read_body(http, state, CompletionBody)
    run = state.find(query.model, TextGenerator)
    config = query.generation(state.config, run.task.decoding)
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
    """Make inputs: one for each prompt and batch of its n texts; in a stream, one for each text."""
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


def _count_tokens(generator: TextGenerator, prompts: list[str]) -> int:
    """The tokens of all prompts.

    Raises:
        InputError: a prompt has more tokens than the model has positions.
    """
    counts = [len(generator.encode_uncut(prompt)) for prompt in prompts]
    bound = last_position(*generator.engines)
    if max(counts, default=0) > bound:
        raise InputError(
            f"a prompt may have {bound} tokens here, but one has {max(counts)}; shorten it"
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
    """Yield the events of a stream: the pieces of each text, its finish reason, and the usage."""
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


@dataclass(frozen=True)
class Prompt:
    """A prompt, and which of its texts to generate; samples depend on all these numbers."""

    text: str
    number: int
    first: int
    n: int


@dataclass(frozen=True)
class GenerationRequest:
    """How to continue prompts, up to the first stop string; a stream yields one text in pieces."""

    config: GenerationConfig
    stops: tuple[str, ...] = ()
    stream: bool = False


@dataclass(frozen=True)
class Ending:
    """Why a text ended, and its number of tokens, including the end or stop, as in llama.cpp."""

    reason: str
    n_tokens: int


def ending(output: Output, stops: Sequence[str]) -> Ending:
    """The ending of an output whose text still includes its stop string."""
    stopped = output.finished or truncate_at_stop(output.text, stops) != output.text
    return Ending("stop" if stopped else "length", len(output.tokens) + output.finished)


def truncate_at_stop(text: str, stops: Sequence[str]) -> str:
    """The text before the first stop string."""
    return text[: min((place for stop in stops if (place := text.find(stop)) >= 0), default=None)]


def generate_texts(
    generator: TextGenerator, request: GenerationRequest, prompts: list[Prompt]
) -> Pieces:
    """Yield the n texts of every prompt as one piece, or the pieces of one text and its Ending."""
    config = request.config
    stops = request.stops
    generator = copy(generator)
    generator.decoding = config  # as an argument of a call, its defaults would become the run's
    if request.stream:
        (prompt,) = prompts
        pieces = generator.stream(
            prompt.text, prompt_number=prompt.number, text_number=prompt.first, stop=stops
        )
        yield from ((0, piece) for piece in _until_stop(pieces, stops))
        return
    groups = [[prompt] for prompt in prompts] if config.temperature > 0 else [prompts]
    yield from enumerate(
        outputs
        for group in groups
        for outputs in generator.generate(
            [prompt.text for prompt in group],
            first_prompt=group[0].number,
            first_text=group[0].first,
            stop=stops,
            n=group[0].n,
        )
    )


def _until_stop(
    pieces: Generator[str, None, Output], stops: Sequence[str]
) -> Iterator[str | Ending]:
    """Yield the pieces before the first stop string, then the Ending; a possible start of a stop
    string is held back."""
    text = ""
    n_sent = 0
    n_held = max((len(stop) - 1 for stop in stops), default=0)
    output = None
    while output is None:
        try:
            text += next(pieces)
        except StopIteration as end:
            output = end.value
        before = truncate_at_stop(text, stops)
        n_sure = len(before) if before != text or output else len(text) - n_held
        if n_sure > n_sent:
            yield before[n_sent:n_sure]
            n_sent = n_sure
    yield ending(output, stops)
