"""scripts/corpora/get_data.py against a server of this test."""

import gzip
import hashlib
import io
import os
import re
import tarfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from make_manifest import folder as found_in

from scripts.corpora import get_data
from tests.scripts.corpora.layouts import put_digits, put_learners

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
        corpus = get_data.Corpus("http://127.0.0.1:1/elsewhere/" if mirror else url, DIGESTS)
        monkeypatch.setattr(get_data, "CORPORA", {"small": corpus})
        mirrored = ["--mirror", url] if mirror else []
        return get_data.main(["small", str(output), *mirrored])

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
    assert lines[:2] == [
        f"[1/3] http://127.0.0.1:{server.server_port}/train.en.gz",
        f"{get.output / 'train.en.gz'}: {size:,} bytes, fetched",
    ]
    assert len(lines) == 2 * len(TEXTS)


def test_what_is_there_is_not_fetched_again(get, server, capsys):
    get.output.mkdir(parents=True)
    mine = gzip.compress(TEXTS["train.en.gz"].encode(), compresslevel=1)  # other bytes, the same text
    (get.output / "train.en.gz").write_bytes(mine)
    get(server.server_port)
    assert server.asked == ["/val.en.gz", "/input.txt"]
    assert (get.output / "train.en.gz").read_bytes() == mine
    assert capsys.readouterr().out.splitlines()[1].endswith("bytes, kept")


def test_another_text_is_refused_and_not_left_behind(get, refusal, server, home):
    other = b"A cat.\n"
    (home / "val.en.gz").write_bytes(gzip.compress(other))
    assert refusal(server.server_port) == (
        f"transduce: the SHA-256 of http://127.0.0.1:{server.server_port}/val.en.gz must be {DIGESTS['val.en.gz']}, "
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
        f"transduce: the SHA-256 of {file} must be {DIGESTS['input.txt']}, "
        f"but it is {hashlib.sha256(b'mine').hexdigest()}; move it away to have it fetched anew"
    )
    assert file.read_text() == "mine"
    assert "/input.txt" not in server.asked


def test_a_connection_that_breaks_off_is_resumed_by_the_same_command(get, refusal, server, home):
    (home / "val.en.short").touch()
    said = refusal(server.server_port)
    assert re.fullmatch(r"transduce: http\S+/val\.en\.gz must be reachable, but .*; check the network, .*", said)
    assert names(get.output) == ["train.en.gz"]
    (home / "val.en.short").unlink()
    get(server.server_port)
    assert names(get.output) == sorted(TEXTS)
    assert server.asked.count("/train.en.gz") == 1


