"""`transduce transcribe RUN FILE ...`: recordings to text, TSV, JSON lines or subtitles."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import UseAppendAction, arg

from transduce.arguments import Group, Overrides
from transduce.cli.common import (
    Columns,
    Files,
    Machine,
    Runs,
    SearchOptions,
    check_token_scores,
    local,
    to_stderr,
)
from transduce.cli.jobs import Progress, Rows, SearchJob, first_few
from transduce.cli.large_files import OutputOptions, carry_out, end
from transduce.cli.recordings import (
    NamedSound,
    listed,
    recorded,
    sounds_of,
    stems_of,
    version_of,
)
from transduce.cli.transcript_folder import unfinished
from transduce.config import Common, Json
from transduce.errors import InputError, require
from transduce.tasks.config import SearchConfig
from transduce.tasks.formats import ENDINGS, HEAD, STREAM, WRITE, as_line, srt

if TYPE_CHECKING:
    from transduce.tasks.base import Details
    from transduce.tasks.outputs import Transcript
    from transduce.tasks.sound import Audio, Sound
    from transduce.tasks.transcribe import Transcriber


class TranscriptionSettings(Overrides):
    """Settings of the search for transcripts."""

    CONFIG = SearchConfig
    WITHOUT = (
        "max_source_length",
        "split_length",
        "source_language",
        "target_language",
        "alignment_heads",
        "forbid",
        "glossary",
    )
    HINT = "(the run's)"


@dataclass(frozen=True, kw_only=True)
class TranscriptionSearch(SearchOptions):
    """How to search for transcripts."""

    language: Common[str] = ""
    """The language of the speech, for an imported Whisper, such as de; auto detects that of each
    recording."""
    settings: Group[TranscriptionSettings]

    def overrides(self, files: Sequence[Path] = ()) -> Json:
        """As in SearchOptions, with the language."""
        known = {"target_language": self.language} if self.language else {}
        return super().overrides(files) | known


@dataclass(frozen=True, kw_only=True)
class TranscriptionOutput:
    """How transcripts are written."""

    format: Common[UseAppendAction[tuple[Literal["text", "tsv", "json", "srt", "vtt"], ...]]] = ()
    """text (the default): a line per file. tsv: audio, start, end (seconds), score and text, a line
    per segment, none for a file that cannot be used. json: an object per file, one a line. srt,
    vtt: subtitles of one file. With --output-dir, several can be given: --format srt --format
    json."""
    output_dir: Common[Annotated[Path | None, arg(metavar="DIR")]] = None
    """Write a file for each recording: DIR/talk.txt (.tsv, .json, .srt, .vtt) for talk.wav, and,
    for a folder, DIR/day/talk.txt for FOLDER/day/talk.wav. The same command again transcribes only
    recordings that have no file yet, or that have changed."""
    word_times: Common[bool] = False
    """Add the time of every word, and the model's confidence in it, for captions that follow the
    voice or to find words to check: in json; in srt each subtitle is then one word, and in vtt
    words are highlighted in turn. Needs a model with CTC, or an imported Whisper."""
    token_scores: bool = False
    """Put the log-probability of every token into json, to see where the model was unsure."""

    def __post_init__(self) -> None:
        named = ", ".join(self.formats)
        check_token_scores(self.token_scores, named)
        if self.word_times and not {"json", "srt", "vtt"} & {*self.formats}:
            raise InputError(
                f"word times need --format json, srt or vtt, but it is {named}; add one of them"
            )
        if len(self.formats) > 1 and self.output_dir is None:
            raise InputError(
                f"several formats need --output-dir, where each has a file, but they are {named}; "
                "add --output-dir DIR, or leave one"
            )

    @property
    def formats(self) -> tuple[str, ...]:
        """The formats that are written."""
        return self.format or ("text",)

    @property
    def details(self) -> "Details":
        """What outputs carry besides their text."""
        from transduce.tasks.base import Details

        return Details(token_scores=self.token_scores, word_times=self.word_times)

    def check(self, n_files: int, n_best: int) -> None:
        """Raise InputError if the format cannot hold the outputs."""
        if self.formats[0] in ("srt", "vtt") and n_files != 1 and self.output_dir is None:
            raise InputError(
                f"subtitles belong to one file, but {n_files} were named; add --output-dir DIR for "
                "a file of each"
            )
        if n_best and "json" not in self.formats:
            raise InputError(
                f"several outputs need --format json, but it is {', '.join(self.formats)}; leave "
                "out --n-best, or add it"
            )


@dataclass(frozen=True, kw_only=True)
class Live:
    """Transcription of speech as it comes."""

    stream: Common[bool] = False
    """Print every segment as soon as it is transcribed, in the order of the sound: in text a line
    each, in json an object each. The texts are the same as without."""
    microphone: bool = False
    """Record until Enter or Ctrl-C, then transcribe that. Needs sounddevice (pip install
    '.[microphone]' in a clone)."""

    def check(
        self,
        files: Sequence[Path],
        output: TranscriptionOutput,
        columns: Columns,
        destination: OutputOptions,
    ) -> None:
        """Raise InputError if other flags or files conflict with these."""
        others = (self.stream, self.microphone, columns, destination.output, destination.part)
        if output.output_dir and any(others):
            raise InputError(
                "--output-dir writes files for each recording that is named, so leave out "
                "--stream, --microphone, --prefix, --require, --output and --part"
            )
        if self.microphone == bool(files):
            raise InputError(
                "name the files to transcribe, - for standard input (sound, or names of files), or "
                "--microphone alone"
            )
        if self.microphone and columns:
            raise InputError(
                "--prefix and --require are for lists of sound, but --microphone records; record "
                "to a file, and name that in one"
            )
        if self.stream and destination != OutputOptions():
            raise InputError(
                "segments are printed to standard output, so leave out --output, --workers and "
                "--part with --stream"
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
    destination: Group[OutputOptions],
) -> None:
    """Transcribe sound files: a text for each, in the same order.

    A file that cannot be used is named on stderr and gives a blank text; the others are still
    transcribed, and the exit code is 1. A file with only digital silence gives a blank text and a
    warning.

    Args:
        files: WAV, FLAC, Ogg Vorbis, Opus, MP3, AIFF, .npy of vectors, and with FFmpeg M4A, MP4,
            WebM; a folder gives all sound files in it, and a list such as a manifest (.tsv, .csv,
            .jsonl) or a folder with metadata.csv or wav.scp those that it names, in its order. - is
            standard input: one sound file, or names of files, one a line.
    """
    live.check(files, output, columns, destination)
    if live.microphone:
        require("sounddevice", "a microphone", "microphone")
    sounds = list(listed(files, columns) if columns else sounds_of(files))
    output.check(len(sounds) + live.microphone, search.settings.get("n_best", 0))
    job = Transcription(
        run=local(run),
        lm=search.lm and local(search.lm),
        machine=machine,
        settings=search.overrides(files),
        output=output,
        columns=columns,
    )
    if live.microphone:
        sounds.append(recorded())
    if live.stream:
        _stream(job, sounds)
    elif output.output_dir is None:
        named = [sound for sound in sounds if not isinstance(sound, NamedSound)]
        paths = [Path(job.path(sound)) for sound in named]
        carry_out(job, sounds, destination, inputs=[*files, *paths, *search.files])
    else:
        job = replace(job, stems=stems_of(sounds, files, output.output_dir))
        key, _, _ = job.key(())
        del key["inputs"], key["stems"], key["output"]["format"], key["output"]["output_dir"]
        if left := unfinished(output.output_dir, key, job.stems, job.files):
            carry_out(job, left, destination)


def _stream(job: "Transcription", files: "Sequence[Audio]") -> None:
    """Print every segment as soon as it is transcribed.

    Raises:
        SystemExit: with 1, at the end, if some files could not be used.
    """
    from transduce.tasks.outputs import Transcript

    transcriber = job.load()
    n_bad = 0
    n_cues = 0
    (format,) = job.output.formats
    write = STREAM.get(format, WRITE[format])
    print(HEAD.get(format, ""), end="", flush=True)
    with first_few() as is_shown:
        for sound in job.read(transcriber, files):
            if sound.error:
                n_bad += 1
                if is_shown(error := as_line(sound.error)):
                    to_stderr(error)
            for segment in transcriber.in_order(sound, details=job.output.details):
                transcript = Transcript(sound.path, [segment])
                row = srt(transcript, n_cues) if format == "srt" else write(transcript)
                n_cues += row.count(" --> ")
                print(row, end="", flush=True)
    end(n_bad, len(files), job.UNUSABLE)


@dataclass(frozen=True, kw_only=True)
class Transcription(SearchJob):
    """Sound files to transcribe, or lines of lists of them with columns."""

    TASK = "Transcriber"
    UNIT = "segment"
    UNUSABLE = "files could not be transcribed"
    CHUNK = 10_000_000  # bytes: five minutes of most WAV files, more where sound is compressed

    output: TranscriptionOutput
    columns: Columns
    stems: dict[str, str] = field(default_factory=dict)
    """By the path of each sound, the path of its files without suffix; {}: no files are written."""

    def name(self, item: "Audio") -> str:
        """The path and version of a sound, or the hash of sound without a path."""
        if isinstance(item, NamedSound):
            return sha256(item.getvalue()).hexdigest()
        return f"{item} {version_of(self.path(item))}"

    def cost(self, item: "Audio") -> int:
        """The number of bytes of a sound; 0 if there is no file."""
        if isinstance(item, NamedSound):
            return item.getbuffer().nbytes
        path = self.path(item)
        return os.path.getsize(path) if os.path.isfile(path) else 0

    def path(self, item: "Audio") -> str:
        """The path of a sound, or the path in a line of a list."""
        return str(self.columns.split(item, 0)[0])

    def read(
        self, transcriber: "Transcriber", files: "Sequence[Audio]", start: int = 0
    ) -> "Iterator[Sound]":
        """Read sounds one after the other; `start` is the number of sounds before them."""
        parts = [self.columns.split(line, i) for i, line in enumerate(files, 1)]
        return transcriber.read(
            [sound for sound, _, _ in parts],
            prefix=[prefix for _, prefix, _ in parts],
            require=[phrases for _, _, phrases in parts],
            first_sound=start,
        )

    def rows(
        self, transcriber: "Transcriber", start: int, files: "list[Audio]", progress: Progress
    ) -> Rows:
        """Transcribe sounds; write their files if they have any."""

        def read() -> "Iterator[Sound]":
            for sound in self.read(transcriber, files, start):
                if not sound.request.part:
                    progress(0, sound.n_segments - 1)
                yield sound

        transcripts = transcriber.transcripts(
            read(), progress=lambda n, _: progress(n, 0), details=self.output.details
        )
        errors = tuple(as_line(each.error) for each in transcripts if each.error)
        if self.stems:
            for each in transcripts:
                if not each.error:
                    self._write(each)
            return Rows("", errors)
        (format,) = self.output.formats
        head = HEAD.get(format, "") if start == 0 and files else ""  # a part may be empty
        return Rows(head + "".join(map(WRITE[format], transcripts)), errors)

    def files(self, path: Path) -> dict[str, Path]:
        """The files of a sound by their formats."""
        stem = self.stems[str(path)]
        return {format: Path(f"{stem}{ENDINGS[format]}") for format in self.output.formats}

    def _write(self, transcript: "Transcript") -> None:
        from transduce.files import write_file

        for format, path in self.files(Path(transcript.path)).items():
            write_file(path, HEAD.get(format, "") + WRITE[format](transcript))
