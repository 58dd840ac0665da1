"""A server in a thread of the tests, with small runs: real tokenizers, random weights, short searches."""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import openai
import pytest
import uvicorn

from tests.language_runs import language_run
from tests.runs import LITTLE, random_run, random_speech_run
from transduce.serve import ServeConfig
from transduce.serve.app import create_app, serve_run
from transduce.serve.connection import Connection
from transduce.serve.http import Languages, Served
from transduce.serve.translation import TranslationRequest
from transduce.tasks.load import load

SAMPLES = {100: ("Print it.", "Druck es aus.", "Mach es aus."), 200: ("Print it.", "Druck es aus.", "Druck es aus.")}
"""By update: what the translator said of a sentence while it was trained."""


@pytest.fixture(scope="session")
def runs(once) -> dict[str, Path]:
    """A run of each kind, by its name; the texts that they write are short, and that which translates has a record."""
    folder = once("served", make_runs)
    return {name: folder / name for name in ("mt", "asr", "lm")}


def make_runs(folder: Path) -> None:
    """Write them."""
    for run in (random_run(folder / "mt", model=LITTLE), random_speech_run(folder / "asr")):
        plain = json.loads((run / "config.json").read_text())
        decoding = {"beam_size": 2, "max_length": 6, "max_seconds": 2.0, "no_repeat_ngram": 2}
        corpus = {"source": "en", "target": "de"}
        plain["experiment"] |= {"decoding": decoding, "corpus": corpus}
        (run / "config.json").write_text(json.dumps(plain))
    language_run(folder / "lm", max_positions=100)
    lines = [{"update": u, "epoch": 0, "kind": "train", "loss": 5 - u / 100} for u in (50, 100, 150, 200)]
    lines += [{"update": u, "epoch": 0, "kind": "valid", "loss": 4 - u / 100, "bleu": u / 10} for u in SAMPLES]
    (folder / "mt" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "mt" / "samples").mkdir()
    for update, sample in SAMPLES.items():
        (folder / "mt" / "samples" / f"{update:08d}.tsv").write_text("\t".join(sample) + "\n")
    score = {"search": "beam5", "measure": "bleu", "value": 20.5, "low": 19.0, "high": 22.0, "score": "BLEU 20.5"}
    (folder / "mt" / "test.json").write_text(json.dumps([score]))


def texts_of(served: Served, pair: Languages, lines: list[str]) -> list[str]:
    """The best translations by its engine, in the order of the lines."""
    pieces = served.engine.work(TranslationRequest(pair), lines)
    best = {i: piece[0][0].text for i, piece in pieces}
    return [best[i] for i in range(len(lines))]


def served_of(runs: dict[str, Path], config: ServeConfig | None = None) -> list[Served]:
    """The runs, each with an engine of its own."""
    pairs = {"mt": [Languages("en", "de")]}
    return [serve_run(name, load(run), config or ServeConfig(), pairs.get(name, ()), run) for name, run in runs.items()]


class Server(uvicorn.Server):
    """One that says when it has begun, or has failed to."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.begun = threading.Event()

    async def startup(self, sockets: list | None = None) -> None:
        """Begin, and say so."""
        await super().startup(sockets)
        self.begun.set()

    def run(self, sockets: list | None = None) -> None:
        """Serve to the end."""
        try:
            super().run(sockets)
        finally:
            self.begun.set()


@contextmanager
def serving(served: Sequence[Served], config: ServeConfig | None = None, **how: object) -> Iterator[str]:
    """The address of a server of its own."""
    app = create_app(served, config, **how)
    server = Server(uvicorn.Config(app, port=0, log_level="warning", ws="none", http=Connection))
    thread = threading.Thread(target=server.run)
    thread.start()
    server.begun.wait()
    assert server.started
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="session")
def url(runs) -> Iterator[str]:
    """The address of a server of the three runs that is there for all tests."""
    with serving(served_of(runs)) as address:
        yield address


@pytest.fixture(scope="session")
def http(url) -> Iterator[httpx.Client]:
    """A client of that server."""
    with client_of(url) as client:
        yield client


def client_of(url: str) -> httpx.Client:
    """A client that reads no certificates, which would take long."""
    return httpx.Client(base_url=url, timeout=60, verify=False)


@pytest.fixture(scope="session")
def client(url) -> Iterator[openai.OpenAI]:
    """OpenAI's own. It has asked once already, since the first time it starts a process to learn what system this is."""
    with (
        httpx.Client(verify=False, timeout=60) as plain,
        openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0, http_client=plain) as client,
    ):
        client.models.list()
        yield client


@pytest.fixture(scope="session")
def offline(runs) -> dict[str, Callable]:
    """The same runs, loaded anew, without a server."""
    return {name: load(run) for name, run in runs.items()}
