"""The runs of a server: what each does with its inputs, and which languages it translates."""

import re
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import time
from typing import Any

from transduce.data.speech.features import FeatureExtractor
from transduce.errors import InputError
from transduce.serve.config import ServeConfig
from transduce.serve.engine import END, Ask, Engine
from transduce.tasks.config import GenerationConfig
from transduce.tasks.generate import Generator as TextGenerator
from transduce.tasks.request import Details
from transduce.tasks.search import Output
from transduce.tasks.seq2seq import Alignment
from transduce.tasks.transcribe import Transcriber
from transduce.tasks.translate import Translator

Task = Translator | Transcriber | TextGenerator
Pieces = Generator[tuple[int, Any], None, None]

LANGUAGE = re.compile(r"[a-z]{2,3}([_-][A-Za-z]{2,4})?")
"""A code of ISO 639, with a script or region behind it."""


@dataclass(frozen=True)
class Languages:
    """What a run translates from, and into: codes of ISO 639, such as en."""

    source: str
    target: str


def languages_of(experiment: dict[str, Any], given: str = "") -> Languages:
    """The languages of a run that translates: as they are given, "en-de", or as the endings of its training files are.

    Raises:
        InputError: they are not known.
    """
    corpus = experiment.get("corpus", {})
    pair = [corpus.get(side) or corpus.get(f"train_{side}") or "" for side in ("source", "target")]
    codes = given.split("-", 1) if given else [str(each).removesuffix(".gz").split(".")[-1] for each in pair]
    if len(codes) != 2 or not all(LANGUAGE.fullmatch(code) for code in codes):
        raise InputError(
            f"a run that translates needs its languages, such as en-de, but there is {given or ' and '.join(codes)!r}; add "
            "--languages en-de, one for each run that translates"
        )
    return Languages(*codes)


def _between(translator: Translator, pair: Languages) -> Translator:
    """The same from one language of the pair into the other, where the run is one of several languages and names none.

    Raises:
        InputError: it knows no such language.
    """
    source, target, own = translator.source_tokenizer, translator.tokenizer, translator.decoding
    tagged = len(source.tagged_languages) > 1 and not source.opening
    named = {"source_language": pair.source} if source.lacks_language and not own.source_language else {}
    if (tagged or target.lacks_language) and not own.target_language:
        named["target_language"] = pair.target
    if not named:
        return translator
    there = translator.with_decoding(own.changed(**named))
    there.decoding = own.changed(source_language="", target_language="")
    return there


class Served:
    """A run that is served: its name, what it does, and the engine that does it."""

    def __init__(
        self,
        name: str,
        task: Task,
        config: ServeConfig,
        pair: Languages | None = None,
        directory: Path | None = None,
    ) -> None:
        if isinstance(task, Translator) and pair is not None:
            task = _between(task, pair)
        self.name, self.task, self.languages, self.created = name, task, pair, int(time())
        self.directory = directory
        """Where the record of its training is; of an ensemble, that of its first run."""
        works: dict[type, Any] = {Translator: _translated, Transcriber: _transcribed, TextGenerator: _generated}
        self.engine = Engine(name, partial(works[type(task)], task), config)

    async def outputs(self, asks: Sequence[Ask]) -> list[list[Any]]:
        """All pieces of the output of every input."""
        found: list[list[Any]] = [[] for _ in asks]
        async for i, piece in self.stream(asks):
            found[i].append(piece)
        return found

    async def stream(self, asks: Sequence[Ask]) -> AsyncIterator[tuple[int, Any]]:
        """The number of an input and a piece of its output, one input after the other; whoever leaves stops the work."""
        self.engine.submit(asks)
        try:
            for i, ask in enumerate(asks):
                async for piece in ask.pieces():
                    yield i, piece
        finally:
            for ask in asks:
                ask.gone = True


@dataclass(frozen=True)
class Best:
    """The n best translations, and, where it is asked for, where the decoder looked for each."""

    n: int = 1
    looks: bool = False


LOOKS = 10_000
"""Fields of a picture, source tokens times target tokens; a larger one has no picture."""


def _translated(translator: Translator, best: Best, lines: list[str]) -> Pieces:
    """The n best translations of every line, in one piece: outputs, or pairs of output and look."""
    for i, outputs in translator.stream(lines, n_best=best.n):
        yield i, [(output, _look(translator, lines[i], output)) for output in outputs] if best.looks else outputs
        yield i, END


