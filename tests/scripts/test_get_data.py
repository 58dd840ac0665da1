"""scripts/get_data.py against a server of this test."""

import gzip
import hashlib
import os
import re
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from scripts import get_data

TEXTS = {"train.en.gz": "A dog.\nZwei Straßen.\n" * 50, "val.en.gz": "Ein Hund.\n", "input.txt": "To be\n"}
DIGESTS = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in TEXTS.items()}


class Handler(SimpleHTTPRequestHandler):
    """Serves a folder, remembers what was asked for, and breaks off in the middle of a file with a .short beside it."""

    def do_GET(self):
        self.server.asked.append(self.path)
        path = Path(self.translate_path(self.path))
        if path.with_suffix(".short").exists():
            self.send_response(200)
            self.send_header("Content-Length", str(path.stat().st_size))
            self.end_headers()
            self.wfile.write(path.read_bytes()[:20])
            self.close_connection = True
        else:
            super().do_GET()

    def log_message(self, *_):
        pass


@pytest.fixture
def home(tmp_path):
    """A folder with a small corpus."""
    folder = tmp_path / "home"
    folder.mkdir()
    for name, text in TEXTS.items():
        (folder / name).write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return folder


@pytest.fixture
def server(home):
    """That folder on the web."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(home))) as server:
        server.asked = []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def get(tmp_path, monkeypatch):
    """The command, with the small corpus in its table; returns the output folder."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    output = tmp_path / "deep" / "output"

    def run(port, *, mirror=False):
        url = f"http://127.0.0.1:{port}/"
        corpus = get_data.Corpus("http://127.0.0.1:1/elsewhere/" if mirror else url, DIGESTS)
        monkeypatch.setattr(get_data, "CORPORA", {"small": corpus})
        mirrored = ["--mirror", url] if mirror else []
        monkeypatch.setattr(sys, "argv", ["get_data.py", "small", "--output", str(output), *mirrored])
        return get_data.main()

    run.output = output
    return run


@pytest.fixture
def refusal(get, capsys):
    """The command fails; what it says."""

    def run(*arguments):
        capsys.readouterr()
        assert get(*arguments) == 2
        return capsys.readouterr().err.removesuffix("\n")

    return run


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("mirror", [False, True])
def test_every_file_arrives_as_it_is_at_home(get, server, home, mirror, capsys):
    assert get(server.server_port, mirror=mirror) == 0
    assert names(get.output) == sorted(TEXTS)
    assert all((get.output / name).read_bytes() == (home / name).read_bytes() for name in TEXTS)
    size = (home / "train.en.gz").stat().st_size
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"[1/3] {get.output / 'train.en.gz'} {size:,} bytes, fetched"
    assert len(lines) == len(TEXTS)


def test_what_is_there_is_not_fetched_again(get, server, capsys):
    get.output.mkdir(parents=True)
    mine = gzip.compress(TEXTS["train.en.gz"].encode(), compresslevel=1)  # other bytes, the same text
    (get.output / "train.en.gz").write_bytes(mine)
    get(server.server_port)
    assert server.asked == ["/val.en.gz", "/input.txt"]
    assert (get.output / "train.en.gz").read_bytes() == mine
    assert capsys.readouterr().out.splitlines()[0].endswith("bytes, kept")


def test_another_text_is_refused_and_not_left_behind(get, refusal, server, home):
    other = b"A cat.\n"
    (home / "val.en.gz").write_bytes(gzip.compress(other))
    assert refusal(server.server_port) == (
        f"error: the SHA-256 of http://127.0.0.1:{server.server_port}/val.en.gz must be {DIGESTS['val.en.gz']}, "
        f"but it is {hashlib.sha256(other).hexdigest()}; nothing was written; try again, or name another --mirror"
    )
    assert names(get.output) == ["train.en.gz"]


@pytest.mark.parametrize("damage", [lambda raw: raw[:-4], lambda raw: raw[:30] + b"\xff" * 9 + raw[39:], lambda _: b""])
def test_a_damaged_file_is_refused_and_not_left_behind(get, refusal, server, home, damage):
    file = home / "train.en.gz"
    file.write_bytes(damage(file.read_bytes()))
    assert f"must be {DIGESTS['train.en.gz']}, but it is " in refusal(server.server_port)
    assert names(get.output) == []


