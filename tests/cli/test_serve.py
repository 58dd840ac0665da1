"""transduce serve as a user meets it: what it refuses, and how it stops."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from time import sleep

import httpx
import pytest

from tests.language_runs import language_run
from tests.runs import LITTLE, random_run
from transduce.cli.main import main
from transduce.tasks.load import load

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run that translates, and does not know its languages."""
    return random_run(tmp_path_factory.mktemp("serve") / "mt", model=LITTLE)


def test_invalid_runs_and_options_are_refused(run, tmp_path, capsys):
    other, empty = tmp_path / "mt", tmp_path / "token"
    language_run(other)
    empty.touch()
    with_lm = random_run(tmp_path / "with_lm", model=LITTLE)
    plain = json.loads((with_lm / "config.json").read_text())
    (with_lm / "config.json").write_text(json.dumps(plain | {"experiment": {"decoding": {"lm_weight": 0.3}}}))
    (tmp_path / "umlaut").write_text("Schlüssel", "utf-8")
    (tmp_path / "two").write_text("one\ntwo")
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    is_no_token = "must hold a token of ASCII characters without spaces, but it has other characters; write one into it"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for words, message in [
            ([run], "a translation run needs its languages, such as en-de, but there is ' and '; add --languages en-de, "
             "one for each translation run"),
            ([run, "--languages", "english"], "a translation run needs its languages, such as en-de, but there is "
             "'english'; add --languages en-de, one for each translation run"),
            ([other, "--languages", "en-de"], "--languages are for translation runs, one for each, but en-de are too many; leave "
             "them out"),
            ([other, run], "clients choose runs by their names, but two are called mt; rename one directory"),
            ([other, "--token-file", empty], f"{empty} must hold a token of ASCII characters without spaces, but it is empty; write one into it"),
            *(([other, "--token-file", tmp_path / name], f"{tmp_path / name} {is_no_token}")
              for name in ("umlaut", "two", "binary")),
            ([with_lm], f"a server cannot add a language model to a run, but {with_lm} has lm_weight=0.3; set it to 0 in "
             f"{with_lm}/config.json"),
            ([], "a server needs a run, but none is named; say transduce serve RUN"),
            ([other, "--queue", "0"], "queue must be at least 1, but queue=0"),
            ([other, "--port", port], f"cannot listen on 127.0.0.1, port {port} (Address already in use); --port 0 takes "
             "a free port"),
            ([other, "--wyoming-port", port], f"cannot listen on 127.0.0.1, port {port} (Address already in use); "
             "--wyoming-port 0 takes a free port"),
            ([other, "--host", "192.0.2.1"], "cannot listen on 192.0.2.1, port 0 (Cannot assign requested address); name an "
             "address of this machine"),
        ]:  # fmt: skip
            where = [] if "--port" in words else ["--port", "0"]
            assert main(["serve", *map(str, words), *where]) == 2, words
            assert capsys.readouterr().err.splitlines()[-1] == f"transduce: {message}"


def interruptible() -> None:
    """Called in the child: whoever runs the tests may ignore Ctrl-C, or a closed terminal as nohup does."""
    for each in (signal.SIGINT, signal.SIGHUP):
        signal.signal(each, signal.SIG_DFL)


@pytest.mark.process
@pytest.mark.long
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_accepted_requests_are_answered_before_shutdown(run, end):
    """Most lines of a request wait while the signal comes; then nobody is let in any more."""
    lines = [f"Open the old letter {i}." * 3 for i in range(120)]  # a server looks for signals ten times a second
    words = [sys.executable, "-m", "transduce.cli.main", "serve", str(run), "--languages", "en-de", "--port", "0"]
    server = subprocess.Popen([*words, "--batch", "1", "--queue", "200"], stderr=subprocess.PIPE, text=True,
                              preexec_fn=interruptible, env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"})  # fmt: skip
    try:
        got = re.search(r"mt at (http://127.0.0.1:\d+), described at \1/docs", server.stderr.readline())
        with httpx.Client(base_url=got[1], timeout=120) as client:
            assert client.get("/health").status_code == 200
            asked, answers = {"q": lines, "source": "en", "target": "de"}, list[httpx.Response]()
            thread = threading.Thread(target=lambda: answers.append(client.post("/translate", json=asked)))
            thread.start()
            while 'transduce_batch_inputs_count{model="mt"} 0.0' in client.get("/metrics").text:
                pass
            server.send_signal(end)
            thread.join()
            with pytest.raises(httpx.ConnectError):
                httpx.get(f"{got[1]}/health")
        (answer,) = answers
        assert answer.json()["translatedText"] == load(run)(lines)
        assert server.wait(60) == (130 if end == signal.SIGINT else -signal.SIGTERM)
        assert "Traceback" not in server.stderr.read()
    finally:
        server.kill()
        server.communicate()


COMPUTES = """
import asyncio, socket, sys, threading, torch
from transduce.cli.serve import run_server
from transduce.errors import exit_code
from transduce.serve import ServeConfig

def compute():
    while True:
        torch.rand(100, 100) @ torch.rand(100, 100)

async def answer(scope, receive, send):
    assert scope["type"] == "http"
    print("began", file=sys.stderr, flush=True)
    await asyncio.sleep(600)

threading.Thread(target=compute, daemon=True).start()
listening = socket.create_server(("127.0.0.1", 0))
sys.exit(exit_code(lambda: run_server(answer, listening, ServeConfig(), "mt"), interrupted="stopped"))
"""


@pytest.mark.process
@pytest.mark.long
def test_ctrl_c_twice_ends_a_server_whose_model_computes():
    server = subprocess.Popen([sys.executable, "-c", COMPUTES], stderr=subprocess.PIPE, text=True, preexec_fn=interruptible,
                              env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"})  # fmt: skip
    try:
        port = int(re.search(r":(\d+)/docs", server.stderr.readline())[1])
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert server.stderr.readline() == "began\n"
            server.send_signal(signal.SIGINT)
            sleep(0.5)  # a server looks for signals ten times a second
            server.send_signal(signal.SIGINT)
            assert server.wait(60) == 130
        assert server.stderr.read().splitlines()[-1] == "transduce: stopped"
    finally:
        server.kill()
        server.communicate()
