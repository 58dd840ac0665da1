"""What a server refuses, in the form that each client expects, and what cannot harm it."""

import io
import json
import logging
import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest
import soundfile

from tests.language_runs import language_run
from tests.runs import RATE, sound
from tests.serve.conftest import client_of, served_of, serving
from transduce.serve import ServeConfig

ASKED = {"q": "Print it.", "source": "en", "target": "de"}


def wav(seconds: float = 0.5, kind: str = "WAV", rate: int = RATE) -> bytes:
    """A tone."""
    file = io.BytesIO()
    soundfile.write(file, np.resize(sound("red"), round(seconds * rate)), rate, format=kind)
    return file.getvalue()


def upload(raw: bytes, **fields: object) -> dict[str, object]:
    """A form with a file."""
    return {"files": {"file": ("a.wav", raw)}, "data": {"model": "asr", **fields}}


def prompts(**fields: object) -> dict[str, object]:
    """A body of completions."""
    return {"json": {"model": "lm", "prompt": "a", **fields}}


@pytest.mark.parametrize(
    ("path", "how", "status", "message"),
    [
        ("/translate", {"json": {**ASKED, "source": "fr"}}, 400,
         "this server translates en to de, but not fr to de; see /languages"),
        ("/translate", {"json": {**ASKED, "q": "a" * 6000 + "b" * 5000}}, 400,
         "a request may have 10000 characters, but it has 11000; ask for less"),
        ("/translate", {"json": {**ASKED, "q": ["a"] * 129}}, 400,
         "a request may have 128 lines, but it has 129; ask for less"),
        ("/translate", {"json": {**ASKED, "format": "xml"}}, 400,
         "format must be text or html, but it is 'xml'; send one of them"),
        ("/translate", {"json": {**ASKED, "q": "a\nb\0"}}, 400,
         "text must be UTF-8, but q, line 2, has a zero byte; if the file is UTF-16, convert it with iconv -f "
         "utf-16 -t utf-8 (utf-16be, if wrong letters come out); if not, remove the byte with tr -d '\\0'"),
        ("/translate", {"json": {"q": "a"}}, 400, "target is missing; send it"),
        ("/translate", {"content": b"[" * 5000, "headers": {"content-type": "application/json"}}, 400,
         "the body must be an object of JSON, or a form, but it cannot be read as such (recursion limit exceeded at line 1 "
         "column 202); correct it"),
        ("/translate", {"json": [1]}, 400,
         "the body: Input should be a valid dictionary or instance of TranslationBody, but it is [1]; correct it"),
        ("/translate", {"json": {**ASKED, "q": "a" * 200_000}}, 413,
         "a body may have 185536 bytes, but this one has more; send it in parts"),
        ("/inference", upload(b"no sound"), 400,
         "file 'a.wav' cannot be read as sound: it is damaged or of an unknown format (libsndfile: Format not recognised); "
         "convert it to WAV or leave it out"),
        ("/inference", upload(wav(601, rate=1000)), 400,
         "sound may last 600 s, but file 'a.wav' lasts longer; send it in parts"),
        ("/translate", {"json": {**ASKED, "source": "auto", "target": "xx"}}, 400,
         "the source language is known only if the server has a single one, but it has []; send a source and a target of "
         "/languages"),
        ("/inference", {"data": {"file": "../../etc/passwd"}}, 400, "file: Value error, Expected UploadFile, "
         "received: <class 'str'>, but it is '../../etc/passwd'; correct it"),
        ("/inference", upload(wav(), model="../mt"), 404, "to transcribe, this server has asr, but not '../mt'; see /v1/models"),
        ("/v1/completions", prompts(model="mt"), 404, "to generate, this server has lm, but not 'mt'; see /v1/models"),
        ("/v1/completions", prompts(max_tokens=5000), 400,
         "a request may have 1024 max_tokens, but it has 5000; ask for less"),
        ("/v1/completions", prompts(max_tokens=5, min_tokens=6), 400,
         "a request may have 5 min_tokens, but it has 6; ask for less"),
        ("/v1/completions", prompts(min_tokens=-1), 400,
         "min_tokens: Input should be greater than or equal to 0, but it is -1; correct it"),
        ("/v1/completions", prompts(prompt=["a"] * 10, n=20), 400,
         "a request may have 128 texts, but it has 200; ask for less"),
        ("/v1/completions", prompts(suffix="x"), 400,
         "suffix: String should have at most 0 characters, but it is 'x'; correct it"),
        ("/v1/completions", prompts(presence_penalty=0.5), 400,
         "presence_penalty: Input should be less than or equal to 0, but it is 0.5; correct it"),
        ("/v1/completions", prompts(logit_bias={"5": "x"}), 400,
         "logit_bias.5: Input should be a valid number, unable to parse string as a number, but it is 'x'; correct it"),
        ("/v1/completions", prompts(logit_bias={"5": 1e9}), 400, "logit_bias must lie in [-1000, 1000], but "
         "logit_bias=1000000000.0"),
        *(("/v1/completions", prompts(logit_bias={name: 1}), 400, f"logit_bias.{name}.[key]: {rule}, but it is {name!r}; correct it")
          for name, rule in (("-1", "Input should be greater than or equal to 0"),
                             ("the", "Input should be a valid integer, unable to parse string as an integer"))),
        ("/v1/completions", prompts(best_of=3), 400, "best_of must be n, but it is 3; leave it out"),
        ("/v1/completions", prompts(temperature=0, n=2), 400,
         "a request may have 1 texts per prompt at temperature 0, but it has 2; ask for less"),
        ("/v1/completions", prompts(logprobs=0), 400, "logprobs: Input should be None, but it is 0; correct it"),
        ("/v1/completions", prompts(max_completion_tokens=5), 400,
         "max_completion_tokens: Input should be None, but it is 5; correct it"),
        ("/v1/completions", prompts(repeat_penalty=1.1), 400,
         "repeat_penalty: Input should be less than or equal to 1, but it is 1.1; correct it"),
        ("/v1/completions", prompts(top_k=-2), 400, "top_k must be at least 0, but top_k=-2"),
        ("/v1/completions", prompts(prompt=[1, 2]), 400,
         "prompt.str: Input should be a valid string, but it is [1, 2]; correct it"),
        ("/v1/completions", {"content": b"{}", "headers": {"content-type": "text/plain; a=application/json"}}, 415,
         "the body must be application/json or a form, but its Content-Type is 'text/plain'; send the right one"),
        ("/v1/chat/completions", {"json": {}}, 404, "Not Found"),
        ("/languages", {"json": {}}, 405, "Method Not Allowed"),
        ("/translate", {"json": {**ASKED, "q": ""}}, 400, "q must not be empty, but it is ''; send a text"),
        ("/translate", {"json": {**ASKED, "q": []}}, 400, "q must not be empty, but it is []; send a text"),
        ("/detect", {"data": {"q": ""}}, 400, "q must not be empty, but it is ''; send a text"),
        ("/translate?q=a&source=en", {"json": {"target": "de"}}, 400, "q is missing; send it"),
        ("/inference", {"content": b"--a", "headers": {"content-type": "multipart/form-data"}}, 400,
         "Missing boundary in multipart."),
        ("/inference", {"content": b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\na\r\n--x--\r\n', "headers":
         {"content-type": "multipart/form-data; boundary=x; charset=undefined"}}, 400, "the body must be an object of JSON, or a form, but it cannot be read as such (decoding with 'undefined' codec failed "
         "(UnicodeError: undefined encoding)); correct it"),
        ("/inference", {"files": [("file", ("a.wav", b"")), ("other", ("b.wav", b""))]}, 400,
         "Too many files. Maximum number of files is 1."),
    ],
)  # fmt: skip
def test_invalid_requests_are_refused(http, path, how, status, message):
    answer = http.post(path, **how)
    error = answer.json()["error"]
    assert (answer.status_code, error["message"] if path.startswith("/v1/") else error) == (status, message)


