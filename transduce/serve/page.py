"""The server's own page, and what it asks for that no client does: looks of a translator, the record of a run."""

import asyncio
from functools import partial
from importlib.resources import files
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, HTTPException, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from transduce.report.record import Record, record
from transduce.serve.body import body, described
from transduce.serve.engine import Ask
from transduce.serve.errors import PlainError, responses
from transduce.serve.models import Best, Served
from transduce.tasks.generate import Generator
from transduce.tasks.seq2seq import Alignment
from transduce.tasks.transcribe import Transcriber
from transduce.tasks.translate import Translator

KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Permissions-Policy": "microphone=(self), camera=(), geolocation=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}
"""What a browser is told: nothing from elsewhere, no script in the page itself, no frames around it."""

router = APIRouter(tags=["page"], responses=responses(PlainError))


async def _part(kind: str, content: bytes) -> Response:
    return Response(content, media_type=kind, headers=HEADERS)


for _file in sorted(files(__package__).joinpath("page").iterdir(), key=lambda file: file.name):
    if (_kind := KINDS.get(_file.name.rpartition(".")[2])) is not None:
        _path = "/" if _file.name == "index.html" else f"/page/{_file.name}"
        _answer = partial(_part, _kind, _file.read_bytes())
        router.add_api_route(_path, _answer, include_in_schema=False, response_model=None)


class RunInfo(BaseModel):
    """A run that is served, and what it does."""

    name: str
    does: Literal["translate", "transcribe", "generate"]
    source: str = ""
    """The language that it translates from, where it translates text."""
    target: str = ""
    word_times: bool = False
    """Whether it knows when each word was said."""


class PageInfo(BaseModel):
    """What the page can offer, and within which bounds."""

    runs: list[RunInfo]
    seconds: float
    max_tokens: int


class Line(BaseModel):
    """A line to translate, and by which run."""

    model: str
    line: str = Field(min_length=1)
    n_best: int = Field(1, ge=1, le=10)


class Looks(BaseModel):
    """Where the decoder looked: a row of weights for each target token, which sum to 1 over the source tokens."""

    source: list[str]
    target: list[str]
    weights: list[list[float]]
    layer: int
    """The decoder's layer, from 0, over whose heads they are the mean."""


class Ranked(BaseModel):
    """One of the n best translations."""

    text: str
    score: float
    log_prob: float
    attention: Looks | None
    """None of a blank line, of one that is too long to be drawn, and of an ensemble."""


class Translated(BaseModel):
    """The n best translations, the best first."""

    outputs: list[Ranked]


@router.get("/page/runs")
async def runs(request: Request) -> PageInfo:
    """The runs that are served, and what the page has to know of them."""
    request.app.state.access.check(request)
    config = request.app.state.config
    found = [_info(each) for each in request.app.state.served]
    return PageInfo(runs=found, seconds=config.seconds, max_tokens=config.max_tokens)


def _info(served: Served) -> RunInfo:
    if isinstance(served.task, Transcriber):
        return RunInfo(name=served.name, does="transcribe", word_times=served.task.model.config.ctc)
    if isinstance(served.task, Generator):
        return RunInfo(name=served.name, does="generate")
    pair = served.languages
    return RunInfo(
        name=served.name, does="translate", source=pair.source if pair else "", target=pair.target if pair else ""
    )


@router.get("/page/runs/{name}")
async def run(request: Request, name: str) -> Record:
    """How a run was trained: its learning curve, samples and scores, as far as its directory has them."""
    request.app.state.access.check(request)
    directory = _chosen(request, name).directory
    if directory is None:
        return Record([], [], [])
    async with request.app.state.decoders:
        return await asyncio.to_thread(record, directory)


@router.post("/page/translate", openapi_extra=described(Line, "application/json"))
async def translate(request: Request, asked: Annotated[Line, Depends(body(Line))]) -> Translated:
    """The n best translations of a line, with their scores and where the decoder looked for each."""
    served, bound = _chosen(request, asked.model), request.app.state.config.characters
    if not isinstance(served.task, Translator):
        raise HTTPException(404, f"{served.name} does not translate; choose one of /page/runs that does")
    if (n := len(asked.line)) > bound:
        raise HTTPException(400, f"a request may have {bound} characters, but it has {n}; send it in parts")
    ask = Ask(asked.line, Best(asked.n_best, looks=True), cost=asked.n_best)
    ((found,),) = await served.outputs([ask])
    return Translated(
        outputs=[
            Ranked(text=output.text, score=output.score, log_prob=output.log_prob, attention=look and _looks(look))
            for output, look in found
        ]
    )


def _chosen(request: Request, name: str) -> Served:
    """The run of this name: names alone are compared, and no path is made of one.

    Raises:
        HTTPException: there is none.
    """
    for each in request.app.state.served:
        if each.name == name:
            found: Served = each
            return found
    raise HTTPException(404, f"a run must be one of /page/runs, but it is {name[:40]!r}; choose one of them")


def _looks(look: Alignment) -> Looks:
    weights = [[round(weight, 3) for weight in row] for row in look.weights[look.layer].mean(dim=0).tolist()]
    return Looks(source=look.source, target=look.target, weights=weights, layer=look.layer)
