"""Translation: the API of LibreTranslate, and the endpoints of the page."""

import re
from asyncio import to_thread
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from itertools import permutations
from typing import Any

import fastapi
from fastapi import APIRouter
from pydantic import BaseModel, Field

from transduce.config import Json
from transduce.data.glossary import Terms
from transduce.data.lines import decode_lines
from transduce.errors import InputError
from transduce.serve.engine import Pieces, Request
from transduce.serve.http import (
    TOKEN,
    Languages,
    PlainError,
    ServerState,
    State,
    body_schema,
    check_bound,
    read_body,
    responses,
)
from transduce.tasks.base import Details
from transduce.tasks.markup import Fragment, joined, parse_html
from transduce.tasks.outputs import Output
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
"""Names of languages by ISO 639 code; for others, the code is shown."""

LANGUAGE = re.compile(r"[a-z]{2,3}([_-][A-Za-z]{2,4})?")
"""An ISO 639 code, optionally with a script or region."""

MAX_ATTENTION_CELLS = 10_000
"""Maximum number of source tokens times target tokens of an attention map."""

router = APIRouter(tags=["LibreTranslate"], responses=responses(PlainError))
page = APIRouter(tags=["page"], responses=responses(PlainError), dependencies=TOKEN)


class DetectionBody(BaseModel):
    """A text whose language is unknown."""

    q: str = Field(min_length=1)
    api_key: str | None = None


class TranslationBody(BaseModel):
    """One or several texts, and the languages to translate from and to."""

    q: str | list[str] = Field(min_length=1)
    source: str = "auto"
    target: str
    format: str = "text"
    alternatives: int = Field(0, ge=0, le=20)
    glossary: dict[str, str] = {}
    """Terms and their translations, which become likelier where a term occurs."""
    api_key: str | None = None


class LineBody(BaseModel):
    """A line to translate."""

    model: str
    source: str = ""
    target: str = ""
    """Together with `source`, the model's language pair; by default, the first."""
    line: str = Field(min_length=1)
    n_best: int = Field(1, ge=1, le=10)


class Detection(BaseModel):
    """The language of a text; confidence from 0 to 100."""

    language: str
    confidence: float = 100.0


class Language(BaseModel):
    """A language, and the languages that it is translated to."""

    code: str
    name: str
    targets: list[str]


def _only_source(state: ServerState, target: str = "") -> str:
    """The source language of a text if the request does not name it.

    Raises:
        InputError: there are several source languages, or none.
    """
    sources = sorted({pair.source for pair in state.translators if target in ("", pair.target)})
    if len(sources) != 1:
        raise InputError(
            "the source language is known only if the server has a single one, but it has "
            f"{sources}; send a source and a target of /languages"
        )
    return sources[0]


@router.get("/languages")
async def languages(state: State) -> list[Language]:
    """The languages that the server translates."""
    pairs = state.translators
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
async def detect(http: fastapi.Request, state: State) -> list[Detection]:
    """The language of a text, if the server has only one source language."""
    await read_body(http, state, DetectionBody)
    return [Detection(language=_only_source(state))]


@router.post(
    "/translate",
    openapi_extra=body_schema(
        TranslationBody, "application/json", "application/x-www-form-urlencoded"
    ),
)
async def translate(http: fastapi.Request, state: State) -> Json:
    """Translate a text or a list of texts, line by line. The answer has translatedText and, if
    requested, alternatives and detectedLanguage; each is a list for a list of texts.
    """
    query = await read_body(http, state, TranslationBody)
    texts = [query.q] if isinstance(query.q, str) else query.q
    check_bound(sum(map(len, texts)), state.config.characters, "characters")
    if query.format not in ("text", "html"):
        raise InputError(
            f"format must be text or html, but it is {query.format[:20]!r}; send one of them"
        )
    source = _only_source(state, query.target) if query.source == "auto" else query.source
    pair = Languages(source, query.target)
    _check_pair(pair, state.translators)
    is_html = query.format == "html"
    parsed: list[Any] = [
        await to_thread(parse_html, text)
        if is_html
        else [*decode_lines(text.encode().split(b"\n"), "q")]
        for text in texts
    ]
    lines = [
        [each.source for each in text if isinstance(each, Fragment)] if is_html else text
        for text in parsed
    ]
    flat = [line for text in lines for line in text]
    check_bound(len(flat), state.config.texts, "lines")
    n_best = 1 + query.alternatives
    terms = tuple(query.glossary.items())
    kind = TranslationRequest(pair, n_best, alignments=is_html, glossary=terms)
    request = Request(flat, kind, [n_best] * len(flat))
    outputs = iter(await state.translators[pair].engine.outputs(request))
    answer = defaultdict[str, list[Any]](list)
    for pieces, text in zip(parsed, lines, strict=True):
        rows = [[output for output, _ in next(outputs)[0]] for _ in text]
        columns = list(zip(*rows, strict=True)) or [()] * n_best
        best, *others = [
            await to_thread(joined, pieces, iter(column))
            if is_html
            else "\n".join(each.text for each in column)
            for column in columns
        ]
        answer["translatedText"].append(best)
        if query.alternatives:
            answer["alternatives"].append(others)
        if query.source == "auto":
            answer["detectedLanguage"].append(Detection(language=source))
    return {
        name: values[0] if isinstance(query.q, str) else values for name, values in answer.items()
    }


