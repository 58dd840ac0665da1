"""Files, names and environments that nobody means: each is refused in a line, and none reaches a library's own error."""

import codecs
import gzip
import io
import json
import os
import sys
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import ipc

from recipes import translation
from tests.language_runs import language_run
from tests.runs import LITTLE, random_run
from transduce.cli.main import main
from transduce.data.base_tokenizer import CharTokenizer
from transduce.data.json_tokenizer import JSONTokenizer
from transduce.data.shards import read_header
from transduce.data.tables import each_cell_row
from transduce.data.tokenizer_files import load_tokenizer
from transduce.decode.ngram import NGrams
from transduce.device import torch_device
from transduce.errors import InputError, command_process
from transduce.experiment.command import with_files
from transduce.files import write_file
from transduce.score.wer import english_normalizer
from transduce.train.distributed import world

CONFIGS = {
    "utf-16.json": '{"run": "x"}'.encode("utf-16"),
    "utf-16.yaml": "run: x".encode("utf-16"),
    "latin-1.json": '{"run": "grün"}'.encode("latin-1"),
    "packed.json": gzip.compress(b"{}"),
    "deep.json": b"[" * 100_000,
    "deep.yaml": b"[" * 3000,
    "itself.yaml": b"&a {run: *a}",
    "no day.yaml": b"run: !!timestamp 2020-99-99",
    "no time.yaml": b"run: !!timestamp x",
    "no truth.yaml": b"run: !!bool x",
    "no number.yaml": b"run: !!int x",
    "no letter.yaml": b'run: "\\U00110000"',
    "a day for a name.yaml": b"2020-01-01: x",
    "zero byte.json": b'{"run": "a\\u0000b"}',
    "zero byte.yaml": b'run: "a\\0b"',
    "half a character.json": b'{"run": "\\ud800"}',
    "half a character.yaml": b'run: "\\ud800"',
    "long number.json": b'{"training": {"seed": ' + b"9" * 5000 + b"}}",
    "long number.yaml": b"training: {seed: 0x" + b"f" * 5000 + b"}",
    "beyond floats.json": b'{"model": {"dropout": 1' + b"0" * 400 + b"}}",
    "beyond floats.yaml": b"model: {dropout: 1" + b"0" * 400 + b"}",
}


@pytest.mark.parametrize("name", CONFIGS)
def test_an_invalid_config_is_refused_by_name(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(CONFIGS[name])
    with pytest.raises(InputError) as caught:
        with_files(translation.COMMANDS, [path])
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["x.json", "x.yaml"])
def test_a_config_may_have_a_byte_order_mark_and_non_utf8_paths(tmp_path, name):
    (tmp_path / name).write_bytes(codecs.BOM_UTF8 + json.dumps({"run": os.fsdecode(b"gr\xfcn")}).encode())
    assert os.fsencode(with_files(translation.COMMANDS, [tmp_path / name]).run) == b"gr\xfcn"


