"""`transduce transcribe RUN FILE ...`: recordings to text, TSV, JSON lines or subtitles."""

import codecs
import io
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import soundfile
from tyro.conf import Positional, arg

from transduce.cli.common import (
    LM,
    STDIN,
    Forbid,
    Machine,
    Runs,
    check_columns,
    lines_or_errors,
    local,
    phrases_of,
    search_of,
    search_options,
    side_name,
)
from transduce.cli.jobs import Division, Job, carry_out
from transduce.cli.output import first_few
from transduce.cli.workers import Progress, Rows, Work
from transduce.data.speech.manifest import manifest_audio
from transduce.data.speech.microphone import check_microphone, record
from transduce.errors import InputError
from transduce.tasks.config import SearchConfig
from transduce.tasks.formats import HEAD, STREAM, WRITE, as_line, srt

if TYPE_CHECKING:
    from transduce.tasks.request import Details
    from transduce.tasks.transcribe import Transcriber
    from transduce.tasks.transcript import Audio, Sound
else:  # torch takes seconds to import, and --help does without
    Audio = Details = Sound = Transcriber = Any

Format = Literal["text", "tsv", "json", "srt", "vtt"]

SOUND = re.compile(
    rb"RIFF|RIFX|RF64|riff|FORM|\.snd|dns\.|fLaC|OggS|ID3|\xff[\xe2\xe3\xf2\xf3\xfa\xfb]|caff|wvpk|\x1aE\xdf\xa3|....ftyp",
    re.DOTALL,
)
"""How sound begins: WAV, AIFF, AU, FLAC, Ogg, MP3, CAF; WavPack, Matroska and MP4, which libsndfile refuses by name."""

BEGINNING = 1 << 12
"""Bytes of standard input that tell whether it can be sound or names."""

NO_NAME = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
"""Bytes that no line of names holds."""

Search = search_options(
    without=("max_source_length", "split_length", "shortlist", "source_language", "target_language")
)


def transcribe(
    run: Positional[Runs],
    files: Positional[Annotated[tuple[Path, ...], arg(metavar="[FILE ...]", help_behavior_hint="")]] = (),
    *,
    microphone: Annotated[bool, arg(help_behavior_hint="")] = False,
    format: Format = "text",
    forbid: Forbid = None,
    lm: LM = None,
    prefix: Annotated[bool, arg(help_behavior_hint="")] = False,
    require: Annotated[bool, arg(help_behavior_hint="")] = False,
    word_times: Annotated[bool, arg(help_behavior_hint="")] = False,
    token_scores: Annotated[bool, arg(help_behavior_hint="")] = False,
    stream: Annotated[bool, arg(help_behavior_hint="")] = False,
    search: Annotated[Any, arg(constructor=Search)],
    machine: Machine,
    division: Division,
) -> None:
    """Transcribe sound files: a text for each, in the same order.

    A file that cannot be used is named on stderr and gives a blank text; the others are transcribed all the same, and
    the exit code is 1. A file of nothing but digital silence gives a blank text and a warning.

    Args:
        files: WAV, FLAC, Ogg Vorbis, Opus, MP3, AIFF, or .npy of vectors; a manifest (.tsv) stands for the sound that it
            names. - is standard input: one sound file, or names of files, one a line.
        microphone: Record until Enter or Ctrl-C, then transcribe that. Needs sounddevice (pip install
            '.[microphone]' in a clone).
        format: text: a line per file. tsv: audio, start, stop (seconds), score and text, a line per segment, none for a
            file that cannot be used. json: an object per file and line. srt, vtt: subtitles of one file.
        lm: A language model beside the run: for words and phrases that its training lacked. Another run, of the same
            tokenizer, or an ARPA file of n-grams whose words are its tokens, as transduce tokenize writes them.
        prefix: FILEs, and - too, are lists of SOUND<TAB>PREFIX, and the text of a sound begins with its prefix, where
            somebody has written its beginning; its last word may go on, unless a space ends it.
        require: FILEs are lists of SOUND<TAB>PHRASE<TAB>PHRASE ..., behind a PREFIX if there is one, and the text of a sound,
            which must be one segment, holds all of its phrases, where one knows which names are said. Costs time; takes a
            wide beam.
        word_times: When every word was said, and how sure CTC is of it, for captions that follow the voice or for finding
            what to check: in json; in srt a subtitle is then one word, in vtt words light up. Needs a model with CTC.
        token_scores: Put the log-probability of every token into json, to see where the model was unsure.
        stream: Print every segment as soon as it is transcribed, in the order in which they are heard, to follow a long
            recording: in text a line each, in json an object each. The texts are the same.
    """
    if microphone == bool(files):
        raise InputError(
            "name the files to transcribe, - for standard input (sound, or names of files), or --microphone alone"
        )
    if microphone and (prefix or require):
        raise InputError(
            "--prefix and --require are for lists of sound, but --microphone records; record to a file, and name that in one"
        )
    if stream and (division.output or division.workers or division.part):
        raise InputError("segments come on standard output, so leave out --output, --workers and --part with --stream")
    if microphone:
        check_microphone()
    given = list(_listed(files, prefix=prefix, require=require) if prefix or require else _given(files))
    if word_times and format not in ("json", "srt", "vtt"):
        raise InputError(f"times of words need --format json, srt or vtt, but it is {format}; add one of them")
    if format in ("srt", "vtt") and not microphone and len(given) != 1:
        raise InputError(f"subtitles belong to one file, but {len(given)} were named; run it once for each")
    run, lm = local(run), local(lm) if lm else None
    experiment, decoding = search_of(run, search, forbid=forbid, lm=lm, format=format, token_scores=token_scores)
    if search.n_best and format != "json":
        raise InputError(f"several outputs need --format json, but it is {format}; leave out --n-best, or add it")
    if word_times and experiment.get("ctc_weight") == 0:
        raise InputError(f"times of words come from CTC, but {run} was trained with ctc_weight=0; leave them out")
    if microphone:
        given.append(_recorded())
    job = Transcription(
        run=run,
        lm=lm,
        machine=machine,
        decoding=decoding,
        format=format,
        word_times=word_times,
        token_scores=token_scores,
        prefix=prefix,
        require=require,
    )
    _stream(job, given) if stream else carry_out(job, given, division, inputs=files)


