"""Shards are the ids of the whole text, however it was cut, and an interrupted making goes on."""

import gzip
import os
import signal

import pytest

from tests.data.test_language import SPACED, at_once
from transduce.cli.main import main
from transduce.cli.shards import pieces_of
from transduce.data.language import read_text
from transduce.data.shards import Shards
from transduce.data.tokenizer_files import load_tokenizer, train_tokenizer
from transduce.files import write_file

TEXT = "".join(f"Line {i} says\n\n  größer than {i * i}\nand so on.\n\n\nNext:\n" for i in range(30)) + SPACED


@pytest.fixture
def make(tmp_path, capsys):
    """Calls the command; what it printed."""
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(TEXT[:200].encode()))
    (tmp_path / "c.txt").write_text(TEXT[:150])

    def call(*more):
        files = ["--train", tmp_path / "a.txt", tmp_path / "b.txt.gz", "--valid", tmp_path / "c.txt"]
        words = [*files, "--output", tmp_path / "out", "--vocab-size", "300", "--processes", "1", *more]
        code = main(["data", "shards", *map(str, words)])
        printed = capsys.readouterr()
        return printed.out if code == 0 else printed.err

    return call


@pytest.mark.parametrize("kind", ["byte_bpe", "characters", "sentencepiece"])
def test_shards_hold_the_ids_of_the_whole_text(tmp_path, make, kind):
    out = make("--kind", kind, "--shard-bytes", "100")
    language = Shards(data=tmp_path / "out").read(kind, 0)
    want = [at_once(language.tokenizer, read_text(tmp_path / name)) for name in ("a.txt", "b.txt.gz")]
    assert language.train.read(0, len(language.train)).tolist() == [*want[0], *want[1]]
    valid = at_once(language.tokenizer, read_text(tmp_path / "c.txt"))
    assert language.valid.read(0, len(language.valid)).tolist() == valid
    assert len(language.train.parts) > 5
    n_shards = len(list((tmp_path / "out").glob("*.bin")))
    n_tokens = len(language.train) + len(language.valid)
    assert out.endswith(f"{n_shards} shards made, 0 kept: {n_tokens:,} tokens\n")


def test_existing_shards_are_kept_and_missing_ones_made(tmp_path, make):
    make("--shard-bytes", "500")
    folder = tmp_path / "out"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    times = {path.name: path.stat().st_mtime_ns for path in folder.glob("train-*")}
    (folder / "train-00001.json").unlink()  # as if it had stopped between the ids and their header
    printed = make("--shard-bytes", "500").splitlines()
    assert printed[0] == f"{folder / 'tokenizer.json'} exists, with 300 tokens, and is used"
    assert printed[1].startswith(f"1 shards made, {len(list(folder.glob('*.bin'))) - 1} kept")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    kept = {name for name, time in times.items() if (folder / name).stat().st_mtime_ns == time}
    assert times.keys() - kept == {"train-00001.json", "train-00001.bin"}


@pytest.mark.parametrize(
    ("suffix", "content"),
    [(".bin", b"\0\0"), (".bin", "others"), (".json", b"{"), (".json", b"{}"), (".json", b"")],
    ids=["cut", "other bytes", "torn header", "empty header", "blank header"],
)
def test_a_damaged_shard_is_made_again(tmp_path, make, suffix, content):
    make("--shard-bytes", "500")
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    path = tmp_path / "out" / f"train-00001{suffix}"
    path.write_bytes(bytes(reversed(path.read_bytes())) if content == "others" else content)
    assert "\n1 shards made" in make("--shard-bytes", "500")
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_a_changed_text_or_tokenizer_rebuilds_shards(tmp_path, make):
    make()
    (tmp_path / "c.txt").write_text("Another.\n")
    assert "\n1 shards made, 2 kept" in make()
    other = train_tokenizer("byte_bpe", ["so so so"], vocab_size=259)
    other.save(tmp_path / "tokenizer.json")
    assert make("--tokenizer", tmp_path / "tokenizer.json").startswith("3 shards made, 0 kept")
    assert load_tokenizer(tmp_path / "out").model == other.model
    (tmp_path / "out" / "train-00007.bin").write_bytes(b"")
    assert make("--tokenizer", tmp_path / "tokenizer.json") == (
        f"transduce: {tmp_path / 'out'} must hold shards of this text only, but has train-00007.bin; remove it, or name "
        "another --output\n"
    )


def test_an_interrupted_rebuild_leaves_no_stale_shard(tmp_path, make, monkeypatch):
    make()
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    (tmp_path / "c.txt").write_text("Another.\n")

    def stop_behind_ids(path, content):
        write_file(path, content)
        if path.name == "valid-00000.bin":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("transduce.files.write_file", stop_behind_ids)
        assert make() == "transduce: stopped\n"
    (tmp_path / "c.txt").write_text(TEXT[:150])
    make()
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_text_with_windows_line_ends_is_split(tmp_path):
    (tmp_path / "text").write_bytes(b"one\r\ntwo\r\n\r\nthree\r\n four\r\n\xe3\x80\x82\r\n\xe3\x80\x80five\r\nsix")
    cuts = list(pieces_of(tmp_path / "text", 1))
    raw = (tmp_path / "text").read_bytes()
    assert [raw[start:stop].decode() for start, stop in cuts] == [
        "one\r\n", "two\r\n\r\nthree\r\n four\r\n", "。\r\n\u3000five\r\n", "six",
    ]  # fmt: skip


def test_other_tokenizer_options_are_refused_for_existing_shards(tmp_path, make):
    make()
    out = tmp_path / "out"
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    for more, now in (["--vocab-size", "299"], "byte_bpe with 299"), (["--kind", "characters"], "characters with 300"):
        assert make(*more) == (
            f"transduce: all shards of a folder have one tokenizer, but {out / 'tokenizer.json'} is a JSONTokenizer of "
            f"300 tokens, and now it is {now}; name another --output, or remove {out}\n"
        )
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_a_missing_text_is_refused_before_any_output(tmp_path, make):
    assert make("--valid", tmp_path / "none.txt") == (
        f"transduce: a text must be a file, plain or .gz, but {tmp_path / 'none.txt'} does not exist\n"
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("flag", ["--shard-bytes", "--processes"])
def test_shard_bytes_and_processes_must_be_at_least_1(tmp_path, make, flag):
    name = flag[2:].replace("-", "_")
    assert make(flag, "0") == f"transduce: {name} must be at least 1, but {name}=0\n"
    assert not (tmp_path / "out").exists()


@pytest.mark.process
def test_several_processes_make_the_same_shards(tmp_path, make):
    make("--shard-bytes", "500")
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").glob("*.bin")}
    for name in before:
        (tmp_path / "out" / name).unlink()
    make("--shard-bytes", "500", "--processes", "2")
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").glob("*.bin")} == before


@pytest.mark.process
def test_a_killed_worker_is_reported_with_advice(make, monkeypatch):
    monkeypatch.setattr("transduce.cli.shards.write", _killed)
    assert make("--processes", "2") == (
        "transduce: workers must run until all is done, but one was killed, probably for lack of memory; use fewer --workers "
        "or --processes, and run the command again\n"
    )


def _killed(piece, *, tokenizer):
    os.kill(os.getpid(), signal.SIGKILL)
