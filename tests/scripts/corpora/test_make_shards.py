"""Shards are the ids of the whole text, however it was cut, and an interrupted making goes on."""

import gzip
import json
import sys

import pytest

from scripts.corpora import make_shards
from tests.data.text.test_language import SPACED, at_once
from transduce.data.text.language import Shards, read_text
from transduce.data.text.tokenizer_files import load_tokenizer, train_tokenizer

TEXT = "".join(f"Line {i} says\n\n  größer than {i * i}\nand so on.\n\n\nNext:\n" for i in range(30)) + SPACED


@pytest.fixture
def make(tmp_path, monkeypatch, capsys):
    """Calls the script; what it printed."""
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(TEXT[:200].encode()))
    (tmp_path / "c.txt").write_text(TEXT[:150])

    def call(*more):
        files = ["--train", tmp_path / "a.txt", tmp_path / "b.txt.gz", "--valid", tmp_path / "c.txt"]
        words = [*files, "--output", tmp_path / "out", "--vocab-size", "300", "--processes", "1", *more]
        monkeypatch.setattr(sys, "argv", ["make_shards.py", *map(str, words)])
        make_shards.main()
        return capsys.readouterr().out

    return call


@pytest.mark.parametrize("kind", ["byte_bpe", "characters", "sentencepiece"])
def test_shards_are_the_whole_text(tmp_path, make, kind):
    out = make("--kind", kind, "--shard-bytes", "100")
    language = Shards(data=tmp_path / "out").read(kind, 0)
    want = [at_once(language.tokenizer, read_text(tmp_path / name)) for name in ("a.txt", "b.txt.gz")]
    assert language.train.read(0, len(language.train)).tolist() == [*want[0], *want[1]]
    valid = at_once(language.tokenizer, read_text(tmp_path / "c.txt"))
    assert language.valid.read(0, len(language.valid)).tolist() == valid
    assert len(language.train.parts) > 5
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["tokens"] == {"train": len(language.train), "valid": len(language.valid)}
    assert [shard["file"] for shard in manifest["shards"]] == sorted(p.name for p in (tmp_path / "out").glob("*.bin"))
    assert out == (
        f"{len(manifest['shards'])} shards made, 0 kept: {len(language.train):,} and {len(language.valid):,} tokens\n"
    )


def test_what_is_there_stays_and_what_is_not_is_made(tmp_path, make):
    make("--shard-bytes", "500")
    folder = tmp_path / "out"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    times = {path.name: path.stat().st_mtime_ns for path in folder.glob("train-*")}
    (folder / "train-00001.json").unlink()  # as if it had stopped between the ids and their header
    (folder / "manifest.json").unlink()
    assert make("--shard-bytes", "500").startswith(f"1 shards made, {len(list(folder.glob('*.bin'))) - 1} kept")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    kept = {name for name, time in times.items() if (folder / name).stat().st_mtime_ns == time}
    assert times.keys() - kept == {"train-00001.json", "train-00001.bin"}


def test_another_text_or_tokenizer_makes_the_shards_again(tmp_path, make):
    make()
    (tmp_path / "c.txt").write_text("Another.\n")
    assert make().startswith("1 shards made, 2 kept")
    other = train_tokenizer("byte_bpe", ["so so so"], vocab_size=259)
    other.save(tmp_path / "tokenizer.json")
    assert make("--tokenizer", tmp_path / "tokenizer.json").startswith("3 shards made, 0 kept")
    assert load_tokenizer(tmp_path / "out").model == other.model
    (tmp_path / "out" / "train-00007.bin").write_bytes(b"")
    with pytest.raises(ValueError) as error:
        make("--tokenizer", tmp_path / "tokenizer.json")
    assert str(error.value) == (
        f"{tmp_path / 'out'} must hold shards of this text only, but has train-00007.bin; remove them"
    )


def test_lines_that_end_as_on_windows_are_cut_too(tmp_path):
    (tmp_path / "text").write_bytes(b"one\r\ntwo\r\n\r\nthree\r\n four\r\n\xe3\x80\x82\r\n\xe3\x80\x80five\r\nsix")
    cuts = list(make_shards.pieces_of(tmp_path / "text", 1))
    raw = (tmp_path / "text").read_bytes()
    assert [raw[start:stop].decode() for start, stop in cuts] == [
        "one\r\n", "two\r\n\r\nthree\r\n four\r\n", "。\r\n\u3000five\r\n", "six",
    ]  # fmt: skip


def test_another_wish_for_the_tokenizer_is_refused(tmp_path, make):
    make()
    out = tmp_path / "out"
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    asked = "--kind byte_bpe --vocab-size 300 --tokenizer-bytes 200000000"
    for more, now in (
        (["--vocab-size", "301"], "--kind byte_bpe --vocab-size 301 --tokenizer-bytes 200000000"),
        (["--kind", "characters"], "--kind characters --tokenizer-bytes 200000000"),
    ):
        with pytest.raises(ValueError) as error:
            make(*more)
        assert str(error.value) == (
            f"all shards of a folder have one tokenizer, but {out / 'tokenizer.json'} was made with {asked} and now it "
            f"is {now}; say the same as before, name another --output, or remove {out}"
        )
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    make("--tokenizer", out / "tokenizer.json")
    with pytest.raises(ValueError, match=rf"was made with --tokenizer FILE and now it is {asked}; say the same"):
        make()


def test_a_missing_text_is_named_before_anything_is_made(tmp_path, make):
    with pytest.raises(ValueError) as error:
        make("--valid", tmp_path / "none.txt")
    assert str(error.value) == f"a text must be a file, plain or .gz, but {tmp_path / 'none.txt'} does not exist"
    assert not (tmp_path / "out").exists()


@pytest.mark.process
def test_processes_make_the_same_shards(tmp_path, make):
    make("--shard-bytes", "500")
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").glob("*.bin")}
    for name in before:
        (tmp_path / "out" / name).unlink()
    make("--shard-bytes", "500", "--processes", "2")
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").glob("*.bin")} == before
