"""`transduce data get` against a server of this test."""

import gzip
import hashlib
import os
import re
import tarfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.layouts import put_digits, put_learners
from transduce.cli import data
from transduce.cli.main import main

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
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def get(tmp_path, monkeypatch):
    """The command, with the small corpus in its table; returns the output folder."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    output = tmp_path / "deep" / "output"

    def run(port, *, mirror=False):
        url = f"http://127.0.0.1:{port}/"
        corpus = data.Corpus("http://127.0.0.1:1/elsewhere/" if mirror else url, DIGESTS)
        monkeypatch.setitem(data.CORPORA, "multi30k", corpus)
        mirrored = ["--mirror", url] if mirror else []
        return main(["data", "get", "multi30k", str(output), *mirrored])

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
def test_downloaded_files_equal_the_originals(get, server, home, mirror, capsys):
    assert get(server.server_port, mirror=mirror) == 0
    assert names(get.output) == sorted(TEXTS)
    assert all((get.output / name).read_bytes() == (home / name).read_bytes() for name in TEXTS)
    size = (home / "train.en.gz").stat().st_size
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{get.output / 'train.en.gz'}: {size:,} bytes downloaded" and len(lines) == len(TEXTS)


def test_existing_files_are_not_downloaded_again(get, server, capsys):
    get.output.mkdir(parents=True)
    mine = gzip.compress(TEXTS["train.en.gz"].encode(), compresslevel=1)  # other bytes, the same text
    (get.output / "train.en.gz").write_bytes(mine)
    get(server.server_port)
    assert server.asked == ["/val.en.gz", "/input.txt"]
    assert (get.output / "train.en.gz").read_bytes() == mine
    assert capsys.readouterr().out.splitlines()[0].endswith("bytes exist")


def test_a_wrong_checksum_is_refused_and_leaves_no_file(get, refusal, server, home):
    other = b"A cat.\n"
    (home / "val.en.gz").write_bytes(gzip.compress(other))
    assert refusal(server.server_port) == (
        f"transduce: the SHA-256 of http://127.0.0.1:{server.server_port}/val.en.gz must be {DIGESTS['val.en.gz']}, "
        f"but it is {hashlib.sha256(other).hexdigest()}; try again, or name another --mirror"
    )
    assert names(get.output) == ["train.en.gz"]


@pytest.mark.parametrize("damage", [lambda raw: raw[:-4], lambda raw: raw[:30] + b"\xff" * 9 + raw[39:], lambda _: b""])
def test_a_damaged_file_is_refused_and_removed(get, refusal, server, home, damage):
    file = home / "train.en.gz"
    file.write_bytes(damage(file.read_bytes()))
    assert f"must be {DIGESTS['train.en.gz']}, but it is " in refusal(server.server_port)
    assert names(get.output) == []


def test_an_existing_file_with_a_wrong_checksum_is_refused_and_kept(get, refusal, server):
    get.output.mkdir(parents=True)
    file = get.output / "input.txt"
    file.write_text("mine")
    assert refusal(server.server_port) == (
        f"transduce: the SHA-256 of {file} must be {DIGESTS['input.txt']}, "
        f"but it is {hashlib.sha256(b'mine').hexdigest()}; move it away"
    )
    assert file.read_text() == "mine"
    assert "/input.txt" not in server.asked


def test_a_rerun_after_a_broken_connection_gets_the_missing_files(get, refusal, server, home):
    (home / "val.en.short").touch()
    said = refusal(server.server_port)
    assert re.fullmatch(r"transduce: http\S+/val\.en\.gz must be reachable, but .*; check the network, .*", said)
    assert names(get.output) == ["train.en.gz"]
    (home / "val.en.short").unlink()
    get(server.server_port)
    assert names(get.output) == sorted(TEXTS)
    assert server.asked.count("/train.en.gz") == 1


def test_missing_files_and_servers_are_reported(get, refusal, server, home):
    (home / "val.en.gz").unlink()
    url = f"http://127.0.0.1:{server.server_port}/val.en.gz"
    way_out = f"check the network, put the file into {get.output} by hand, or name a --mirror of transduce data get"
    assert refusal(server.server_port) == (
        f"transduce: {url} must be reachable, but HTTP Error 404: File not found; {way_out}"
    )
    server.shutdown()
    server.server_close()
    said = refusal(server.server_port)
    assert said.startswith(f"transduce: {url} must be reachable, but ")
    assert said.endswith(way_out)


@pytest.fixture
def speech(tmp_path, monkeypatch):
    """The command for a corpus whose public home is a port of this machine; returns its exit code."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    def run(name, folder, *arguments, port=1):
        corpus = data.CORPORA[name]._replace(home=f"http://127.0.0.1:{port}/")
        monkeypatch.setitem(data.CORPORA, name, corpus)
        return main(["data", "get", name, str(folder), *arguments])

    return run


LAYOUTS = {"fsdd": (put_digits, "v1.0.10.tar.gz"), "speechocean762": (put_learners, "speechocean762.tar.gz")}


