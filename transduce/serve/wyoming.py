"""The Wyoming protocol, by which Home Assistant and others send sound over TCP for
transcription."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version

import anyio
import numpy as np
import torch
from wyoming.asr import Transcribe, Transcript
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.error import Error
from wyoming.event import Event
from wyoming.info import AsrModel, AsrProgram, Attribution, Describe, Info
from wyoming.server import AsyncEventHandler

from transduce.errors import InputError
from transduce.serve import ServeConfig
from transduce.serve.audio import (
    Samples,
    TranscriptionRequest,
    check_seconds,
    speech_languages,
    transcribe,
)
from transduce.serve.http import ANY_SPEECH_MODEL, ServerState, check_bound, http_error
from transduce.tasks.transcribe import Transcriber

MAX_CONVERSATIONS = 16
"""Maximum number of connections; another one closes the oldest that does not wait for an answer."""

SAMPLE_TYPES = {2: np.int16, 4: np.int32}
"""Types of samples by their size in bytes."""


class _BoundedReader(asyncio.StreamReader):
    """A reader of events that limits the size of their parts to that of an upload, and their
    time."""

    def __init__(self, config: ServeConfig) -> None:
        super().__init__()
        self.config = config

    async def readline(self) -> bytes:
        """Read a line; a TimeoutError ends the conversation."""
        with anyio.fail_after(self.config.deadline):
            return await super().readline()

    async def readexactly(self, n: int) -> bytes:
        """Read n bytes; ValueError, if n is too large, ends the conversation."""
        if n > self.config.upload_bytes:
            raise ValueError(n)
        with anyio.fail_after(self.config.deadline):
            return await super().readexactly(n)


class _Conversation(AsyncEventHandler):
    """A connection, and the sound that its client has sent so far."""

    def __init__(
        self, state: ServerState, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        super().__init__(reader, writer)
        self.state = state
        self.busy = False
        """Whether an event is being answered."""
        self.model = ANY_SPEECH_MODEL
        self.language = ""
        self.audio = bytearray()
        self.format = (0, 0, 0)
        """Rate, width and channels of the first chunk; all chunks must have the same."""

    async def handle_event(self, event: Event) -> bool:
        """Answer an event; after an error, the conversation ends."""
        self.busy = True
        try:
            if answer := await self._answer(event):
                with anyio.fail_after(self.state.config.deadline):
                    await self.write_event(answer)
            return True
        except (AttributeError, KeyError, TypeError) as error:
            refusal = http_error(
                InputError(f"an event has a missing or wrong field ({error}); correct it")
            )
        except Exception as error:
            refusal = http_error(error)
        finally:
            self.busy = False
        await self.write_event(Error(refusal.detail, str(refusal.status_code)).event())
        await self._read_on()
        return False

    async def _read_on(self) -> None:
        """Read for a second what the client still sends: it may read the error only after that."""
        with anyio.move_on_after(1.0):
            while await self.reader.read(65_536):
                pass

    async def _answer(self, event: Event) -> Event | None:
        """The answer to an event, or None.

        Raises:
            Exception: the event cannot be used.
        """
        if Describe.is_type(event.type):
            return _info(self.state).event()
        if Transcribe.is_type(event.type):
            query = Transcribe.from_event(event)
            self.model = query.name or ANY_SPEECH_MODEL
            self.language = str(query.language or "")
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
            self.format = form
        is_complete = min(form) > 0 and len(chunk.audio) % (chunk.width * chunk.channels) == 0
        if not is_complete or form != self.format or chunk.width not in SAMPLE_TYPES:
            raise InputError(
                "sound must be whole samples of 2 or 4 bytes, all in one format, but a chunk has "
                f"{len(chunk.audio)} bytes, rate {chunk.rate}, width {chunk.width} and channels "
                f"{chunk.channels}; send 16 bits at 16000 Hz"
            )
        self.audio += chunk.audio
        seconds = len(self.audio) / (chunk.rate * chunk.width * chunk.channels)
        check_seconds(seconds, self.state.config)
        check_bound(len(self.audio), self.state.config.upload_bytes, "bytes of sound")

    async def _text(self) -> str:
        run = self.state.find(self.model, Transcriber)
        if not self.audio:
            return ""
        rate, width, channels = self.format
        samples = np.frombuffer(bytes(self.audio), SAMPLE_TYPES[width]).reshape(-1, channels)
        self.audio.clear()
        waveform = samples.mean(axis=1) / -float(np.iinfo(samples.dtype).min)
        sound = Samples((torch.from_numpy(waveform).float(), rate))
        return (await transcribe(run, sound, TranscriptionRequest(self.language))).text


def _info(state: ServerState) -> Info:
    """Describe the speech runs."""
    author = Attribution("transduce", "")
    named = [state.config.speech_language] * bool(state.config.speech_language)
    models = [
        AsrModel(
            run.name,
            author,
            True,
            run.name,
            version("transduce"),
            languages=speech_languages(run.task) or named,
        )
        for run in state.runs
        if isinstance(run.task, Transcriber)
    ]
    program = AsrProgram(
        "transduce", author, True, "Speech to text", version("transduce"), models=models
    )
    return Info(asr=[program])


@asynccontextmanager
async def wyoming_port(state: ServerState, listening: socket.socket) -> AsyncIterator[None]:
    """Answer the clients of a socket; at the end, complete requests are still answered."""
    conversations = dict[asyncio.Task[None], _Conversation]()

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        conversations[task] = _Conversation(state, reader, writer)
        task.add_done_callback(conversations.pop)
        if len(conversations) > MAX_CONVERSATIONS:
            next(each for each in conversations if not conversations[each].busy).cancel()
        # the client has disconnected, is late, or sends something else
        with suppress(Exception, asyncio.CancelledError):
            await conversations[task].run()

    def protocol() -> asyncio.StreamReaderProtocol:
        return asyncio.StreamReaderProtocol(_BoundedReader(state.config), converse)

    server = await asyncio.get_running_loop().create_server(protocol, sock=listening)
    try:
        yield
    finally:
        server.close()
        for task, conversation in conversations.items():
            if not conversation.busy:
                task.cancel()
        await asyncio.gather(*conversations, return_exceptions=True)