def test_prompts_beyond_learned_positions_are_refused(tmp_path):
    run = language_run(tmp_path / "lm", positions="learned", max_positions=40)
    with serving(served_of({"lm": run})) as url, httpx.Client(base_url=url) as client:
        for fields in ({"prompt": ["a", "a" * 41]}, {"prompt": "a" * 41, "stream": True}):
            answer = client.post("/v1/completions", **prompts(**fields))
            assert answer.status_code == 400
            assert answer.json()["error"]["message"] == "a prompt may have 40 tokens here, but one has 41; shorten it"
        answer = client.post("/v1/completions", **prompts(prompt="a" * 40, max_tokens=1)).json()
        assert answer["usage"]["prompt_tokens"] == 40


def test_audio_shorter_than_a_window_is_refused(http):
    answer = http.post("/inference", **upload(wav(0.001)))
    assert answer.status_code == 400
    assert re.match(r"file 'a.wav' .* 200 samples \(0.025 s at 8000 Hz\), but it has 8;", answer.json()["error"])


def test_lone_surrogates_are_refused(http):
    raw = json.dumps({**ASKED, "q": "\ud800"}).encode()
    answer = http.post("/translate", content=raw, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"] == (
        "the body must be an object of JSON, or a form, but it cannot be read as such (unexpected end of hex escape at line 1 "
        "column 14); correct it"
    )


