"""The API of LibreTranslate: text from one language to another."""

import re
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Request
from pydantic import BaseModel, Field

from transduce.serve.body import body, described
from transduce.serve.config import ServeConfig
from transduce.serve.engine import Ask
from transduce.serve.errors import PlainError, responses
from transduce.serve.models import Best, Served

NAMES = dict(
    pair.split(" ", 1)
    for pair in [
        "ar Arabic",
        "bg Bulgarian",
        "ca Catalan",
        "cs Czech",
        "da Danish",
        "de German",
        "el Greek",
        "en English",
        "eo Esperanto",
        "es Spanish",
        "et Estonian",
        "fa Persian",
        "fi Finnish",
        "fr French",
        "ga Irish",
        "he Hebrew",
        "hi Hindi",
        "hu Hungarian",
        "id Indonesian",
        "it Italian",
        "ja Japanese",
        "ko Korean",
        "lt Lithuanian",
        "lv Latvian",
        "nl Dutch",
        "no Norwegian",
        "pl Polish",
        "pt Portuguese",
        "ro Romanian",
        "ru Russian",
        "sk Slovak",
        "sl Slovenian",
        "sv Swedish",
        "th Thai",
        "tr Turkish",
        "uk Ukrainian",
        "vi Vietnamese",
        "zh Chinese",
    ]
)
"""Languages by their codes of ISO 639; any other is called by its code."""

LINE_END = re.compile("\r\n|[\r\n]")

router = APIRouter(tags=["LibreTranslate"], responses=responses(PlainError))


class Text(BaseModel):
    """What is asked of a text."""

    q: str = Field(min_length=1)
    api_key: str | None = None


class Translate(Text):
    """What is to be translated, and from what into what."""

    q: str | list[str] = Field(min_length=1)  # type: ignore[assignment]
    source: str = "auto"
    target: str
    format: str = "text"
    alternatives: int = Field(0, ge=0, le=20)


class Detected(BaseModel):
    """The language of a text; confidence from 0 to 100."""

    confidence: float
    language: str


class Translation(BaseModel):
    """The translation, or those of a list of texts."""

    translatedText: str | list[str]
    alternatives: list[str] | list[list[str]] | None = None
    detectedLanguage: Detected | list[Detected] | None = None


class Language(BaseModel):
    """A language, and what it is translated into."""

    code: str
    name: str
    targets: list[str]


def _pairs(request: Request) -> list[tuple[str, str, Served]]:
    """From what into what, and by whom."""
    return [(s.languages.source, s.languages.target, s) for s in request.app.state.served if s.languages]


def _only_source(request: Request, target: str = "") -> str:
    """The language of a text whose language is not said.

    Raises:
        HTTPException: there are several.
    """
    found = sorted({source for source, into, _ in _pairs(request) if target in ("", into)})
    if len(found) != 1:
        raise HTTPException(
            400, f"a language is known where the server reads one alone, but it reads {found}; send it as source"
        )
    return found[0]


@router.get("/languages", response_model=list[Language])
async def languages(request: Request) -> list[Language]:
    """The languages that the server translates."""
    request.app.state.access.check(request)
    pairs = _pairs(request)
    codes = dict.fromkeys([*(source for source, _, _ in pairs), *(target for _, target, _ in pairs)])
    return [
        Language(code=code, name=_name(code), targets=list(dict.fromkeys(t for s, t, _ in pairs if s == code)))
        for code in codes
    ]


def _name(code: str) -> str:
    return NAMES.get(code, code)


@router.post("/detect", response_model=list[Detected], openapi_extra=described(Text, "application/json"))
async def detect(request: Request, asked: Annotated[Text, Depends(body(Text))]) -> list[Detected]:
    """The language of a text, where the server reads one language alone."""
    return [Detected(confidence=100.0, language=_only_source(request))]


@router.post(
    "/translate",
    response_model=Translation,
    response_model_exclude_none=True,
    openapi_extra=described(Translate, "application/json", "application/x-www-form-urlencoded"),
)
async def translate(request: Request, asked: Annotated[Translate, Depends(body(Translate))]) -> Translation:
    """Translate a text or a list of texts, line by line."""
    config: ServeConfig = request.app.state.config
    texts = [asked.q] if isinstance(asked.q, str) else asked.q
    if (n := sum(map(len, texts))) > config.characters:
        raise HTTPException(400, f"a request may have {config.characters} characters, but it has {n}; send it in parts")
    if asked.format != "text":
        raise HTTPException(400, f"format must be text, but it is {asked.format[:20]!r}; send text without markup")
    source = _only_source(request, asked.target) if asked.source == "auto" else asked.source
    served = next((s for a, b, s in _pairs(request) if (a, b) == (source, asked.target)), None)
    if served is None:
        told = ", ".join(f"{a} to {b}" for a, b, _ in _pairs(request)) or "nothing"
        pair = f"{source[:20]} to {asked.target[:20]}"
        raise HTTPException(400, f"this server translates {told}, but not {pair}; see /languages")
    lines = [LINE_END.split(text) for text in texts]
    flat = [line for each in lines for line in each]
    if len(flat) > config.texts:
        raise HTTPException(400, f"a request may have {config.texts} lines, but it has {len(flat)}; send it in parts")
    n_best = 1 + asked.alternatives
    found = iter(await served.outputs([Ask(line, Best(n_best), cost=n_best) for line in flat]))
    each = [[[output.text for output in next(found)[0]] for _ in text] for text in lines]
    ranked = [["\n".join(line[k] for line in text) for k in range(n_best)] for text in each]
    one = isinstance(asked.q, str)
    answer: dict[str, Any] = {"translatedText": ranked[0][0] if one else [text[0] for text in ranked]}
    if asked.alternatives:
        answer["alternatives"] = ranked[0][1:] if one else [text[1:] for text in ranked]
    if asked.source == "auto":
        detected = Detected(confidence=100.0, language=source)
        answer["detectedLanguage"] = detected if one else [detected] * len(texts)
    return Translation(**answer)


@router.get("/frontend/settings")
async def settings(request: Request) -> dict[str, Any]:
    """What LibreTranslate's pages want to know."""
    request.app.state.access.check(request)
    config, pairs = request.app.state.config, [(source, target) for source, target, _ in _pairs(request)]
    source, target = ({"code": code, "name": _name(code)} for code in (pairs or [("", "")])[0])
    return {
        "charLimit": config.characters,
        "frontendTimeout": 500,
        "apiKeys": bool(request.app.state.access.token),
        "keyRequired": bool(request.app.state.access.token),
        "suggestions": False,
        "filesTranslation": False,
        "supportedFilesFormat": [],
        "language": {"source": source, "target": target},
    }
