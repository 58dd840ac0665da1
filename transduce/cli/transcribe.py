"""`transduce transcribe RUN FILE ...`: recordings to text, TSV, JSON lines or subtitles."""

import codecs
import io
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from transduce.arguments import Group, Overrides
from transduce.cli.common import (
    STDIN,
    Columns,
    Files,
    Machine,
    Runs,
    SearchOptions,
    lines_or_errors,
    local,
    side_name,
)
from transduce.cli.jobs import Progress, Rows, SearchJob, first_few
from transduce.cli.large_files import Division, carry_out
from transduce.cli.translate import check_token_scores
from transduce.config import Common
from transduce.data.manifest import manifest_audio
from transduce.errors import InputError, require
from transduce.tasks.config import SearchConfig
from transduce.tasks.formats import HEAD, STREAM, WRITE, as_line, srt

if TYPE_CHECKING:
    from transduce.tasks.base import Details
    from transduce.tasks.sound import Audio, Sound
    from transduce.tasks.transcribe import Transcriber

NO_NAME = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
"""Bytes that no line of names holds, and every sound file within its first ones."""


class TranscriptionSettings(Overrides):
    """Settings of a search among those of a transcription."""

    CONFIG = SearchConfig
    WITHOUT = (
        "max_source_length",
        "split_length",
        "shortlist",
        "source_language",
        "target_language",
        "forbid",
    )
    HINT = "(the run's)"


@dataclass(frozen=True, kw_only=True)
class TranscriptionSearch(SearchOptions):
    """How to search for transcripts."""

    settings: Group[TranscriptionSettings]


@dataclass(frozen=True, kw_only=True)
class TranscriptionOutput:
    """What is written of a transcript."""

    format: Common[Literal["text", "tsv", "json", "srt", "vtt"]] = "text"
    """text: a line per file. tsv: audio, start, stop (seconds), score and text, a line per segment,
    none for a file that cannot be used. json: an object per file and line. srt, vtt: subtitles of
    one file."""
    word_times: Common[bool] = False
    """When every word was said, and how sure CTC is of it, for captions that follow the voice or
    for finding what to check: in json; in srt a subtitle is then one word, in vtt words light up.
    Needs a model with CTC."""
    token_scores: bool = False
    """Put the log-probability of every token into json, to see where the model was unsure."""

    def __post_init__(self) -> None:
        check_token_scores(self.token_scores, self.format)
        if self.word_times and self.format not in ("json", "srt", "vtt"):
            raise InputError(
                f"times of words need --format json, srt or vtt, but it is {self.format}; add one "
                "of them"
            )

    @property
    def details(self) -> "Details":
        """What outputs carry besides their text."""
        from transduce.tasks.base import Details

        return Details(token_scores=self.token_scores, word_times=self.word_times)

    def check(self, n_files: int, n_best: int) -> None:
        """Raise InputError where the format does not suit the outputs."""
        if self.format in ("srt", "vtt") and n_files != 1:
            raise InputError(
                f"subtitles belong to one file, but {n_files} were named; run it once for each"
            )
        if n_best and self.format != "json":
            raise InputError(
                f"several outputs need --format json, but it is {self.format}; leave out --n-best, "
                "or add it"
            )


@dataclass(frozen=True, kw_only=True)
class Live:
    """Transcription of speech as it comes."""

    stream: Common[bool] = False
    """Print every segment as soon as it is transcribed, in the order of the sound, to follow a long
    recording: in text a line each, in json an object each. The texts are the same."""
    microphone: bool = False
    """Record until Enter or Ctrl-C, then transcribe that. Needs sounddevice (pip install
    '.[microphone]' in a clone)."""

    def check(self, files: Sequence[Path], columns: Columns, division: Division) -> None:
        """Raise InputError where other flags or files do not go with these."""
        if self.microphone == bool(files):
            raise InputError(
                "name the files to transcribe, - for standard input (sound, or names of files), or "
                "--microphone alone"
            )
        if self.microphone and columns:
            raise InputError(
                "--prefix and --require are for lists of sound, but --microphone records; record "
                "to a file, and name "
                "that in one"
            )
        if self.stream and (division.output or division.workers or division.part):
            raise InputError(
                "segments come on standard output, so leave out --output, --workers and --part "
                "with --stream"
            )


def transcribe(
    run: Runs,
    files: Files = (),
    *,
    live: Group[Live],
    output: Group[TranscriptionOutput],
    columns: Group[Columns],
    search: Group[TranscriptionSearch],
    machine: Group[Machine],
    division: Group[Division],
) -> None:
    """Transcribe sound files: a text for each, in the same order.

    A file that cannot be used is named on stderr and gives a blank text; the others are transcribed
    all the same, and the exit code is 1. A file of nothing but digital silence gives a blank text
    and a warning.

    Args:
        files: WAV, FLAC, Ogg Vorbis, Opus, MP3, AIFF, or .npy of vectors; a manifest (.tsv) stands
            for the sound that it names. - is standard input: one sound file, or names of files, one
            a line.
    """
    live.check(files, columns, division)
    if live.microphone:
        require("sounddevice", "a microphone", "microphone")
    sounds = list(_listed(files, columns) if columns else _sounds_of(files))
    output.check(len(sounds) + live.microphone, search.settings.get("n_best", 0))
    job = Transcription(
        run=local(run),
        lm=search.lm and local(search.lm),
        machine=machine,
        settings=search.overrides(),
        output=output,
        columns=columns,
    )
    if live.microphone:
        sounds.append(_recorded())
    if live.stream:
        _stream(job, sounds)
    else:
        carry_out(job, sounds, division, inputs=files)


