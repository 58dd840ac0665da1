"""The API of LibreTranslate: text from one language to another."""

import re
from collections import defaultdict
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException
from pydantic import BaseModel, Field

from transduce.serve.engine import Request
from transduce.serve.http import (
    TOKEN,
    Json,
    PlainError,
    ServerState,
    State,
    body,
    body_schema,
    check_bound,
    responses,
)
from transduce.serve.models import Languages, Served, TranslationRequest
from transduce.tasks.translate import Translator

NAMES = dict(
    line.split(" ", 1)
    for line in """\
ar Arabic
bg Bulgarian
ca Catalan
cs Czech
da Danish
de German
el Greek
en English
eo Esperanto
es Spanish
et Estonian
fa Persian
fi Finnish
fr French
ga Irish
he Hebrew
hi Hindi
hu Hungarian
id Indonesian
it Italian
ja Japanese
ko Korean
lt Lithuanian
lv Latvian
nl Dutch
no Norwegian
pl Polish
pt Portuguese
ro Romanian
ru Russian
sk Slovak
sl Slovenian
sv Swedish
th Thai
tr Turkish
uk Ukrainian
vi Vietnamese
zh Chinese""".splitlines()
)
"""Languages by their codes of ISO 639; any other is called by its code."""

LINE_END = re.compile("\r\n|[\r\n]")

router = APIRouter(tags=["LibreTranslate"], responses=responses(PlainError))


class DetectionBody(BaseModel):
    """A text whose language is unknown."""

    q: str = Field(min_length=1)
    api_key: str | None = None


class TranslationBody(BaseModel):
    """One or several texts, and the languages to translate from and into."""

    q: str | list[str] = Field(min_length=1)
    source: str = "auto"
    target: str
    format: str = "text"
    alternatives: int = Field(0, ge=0, le=20)
    api_key: str | None = None


class Detection(BaseModel):
    """The language of a text; confidence from 0 to 100."""

    language: str
    confidence: float = 100.0


class Language(BaseModel):
    """A language, and those it is translated into."""

    code: str
    name: str
    targets: list[str]


def _translators(state: ServerState) -> dict[Languages, Served[Translator]]:
    """The runs that translate, the first one of each pair of languages."""
    runs = dict[Languages, Served[Translator]]()
    for run in state.runs:
        if run.languages:
            runs.setdefault(run.languages, run)
    return runs


def _only_source(state: ServerState, target: str = "") -> str:
    """The language of a text for which none is named.

    Raises:
        HTTPException: it could be one of several.
    """
    sources = sorted({pair.source for pair in _translators(state) if target in ("", pair.target)})
    if len(sources) != 1:
        rule = "a language is known where the server reads one alone"
        raise HTTPException(400, f"{rule}, but it reads {sources}; send it as source")
    return sources[0]


@router.get("/languages", dependencies=TOKEN)
async def languages(state: State) -> list[Language]:
    """The languages that the server translates."""
    pairs = [*_translators(state)]
    codes = dict.fromkeys([pair.source for pair in pairs] + [pair.target for pair in pairs])
    return [
        Language(
            code=code,
            name=NAMES.get(code, code),
            targets=[pair.target for pair in pairs if pair.source == code],
        )
        for code in codes
    ]


@router.post("/detect", openapi_extra=body_schema(DetectionBody, "application/json"))
async def detect(
    state: State, query: Annotated[DetectionBody, Depends(body(DetectionBody))]
) -> list[Detection]:
    """The language of a text, where the server reads one language alone."""
    return [Detection(language=_only_source(state))]


@router.post(
    "/translate",
    openapi_extra=body_schema(
        TranslationBody, "application/json", "application/x-www-form-urlencoded"
    ),
)
async def translate(
    state: State, query: Annotated[TranslationBody, Depends(body(TranslationBody))]
) -> Json:
    """Translate a text or a list of texts, line by line: the field translatedText, and
    alternatives and detectedLanguage where they are wanted; a list of texts has lists of them.
    """
    texts = [query.q] if isinstance(query.q, str) else query.q
    check_bound(sum(map(len, texts)), state.config.characters, "characters")
    if query.format != "text":
        raise HTTPException(
            400, f"format must be text, but it is {query.format[:20]!r}; send text without markup"
        )
    source = _only_source(state, query.target) if query.source == "auto" else query.source
    translators = _translators(state)
    run = translators.get(Languages(source, query.target))
    if run is None:
        pairs = ", ".join(f"{pair.source} to {pair.target}" for pair in translators) or "nothing"
        pair = f"{source[:20]} to {query.target[:20]}"
        raise HTTPException(400, f"this server translates {pairs}, but not {pair}; see /languages")
    lines = [LINE_END.split(text) for text in texts]
    flat = [line for text in lines for line in text]
    check_bound(len(flat), state.config.texts, "lines")
    n_best = 1 + query.alternatives
    request = Request(flat, TranslationRequest(n_best), [n_best] * len(flat))
    outputs = iter(await run.engine.outputs(request))
    answer = defaultdict[str, list[Any]](list)
    for text in lines:
        columns = zip(*([output.text for output, _ in next(outputs)[0]] for _ in text), strict=True)
        best, *others = ["\n".join(column) for column in columns]
        answer["translatedText"].append(best)
        if query.alternatives:
            answer["alternatives"].append(others)
        if query.source == "auto":
            answer["detectedLanguage"].append(Detection(language=source))
    is_list = isinstance(query.q, list)
    return {name: values if is_list else values[0] for name, values in answer.items()}


@router.get("/frontend/settings", dependencies=TOKEN)
async def settings(state: State) -> Json:
    """The settings of LibreTranslate's pages."""
    pair = next(iter(_translators(state)), Languages("", ""))
    needs_key = bool(state.token)
    return {
        "charLimit": state.config.characters,
        "frontendTimeout": 500,
        "apiKeys": needs_key,
        "keyRequired": needs_key,
        "suggestions": False,
        "filesTranslation": False,
        "supportedFilesFormat": [],
        "language": {
            side: {"code": code, "name": NAMES.get(code, code)}
            for side, code in asdict(pair).items()
        },
    }