def _stream(job: "Transcription", files: Sequence[Audio]) -> None:
    """Print every segment as soon as it is there.

    Raises:
        SystemExit: with 1, at the end, if some files could not be used.
    """
    from transduce.tasks.transcribe import Transcriber
    from transduce.tasks.transcript import Transcript

    transcriber, n_bad, n_cues = job.machine.load(Transcriber, job.run, job.lm), 0, 0
    print(HEAD.get(job.format, ""), end="", flush=True)
    with first_few() as is_shown:
        for sound in job.read(transcriber, files):
            if sound.error:
                n_bad += 1
                if is_shown(error := as_line(sound.error)):
                    print(f"transduce: {error}", file=sys.stderr)
            for segment in transcriber.in_order(sound, job.decoding, details=job.details):
                heard = Transcript(sound.path, [segment])
                row = srt(heard, n_cues) if job.format == "srt" else STREAM.get(job.format, WRITE[job.format])(heard)
                n_cues += row.count(" --> ")
                print(row, end="", flush=True)
    if n_bad:
        print(f"transduce: {n_bad} of {len(files)} {job.UNUSABLE}", file=sys.stderr)
        raise SystemExit(1)


@dataclass(frozen=True, kw_only=True)
class Transcription(Job):
    """Sound files to transcribe."""

    UNIT = "segment"
    UNUSABLE = "files could not be transcribed"
    CHUNK = 10_000_000  # bytes: five minutes of most WAV files, more where sound is compressed

    decoding: SearchConfig
    format: Format
    word_times: bool = False
    token_scores: bool = False
    prefix: bool = False
    """Whether inputs are lines of a list, with what a text begins with behind a tab."""
    require: bool = False
    """Whether inputs are lines of a list, with what a text must hold behind tabs."""

    def name(self, item: Audio) -> str:
        """Its path; what has none is its content."""
        return sha256(item.getvalue()).hexdigest() if isinstance(item, _Named) else str(item)

    def state(self, item: Audio) -> str:
        """How long the file is: one that is fetched again changes its own part alone."""
        return str(self.cost(item))

    def cost(self, item: Audio) -> int:
        """Its bytes; 0 where there are none."""
        if isinstance(item, _Named):
            return item.getbuffer().nbytes
        path = str(item) if isinstance(item, Path) else str(item).partition("\t")[0]
        return os.path.getsize(path) if os.path.isfile(path) else 0  # Path.is_file raises where a name is too long

    def load(self) -> Work:
        """Load the transcriber."""
        from transduce.tasks.transcribe import Transcriber

        return partial(self._rows, self.machine.load(Transcriber, self.run, self.lm))

    @property
    def details(self) -> Details:
        """What outputs are given besides their text."""
        from transduce.tasks.request import Details

        return Details(token_scores=self.token_scores, word_times=self.word_times)

    def read(self, transcriber: Transcriber, files: Sequence[Audio], start: int = 0) -> Iterator[Sound]:
        """The sounds of some inputs, of which the first has this number, one after the other."""
        told: dict[str, Any] = {"first_sound": start}
        if self.prefix or self.require:
            files, phrases = phrases_of([str(line) for line in files], prefix=self.prefix, require=self.require)
            told |= phrases
        return transcriber.read(files, self.decoding, **told)

    def _rows(self, transcriber: Transcriber, start: int, files: list[Audio], progress: Progress) -> Rows:
        rows = [HEAD.get(self.format, "")] * (start == 0)

        def read() -> Iterator[Sound]:
            for sound in self.read(transcriber, files, start):
                if not sound.request.part:
                    progress(0, sound.n_segments - 1)
                yield sound

        found = transcriber.transcripts(
            read(), self.decoding, progress=lambda n, _: progress(n, 0), details=self.details
        )
        rows += map(WRITE[self.format], found)
        errors = [as_line(transcript.error) for transcript in found if transcript.error]
        return Rows("".join(rows), tuple(errors))