def _check_pair(pair: Languages, pairs: Collection[Languages]) -> None:
    """Raise InputError unless the pair is one of these."""
    if pair not in pairs:
        names = [f"{each.source} to {each.target}" for each in pairs]
        known = ", ".join(names[:8]) + ", ..." * (len(names) > 8) if names else "nothing"
        raise InputError(
            f"this server translates {known}, but not {pair.source[:20]} to {pair.target[:20]}; "
            "see /languages"
        )


@router.get("/frontend/settings")
async def settings(state: State) -> Json:
    """The settings of LibreTranslate's pages."""
    pair = next(iter(state.translators), Languages("", ""))
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


@page.post("/page/translate", openapi_extra=body_schema(LineBody, "application/json"))
async def translate_line(http: fastapi.Request, state: State) -> Json:
    """The n best translations of a line, the best first, with their scores and the decoder's
    attention: a row of weights per target token, which sum to 1.

    The attention is null for a blank line, a line that is too long to be drawn, and an ensemble.
    """
    query = await read_body(http, state, LineBody)
    run = state.find(query.model, Translator)
    check_bound(len(query.line), state.config.characters, "characters")
    pair = run.languages[0]
    if query.source or query.target:
        pair = Languages(query.source, query.target)
        _check_pair(pair, run.languages)
    kind = TranslationRequest(pair, query.n_best, attention=True)
    ((outputs,),) = await run.engine.outputs(Request([query.line], kind, [query.n_best]))
    return {
        "outputs": [
            {
                "text": output.text,
                "score": output.score,
                "log_prob": output.log_prob,
                "attention": attention,
            }
            for output, attention in outputs
        ]
    }


def languages_of(experiment: Json, option: str = "") -> tuple[Languages, ...]:
    """The pairs of languages that a run translates.

    Args:
        option: language pairs, "en-de" or "en-de,de-en"; by default, those that the run was trained
            or tested on, or the suffixes of its files.

    Raises:
        InputError: the languages are unknown.
    """
    corpus = experiment.get("corpus", {})
    files = [corpus.get(side) or corpus.get(f"train_{side}") or "" for side in ("source", "target")]
    endings = [str(file).removesuffix(".gz").split(".")[-1] for file in files]
    every = map("-".join, permutations(corpus.get("languages", ()), 2))
    trained = [*(corpus.get("directions") or every), *corpus.get("test_directions", ())]
    names = option.split(",") if option else dict.fromkeys(trained)
    pairs = [name.split("-", 1) for name in names] or [endings]
    for codes in pairs:
        if len(codes) != 2 or not all(LANGUAGE.fullmatch(code) for code in codes):
            value = option or " and ".join(codes)
            raise InputError(
                f"a translation run needs its languages, such as en-de, but there is {value!r}; "
                "add --languages en-de, one for each translation run"
            )
    return tuple(Languages(source, target) for source, target in pairs)


def in_languages(translator: Translator, languages: Languages) -> Translator:
    """Make a multilingual model translate between these languages, unless its run names others.

    Raises:
        InputError: the model does not have this language.
    """
    source = translator.source_tokenizer
    target = translator.tokenizer
    decoding = translator.decoding
    is_tagged = len(source.tagged_languages) > 1 and not source.opening
    named = decoding
    if source.lacks_language and not decoding.source_language:
        named = named.changed(source_language=languages.source)
    if (is_tagged or target.lacks_language) and not decoding.target_language:
        named = named.changed(target_language=languages.target)
    if named == decoding:
        return translator
    translator = translator.with_decoding(named)
    translator.decoding = decoding.changed(source_language="", target_language="")
    return translator


@dataclass(frozen=True)
class TranslationRequest:
    """How to translate: the languages, the number of outputs, and what comes with them."""

    languages: Languages
    n_best: int = 1
    attention: bool = False
    alignments: bool = False
    glossary: Terms = ()
    """Replaces the run's glossary."""


def translate_lines(
    translators: Mapping[Languages, Translator], request: TranslationRequest, lines: list[str]
) -> Pieces:
    """Yield the n best translations of every line in one piece: pairs of output and attention."""
    translator = translators[request.languages]
    glossary = request.glossary or translator.decoding.glossary
    details = Details(alignments=request.alignments)
    n_best = request.n_best
    for i, outputs in translator.stream(lines, details=details, n_best=n_best, glossary=glossary):
        maps = [
            _attention(translator, lines[i], output) if request.attention else None
            for output in outputs
        ]
        yield i, [*zip(outputs, maps, strict=True)]


def _attention(translator: Translator, line: str, output: Output) -> Json | None:
    """The decoder's attention: tokens, a layer (from 0), and the mean over its heads; None for a
    blank line, a line that is too long, and an ensemble."""
    (source,) = translator.sources([line])
    n_cells = len(source) * (len(output.tokens) + 1)
    if len(translator.engines) > 1 or not output.tokens or n_cells > MAX_ATTENTION_CELLS:
        return None
    try:
        (alignment,) = translator.align([line], [output])
    except InputError:  # the line is longer than the learned positions
        return None
    weights = alignment.weights[alignment.layer].mean(dim=0).tolist()
    return {
        "source": alignment.source,
        "target": alignment.target,
        "weights": [[round(weight, 3) for weight in row] for row in weights],
        "layer": alignment.layer,
    }
