"""Sound to text, in the APIs of OpenAI and of whisper.cpp's server."""

import asyncio
import io
import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import chain
from typing import Literal

import fastapi
import torch
from fastapi import APIRouter, UploadFile
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from pydantic import BaseModel, ConfigDict, Field

from transduce.config import Json
from transduce.data.audio import audio_blocks
from transduce.errors import InputError
from transduce.serve import ServeConfig
from transduce.serve.engine import Busy, Pieces, Request
from transduce.serve.http import (
    ANY_SPEECH_MODEL,
    TOKEN,
    OpenAIError,
    PlainError,
    Served,
    State,
    body_schema,
    events,
    read_body,
    responses,
)
from transduce.tasks.base import PLAIN, Details
from transduce.tasks.formats import HEAD, WRITE
from transduce.tasks.outputs import Segment, Transcript, between
from transduce.tasks.transcribe import Transcriber

SEGMENT_COST = 4
"""The cost of a segment of sound, in texts."""

router = APIRouter(tags=["OpenAI"], responses=responses(OpenAIError), dependencies=TOKEN)
whisper = APIRouter(tags=["whisper.cpp"], responses=responses(PlainError), dependencies=TOKEN)


class Samples(tuple[torch.Tensor, int]):
    """Floats of shape (n,), and their rate in hertz."""

    name = "the sound"
    """Its name in messages."""

    @property
    def seconds(self) -> float:
        """The duration."""
        return len(self[0]) / self[1]


class AudioBody(BaseModel):
    """A sound file, and the format of its transcript; unknown fields are ignored."""

    model_config = ConfigDict(populate_by_name=True)

    file: UploadFile
    model: str = ANY_SPEECH_MODEL
    response_format: Literal["json", "text", "srt", "vtt", "verbose_json"] = "json"
    language: str = ""
    """The language of the speech, for a multilingual run such as an imported Whisper: de, or auto
    to detect it. Other runs ignore it, and return it unchanged."""
    granularities: list[Literal["word", "segment"]] = Field([], alias="timestamp_granularities[]")
    """word: add word times, in verbose_json, srt and vtt."""
    stream: bool = False

    @property
    def word_times(self) -> bool:
        """Whether word times are requested."""
        return "word" in self.granularities


@dataclass(frozen=True)
class TranscriptionRequest:
    """The language of sound, "" for the run's own, and what outputs carry besides their text."""

    language: str = ""
    details: Details = PLAIN


FORM = body_schema(AudioBody, "multipart/form-data")


@whisper.post("/inference", openapi_extra=FORM, response_model=None)
@router.post("/v1/audio/transcriptions", openapi_extra=FORM, response_model=None)
@router.post("/v1/audio/translations", openapi_extra=FORM, response_model=None)
async def transcriptions(http: fastapi.Request, state: State) -> Response:
    """The text of a sound file, in the language that the run was trained to write."""
    body = await read_body(http, state, AudioBody, state.config.upload_bytes)
    with body.file.file:
        run = state.find(body.model, Transcriber)
        if body.word_times and not run.task.has_word_times:
            raise InputError(
                f"word times come from CTC, or from a Whisper's alignment_heads, but {run.name} "
                "has neither; leave them out"
            )
        if run.engine.is_full():
            raise Busy
        async with state.decoders:
            samples = await asyncio.to_thread(_decode, body.file, run.task, state.config)
    if body.stream:
        request = _request(samples, run.task, TranscriptionRequest(body.language), stream=True)
        return events(_deltas(run.engine.submit(request)))
    details = Details(word_times=body.word_times, no_speech=body.response_format == "verbose_json")
    transcript = await transcribe(run, samples, TranscriptionRequest(body.language, details))
    if body.response_format in ("text", "srt", "vtt"):
        head = HEAD.get(body.response_format, "")
        return PlainTextResponse(head + WRITE[body.response_format](transcript))
    usage = {"type": "duration", "seconds": samples.seconds}
    answer: Json = {"text": transcript.text, "usage": usage}
    if body.response_format == "verbose_json":
        answer |= _verbose(transcript, body) | {"duration": samples.seconds}
        answer["task"] = "translate" if http.url.path.endswith("translations") else "transcribe"
    return JSONResponse(answer)