def pack(tmp_path, name, folder):
    """The archive of a small corpus in a folder; its path."""
    put, file = LAYOUTS[name]
    put(tmp_path / "original" / name)
    folder.mkdir(exist_ok=True)
    with tarfile.open(folder / file, "w:gz") as tar:
        tar.add(tmp_path / "original" / name, f"{name}-1.0")
    return folder / file


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", LAYOUTS)
def test_an_archive_is_downloaded_and_unpacked_with_manifests(tmp_path, speech, server, home, name, capsys):
    archive, folder = pack(tmp_path, name, home), tmp_path / "corpus"
    sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
    there = folder / archive.name
    assert speech(name, folder, port=server.server_port) == 0
    original, got = contents(tmp_path / "original" / name), contents(folder)
    tables = {path for path in got if path.endswith(".tsv")}
    assert len(tables) == 2 and {path: got[path] for path in got.keys() - tables - {archive.name}} == original
    assert capsys.readouterr().out.splitlines()[0] == (
        f"{there}: {archive.stat().st_size:,} bytes downloaded; its SHA-256 is {sha256}, which was not checked; --sha256 HEX checks it"
    )
    assert speech(name, folder, "--sha256", sha256.upper()) == 0  # where no server is
    assert contents(folder) == got
    assert "was not checked" not in capsys.readouterr().out and server.asked == [f"/{archive.name}"]
    assert speech(name, folder, "--sha256", "0" * 64) == 2
    assert f"{there} must be {'0' * 64}, but it is {sha256}; move it away" in capsys.readouterr().err


def test_an_archive_with_a_wrong_sha256_is_removed(tmp_path, speech, server, home, capsys):
    pack(tmp_path, "fsdd", home)
    assert speech("fsdd", tmp_path / "corpus", "--sha256", "1" * 64, port=server.server_port) == 2
    assert capsys.readouterr().err.endswith("try again, or name another --mirror\n")
    assert names(tmp_path / "corpus") == []


@pytest.mark.parametrize("name", LAYOUTS)
def test_existing_archives_and_folders_need_no_network(tmp_path, speech, name, capsys):
    folder = tmp_path / "corpus"
    assert speech(name, folder) == 2
    assert capsys.readouterr().err.startswith(
        f"transduce: http://127.0.0.1:1/{LAYOUTS[name][1]} must be reachable, but "
    )
    pack(tmp_path, name, folder)
    original = tmp_path / "original" / name
    assert speech(name, folder) == speech(name, original) == 0
    assert "exists: nothing is downloaded" in capsys.readouterr().out
    tables = [{path: text for path, text in contents(at).items() if path.endswith(".tsv")} for at in (folder, original)]
    assert tables[0] == tables[1] and len(tables[0]) == 2


def test_interrupted_unpacking_resumes_and_keeps_complete_files(tmp_path, speech):
    """The cache of features goes by the time of change."""
    folder = tmp_path / "corpus"
    pack(tmp_path, "fsdd", folder)
    assert speech("fsdd", folder) == 0
    want = contents(folder)
    gone, torn, whole = sorted((folder / "recordings").iterdir())[:3]
    gone.unlink()
    torn.write_bytes(torn.read_bytes()[:100])
    before = whole.stat().st_mtime_ns
    assert speech("fsdd", folder) == 0
    assert contents(folder) == want and whole.stat().st_mtime_ns == before


@pytest.mark.parametrize("damage", [lambda raw: raw[: len(raw) // 2], lambda _: b"<html>"])
def test_a_damaged_archive_is_refused(tmp_path, speech, damage, capsys):
    archive = pack(tmp_path, "fsdd", tmp_path / "corpus")
    archive.write_bytes(damage(archive.read_bytes()))
    assert speech("fsdd", archive.parent) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"transduce: {archive} must be a whole .tar.gz, but ")
    assert said.endswith("; move it away to have it fetched anew\n")


@pytest.mark.parametrize("name", ["fsdd/../../evil.txt", "alone.txt"])
def test_an_archive_cannot_write_outside_its_folder(tmp_path, speech, name, capsys):
    archive = pack(tmp_path, "fsdd", tmp_path / "corpus")
    with tarfile.open(archive, "w:gz") as tar:
        tar.addfile(tarfile.TarInfo(name))
    assert speech("fsdd", archive.parent) == 2
    assert capsys.readouterr().err.startswith(f"transduce: {archive} must be a whole .tar.gz, but ")
    assert names(archive.parent) == [archive.name] and not (tmp_path / "evil.txt").exists()


def test_an_unknown_corpus_is_refused_with_the_known_names(capsys):
    assert main(["data", "get", "fsd", "data"]) == 2
    said = capsys.readouterr().err
    assert "fsd" in said and all(name in said for name in data.CORPORA)


@pytest.mark.data
@pytest.mark.parametrize(("name", "n_files"), [("multi30k", 12), ("tinyshakespeare", 1)])  # 3 splits, 4 languages; one
def test_the_checksums_match_the_real_corpora(capsys, name, n_files):
    root = os.environ.get("TRANSDUCE_DATA")
    if not root:
        pytest.skip(f"needs {name} inside the folder that TRANSDUCE_DATA names")
    data.get(name, Path(root) / name, mirror="http://127.0.0.1:1")  # all are kept
    assert capsys.readouterr().out.count("bytes exist") == n_files
