"""Sound to text, as OpenAI's clients and those of whisper.cpp's server ask for it."""

import asyncio
import io
import zlib
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any, Literal

import torch
from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from pydantic import BaseModel, ConfigDict, Field, InstanceOf, WithJsonSchema

from transduce.data.speech.audio import audio_blocks
from transduce.errors import InputError
from transduce.serve.body import Uploaded, described
from transduce.serve.config import ServeConfig
from transduce.serve.engine import Ask
from transduce.serve.errors import OpenAIError, PlainError, events, responses
from transduce.serve.models import Served
from transduce.tasks.formats import HEAD, WRITE
from transduce.tasks.request import Details
from transduce.tasks.transcribe import Transcriber
from transduce.tasks.transcript import Segment, Transcript

FIRST = "whisper-1"
"""The name that clients which know OpenAI alone ask for: the first run that transcribes."""

COST = 4
"""Texts that a segment of sound is worth."""


class Samples(tuple[torch.Tensor, int]):
    """Floats of shape (n,), and their rate in hertz."""

    name = "the sound"
    """What messages call it."""


router = APIRouter(tags=["OpenAI"], responses=responses(OpenAIError))
whisper = APIRouter(tags=["whisper.cpp"], responses=responses(PlainError))


class Upload(BaseModel):
    """A sound file, and how its text shall be written; other fields of the clients are not heard."""

    model_config = ConfigDict(populate_by_name=True)

    file: Annotated[InstanceOf[Uploaded], WithJsonSchema({"type": "string", "format": "binary"})]
    model: str = FIRST
    response_format: Literal["json", "text", "srt", "vtt", "verbose_json"] = "json"
    language: str = "unknown"
    """It is told again, and changes nothing: a run knows its languages."""
    granularities: list[Literal["word", "segment"]] = Field([], alias="timestamp_granularities[]")
    """word: when every word was said, in verbose_json, srt and vtt."""
    stream: bool = False


FORM = described(Upload, "multipart/form-data")


@router.post("/v1/audio/transcriptions", openapi_extra=FORM, response_model=None)
async def transcriptions(request: Request) -> Response:
    """The text of a sound file, in the language that the run writes."""
    return await _answer(request, "transcribe")


@router.post("/v1/audio/translations", openapi_extra=FORM, response_model=None)
async def translations(request: Request) -> Response:
    """The text of a sound file by a run that was trained to translate speech."""
    return await _answer(request, "translate")


@whisper.post("/inference", openapi_extra=FORM, response_model=None)
async def inference(request: Request) -> Response:
    """The text of a sound file."""
    return await _answer(request, "transcribe")


async def _answer(request: Request, task: str) -> Response:
    config: ServeConfig = request.app.state.config
    async with request.app.state.memory.upload(request, Upload) as asked:
        served = chosen(request.app.state.served, asked.model)
        transcriber = served.task
        assert isinstance(transcriber, Transcriber)
        timed = "word" in asked.granularities
        if timed and not transcriber.model.config.ctc:
            raise HTTPException(400, f"times of words come from CTC, but {served.name} has none; leave them out")
        served.engine.check_room()
        async with request.app.state.decoders:
            sound = await decoded(asked.file, transcriber, config)
        asked.file = Uploaded("", b"")  # it takes memory no longer
    seconds = len(sound[0]) / sound[1]
    if asked.stream:
        ask = _ask(sound, transcriber, Details(), stream=True)
        served.engine.submit([ask])
        return events(_deltas(ask))
    details = Details(word_times=timed, no_speech=asked.response_format == "verbose_json")
    transcript = await transcribed(served, sound, details)
    if asked.response_format == "json":
        usage = {"type": "duration", "seconds": seconds}
        return JSONResponse({"text": transcript.text, "usage": usage})
    if asked.response_format == "verbose_json":
        return JSONResponse(_verbose(transcript, seconds, asked, task, timed))
    written = asked.response_format
    return PlainTextResponse(HEAD.get(written, "") + WRITE[written](transcript))


