"""A server in a thread of the tests, with small runs: real tokenizers, random weights, short searches."""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import sleep

import httpx
import pytest
import uvicorn

from tests.language_runs import language_run
from tests.runs import LITTLE, random_run, random_speech_run
from transduce.serve.app import create_app
from transduce.serve.config import ServeConfig
from transduce.serve.models import Languages, Served
from transduce.tasks.load import load


@pytest.fixture(scope="session")
def runs(tmp_path_factory) -> dict[str, Path]:
    """A run of each kind, by its name; the texts that they write are short."""
    folder = tmp_path_factory.mktemp("served")
    found = {"mt": random_run(folder / "mt", model=LITTLE), "asr": random_speech_run(folder / "asr")}
    for run in found.values():
        plain = json.loads((run / "config.json").read_text())
        decoding = {"beam_size": 2, "max_length": 6, "max_seconds": 2.0, "no_repeat_ngram": 2}
        corpus = {"source": "en", "target": "de"}
        plain["experiment"] |= {"decoding": decoding, "corpus": corpus}
        (run / "config.json").write_text(json.dumps(plain))
    return {**found, "lm": language_run(folder / "lm", max_positions=100)}


def served_of(runs: dict[str, Path], config: ServeConfig | None = None) -> list[Served]:
    """The runs, each with an engine of its own."""
    pairs = {"mt": Languages("en", "de")}
    return [Served(name, load(run), config or ServeConfig(), pairs.get(name), run) for name, run in runs.items()]


@contextmanager
def serving(served: Sequence[Served], config: ServeConfig | None = None, **how: object) -> Iterator[str]:
    """The address of a server of its own."""
    app = create_app(served, config, **how)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", ws="none"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        sleep(0.01)
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
    """A client of that server; whoever makes one reads certificates, which takes long."""
    with httpx.Client(base_url=url, timeout=60) as client:
        yield client


@pytest.fixture(scope="session")
def offline(runs) -> dict[str, Callable]:
    """The same runs, loaded anew, without a server."""
    return {name: load(run) for name, run in runs.items()}