def malformed(rng: np.random.Generator) -> dict[str, object]:
    """An upload that is cut, changed, or not what it claims to be: sound, or the form around it."""
    raw = bytearray(wav(kind=rng.choice(["WAV", "FLAC", "OGG", "AIFF", "AU", "MP3"])))
    for place in rng.integers(0, min(len(raw), rng.choice([64, 4096])), size=rng.integers(1, 20)):
        raw[place] = rng.integers(0, 256)
    raw = bytes(raw[: rng.integers(0, len(raw))]) if rng.random() < 0.3 else bytes(raw)
    if rng.random() < 0.7:
        name = rng.choice(["a.wav", "../../../etc/passwd", "\x00", "a" * 5000, "é🙂"])
        return {"files": {"file": (str(name), raw)}, "data": {"response_format": "json"}}
    form = httpx.Request("POST", "http://x", files={"file": ("a.wav", raw)}, data={"model": "asr"})
    whole = bytearray(form.read())
    whole[rng.integers(0, 200)] = rng.integers(0, 256)
    kind = [form.headers["content-type"], "multipart/form-data", "multipart/form-data; boundary=", "application/json"]
    return {"content": bytes(whole), "headers": {"content-type": str(rng.choice(kind, p=[0.7, 0.1, 0.1, 0.1]))}}


@pytest.mark.parametrize(
    "n", [30, pytest.param(300, marks=pytest.mark.long), pytest.param(1000, marks=pytest.mark.nightly)]
)
def test_malformed_uploads_are_client_errors(http, caplog, n):
    rng, statuses = np.random.default_rng(n), set()
    for _ in range(n):
        answer = http.post("/inference", **malformed(rng))
        assert answer.status_code in (200, 400, 404, 413), answer.text
        assert answer.status_code == 200 or answer.json()["error"]
        statuses.add(answer.status_code)
    assert {200, 400} <= statuses
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_requests_require_the_token(runs, http):
    with serving(served_of({"mt": runs["mt"]}), token="sesame") as url, client_of(url) as client:
        for path in ("/v1/models", "/metrics", "/page/runs"):
            assert client.get(path).status_code == 401
            assert client.get(path, headers={"Authorization": "Bearer wrong"}).status_code == 401
            assert client.get(path, headers={"Authorization": "Bearer sesame"}).status_code == 200
        assert client.get("/v1/models").json()["error"]["type"] == "authentication_error"
        for wrong in ({"json": ASKED}, {"json": {"q": 1}}, {"content": b"{"}, {"data": {**ASKED, "api_key": "guess"}}):
            assert client.post("/translate", **wrong).status_code == 401, wrong
        assert client.post("/translate", json={"q": 1, "api_key": "sesame"}).status_code == 400
        assert client.post("/translate", data={**ASKED, "api_key": "sesame"}).status_code == 200
        assert client.get("/health").status_code == client.get("/docs").status_code == 200


