"""The Wyoming protocol, by which Home Assistant and others send sound over TCP and get its text."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from importlib.metadata import version

import anyio
import numpy as np
import torch
from wyoming.asr import Transcribe, Transcript
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.error import Error
from wyoming.event import Event, async_read_event, async_write_event
from wyoming.info import AsrModel, AsrProgram, Attribution, Describe, Info

from transduce.errors import InputError
from transduce.serve.audio import ANY_MODEL, Samples, check_seconds, find_transcriber, transcribe
from transduce.serve.errors import http_error
from transduce.serve.state import ServerState
from transduce.tasks.transcribe import Transcriber

MAX_CONVERSATIONS = 16
"""Connections at a time: one more takes the place of the oldest that waits for no answer."""

SAMPLE_TYPES = {2: np.int16, 4: np.int32}
"""By bytes of a sample."""


class _BoundedReader(asyncio.StreamReader):
    """A reader of events whose parts are no larger than an upload may be."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__()
        self.max_bytes = max_bytes

    async def readexactly(self, n: int) -> bytes:
        """So many bytes; ValueError, if there are too many, ends the conversation."""
        if n > self.max_bytes:
            raise ValueError(n)
        return await super().readexactly(n)


class _Conversation:
    """The sound that one client has sent so far."""

    def __init__(self, state: ServerState) -> None:
        self.state = state
        self.model = ANY_MODEL
        self.audio = bytearray()
        self.form = (0, 0, 0)
        """Rate, width and channels of the first chunk, which all have."""

    async def answer(self, event: Event) -> Event | None:
        """The answer to an event, if it has one.

        Raises:
            Exception: the event cannot be used.
        """
        if Describe.is_type(event.type):
            return _info(self.state).event()
        if Transcribe.is_type(event.type):
            self.model = Transcribe.from_event(event).name or ANY_MODEL
        elif AudioStart.is_type(event.type):
            self.audio.clear()
        elif AudioChunk.is_type(event.type):
            self._add(AudioChunk.from_event(event))
        elif AudioStop.is_type(event.type):
            return Transcript(await self._text()).event()
        return None

    def _add(self, chunk: AudioChunk) -> None:
        form = (chunk.rate, chunk.width, chunk.channels)
        if not self.audio:
            self.form = form
        is_whole = min(form) > 0 and len(chunk.audio) % (chunk.width * chunk.channels) == 0
        if not is_whole or form != self.form or chunk.width not in SAMPLE_TYPES:
            raise InputError(
                "sound must be whole samples of 2 or 4 bytes, all in one format, but a chunk has "
                f"{len(chunk.audio)} bytes, rate {chunk.rate}, width {chunk.width} and channels "
                f"{chunk.channels}; send 16 bits at 16000 Hz"
            )
        self.audio += chunk.audio
        config = self.state.config
        check_seconds(len(self.audio) / (chunk.rate * chunk.width * chunk.channels), config)
        if len(self.audio) > config.upload_mb * 1e6:
            raise InputError(f"sound may have {config.upload_mb:g} MB, but it has more; send it in parts")

    async def _text(self) -> str:
        run = find_transcriber(self.state, self.model)
        if not self.audio:
            return ""
        rate, width, channels = self.form
        samples = np.frombuffer(bytes(self.audio), SAMPLE_TYPES[width]).reshape(-1, channels)
        self.audio.clear()
        waveform = torch.from_numpy(samples.mean(axis=1) / -float(np.iinfo(samples.dtype).min)).float()
        return (await transcribe(run, Samples((waveform, rate)))).text


def _info(state: ServerState) -> Info:
    """The runs that transcribe."""
    author = Attribution("transduce", "")
    names = [run.name for run in state.runs if isinstance(run.task, Transcriber)]
    models = [AsrModel(name, author, True, name, version("transduce"), languages=[]) for name in names]
    program = AsrProgram("transduce", author, True, "Speech to text", version("transduce"), models=models)
    return Info(asr=[program])


@asynccontextmanager
async def wyoming_port(state: ServerState, listening: socket.socket) -> AsyncIterator[None]:
    """Answer the clients of a socket; at the end, questions that are whole are still answered."""
    conversations = dict[asyncio.Task[None], None]()  # a set in the order of their beginning
    busy = set[asyncio.Task[None]]()
    max_bytes = round(state.config.upload_mb * 1e6)

    async def refuse(error: Exception, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send the error, and read on for a while: a client may read only when it has sent all."""
        refusal = http_error(error)
        await async_write_event(Error(refusal.detail, str(refusal.status_code)).event(), writer)
        n_bytes = 0
        while n_bytes < max_bytes:
            with anyio.fail_after(1.0):
                chunk = await reader.read(65_536)
            if not chunk:
                break
            n_bytes += len(chunk)

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        conversations[task] = None
        task.add_done_callback(conversations.pop)
        if len(conversations) > MAX_CONVERSATIONS:
            next(each for each in conversations if each not in busy).cancel()
        conversation = _Conversation(state)
        timeout = partial(anyio.fail_after, state.config.deadline)
        with suppress(OSError, asyncio.CancelledError):
            try:
                while True:
                    with timeout():
                        event = await async_read_event(reader)
                    if event is None:
                        break
                    busy.add(task)
                    if answer := await conversation.answer(event):
                        with timeout():
                            await async_write_event(answer, writer)
                    busy.discard(task)
            except (OSError, EOFError):  # too late, or disconnected
                pass
            except (AttributeError, KeyError, TypeError) as error:
                await refuse(InputError(f"an event lacks {error}, or has it wrong; correct it"), reader, writer)
            except Exception as error:
                await refuse(error, reader, writer)
        busy.discard(task)
        writer.close()

    def protocol() -> asyncio.StreamReaderProtocol:
        return asyncio.StreamReaderProtocol(_BoundedReader(max_bytes), converse)

    server = await asyncio.get_running_loop().create_server(protocol, sock=listening)
    try:
        yield
    finally:
        server.close()
        for task in conversations.keys() - busy:
            task.cancel()
        await asyncio.gather(*conversations, return_exceptions=True)