def chosen(served: Sequence[Served], name: str = FIRST) -> Served:
    """The run of this name that transcribes.

    Raises:
        HTTPException: there is none.
    """
    able = [each for each in served if isinstance(each.task, Transcriber)]
    found = able[:1] if name == FIRST else [each for each in able if each.name == name]
    if not found:
        told = ", ".join(each.name for each in able) or "no run"
        raise HTTPException(404, f"{told} transcribes here, but not {name[:40]!r}; see /v1/models")
    return found[0]


class _File(io.BytesIO):
    """A file whose damaged header may send libsndfile to a place before its beginning: it stays where it is."""

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """The place where it is then."""
        try:
            return super().seek(offset, whence)
        except ValueError:
            return self.tell()


async def decoded(file: Uploaded, transcriber: Transcriber, config: ServeConfig) -> Samples:
    """The samples of a sound file, which is decoded no further than sound may last, and their rate.

    Raises:
        InputError: it is no sound, or too long.
    """
    rate = transcriber.feature_extractor.config.sample_rate  # type: ignore[union-attr]

    def decode() -> torch.Tensor:
        blocks, n = [], 0
        for block in audio_blocks(_File(file.content), rate, name="file"):
            blocks.append(block)
            n += len(block)
            check_seconds(n / rate, config)
        return torch.cat(blocks)

    samples = Samples((await asyncio.to_thread(decode), rate))
    samples.name = f"file {file.name[:80]!r}"
    return samples


def check_seconds(seconds: float, config: ServeConfig) -> None:
    """Raise InputError where sound lasts too long."""
    if seconds > config.seconds:
        raise InputError(f"sound may last {config.seconds:g} s, but the file lasts longer; send it in parts")


async def transcribed(served: Served, sound: Samples, details: Details | None = None) -> Transcript:
    """What is said, by a run that transcribes."""
    assert isinstance(served.task, Transcriber)
    (segments,) = await served.outputs([_ask(sound, served.task, details or Details())])
    return Transcript("", sorted(segments, key=lambda segment: segment.start))


def _ask(sound: Samples, transcriber: Transcriber, details: Details, *, stream: bool = False) -> Ask:
    """A sound to transcribe; one that has several segments, or is streamed, is worked on segment by segment."""
    n_segments = 1 + int(len(sound[0]) / sound[1] / transcriber.decoding.max_seconds)
    return Ask(sound, details, cost=COST * n_segments, alone=stream or n_segments > 1)


async def _deltas(ask: Ask) -> AsyncIterator[dict[str, Any]]:
    """The events of a stream: a segment each, and the whole text."""
    whole = ""
    async for segment in ask.pieces():
        if text := segment.outputs[0].text.strip():
            delta = " " * bool(whole) + text
            whole += delta
            yield {"type": "transcript.text.delta", "delta": delta}
    yield {"type": "transcript.text.done", "text": whole}


def _verbose(transcript: Transcript, seconds: float, asked: Upload, task: str, timed: bool) -> dict[str, Any]:
    """All that is known of a transcript."""
    found: dict[str, Any] = {"task": task, "language": asked.language, "duration": seconds, "text": transcript.text}
    found["segments"] = [_segment(i, segment) for i, segment in enumerate(transcript.segments)]
    found["usage"] = {"type": "duration", "seconds": seconds}
    if timed:
        words = [word for segment in transcript.segments for word in segment.outputs[0].words]
        found["words"] = [
            {"word": word.text, "start": word.start, "end": word.stop} for word in words if word.start is not None
        ]
    return found


def _segment(i: int, segment: Segment) -> dict[str, Any]:
    best = segment.outputs[0]
    raw = best.text.encode()
    return {
        "id": i,
        "seek": 0,
        "start": segment.start,
        "end": segment.stop,
        "text": best.text,
        "tokens": best.tokens,
        "temperature": 0.0,
        "avg_logprob": best.log_prob / (len(best.tokens) + best.finished) if best.tokens else 0.0,
        "compression_ratio": len(raw) / len(zlib.compress(raw)),
        "no_speech_prob": best.no_speech_prob,
    }
