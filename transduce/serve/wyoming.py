"""The Wyoming protocol, by which Home Assistant and others ask over TCP for the text of what was said."""

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from wyoming.asr import Transcribe, Transcript
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.error import Error
from wyoming.event import Event, async_read_event, async_write_event
from wyoming.info import AsrModel, AsrProgram, Attribution, Describe, Info

from transduce.errors import InputError
from transduce.serve.audio import FIRST, Samples, check_seconds, chosen, transcribed
from transduce.serve.config import ServeConfig
from transduce.serve.errors import told
from transduce.serve.models import Served
from transduce.tasks.transcribe import Transcriber

TALKS = 16
"""Connections at a time: one more takes the place of the oldest that waits for no answer."""

WIDTHS = {2: np.int16, 4: np.int32}
"""Samples by their bytes."""


class _Bounded(asyncio.StreamReader):
    """What events are read from, none of whose parts is larger than an upload may be."""

    def __init__(self, reader: asyncio.StreamReader, n_bytes: int) -> None:
        self._from, self._n_bytes = reader, n_bytes

    async def readline(self) -> bytes:
        """A line, which asyncio bounds."""
        return await self._from.readline()

    async def readexactly(self, n: int) -> bytes:
        """So many bytes."""
        if n > self._n_bytes:
            raise InputError(f"a part of an event may have {self._n_bytes} bytes, but it has {n}; send smaller chunks")
        return await self._from.readexactly(n)


class _Talk:
    """What one client has said so far."""

    def __init__(self, served: Sequence[Served], config: ServeConfig) -> None:
        self.served, self.config = served, config
        self.name, self.chunks, self.n_bytes = "", list[AudioChunk](), 0

    async def answer(self, event: Event) -> Event | None:
        """What an event is answered with.

        Raises:
            Exception: it cannot be; `told` knows why.
        """
        if Describe.is_type(event.type):
            return _info(self.served).event()
        if Transcribe.is_type(event.type):
            self.name = Transcribe.from_event(event).name or ""
        elif AudioStart.is_type(event.type):
            self.chunks, self.n_bytes = [], 0
        elif AudioChunk.is_type(event.type):
            self._add(AudioChunk.from_event(event))
        elif AudioStop.is_type(event.type):
            chunks, self.chunks, self.n_bytes = self.chunks, [], 0
            return Transcript(await self._text(chunks)).event()
        return None

    def _add(self, chunk: AudioChunk) -> None:
        form = (chunk.rate, chunk.width, chunk.channels)
        before = [(each.rate, each.width, each.channels) for each in self.chunks[:1]] or [form]
        if (
            min(form) < 1
            or chunk.width not in WIDTHS
            or len(chunk.audio) % (chunk.width * chunk.channels)
            or [form] != before
        ):
            raise InputError(
                "sound must be whole samples of 2 or 4 bytes, all in one format, but a chunk has "
                f"{len(chunk.audio)} bytes, rate {form[0]}, width {form[1]} and channels {form[2]}; send 16 bits at 16000 Hz"
            )
        self.chunks.append(chunk)
        self.n_bytes += len(chunk.audio)
        check_seconds(self.n_bytes / (chunk.rate * chunk.width * chunk.channels), self.config)
        if self.n_bytes > self.config.upload_mb * 1e6:
            raise InputError(f"sound may have {self.config.upload_mb:g} MB, but it has more; send it in parts")

    async def _text(self, chunks: list[AudioChunk]) -> str:
        served = chosen(self.served, self.name or FIRST)
        if not chunks:
            return ""
        first = chunks[0]
        raw = b"".join(chunk.audio for chunk in chunks)
        samples = np.frombuffer(raw, WIDTHS[first.width]).reshape(-1, first.channels)
        waveform = torch.from_numpy(samples.mean(axis=1) / -float(np.iinfo(samples.dtype).min)).float()
        return (await transcribed(served, Samples((waveform, first.rate)))).text


def _info(served: Sequence[Served]) -> Info:
    """What there is."""
    about: dict[str, Any] = {
        "attribution": Attribution("transduce", ""),
        "installed": True,
        "version": version("transduce"),
    }
    models = [
        AsrModel(name=each.name, description=each.name, languages=[], **about)
        for each in served
        if isinstance(each.task, Transcriber)
    ]
    return Info(asr=[AsrProgram(name="transduce", description="Speech to text", models=models, **about)])


@asynccontextmanager
async def wyoming_port(served: Sequence[Served], config: ServeConfig, listening: socket.socket) -> AsyncIterator[None]:
    """Answer what comes there; at the end, what has been said whole is answered still."""
    talks, busy = dict[asyncio.Task[None], None](), set[asyncio.Task[None]]()

    async def refuse(message: str, status: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Say why, and hear a client out, which may read no answer before it has said all; but not for long."""
        await async_write_event(Error(message, str(status)).event(), writer)
        left = config.upload_mb * 1e6
        while left > 0 and (raw := await asyncio.wait_for(reader.read(65_536), 1.0)):
            left -= len(raw)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        talks[task] = None
        task.add_done_callback(talks.pop)
        if len(talks) > TALKS:
            next(each for each in talks if each not in busy).cancel()
        said, bounded = _Talk(served, config), _Bounded(reader, round(config.upload_mb * 1e6))
        with suppress(asyncio.TimeoutError, TimeoutError, OSError, EOFError, asyncio.CancelledError):
            try:
                while event := await asyncio.wait_for(async_read_event(bounded), config.deadline):
                    busy.add(task)
                    if answer := await said.answer(event):
                        await asyncio.wait_for(async_write_event(answer, writer), config.deadline)
                    busy.discard(task)
            except (AttributeError, KeyError, TypeError) as error:
                await refuse(f"an event lacks {error}, or has it wrong; correct it", 400, reader, writer)
            except Exception as error:
                status, message, _ = told(error)
                await refuse(message, status, reader, writer)
        busy.discard(task)
        writer.close()

    server = await asyncio.start_server(talk, sock=listening)
    try:
        yield
    finally:
        server.close()
        for task in talks.keys() - busy:
            task.cancel()
        await asyncio.gather(*talks, return_exceptions=True)
