"""Wyoming's own client gets what the run gives; what is no event harms nobody."""

import asyncio
import socket

import numpy as np
import pytest
from wyoming.asr import Transcribe, Transcript
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.client import AsyncTcpClient
from wyoming.error import Error
from wyoming.event import Event
from wyoming.info import Describe, Info

from tests.runs import RATE, sound
from tests.serve.conftest import served_of, serving
from transduce.serve import ServeConfig
from transduce.serve.wyoming import MAX_CONVERSATIONS


@pytest.fixture(scope="module")
def port(runs):
    """Where a server listens that takes two seconds of English sound."""
    config = ServeConfig(seconds=2.0, speech_language="en")
    served, listening = served_of({"asr": runs["asr"]}, config), socket.create_server(("127.0.0.1", 0))
    with listening, serving(served, config, wyoming=listening):
        yield listening.getsockname()[1]


def talk(port: int, *events: Event) -> Event | None:
    """What the client reads when it has sent these."""

    async def run() -> Event | None:
        async with AsyncTcpClient("127.0.0.1", port) as client:
            for event in events:
                await client.write_event(event)
            return await client.read_event()

    return asyncio.run(run())


def speech(samples: np.ndarray, **form: int) -> list[Event]:
    """Sound in chunks, as a microphone gives it."""
    form = {"rate": RATE, "width": 2, "channels": 1, **form}
    chunks = [AudioChunk(audio=part.tobytes(), **form).event() for part in np.array_split(samples, 5)]
    return [AudioStart(**form).event(), *chunks, AudioStop().event()]


def test_speech_is_transcribed(port, offline):
    samples = np.int16(32767 * sound("red blue"))
    (text,) = offline["asr"]([(samples, RATE)])
    for name in (None, "asr"):
        answer = talk(port, Transcribe(name=name).event(), *speech(samples))
        assert Transcript.from_event(answer).text == text
    both = np.stack([samples, samples], axis=1)
    assert Transcript.from_event(talk(port, *speech(both, channels=2))).text == text


def test_silent_connections_do_not_block_others(port):
    silent = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(3 * MAX_CONVERSATIONS)]
    assert Info.is_type(talk(port, Describe().event()).type)
    assert silent[0].recv(1) == b""  # it was closed
    for each in silent:
        each.close()


def test_server_describes_its_models(port):
    (program,) = Info.from_event(talk(port, Describe().event())).asr
    assert [(model.name, model.languages) for model in program.models] == [("asr", ["en"])]


@pytest.mark.parametrize(
    ("events", "message"),
    [
        (speech(np.zeros(3 * RATE, np.int16)), "sound may last 2 s, but the sound lasts longer; send it in parts"),
        ([Transcribe(name="mt").event(), AudioStop().event()], "to transcribe, this server has asr, but not 'mt'; see /v1/models"),
        ([Event("audio-chunk", {"rate": 1})], "an event has a missing or wrong field ('width'); correct it"),
        (speech(np.zeros(10, np.int8), width=1), "sound must be whole samples of 2 or 4 bytes, all in one format, but a chunk has "
         "2 bytes, rate 8000, width 1 and channels 1; send 16 bits at 16000 Hz"),
    ],
)  # fmt: skip
def test_invalid_requests_are_refused(port, events, message):
    assert Error.from_event(talk(port, *events)).text == message


@pytest.mark.parametrize(
    "raw", [b"[]\n", b"GET / HTTP/1.1\n", b'{"type": "x", "payload_length": 999999999}\n', b"{" * 99999]
)
def test_malformed_events_end_only_their_connection(port, raw):
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall(raw)
        client.shutdown(socket.SHUT_WR)
        assert b"Traceback" not in client.makefile("rb").read()
    assert Info.is_type(talk(port, Describe().event()).type)