def test_a_wrong_file_that_is_there_is_refused_and_stays(get, refusal, server):
    get.output.mkdir(parents=True)
    file = get.output / "input.txt"
    file.write_text("mine")
    assert refusal(server.server_port) == (
        f"error: the SHA-256 of {file} must be {DIGESTS['input.txt']}, "
        f"but it is {hashlib.sha256(b'mine').hexdigest()}; move it away to have it fetched anew"
    )
    assert file.read_text() == "mine"
    assert "/input.txt" not in server.asked


def test_a_connection_that_breaks_off_is_resumed_by_the_same_command(get, refusal, server, home):
    (home / "val.en.short").touch()
    said = refusal(server.server_port)
    assert re.fullmatch(r"error: http\S+/val\.en\.gz must be reachable, but .*; check the network, .*", said)
    assert names(get.output) == ["train.en.gz"]
    (home / "val.en.short").unlink()
    get(server.server_port)
    assert names(get.output) == sorted(TEXTS)
    assert server.asked.count("/train.en.gz") == 1


def test_a_missing_file_and_no_server_are_told(get, refusal, server, home):
    (home / "val.en.gz").unlink()
    url = f"http://127.0.0.1:{server.server_port}/val.en.gz"
    way_out = "check the network, or fetch the file elsewhere and put it into the output folder, or name a --mirror"
    assert refusal(server.server_port) == (
        f"error: {url} must be a file, but the answer is 404 File not found; {way_out}"
    )
    server.shutdown()
    server.server_close()
    said = refusal(server.server_port)
    assert said.startswith(f"error: {url} must be reachable, but ")
    assert said.endswith(way_out)


def archive_of(monkeypatch, get, url, *arguments):
    """The command for a corpus that is one archive, whose SHA-256 nobody tells."""
    monkeypatch.setattr(get_data, "CORPORA", {"digits": get_data.Corpus(url, {"digits.tar.gz": None})})
    monkeypatch.setattr(sys, "argv", ["get_data.py", "digits", "--output", str(get.output), *arguments])
    return get_data.main()


def test_an_archive_is_right_only_by_a_digest_that_is_given(get, server, home, monkeypatch, capsys):
    content = b"no gzip at all: an archive is not unpacked here"
    (home / "digits.tar.gz").write_bytes(content)
    url, there = f"http://127.0.0.1:{server.server_port}/", get.output / "digits.tar.gz"
    sha256 = hashlib.sha256(content).hexdigest()
    for where in (f"{url}digits.tar.gz", there):
        assert archive_of(monkeypatch, get, url) == 2
        assert capsys.readouterr().err == (
            f"error: the SHA-256 of {where} must be known, but its publisher tells none; it is {sha256}; "
            f"if somebody you trust has the same, add --sha256 {sha256}\n"
        )
        assert there.read_bytes() == content
    assert archive_of(monkeypatch, get, url, "--sha256", sha256.upper()) == 0
    assert capsys.readouterr().out == f"[1/1] {there} {len(content)} bytes, kept\n"
    assert archive_of(monkeypatch, get, url, "--sha256", "0" * 64) == 2
    assert f"must be {'0' * 64}, but it is {sha256}; move it away" in capsys.readouterr().err
    assert server.asked == ["/digits.tar.gz"]


def test_an_archive_with_another_digest_than_given_is_not_left_behind(get, server, home, monkeypatch, capsys):
    (home / "digits.tar.gz").write_bytes(b"other")
    assert archive_of(monkeypatch, get, f"http://127.0.0.1:{server.server_port}/", "--sha256", "1" * 64) == 2
    assert capsys.readouterr().err.endswith("nothing was written; try again, or name another --mirror\n")
    assert names(get.output) == []


@pytest.mark.data
@pytest.mark.parametrize(("name", "n_files"), [("multi30k", 12), ("tinyshakespeare", 1)])  # 3 splits, 4 languages; one
def test_the_table_is_the_corpus(capsys, name, n_files):
    root = os.environ.get("TRANSDUCE_DATA")
    if not root:
        pytest.skip(f"needs {name} inside the folder that TRANSDUCE_DATA names")
    get_data.get(get_data.CORPORA[name], Path(root) / name, mirror="http://127.0.0.1:1")  # all are kept
    assert capsys.readouterr().out.count("bytes, kept") == n_files