def _stream(job: "Transcription", files: "Sequence[Audio]") -> None:
    """Print every segment as soon as it is there.

    Raises:
        SystemExit: with 1, at the end, if some files could not be used.
    """
    from transduce.tasks.sound import Transcript

    transcriber = job.load()
    n_bad = 0
    n_cues = 0
    format = job.output.format
    write = STREAM.get(format, WRITE[format])
    print(HEAD.get(format, ""), end="", flush=True)
    with first_few() as is_shown:
        for sound in job.read(transcriber, files):
            if sound.error:
                n_bad += 1
                if is_shown(error := as_line(sound.error)):
                    print(f"transduce: {error}", file=sys.stderr)
            for segment in transcriber.in_order(sound, details=job.output.details):
                transcript = Transcript(sound.path, [segment])
                row = srt(transcript, n_cues) if format == "srt" else write(transcript)
                n_cues += row.count(" --> ")
                print(row, end="", flush=True)
    if n_bad:
        print(f"transduce: {n_bad} of {len(files)} {job.UNUSABLE}", file=sys.stderr)
        raise SystemExit(1)


@dataclass(frozen=True, kw_only=True)
class Transcription(SearchJob):
    """Sound files to transcribe, or lines of lists of them with columns."""

    UNIT = "segment"
    UNUSABLE = "files could not be transcribed"
    CHUNK = 10_000_000  # bytes: five minutes of most WAV files, more where sound is compressed

    output: TranscriptionOutput
    columns: Columns

    def load(self) -> "Transcriber":
        """Load the run."""
        from transduce.tasks.transcribe import Transcriber

        return self.loaded(Transcriber)

    def name(self, item: "Audio") -> str:
        """Its path and length; what has no path is its content."""
        if isinstance(item, _Named):
            return sha256(item.getvalue()).hexdigest()
        return f"{item} {self.cost(item)}"

    def cost(self, item: "Audio") -> int:
        """Its bytes; 0 where there are none."""
        if isinstance(item, _Named):
            return item.getbuffer().nbytes
        path = str(item) if isinstance(item, Path) else str(item).partition("\t")[0]
        return os.path.getsize(path) if os.path.isfile(path) else 0

    def read(
        self, transcriber: "Transcriber", files: "Sequence[Audio]", start: int = 0
    ) -> "Iterator[Sound]":
        """Read sounds one after the other; `start` came before the first one."""
        if not self.columns:
            return transcriber.read(files, first_sound=start)
        parts = [self.columns.split(str(line), i, "SOUND") for i, line in enumerate(files, 1)]
        return transcriber.read(
            [sound for sound, _, _ in parts],
            prefix=[prefix for _, prefix, _ in parts],
            require=[phrases for _, _, phrases in parts],
            first_sound=start,
        )

    def rows(
        self, transcriber: "Transcriber", start: int, files: "list[Audio]", progress: Progress
    ) -> Rows:
        """Transcribe sounds."""

        def read() -> "Iterator[Sound]":
            for sound in self.read(transcriber, files, start):
                if not sound.request.part:
                    progress(0, sound.n_segments - 1)
                yield sound

        transcripts = transcriber.transcripts(
            read(), progress=lambda n, _: progress(n, 0), details=self.output.details
        )
        head = HEAD.get(self.output.format, "") if start == 0 else ""
        rows = map(WRITE[self.output.format], transcripts)
        errors = [as_line(transcript.error) for transcript in transcripts if transcript.error]
        return Rows(head + "".join(rows), tuple(errors))


class _Named(io.BytesIO):
    """The bytes of a sound file that has no path, with its name in messages."""

    def __init__(self, name: str, content: bytes) -> None:
        super().__init__(content)
        self.name = name


def _sounds_of(files: Sequence[Path]) -> "Iterator[Audio]":
    """The sounds of files: a manifest stands for the sound that it names, - for standard input."""
    for file in files:
        for audio in _standard_input() if file == STDIN else [file]:
            if isinstance(audio, Path) and audio.suffix == ".tsv":
                yield from manifest_audio(audio)
            else:
                yield audio


def _listed(files: Sequence[Path], columns: Columns) -> Iterator[str]:
    """The lines of lists of sound with columns.

    Raises:
        InputError: a line is not UTF-8, names no sound, or has too many columns.
    """
    for file in files:
        for number, line in enumerate(lines_or_errors(file), start=1):
            if isinstance(line, InputError):
                raise InputError(
                    f"{line}; with --prefix or --require, a FILE is a list that names sound"
                )
            line = line.removesuffix("\r")
            try:
                name, _, _ = columns.split(line, number, "SOUND")
            except InputError as error:
                raise InputError(f"{side_name(file)}: {error}") from error
            if not name.strip():
                raise InputError(
                    f"{side_name(file)}: line {number} must begin with the name of a sound; add "
                    "it, or remove the line"
                )
            yield line


def _standard_input() -> "Iterator[Audio]":
    """One sound file, or names of files, one a line."""
    raw = sys.stdin.buffer.read()
    if NO_NAME.search(raw, 0, 4096):
        yield _Named("standard input", raw)
    else:
        for name in raw.removeprefix(codecs.BOM_UTF8).splitlines():
            yield Path(os.fsdecode(name))


def _recorded() -> "Audio":
    """Record from the microphone until Enter or Ctrl-C."""
    from transduce.data.audio import record

    def wait() -> None:
        print("recording; Enter ends it", file=sys.stderr, flush=True)
        with suppress(KeyboardInterrupt):
            sys.stdin.readline()

    return record(wait)