def _look(translator: Translator, line: str, output: Output) -> Alignment | None:
    """Where the decoder looked; None of a blank text, of one that is too long, and of an ensemble."""
    (source,) = translator.sources([line])
    if len(translator.engines) > 1 or not output.tokens or len(source) * (len(output.tokens) + 1) > LOOKS:
        return None
    try:
        return translator.align([line], [output])[0]
    except InputError:  # longer than learned positions
        return None


def _transcribed(transcriber: Transcriber, details: Details, sounds: list[Any]) -> Pieces:
    """The segments of every sound, each a piece: those of one sound as soon as they are there."""
    if len(sounds) == 1:
        for sound in transcriber.read(sounds, transcriber.decoding):
            if sound.error:
                raise InputError(sound.error)
            yield from ((0, segment) for segment in transcriber.in_order(sound, details=details))
        yield 0, END
        return
    read = transcriber.read(sounds, transcriber.decoding)
    for i, transcript in enumerate(transcriber.transcripts(read, transcriber.decoding, details=details)):
        yield from ((i, segment) for segment in transcript.segments)
        yield i, InputError(transcript.error) if transcript.error else END


@dataclass(frozen=True)
class Prompt:
    """A text to go on from, its number among those of a request, and that of its first text: what is drawn depends on them."""

    text: str
    number: int = 0
    first_text: int = 0


@dataclass(frozen=True)
class Going:
    """How to go on, to the first of the stops: all texts at once, or one piece by piece."""

    config: GenerationConfig
    stops: tuple[str, ...] = ()
    stream: bool = False


@dataclass(frozen=True)
class Ending:
    """How a text ended, and how many tokens were generated, the end or those of a stop included, as llama.cpp counts."""

    reason: str
    n_tokens: int


def ending(output: Output, stops: Sequence[str]) -> Ending:
    """That of an output whose text still holds the stop that it came to."""
    ended = output.finished or cut(output.text, stops)[1]
    return Ending("stop" if ended else "length", len(output.tokens) + output.finished)


def _generated(generator: TextGenerator, how: Going, prompts: list[Prompt]) -> Pieces:
    """The n texts of every prompt as one piece, or the pieces of one text, and its Ending behind them."""
    config, stops = how.config, how.stops
    if how.stream:
        (prompt,) = prompts
        parts = generator.stream(
            prompt.text, config, prompt_number=prompt.number, text_number=prompt.first_text, stop=stops
        )
        yield from ((0, piece) for piece in _until(parts, stops))
        yield 0, END
        return
    drawn = config.temperature > 0
    for group in [[i] for i in range(len(prompts))] if drawn else [list(range(len(prompts)))]:
        texts, first = [prompts[i].text for i in group], prompts[group[0]]
        found: list[list[Output]] = generator.generate(
            texts, config, first_prompt=first.number, first_text=first.first_text, stop=stops
        )
        for i, outputs in zip(group, found, strict=True):
            yield i, outputs
            yield i, END


def _until(parts: Generator[str, None, Output], stops: Sequence[str]) -> Iterator[str | Ending]:
    """The pieces before the first of the stops, then the Ending; what may be the beginning of a stop waits."""
    whole, n_sent, hold = "", 0, max((len(stop) - 1 for stop in stops), default=0)
    output = None
    while output is None:
        try:
            whole += next(parts)
        except StopIteration as end:
            output = end.value
        text, stopped = cut(whole, stops)
        n_sure = len(text) if stopped or output else len(text) - hold
        if n_sure > n_sent:
            yield text[n_sent:n_sure]
            n_sent = n_sure
    yield ending(output, stops)


def cut(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """The text before the first of the stops, and whether there is one."""
    places = [place for stop in stops if (place := text.find(stop)) >= 0]
    return (text[: min(places)], True) if places else (text, False)


def check_served(task: object, name: str) -> Task:
    """What can be served.

    Raises:
        InputError: it fills masks, or hears vectors.
    """
    if not isinstance(task, Translator | Transcriber | TextGenerator):
        raise InputError(f"a server translates, transcribes and generates, but {name} fills masks; leave it out")
    if isinstance(task, Transcriber) and not isinstance(task.feature_extractor, FeatureExtractor):
        raise InputError(f"a server hears sound, but {name} takes vectors; leave it out")
    return task


def with_beam(task: Task, beam_size: int | None) -> None:
    """Let it search with another beam, where it searches."""
    if beam_size is not None and not isinstance(task, TextGenerator):
        task.decoding = task.decoding.changed(beam_size=beam_size)