class _Named(io.BytesIO):
    """The bytes of a sound file that has no path, with what messages call it."""

    def __init__(self, name: str, content: bytes = b"") -> None:
        super().__init__(content)
        self.name = name


def _given(files: Sequence[Path]) -> Iterator[Audio]:
    """What the files stand for: a manifest for the sound that it names, - for what standard input is."""
    for file in files:
        for audio in _standard_input() if file == STDIN else [file]:
            if isinstance(audio, Path) and audio.suffix == ".tsv":
                yield from manifest_audio(audio)
            else:
                yield audio


def _listed(files: Sequence[Path], **flags: bool) -> Iterator[str]:
    """The lines of lists of sound with what their texts begin with or hold.

    Raises:
        InputError: a line is not UTF-8, names no sound, or has too many columns.
    """
    for file in files:
        for number, line in enumerate(lines_or_errors(file), start=1):
            if isinstance(line, InputError):
                raise InputError(f"{line}; with --prefix or --require, a FILE is a list that names sound")
            try:
                check_columns(line := line.removesuffix("\r"), number, "SOUND", **flags)
            except InputError as error:
                raise InputError(f"{side_name(file)}: {error}") from error
            if not line.partition("\t")[0].strip():
                raise InputError(
                    f"{side_name(file)}: line {number} must begin with the name of a sound; add it, or remove the line"
                )
            yield line


def _standard_input() -> Iterator[Audio]:
    """Sound, if the first bytes look like it; else names of files, one a line.

    Raises:
        InputError: it is neither.
    """
    raw = sys.stdin.buffer.read(BEGINNING)
    if SOUND.match(raw) or not NO_NAME.search(raw):  # else it need not have an end
        raw += sys.stdin.buffer.read()
    raw = raw.removeprefix(codecs.BOM_UTF8)
    if not NO_NAME.search(raw):
        for number, line in enumerate(raw.removesuffix(b"\n").split(b"\n") if raw else [], start=1):
            name = line.removesuffix(b"\r")
            yield Path(os.fsdecode(name)) if name else _Named(f"line {number} of standard input, which is blank,")
    elif SOUND.match(raw):
        yield _Named("standard input", raw)
    else:
        raise InputError(
            "standard input must be a sound file, or names of files, one a line, but it is binary and begins with "
            f"{raw[:4].hex(' ')}; convert the sound to WAV, or name its file"
        )


def _recorded() -> Audio:
    """What the microphone hears until Enter or Ctrl-C."""

    def wait() -> None:
        print("recording; Enter ends it", file=sys.stderr, flush=True)
        with suppress(KeyboardInterrupt):
            sys.stdin.readline()

    samples, rate = record(wait)
    file = _Named("microphone")
    soundfile.write(file, samples, rate, format="WAV", subtype="FLOAT")
    file.seek(0)
    return file
