"""`transduce transcribe RUN FILE ...`: recordings to text, TSV, JSON lines or subtitles."""

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm
from tyro.conf import Positional, arg

from transduce.cli.common import with_options
from transduce.device import Precision, default_device, dtype_of
from transduce.tasks.load import load_as
from transduce.tasks.transcribe import Sound, Transcriber, Transcript

CHUNK = 600.0
"""Seconds of sound to read, then transcribe and write, at a time; the file that completes them may be longer."""

Format = Literal["text", "tsv", "json", "srt"]


def transcribe(
    run: Positional[Annotated[Path, arg(metavar="RUN", help="A run directory, as a speech recipe makes it.")]],
    files: Positional[Annotated[tuple[Path, ...], arg(metavar="FILE [FILE ...]")]],
    *,
    format: Format = "text",
    output: Path | None = None,
    beam_size: int | None = None,
    alpha: float | None = None,
    greedy: bool = False,
    ctc_weight: float | None = None,
    max_seconds: float | None = None,
    device: str = default_device(),
    batch_tokens: int | None = None,
    precision: Precision = "fp32",
) -> None:
    """Transcribe sound files: a text for each, in the same order; searched as the run's own configuration says.

    A file that cannot be used is named on stderr and gives a blank text; the others are transcribed all the same, and
    the exit code is 1. A file of nothing but digital silence gives a blank text and a warning.

    Args:
        files: WAV, FLAC, Ogg Vorbis, Opus, MP3, AIFF, or .npy of vectors; - reads names from standard input, one a line.
        format: text: a line per file. tsv: audio, start, stop (seconds), score and text, a line per segment, none for a
            file that cannot be used. json: an object per file and line. srt: subtitles of one file.
        output: Where transcripts go; standard output if not given.
        beam_size: Hypotheses per segment.
        alpha: Exponent of the length penalty ((5 + length) / 6)^alpha.
        greedy: Take the likeliest next token each time: --beam-size 1.
        ctc_weight: Share of CTC in the score, 0 to 1.
        max_seconds: Longer recordings are cut into segments, where they are quietest.
        device: cpu, cuda, cuda:1, ...
        batch_tokens: Positions per batch, padding included: speed and memory, never the output.
        precision: bf16 is faster where the hardware has it; a few outputs change.
    """
    if not files:
        raise ValueError("name the files to transcribe, or - to read their names from standard input")
    paths = list(_names(files))
    if format == "srt" and len(paths) != 1:
        raise ValueError(f"subtitles belong to one file, but {len(paths)} were named; run it once for each")
    transcriber = load_as(Transcriber, run, device, dtype_of(precision))
    decoding = with_options(
        transcriber.decoding,
        greedy=greedy,
        beam_size=beam_size,
        alpha=alpha,
        ctc_weight=ctc_weight,
        max_seconds=max_seconds,
        batch_tokens=batch_tokens,
    )
    n_read = n_bad = 0
    with ExitStack() as stack:
        out = stack.enter_context(output.open("w", encoding="utf-8", newline="\n")) if output else sys.stdout
        if format == "tsv":
            out.write("audio\tstart\tstop\tscore\ttext\n")
        stack.enter_context(logging_redirect_tqdm())
        bar = stack.enter_context(tqdm(total=len(paths), unit="segment", disable=not sys.stderr.isatty()))
        for sounds in _chunks(transcriber.read(paths, decoding.max_seconds)):
            n_read += len(sounds)
            step = _Step(bar, before=bar.n, left=len(paths) - n_read)
            for transcript in transcriber.transcripts(sounds, decoding, progress=step):
                if transcript.error:
                    tqdm.write(f"transduce: {_printable(transcript.error)}", file=sys.stderr)
                    n_bad += 1
                out.write(WRITE[format](transcript))
            out.flush()
    if n_bad:
        print(f"transduce: {n_bad} of {len(paths)} files could not be transcribed", file=sys.stderr)
        sys.exit(1)


def _chunks(sounds: Iterable[Sound]) -> Iterator[list[Sound]]:
    """So many files at a time that together they reach CHUNK; the last may be fewer."""
    chunk, seconds = [], 0.0
    for sound in sounds:
        chunk.append(sound)
        seconds += sound.seconds
        if seconds >= CHUNK:
            yield chunk
            chunk, seconds = [], 0.0
    if chunk:
        yield chunk


@dataclass(frozen=True)
class _Step:
    """Moves the bar on; a file that nobody has read yet counts as one segment."""

    bar: "tqdm[None]"
    before: int
    left: int

    def __call__(self, n_done: int, n_segments: int) -> None:
        self.bar.total = self.before + n_segments + self.left
        self.bar.update(n_done)


def _names(files: Sequence[Path]) -> Iterator[Path]:
    for file in files:
        if str(file) == "-":
            lines = sys.stdin.buffer.read().split(b"\n")
            yield from (Path(os.fsdecode(name)) for line in lines if (name := line.removesuffix(b"\r")))
        else:
            yield file


def _printable(text: object) -> str:
    """As text, even where a file's name holds bytes that are none."""
    return str(text).encode(errors="surrogateescape").decode(errors="replace")


def _text(transcript: Transcript) -> str:
    return transcript.text + "\n"


def _tsv(transcript: Transcript) -> str:
    name = _printable(transcript.path).replace("\t", " ")
    return "".join(
        f"{name}\t{p.start:.3f}\t{p.stop:.3f}\t{p.outputs[0].score:.4f}\t" + p.outputs[0].text.replace("\t", " ") + "\n"
        for p in transcript.segments
    )


def _json(transcript: Transcript) -> str:
    segments = [
        {"start": round(p.start, 3), "stop": round(p.stop, 3), "score": p.outputs[0].score, "text": p.outputs[0].text}
        for p in transcript.segments
    ]
    plain: dict[str, object] = {"audio": _printable(transcript.path), "text": transcript.text, "segments": segments}
    if transcript.error:
        plain["error"] = _printable(transcript.error)
    return json.dumps(plain, ensure_ascii=False) + "\n"


def _srt(transcript: Transcript) -> str:
    said = [piece for piece in transcript.segments if piece.outputs[0].text.strip()]
    return "".join(
        f"{number}\n{_moment(piece.start)} --> {_moment(piece.stop)}\n{piece.outputs[0].text.strip()}\n\n"
        for number, piece in enumerate(said, start=1)
    )


def _moment(seconds: float) -> str:
    """SubRip's hours:minutes:seconds,milliseconds."""
    milliseconds = round(seconds * 1000)
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{rest // 1000:02d},{rest % 1000:03d}"


WRITE = {"text": _text, "tsv": _tsv, "json": _json, "srt": _srt}