class Held:
    """A server with a queue of one, whose only translator waits at a gate."""

    def __init__(self, run: Path, deadline: float) -> None:
        self.began, self.submitted, self.gate = threading.Event(), threading.Semaphore(0), threading.Event()
        self.config = ServeConfig(batch=1, queue=1, deadline=deadline)
        (self.served,) = served_of({"mt": run}, self.config)
        engine = self.served.engine
        self.work, self.submit = engine.work, engine.submit
        engine.work, engine.submit = self.waiting, self.submitting

    def waiting(self, kind: Any, payloads: list[Any]) -> Iterator[Any]:
        """Wait, then work."""
        self.began.set()
        assert self.gate.wait(60)
        yield from self.work(kind, payloads)

    def submitting(self, request: Any) -> Any:
        """Queue some, and say so."""
        outputs = self.submit(request)
        self.submitted.release()
        return outputs


@contextmanager
def holding(
    run: Path, *, deadline: float = 60.0, upload: float = 60.0, **how: Any
) -> Iterator[tuple[Held, httpx.Client]]:
    """One of these, and a client of it; the gate is opened in the end."""
    held = Held(run, deadline)
    with serving([held.served], replace(held.config, deadline=upload), **how) as url, client_of(url) as client:
        try:
            yield held, client
        finally:
            held.gate.set()


def test_requests_beyond_the_queue_get_status_429(runs):
    """One is worked on and one waits: the third is refused at once, the others are done, and health never waits."""
    with holding(runs["mt"]) as (held, client), ThreadPoolExecutor() as pool:
        first = pool.submit(client.post, "/translate", json=ASKED)
        assert held.began.wait(60) and held.submitted.acquire(timeout=60)
        second = pool.submit(client.post, "/translate", json=ASKED)
        assert held.submitted.acquire(timeout=60)
        third = client.post("/translate", json=ASKED)
        assert third.status_code == 429 and int(third.headers["Retry-After"]) >= 1
        assert third.json() == {"error": "too many requests wait for this model; try again in a second"}
        assert client.post("/v1/completions", content=b"unread").json()["error"]["type"] == "rate_limit_error"
        assert client.post("/detect", json={"q": "Print it."}).status_code == 200
        refused = 'requests_total{path="/translate",status="429"} 1.0'
        assert f"transduce_{refused}" in client.get("/metrics").text
        assert client.get("/health").status_code == client.get("/metrics").status_code == 200
        assert not first.done() and not second.done()
        held.gate.set()
        assert first.result().status_code == second.result().status_code == 200
        held.served.engine.stop()
        held.served.engine.join(60)
        assert client.get("/health").status_code == 503


def test_full_queue_is_not_revealed_without_the_token(runs):
    shown = {"headers": {"Authorization": "Bearer sesame"}}
    with holding(runs["mt"], token="sesame") as (held, client), ThreadPoolExecutor() as pool:
        for _ in range(2):
            pool.submit(client.post, "/translate", json=ASKED, **shown)
            assert held.submitted.acquire(timeout=60) and held.began.wait(60)
        assert client.post("/translate", json=ASKED).status_code == 401
        assert client.post("/translate", json=ASKED, **shown).status_code == 429
        held.gate.set()


def test_server_of_records_alone_refuses_translation():
    with serving([], records={}) as url, client_of(url) as client:
        answer = client.post("/translate", json=ASKED)
        assert answer.status_code == 400 and "this server translates nothing" in answer.json()["error"]


def test_http_2_upgrade_offers_are_ignored(http):
    """Java's client offers it with its first request, body and all."""
    offer = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABkAARAAAAAAAIAAAAA"}
    assert http.post("/translate", json=ASKED, headers=offer).status_code == 200


