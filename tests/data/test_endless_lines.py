"""A line that never ends is refused, wherever lines are read; one of the longest is read."""

import io
import sys
from pathlib import Path

import pytest

from transduce.cli import common
from transduce.data import lines
from transduce.data.corpus import Files
from transduce.data.lines import read_lines
from transduce.data.manifest import manifest_audio, read_manifest
from transduce.errors import InputError

ZERO = Path("/dev/zero")
LONGEST = 70_000

pytestmark = pytest.mark.skipif(not ZERO.exists(), reason="needs /dev/zero")


@pytest.fixture(autouse=True)
def shorter_line_limit(monkeypatch):
    monkeypatch.setattr(lines, "LONGEST_LINE", LONGEST)


@pytest.mark.parametrize(
    "read",
    [
        read_lines,
        read_manifest,
        manifest_audio,
        common.read_side,
        lambda path: list(common.lines_or_errors(path)),
        lambda path: list(common.Lines(path)),
        lambda path: Files(train_tsv=path, valid_tsv=path).read("train"),
        lambda path: Files(train_source=path, train_target=path, valid_tsv=path).splits(1),
    ],
)
def test_an_endless_line_in_a_file_is_refused(read):
    with pytest.raises(InputError, match=r"a line of text may have 70,000 bytes, but /dev/zero has a longer one"):
        read(ZERO)


def test_an_endless_line_on_standard_input_is_refused(monkeypatch):
    with ZERO.open() as zero:
        monkeypatch.setattr(sys, "stdin", zero)
        for read in (lambda: list(common.lines_or_errors(Path("-"))), lambda: common.interact(print)):
            with pytest.raises(InputError, match="but standard input has a longer one; split it"):
                read()


def test_a_line_of_the_maximum_length_is_read(tmp_path, monkeypatch):
    text = "a" * (LONGEST - 1) + "\n"
    (tmp_path / "a").write_text("b\n" + text + "c")
    assert read_lines(tmp_path / "a") == ["b", text[:-1], "c"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert list(common.lines_or_errors(Path("-"))) == [text[:-1]]
