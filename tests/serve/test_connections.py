"""What strangers can cost a real server before a request of theirs is whole: raw sockets, and few descriptors."""

import logging
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest

from tests.cli.test_serve import ROOT
from tests.serve.test_refusals import ASKED, upload, wav
from transduce.cli import serve
from transduce.cli.serve import LogRate, connection_limit
from transduce.serve.connection import HEAD_SECONDS

DESCRIPTORS = 128
NAME = b"a" * 100_000


class Process:
    """A server in a process of its own that may open few files, and whose disk for temporary files does not exist."""

    def __init__(self, runs: list[Path], *words: str) -> None:
        command = [sys.executable, "-m", "transduce.cli.main", "serve", *map(str, runs), "--port", "0", *words]
        where = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TMPDIR": "/nonexistent"}
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, preexec_fn=self.limit, env={**os.environ, **where}
        )
        self.url = re.search(r"http://\S+:\d+", self.process.stderr.readline())[0]
        self.place = ("127.0.0.1", int(self.url.rpartition(":")[2]))

    def limit(self) -> None:
        """Called in the child; whoever runs the tests may ignore a closed terminal, as nohup does."""
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))

    def memory(self) -> int:
        """MiB that it holds."""
        return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{self.process.pid}/status").read_text())[1]) // 1024

    def connect(self, raw: bytes = b"") -> socket.socket:
        """A connection that has sent this."""
        got = socket.create_connection(self.place, timeout=60)
        got.sendall(raw)
        return got

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture(scope="module")
def server(runs) -> Iterator[Process]:
    """One with all three runs."""
    with Process([*runs.values()], "--languages", "en-de", "--upload-mb", "25", "--deadline", "20") as got:
        yield got


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def process_test(test):
    """A test that starts a process."""
    return pytest.mark.process(pytest.mark.long(test))


@process_test
@pytest.mark.parametrize("line", [b"X-A: " + NAME + b"\r\n", NAME, b"A: b\r\n" * 20_000])
def test_endless_request_headers_are_cut_off(server, line):
    before, sent = server.memory(), 0
    head = b"GET /" if line == NAME else b"GET / HTTP/1.1\r\nHost: localhost\r\n"
    with server.connect(head) as endless, suppress(OSError):
        while sent < 300_000_000:
            endless.sendall(line)
            sent += len(line)
    assert sent < 30_000_000
    assert server.memory() < before + 50
    assert httpx.get(f"{server.url}/health").status_code == 200


@process_test
@pytest.mark.parametrize("raw", [b"", b"GET / HT", b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n"
                                 b"Content-Type: application/json\r\n\r\n{"], ids=["idle", "head", "body"])  # fmt: skip
def test_many_open_connections_do_not_block_requests(server, raw):
    with ExitStack() as stack:
        for _ in range(3 * DESCRIPTORS):
            with suppress(ConnectionError):
                stack.enter_context(server.connect(raw))
        with httpx.Client(base_url=server.url, timeout=20) as client:
            for _ in range(3):
                assert client.get("/health").status_code == client.post("/translate", json=ASKED).status_code == 200
            assert client.post("/inference", **upload(wav(100.0))).status_code == 200


@process_test
def test_slow_request_headers_time_out(server):
    began = time.monotonic()
    with server.connect(b"GET / HTTP/1.1\r\nX: ") as slow, suppress(OSError):
        while time.monotonic() < began + 30:
            slow.sendall(b"x")
            time.sleep(0.2)
    assert HEAD_SECONDS - 1 < time.monotonic() - began < HEAD_SECONDS + 10


@process_test
def test_memory_of_concurrent_large_uploads_is_bounded(server):
    """Thirty of 24 MB would be 720 MB before any is decoded, and 2 GB then; the features of one sound take 300."""
    raw, most, statuses = wav(590.0, rate=20_000), server.memory(), list[int]()
    before = most

    def send() -> None:
        statuses.append(httpx.post(f"{server.url}/inference", timeout=120, **upload(raw)).status_code)

    threads = [threading.Thread(target=send) for _ in range(30)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        most = max(most, server.memory())
        assert httpx.get(f"{server.url}/health", timeout=20).status_code == 200
        time.sleep(0.05)
    assert set(statuses) <= {200, 429, 503} and len(statuses) == 30 and 200 in statuses
    assert most < before + 1000


@process_test
def test_clients_that_do_not_read_are_disconnected(runs):
    body = b'{"model": "lm", "prompt": "a", "max_tokens": 1000, "n": 100, "stream": true}'
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    with Process([runs["lm"]], "--deadline", "2") as server, socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        deaf.connect(server.place)
        deaf.sendall(head % len(body) + body)
        with httpx.Client(base_url=server.url, timeout=20) as client:
            until = time.monotonic() + 60
            while 'path="/v1/completions",status=' not in client.get("/metrics").text:
                assert time.monotonic() < until
                time.sleep(0.2)


@process_test
def test_sighup_ends_the_server_like_sigterm(runs):
    with Process([runs["lm"]]) as server:
        assert httpx.get(f"{server.url}/health").status_code == 200
        evil = httpx.get(f"{server.url}/health", headers={"Host": "evil.example"})
        assert evil.status_code == 400
        server.process.send_signal(signal.SIGHUP)
        assert server.process.wait(60) == -signal.SIGTERM
        assert server.process.stderr.read() == ""


def test_log_lines_per_period_are_limited(monkeypatch, caplog):
    clock = [0.0]
    monkeypatch.setattr(serve, "monotonic", lambda: clock[0])
    rate = LogRate()
    caplog.handler.addFilter(rate)
    for i in range(1000):
        logging.getLogger("transduce").warning("line %d", i)
    assert len(caplog.messages) == serve.MAX_RECORDS
    clock[0] = serve.LOG_PERIOD + 1
    logging.getLogger("transduce").warning("line %d", 1000)
    assert caplog.messages[-1] == f"line 1000 ({1000 - serve.MAX_RECORDS} messages before it were left out)"
    caplog.handler.removeFilter(rate)


def test_connection_limit_leaves_file_descriptors():
    limit = connection_limit()
    assert limit < resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert limit <= serve.MAX_CONNECTIONS