def test_requests_beyond_the_deadline_get_status_503(runs):
    with holding(runs["mt"], deadline=0.2) as (held, client):
        assert client.post("/translate", json=ASKED).status_code == 503
        held.served.engine.config = ServeConfig()
        held.gate.set()
        assert client.post("/translate", json=ASKED).status_code == 200


def test_requests_of_disconnected_clients_are_dropped(runs):
    """One is worked on, and the client of the next one leaves: it waits no more, and is never worked on."""
    with holding(runs["mt"]) as (held, client), ThreadPoolExecutor() as pool:
        first = pool.submit(client.post, "/translate", json=ASKED)
        assert held.began.wait(60)
        with pytest.raises(httpx.ReadTimeout):
            client.post("/translate", json={**ASKED, "q": "Open it."}, timeout=0.3)
        for metric in ('requests_total{path="/translate",status="499"} 1.0', 'waiting{model="mt"} 0.0'):
            while f"transduce_{metric}" not in client.get("/metrics").text:
                assert not first.done(), metric
        held.gate.set()
        assert first.result().status_code == client.post("/translate", json=ASKED).status_code == 200
        assert 'transduce_batch_inputs_count{model="mt"} 2.0' in client.get("/metrics").text


def test_local_server_refuses_other_host_names(runs):
    """A page whose name was made to lead to this machine (DNS rebinding) has its own name in Host."""
    with serving(served_of({"mt": runs["mt"]}), hosts=("localhost", "[::1]")) as url, client_of(url) as client:
        for host, status in [("localhost", 200), ("LOCALHOST:80", 200), ("[::1]:8000", 200), ("localhost.evil.example", 400),
                             ("evil.example:8000", 400), ("evil.example:localhost", 400), ("localhost@evil.example", 400)]:  # fmt: skip
            for path in ("/languages", "/", "/v1/models", "/health", "/metrics"):
                assert client.get(path, headers={"Host": host}).status_code == status, (host, path)
        assert client.post("/translate", json=ASKED, headers={"Host": "evil.example"}).text == "Invalid host header"


def test_head_is_get_without_its_body(http):
    for path in ("/health", "/languages", "/", "/docs", "/openapi.json"):
        head, get = http.head(path), http.get(path)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == str(len(get.content)) and head.headers["content-type"]
    assert http.head("/translate").status_code == 405


def test_docs_need_no_network(http):
    page = http.get("/docs").text
    parts = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert len(parts) >= 2
    for part in parts:
        assert part.startswith("/"), part
        assert http.get(part).status_code == 200
    assert "https://" not in page


def test_slow_uploads_time_out_without_blocking_others(runs):
    with holding(runs["mt"], upload=0.3) as (held, client):
        held.gate.set()
        place = urlsplit(str(client.base_url))
        with socket.create_connection((place.hostname, place.port), timeout=60) as slow:
            slow.sendall(
                b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
            )
            assert client.get("/languages").status_code == 200
            assert slow.recv(100).startswith(b"HTTP/1.1 408 ")


def test_slow_readers_do_not_block_others(http, url):
    place = urlsplit(url)
    body = json.dumps({"model": "lm", "prompt": "a", "max_tokens": 1000, "n": 20, "stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    with socket.create_connection((place.hostname, place.port)) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        slow.sendall(head.encode() + b"\r\n\r\n" + body)
        for _ in range(3):
            answer = http.post("/v1/completions", **prompts(max_tokens=5))
            assert answer.status_code == 200, answer.text
        assert slow.recv(15) == b"HTTP/1.1 200 OK"


def test_endless_uploads_are_cut_off(url):
    place, sent = urlsplit(url), 0
    with socket.create_connection((place.hostname, place.port), timeout=20) as endless:
        endless.sendall(b"POST /translate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        with suppress(OSError):
            while sent < 50_000_000:
                endless.sendall(b"10000\r\n" + b"a" * 65536 + b"\r\n")
                sent += 65536
    assert sent < 50_000_000