def test_a_missing_file_and_no_server_are_told(get, refusal, server, home):
    (home / "val.en.gz").unlink()
    url = f"http://127.0.0.1:{server.server_port}/val.en.gz"
    way_out = f"check the network, or fetch the file elsewhere and put it into {get.output}, or name a --mirror"
    assert refusal(server.server_port) == (
        f"transduce: {url} must be a file, but the answer is 404 File not found; {way_out}"
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
        corpus = get_data.CORPORA[name]._replace(home=f"http://127.0.0.1:{port}/")
        monkeypatch.setattr(get_data, "CORPORA", {name: corpus})
        return get_data.main([name, str(folder), *arguments])

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
def test_an_archive_is_fetched_and_unpacked_and_has_its_manifests(tmp_path, speech, server, home, name, capsys):
    archive, folder = pack(tmp_path, name, home), tmp_path / "corpus"
    sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
    url, there = f"http://127.0.0.1:{server.server_port}/{archive.name}", folder / archive.name
    assert speech(name, folder, port=server.server_port) == 0
    original, got = contents(tmp_path / "original" / name), contents(folder)
    tables = {path for path in got if path.endswith(".tsv")}
    assert len(tables) == 2 and {path: got[path] for path in got.keys() - tables - {archive.name}} == original
    size = archive.stat().st_size
    assert capsys.readouterr().out.splitlines()[:4] == [
        f"[1/1] {url}",
        f"not checked: the SHA-256 of {url} is {sha256}, and none is known to compare with; --sha256 HEX does",
        f"{there}: {size:,} bytes, fetched",
        f"{there}: {len(original)} files in {folder}",
    ]
    assert speech(name, folder, "--sha256", sha256.upper()) == 0  # where no server is
    assert contents(folder) == got
    assert "not checked" not in capsys.readouterr().out and server.asked == [f"/{archive.name}"]
    assert speech(name, folder, "--sha256", "0" * 64) == 2
    assert f"{there} must be {'0' * 64}, but it is {sha256}; move it away" in capsys.readouterr().err


def test_an_archive_with_another_digest_than_given_is_not_left_behind(tmp_path, speech, server, home, capsys):
    pack(tmp_path, "fsdd", home)
    assert speech("fsdd", tmp_path / "corpus", "--sha256", "1" * 64, port=server.server_port) == 2
    assert capsys.readouterr().err.endswith("nothing was written; try again, or name another --mirror\n")
    assert names(tmp_path / "corpus") == []


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_was_fetched_or_unpacked_by_hand_needs_no_network(tmp_path, speech, name, capsys):
    folder = tmp_path / "corpus"
    assert speech(name, folder) == 2
    assert capsys.readouterr().err.startswith(
        f"transduce: http://127.0.0.1:1/{LAYOUTS[name][1]} must be reachable, but "
    )
    pack(tmp_path, name, folder)
    original = tmp_path / "original" / name
    assert speech(name, folder) == speech(name, original) == 0
    assert "is there: nothing is fetched" in capsys.readouterr().out
    tables = [{path: text for path, text in contents(at).items() if path.endswith(".tsv")} for at in (folder, original)]
    assert tables[0] == tables[1] and len(tables[0]) == 2


def test_what_was_stopped_while_unpacking_goes_on_and_what_is_whole_is_not_touched(tmp_path, speech):
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


@pytest.mark.parametrize(
    "damage",
    [lambda raw: raw[:-1], lambda raw: raw[: len(raw) // 2], lambda raw: raw[:-8] + bytes(8), lambda _: b"<html>"],
)
def test_a_damaged_archive_is_refused_before_anything_is_unpacked(tmp_path, speech, damage, capsys):
    archive = pack(tmp_path, "fsdd", tmp_path / "corpus")
    archive.write_bytes(damage(archive.read_bytes()))
    assert speech("fsdd", archive.parent) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"transduce: {archive} must be a whole .tar.gz, but it is not: ")
    assert said.endswith("; move it away to have it fetched anew\n")
    assert names(archive.parent) == [archive.name]


@pytest.mark.parametrize("name", ["fsdd/../../evil.txt", "alone.txt"])
def test_an_archive_writes_nowhere_else(tmp_path, speech, name, capsys):
    archive = pack(tmp_path, "fsdd", tmp_path / "corpus")
    with tarfile.open(archive, "w:gz") as tar:
        tar.addfile(tarfile.TarInfo(name))
    assert speech("fsdd", archive.parent) == 2
    assert capsys.readouterr().err == (
        f"transduce: files of an archive must lie inside one folder, but {archive} has {name!r}; fetch it elsewhere\n"
    )
    assert names(archive.parent) == [archive.name] and not (tmp_path / "evil.txt").exists()


def test_a_name_that_is_none_is_told_with_those_there_are(capsys):
    with pytest.raises(SystemExit) as stopped:
        get_data.main(["fsd", "data"])
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert "invalid choice: 'fsd'" in said and all(name in said for name in [*get_data.CORPORA, "kaldi", "folder"])


@pytest.mark.data
@pytest.mark.parametrize(("name", "n_files"), [("multi30k", 12), ("tinyshakespeare", 1)])  # 3 splits, 4 languages; one
def test_the_table_is_the_corpus(capsys, name, n_files):
    root = os.environ.get("TRANSDUCE_DATA")
    if not root:
        pytest.skip(f"needs {name} inside the folder that TRANSDUCE_DATA names")
    get_data.get(get_data.CORPORA[name], Path(root) / name, mirror="http://127.0.0.1:1")  # all are kept
    assert capsys.readouterr().out.count("bytes, kept") == n_files


def packed(path: Path, sizes: list[int], rest: bytes = b"") -> Path:
    """An archive of zeros, and what follows behind its end."""
    with gzip.open(path, "wb") as file:
        with tarfile.open(fileobj=file, mode="w") as tar:
            for i, size in enumerate(sizes):
                member = tarfile.TarInfo(f"a/{i}.wav")
                member.size = size
                tar.addfile(member, io.BytesIO(bytes(size)))
        file.write(rest)
    return path


def declares(size: int) -> bytes:
    member = tarfile.TarInfo("a/0.wav")
    member.size = size
    return gzip.compress(member.tobuf(tarfile.GNU_FORMAT))


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda path: path.write_bytes(declares(300 * 10**9)), "it declares 300,000,000,000 up to 'a/0.wav'"),
        (lambda path: packed(path, [30_000, 30_000, 50_000, 1]), "it declares 110,000 up to 'a/2.wav'"),
        (lambda path: packed(path, [30_000], rest=bytes(3 * 2**20)), "it has more"),
    ],
    ids=["in one file", "in several", "behind its end"],
)
def test_an_archive_that_is_too_large_is_refused_before_anything_is_unpacked(tmp_path, monkeypatch, make, told):
    monkeypatch.setattr(get_data, "LARGEST", 100_000)
    archive = tmp_path / "x.tar.gz"
    make(archive)
    with pytest.raises(ValueError) as caught:
        get_data.unpack(archive, tmp_path / "out")
    assert str(caught.value) == (
        f"{archive} may have 100,000 bytes when it is unpacked, but {told}; fetch it elsewhere"
    )
    assert not (tmp_path / "out").exists()
    get_data.unpack(packed(archive, [30_000, 40_000]), tmp_path / "out")
    assert [path.stat().st_size for path in sorted((tmp_path / "out").iterdir())] == [30_000, 40_000]