def _verbose(transcript: Transcript, body: AudioBody) -> Json:
    """Language, segments and, if requested, words."""
    segments = [_segment(i, segment) for i, segment in enumerate(transcript.segments)]
    outputs = [segment.best for segment in transcript.segments]
    detected = next((output.language for output in outputs if output.language), "")
    answer: Json = {"language": detected or body.language or "unknown", "segments": segments}
    if body.word_times:
        answer["words"] = [
            {"word": word.text, "start": word.start, "end": word.stop}
            for output in outputs
            for word in output.words
            if word.start is not None
        ]
    return answer


class _File(io.BytesIO):
    """A file that keeps its position if a damaged header makes libsndfile seek before its start."""

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Return the new position."""
        try:
            return super().seek(offset, whence)
        except ValueError:
            return self.tell()


def _decode(file: UploadFile, transcriber: Transcriber, config: ServeConfig) -> Samples:
    """Decode a sound file, but not beyond the maximum duration.

    Raises:
        InputError: the file is not sound, or too long.
    """
    rate = transcriber.feature_extractor.config.sample_rate  # type: ignore[union-attr]
    blocks = list[torch.Tensor]()
    n_samples = 0
    name = f"file {(file.filename or '')[:80]!r}"
    for block in audio_blocks(_File(file.file.read()), rate, name=name):
        blocks.append(block)
        n_samples += len(block)
        check_seconds(n_samples / rate, config, name)
    samples = Samples((torch.cat(blocks), rate))
    samples.name = name
    return samples


def check_seconds(seconds: float, config: ServeConfig, name: str = Samples.name) -> None:
    """Raise InputError if sound lasts too long."""
    if seconds > config.seconds:
        raise InputError(
            f"sound may last {config.seconds:g} s, but {name} lasts longer; send it in parts"
        )


async def transcribe(
    run: Served[Transcriber], samples: Samples, kind: TranscriptionRequest
) -> Transcript:
    """The transcript of a sound."""
    (pieces,) = await run.engine.outputs(_request(samples, run.task, kind))
    return Transcript("", [*chain.from_iterable(pieces)])


def _request(
    samples: Samples, transcriber: Transcriber, kind: TranscriptionRequest, *, stream: bool = False
) -> Request:
    """A request to transcribe a sound; a long one is computed segment by segment, like a stream."""
    n_segments = 1 + int(samples.seconds / transcriber.decoding.max_seconds)
    return Request([samples], kind, [SEGMENT_COST * n_segments], stream=stream or n_segments > 1)


async def _deltas(pieces: AsyncIterator[tuple[int, list[Segment]]]) -> AsyncIterator[Json]:
    """Yield the events of a stream: one for each segment, then the full text."""
    whole = ""
    async for _, (segment,) in pieces:
        if text := segment.best.text.strip():
            delta = between(whole, text) + text
            yield {"type": "transcript.text.delta", "delta": delta}
            whole += delta
    yield {"type": "transcript.text.done", "text": whole}


def _segment(i: int, segment: Segment) -> Json:
    best = segment.best
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


def speech_languages(transcriber: Transcriber) -> list[str]:
    """The languages that a request may choose from; none if the run's begin_with names one."""
    return [] if transcriber.decoding.begin_with else [*transcriber.tokenizer.languages]


def transcribe_sounds(
    transcriber: Transcriber, request: TranscriptionRequest, sounds: list[Samples]
) -> Pieces:
    """Yield lists of the segments of every sound; each segment of a single sound as soon as it is
    transcribed."""
    decoding = transcriber.decoding
    details = request.details
    if request.language and speech_languages(transcriber):
        decoding = decoding.changed(target_language=request.language)
    read = transcriber.read(sounds, decoding)
    if len(sounds) == 1:
        for sound in read:
            if sound.error:
                raise InputError(sound.error)
            for segment in transcriber.in_order(sound, decoding, details=details):
                yield 0, [segment]
        return
    for i, transcript in enumerate(transcriber.transcripts(read, decoding, details=details)):
        yield i, InputError(transcript.error) if transcript.error else transcript.segments