@pytest.mark.parametrize("value", ["x", "", "-1", "1.5", "9" * 5000])
@pytest.mark.parametrize("name", ["WORLD_SIZE", "LOCAL_RANK"])
def test_invalid_world_size_or_local_rank_is_refused(monkeypatch, name, value):
    whole = {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost"}
    for each, text in {**whole, name: value}.items():
        monkeypatch.setenv(each, text)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    use = {"WORLD_SIZE": world.__wrapped__, "LOCAL_RANK": lambda: torch_device("auto")}
    with pytest.raises(InputError, match=f"^{name} must be a whole number"):
        use[name]()


def test_an_invalid_master_port_is_refused(monkeypatch):
    for name, text in {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "x"}.items():
        monkeypatch.setenv(name, text)
    with pytest.raises(InputError, match="torchrun"):
        world.__wrapped__()


@pytest.mark.parametrize(
    "text",
    [
        "\\1-grams:\n-1 a\n\\3-grams:\n-1 a a a\n\\end\\",
        "\\2-grams:\n-1 a a\n\\end\\",
        f"\\{'9' * 5000}-grams:\n\\end\\",
        "\\1-grams:\n-1 a\n\\1-grams:\n-1 a\n\\end\\",
        "\\1-grams:\nnan a\n\\end\\",
    ],
)
def test_an_arpa_file_with_invalid_sections_is_refused(text):
    with pytest.raises(InputError, match="grams"):
        NGrams(text.split("\n"), ["<s>", "</s>", "a"], bos_id=0, eos_id=1, device="cpu")


def test_an_arrow_table_with_invalid_utf8_is_refused(tmp_path):
    raw = pyarrow.array(["grün".encode("latin-1")], pyarrow.binary())
    text = pyarrow.StringArray.from_buffers(1, *raw.buffers()[1:])  # Arrow believes whoever says that it is UTF-8
    table = pyarrow.table({"source": text, "target": ["green"]})
    with pyarrow.OSFile(str(tmp_path / "x.arrow"), "wb") as file, ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(InputError, match=r"x\.arrow is not a complete"):
        list(each_cell_row(tmp_path / "x.arrow", ("source", "target")))


@pytest.mark.parametrize(
    "content",
    [b"\xff", b"{}", b"[" * 100_000, b'{"dtype": "x", "count": 1, "tokenizer": "", "sha256": "", "source": ""}',
     b'{"dtype": "uint16", "count": "1", "tokenizer": "", "sha256": "", "source": ""}'],
)  # fmt: skip
def test_an_invalid_shard_header_is_refused(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(InputError, match=r"a\.json"):
        read_header(tmp_path / "a.bin")


@pytest.mark.parametrize("content", [b"\xff", b"[" * 100_000, b"{", b'{"a": "b"}'])
def test_broken_tokenizer_files_are_refused(tmp_path, content):
    (tmp_path / "vocab.json").write_bytes(content)
    (tmp_path / "merges.txt").write_bytes(b"\xff")
    with pytest.raises(InputError, match=r"vocab\.json"):
        JSONTokenizer.load(tmp_path)
    (tmp_path / "deep.json").write_bytes(b'{"a": ' * 100_000)
    with pytest.raises(InputError, match=r"deep\.json"):
        load_tokenizer(tmp_path / "deep.json")
    with pytest.raises(InputError, match="characters must come as"):
        CharTokenizer(b'{"characters": "\\ud800"}')


def test_numbers_too_long_for_whisper_normalization_are_refused():
    pytest.importorskip("whisper_normalizer")
    assert english_normalizer()("Twenty one") == "21"
    with pytest.raises(InputError, match="use --normalize"):
        english_normalizer()("9" * 5000)


@pytest.mark.parametrize(
    "progress",
    ['{"job": {}, "part": [1, 1]}', '{"job": {}, "n_total": 1, "part": ["x", 1]}', '{"job": {}, "n_total": 1, "part": [1, 1e999]}',
     '{"job": 5, "n_total": 1, "part": [1, 1]}', "\xff"],
)  # fmt: skip
def test_an_invalid_progress_file_is_refused(tmp_path, capsys, progress):
    (tmp_path / "out.part-00001-of-00001").write_text("a row\n")
    (tmp_path / "out.part-00001-of-00001.progress").write_bytes(progress.encode("latin-1") + b"\n")
    assert main(["merge", str(tmp_path / "out")]) == 2
    assert "out.part-00001-of-00001.progress " in capsys.readouterr().err


@pytest.mark.parametrize("output", ["/", ".", ""])
def test_an_output_that_is_not_a_file_is_refused(once, tmp_path, monkeypatch, capsys, output):
    monkeypatch.chdir(tmp_path)
    run = str(once("run of letters", lambda folder: language_run(folder / "run")) / "run")
    words = ["generate", run, "--prompt", "a", "--max-length", "1", "--device", "cpu", "--output", output]
    for each in (words, [*words, "--part", "1/2"], ["merge", output], ["serve", output, "--port", "0"]):
        assert main(each) == 2
        assert capsys.readouterr().err.count("\n") == 1
    with pytest.raises(OSError):
        write_file(Path(output), "")


@pytest.mark.parametrize("terminal", [False, True])
def test_unencodable_characters_are_printed_as_escapes(monkeypatch, terminal):
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="latin-1")
    monkeypatch.setattr(out, "isatty", lambda: terminal, raising=False)
    monkeypatch.setattr(sys, "stdout", out)
    with command_process("%(message)s", needs_output=True):
        print("grün 日 \udcff", flush=True)
    assert (out.encoding, out.errors) == ("latin-1", "strict")
    want = "grün \\u65e5 \\udcff\n".encode("latin-1") if terminal else "grün 日 \\udcff\n".encode()
    assert raw.getvalue() == want


def test_npy_files_in_place_of_runs_are_refused(tmp_path, capsys):
    np.save(tmp_path / "a.npy", np.zeros((2, 3)))
    for command in (["describe"], ["translate"], ["generate", "--prompt", "a"], ["average", "--last", "1"]):
        assert main([command[0], str(tmp_path / "a.npy"), *command[1:]]) == 2
        assert capsys.readouterr().err.count("\n") == 1


ABSURD = {
    "translate": ("--batch-tokens", "--max-length", "--top-k", "--beam-size"),
    "generate": ("--max-length", "--n", "--batch-size", "--repetition-penalty", "--top-k", "--seed"),
    "score perplexity": ("--window", "--stride"),
    "score chrf": ("--word-order", "--resamples"),
}


@pytest.mark.parametrize(("command", "flag"), [(c, flag) for c, flags in ABSURD.items() for flag in flags])
def test_absurdly_large_numbers_are_refused_by_flag(once, tmp_path, capsys, command, flag):
    letters = str(once("run of letters", lambda folder: language_run(folder / "run")) / "run")
    text = str(once("run of text", lambda folder: random_run(folder / "run", model=LITTLE)) / "run")
    (tmp_path / "a").write_text("All\n")
    file = str(tmp_path / "a")
    words = {"translate": [text, file], "generate": [letters, "--prompt", "a"], "score perplexity": [letters, file],
             "score chrf": [file, file]}[command]  # fmt: skip
    for value in (f"1{'0' * 20}", f"1{'0' * 400}"):
        assert main([*command.split(), *words, flag, value]) == 2
        err = capsys.readouterr().err
        assert flag.strip("-").replace("-", "_") in err.replace("-", "_") and err.count("\n") == 1


@pytest.mark.parametrize("name", ["hpu", "xla", "meta", "cuda:99", "cpu:x", "", ":", "\udcff", "privateuseone"])
def test_unknown_devices_are_refused(name):
    with pytest.raises(InputError, match="device must be one that this machine has"):
        torch_device(name)