def test_a_text_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(get_data, "LARGEST", 100_000)
    path = tmp_path / "a.en.gz"
    path.write_bytes(gzip.compress(bytes(3 * 2**20)))
    with pytest.raises(ValueError) as caught:
        get_data.fetch(path, "http://127.0.0.1/a.en.gz", "0" * 64)
    assert (
        str(caught.value) == "a.en.gz may have 100,000 bytes when it is unpacked, but it has more; fetch it elsewhere"
    )


@pytest.mark.parametrize("headers", ["one", "many"])
def test_headers_of_an_archive_are_bounded_before_they_take_memory(tmp_path, speech, headers, capsys, monkeypatch):
    """Comments of a file in its header, by the format of POSIX: 1.2 GB as it says, or so many of 1 MB each."""
    archive = pack(tmp_path, "fsdd", tmp_path / "corpus")
    with gzip.open(archive, "wb", compresslevel=1) as file:
        size = 1_200_000_000 if headers == "one" else 1 << 20
        info = tarfile.TarInfo("x/PaxHeader")
        info.type, info.size = tarfile.XHDTYPE, size
        for i in range(1 if headers == "one" else 30):
            file.write(info.tobuf(tarfile.USTAR_FORMAT))
            if headers == "many":
                file.write((b"%d comment=" % size).ljust(size - 1, b"a") + b"\n")
                file.write(tarfile.TarInfo(f"x/{i}").tobuf(tarfile.USTAR_FORMAT))
    monkeypatch.setattr(get_data.Archive, "left", 20_000_000)
    assert speech("fsdd", archive.parent) == 2
    assert "the headers of an archive may have 100,000,000 bytes, but those of" in capsys.readouterr().err
    assert names(archive.parent) == [archive.name]


def test_folders_of_an_archive_are_not_made_to_any_depth(tmp_path, speech, capsys):
    archive = pack(tmp_path, "fsdd", tmp_path / "corpus")
    with tarfile.open(archive, "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("a/" * 1500 + "x.wav"))
    assert speech("fsdd", archive.parent) == 2
    assert f"may be 100 deep, but in {archive} they are 1,501; fetch it elsewhere" in capsys.readouterr().err
    assert names(archive.parent) == [archive.name]


def test_recordings_in_1500_folders_inside_each_other_are_found(tmp_path):
    folders = [tmp_path / ("a/" * n) for n in range(1, 1501)]
    for each in folders:
        each.mkdir()
    (folders[-1] / "x.txt").touch()
    try:
        assert [(found.id, found.problem) for found in found_in(tmp_path)] == [("a/" * 1500 + "x.txt", "no sound")]
    finally:
        (folders[-1] / "x.txt").unlink()
        for each in reversed(folders):  # by rmtree, which pytest would call, it is too deep
            each.rmdir()


def test_a_download_is_bounded(tmp_path, speech, server, home, monkeypatch, capsys):
    pack(tmp_path, "fsdd", home)
    monkeypatch.setattr(get_data, "LARGEST_DOWNLOAD", 1000)
    assert speech("fsdd", tmp_path / "corpus", port=server.server_port) == 2
    assert "may have 1,000 bytes, but it has more; check the network" in capsys.readouterr().err
    assert names(tmp_path / "corpus") == []
