"""The server's own page, and its own requests: translations with attention, records of training."""

import asyncio
from importlib.resources import files
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, HTTPException
from fastapi.responses import Response
from pydantic import BaseModel, Field

from transduce.report.record import Record, record
from transduce.serve.engine import Request
from transduce.serve.http import (
    TOKEN,
    Json,
    PlainError,
    State,
    body,
    body_schema,
    check_bound,
    responses,
)
from transduce.serve.models import VERBS, Languages, TranslationRequest
from transduce.tasks.seq2seq import Alignment
from transduce.tasks.transcribe import Transcriber
from transduce.tasks.translate import Translator

TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Permissions-Policy": "microphone=(self), camera=(), geolocation=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}
"""Tell a browser: nothing from elsewhere, no script in the page itself, no frames around it."""

FILES = {
    file.name: file.read_bytes()
    for file in files(__package__).joinpath("page").iterdir()
    if file.name.rpartition(".")[2] in TYPES
}

router = APIRouter(tags=["page"], responses=responses(PlainError))


class RunInfo(BaseModel):
    """A run that is served, and its task."""

    name: str
    does: Literal["translate", "transcribe", "generate"]
    source: str = ""
    """The language that it translates from, if it translates text."""
    target: str = ""
    word_times: bool = False
    """Whether it knows the times of words."""


class PageInfo(BaseModel):
    """The runs that the page offers, and their bounds."""

    runs: list[RunInfo]
    records: list[str]
    """Names of the runs whose training it shows."""
    seconds: float
    max_tokens: int


class LineBody(BaseModel):
    """A line to translate."""

    model: str
    line: str = Field(min_length=1)
    n_best: int = Field(1, ge=1, le=10)


@router.get("/page/runs", dependencies=TOKEN)
async def runs(state: State) -> PageInfo:
    """The runs that are served."""
    infos = []
    for run in state.runs:
        languages = run.languages or Languages("", "")
        info = RunInfo(
            name=run.name,
            does=VERBS[type(run.task)],
            source=languages.source,
            target=languages.target,
            word_times=isinstance(run.task, Transcriber) and run.task.model.config.ctc,
        )
        infos.append(info)
    return PageInfo(
        runs=infos,
        records=list(state.records),
        seconds=state.config.seconds,
        max_tokens=state.config.max_tokens,
    )


@router.get("/page/runs/{name}", dependencies=TOKEN)
async def run(state: State, name: str) -> Record:
    """The record of a training: learning curve, samples and scores, as far as the run has them."""
    if name not in state.records:
        raise HTTPException(404, f"there is no run {name[:40]!r}; see /page/runs")
    return await asyncio.to_thread(record, state.records[name])


@router.post(
    "/page/translate", openapi_extra=body_schema(LineBody, "application/json"), dependencies=TOKEN
)
async def translate(state: State, query: Annotated[LineBody, Depends(body(LineBody))]) -> Json:
    """The n best translations of a line, the best first, with their scores and the decoder's
    attention: a row of weights per target token, which sum to 1.

    The attention is null for a blank line, one that is too long to be drawn, and an ensemble.
    """
    run = state.find(query.model, Translator)
    check_bound(len(query.line), state.config.characters, "characters")
    kind = TranslationRequest(query.n_best, attention=True)
    ((outputs,),) = await run.engine.outputs(Request([query.line], kind, [query.n_best]))
    return {
        "outputs": [
            {
                "text": output.text,
                "score": output.score,
                "log_prob": output.log_prob,
                "attention": alignment and _attention_map(alignment),
            }
            for output, alignment in outputs
        ]
    }


def _attention_map(alignment: Alignment) -> Json:
    """Tokens, a layer, from 0, and the means of its heads."""
    weights = alignment.weights[alignment.layer].mean(dim=0).tolist()
    return {
        "source": alignment.source,
        "target": alignment.target,
        "weights": [[round(weight, 3) for weight in row] for row in weights],
        "layer": alignment.layer,
    }


@router.get("/", include_in_schema=False)
async def index() -> Response:
    """The page."""
    return await part("index.html")


@router.get("/page/{name}", include_in_schema=False)
async def part(name: str) -> Response:
    """A file of the page; they were read before, so none is opened by a name."""
    if name not in FILES:
        raise HTTPException(404)
    return Response(FILES[name], media_type=TYPES[name.rpartition(".")[2]], headers=HEADERS)
