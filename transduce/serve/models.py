"""The runs of a server: how each computes requests, and which languages it translates."""

import re
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import time
from typing import Any, Generic, TypeVar

from transduce.data.speech.features import FeatureExtractor
from transduce.errors import InputError
from transduce.serve.config import ServeConfig
from transduce.serve.engine import END, Engine
from transduce.tasks.config import GenerationConfig
from transduce.tasks.generate import Generator as TextGenerator
from transduce.tasks.request import Details
from transduce.tasks.search import Output
from transduce.tasks.seq2seq import Alignment
from transduce.tasks.transcribe import Transcriber
from transduce.tasks.translate import Translator

Pieces = Generator[tuple[int, Any], None, None]

TaskT = TypeVar("TaskT", bound=Translator | Transcriber | TextGenerator)

LANGUAGE = re.compile(r"[a-z]{2,3}([_-][A-Za-z]{2,4})?")
"""A code of ISO 639, with a script or region behind it."""

MAX_ATTENTION_CELLS = 10_000
"""Source tokens times target tokens of an attention map."""


@dataclass(frozen=True)
class Languages:
    """The languages that a run translates from and into: codes of ISO 639, such as en."""

    source: str
    target: str


def languages_of(experiment: dict[str, Any], option: str = "") -> Languages:
    """The languages of a run that translates: an option, "en-de", or its files' endings.

    Raises:
        InputError: they are not known.
    """
    corpus = experiment.get("corpus", {})
    files = [corpus.get(side) or corpus.get(f"train_{side}") or "" for side in ("source", "target")]
    endings = [str(file).removesuffix(".gz").split(".")[-1] for file in files]
    codes = option.split("-", 1) if option else endings
    if len(codes) != 2 or not all(LANGUAGE.fullmatch(code) for code in codes):
        value = option or " and ".join(codes)
        raise InputError(
            f"a run that translates needs its languages, such as en-de, but there is {value!r}; "
            "add --languages en-de, one for each run that translates"
        )
    return Languages(*codes)


def _in_languages(translator: Translator, languages: Languages) -> Translator:
    """Let a model of several languages translate between these, where its run names none.

    Raises:
        InputError: it knows no such language.
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


class Served(Generic[TaskT]):
    """A run that is served: its name, its task, and the engine that computes it."""

    def __init__(
        self,
        name: str,
        task: TaskT,
        config: ServeConfig,
        languages: Languages | None = None,
        directory: Path | None = None,
    ) -> None:
        """Serve a run.

        Args:
            directory: of the run, or of the first one of an ensemble.

        Raises:
            InputError: it fills masks, or takes vectors.
        """
        if type(task) not in WORK:
            rule = "a server translates, transcribes and generates"
            raise InputError(f"{rule}, but {name} fills masks; leave it out")
        if isinstance(task, Transcriber) and not isinstance(
            task.feature_extractor, FeatureExtractor
        ):
            raise InputError(f"a server transcribes sound, but {name} takes vectors; leave it out")
        if isinstance(task, Translator) and languages:
            task = _in_languages(task, languages)  # type: ignore[assignment]
        self.name = name
        self.task = task
        self.languages = languages
        self.directory = directory
        self.created = int(time())
        self.engine = Engine(name, partial(WORK[type(task)], task), config)


@dataclass(frozen=True)
class TranslationRequest:
    """The n best translations, and the attention of each."""

    n_best: int = 1
    attention: bool = False


def _translate(translator: Translator, request: TranslationRequest, lines: list[str]) -> Pieces:
    """Yield the n best translations of every line in one piece: pairs of output and attention."""
    for i, outputs in translator.stream(lines, n_best=request.n_best):
        maps = [
            _attention(translator, lines[i], output) if request.attention else None
            for output in outputs
        ]
        yield i, [*zip(outputs, maps, strict=True)]
        yield i, END


def _attention(translator: Translator, line: str, output: Output) -> Alignment | None:
    """The decoder's attention; None for a blank line, one that is too long, and an ensemble."""
    (source,) = translator.sources([line])
    n_cells = len(source) * (len(output.tokens) + 1)
    if len(translator.engines) > 1 or not output.tokens or n_cells > MAX_ATTENTION_CELLS:
        return None
    try:
        return translator.align([line], [output])[0]
    except InputError:  # longer than learned positions
        return None


def _transcribe(transcriber: Transcriber, details: Details, sounds: list[Any]) -> Pieces:
    """Yield the segments of every sound; those of a single sound as soon as they are there."""
    read = transcriber.read(sounds, transcriber.decoding)
    if len(sounds) == 1:
        for sound in read:
            if sound.error:
                raise InputError(sound.error)
            yield from ((0, segment) for segment in transcriber.in_order(sound, details=details))
        yield 0, END
        return
    for i, transcript in enumerate(
        transcriber.transcripts(read, transcriber.decoding, details=details)
    ):
        yield from ((i, segment) for segment in transcript.segments)
        yield i, InputError(transcript.error) if transcript.error else END


@dataclass(frozen=True)
class Prompt:
    """A prompt, and which of its texts to generate; draws depend on all these numbers."""

    text: str
    number: int
    first: int
    n: int


@dataclass(frozen=True)
class GenerationRequest:
    """How to continue prompts, up to the first stop string; as a stream: one text, in pieces."""

    config: GenerationConfig
    stops: tuple[str, ...] = ()
    stream: bool = False


@dataclass(frozen=True)
class Ending:
    """Why a text ended, and its tokens, with those of the end or stop, as llama.cpp counts."""

    reason: str
    n_tokens: int


def ending(output: Output, stops: Sequence[str]) -> Ending:
    """The ending of an output whose text still holds its stop."""
    stopped = output.finished or truncate_at_stop(output.text, stops) != output.text
    return Ending("stop" if stopped else "length", len(output.tokens) + output.finished)


def truncate_at_stop(text: str, stops: Sequence[str]) -> str:
    """The text before the first of the stops."""
    return text[: min((place for stop in stops if (place := text.find(stop)) >= 0), default=None)]


def _generate(
    generator: TextGenerator, request: GenerationRequest, prompts: list[Prompt]
) -> Pieces:
    """Yield the n texts of every prompt as one piece, or the pieces of one text and its Ending."""
    config = request.config
    stops = request.stops
    if request.stream:
        (prompt,) = prompts
        pieces = generator.stream(
            prompt.text, config, prompt_number=prompt.number, text_number=prompt.first, stop=stops
        )
        yield from ((0, piece) for piece in _until_stop(pieces, stops))
        yield 0, END
        return
    i = 0
    for group in [[prompt] for prompt in prompts] if config.temperature > 0 else [prompts]:
        first = group[0]
        for outputs in generator.generate(
            [prompt.text for prompt in group],
            config.changed(n=first.n),
            first_prompt=first.number,
            first_text=first.first,
            stop=stops,
        ):
            yield i, outputs
            yield i, END
            i += 1


def _until_stop(
    pieces: Generator[str, None, Output], stops: Sequence[str]
) -> Iterator[str | Ending]:
    """Yield the pieces before the first stop string, then the Ending; hold back its possible
    start."""
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


WORK: dict[type, Any] = {Translator: _translate, Transcriber: _transcribe, TextGenerator: _generate}
VERBS: dict[type, Any] = {
    Translator: "translate",
    Transcriber: "transcribe",
    TextGenerator: "generate",
}
