"""A long text is encoded in parts, and its ids are those of the whole."""

import re

import numpy as np
import pytest

from transduce.data import language
from transduce.data.base_tokenizer import Tokenizer
from transduce.data.language import TextFiles, encode_text, parts_of, read_text
from transduce.data.tokenizer_files import train_tokenizer

ATOMS = [
    "a", "b", "été", "7", "'s", ".", "東", "<|endoftext|>", " ", "\n", "\n", "\r", "\t", "\u0085", "\u00a0", "\u3000",
]  # fmt: skip
SPACED = "".join(np.random.default_rng(3).choice(ATOMS, 700)) + "\n"
"""Spaces and line breaks of many kinds in a row."""


def at_once(tokenizer: Tokenizer, text: str) -> list[int]:
    """What a text is, in one call; sentence by sentence where a sentence has a beginning and an end of its own."""
    start, end = tokenizer.bos_id, tokenizer.eos_id
    if start is None or start == end:
        return [*([] if start is None else [start]), *tokenizer.encode([text])[0]]
    rows = tokenizer.encode([line for line in text.split("\n") if line.strip()])
    return [i for row in rows for i in (start, *row, end)]


@pytest.mark.parametrize("kind", ["characters", "byte_bpe", "sentencepiece"])
def test_encoding_in_parts_equals_encoding_at_once(kind, monkeypatch):
    tokenizer = train_tokenizer(kind, [SPACED], vocab_size=330)
    want = at_once(tokenizer, SPACED)
    assert encode_text(tokenizer, SPACED).tolist() == want
    for size in (1, 10, 100):
        monkeypatch.setattr(language, "PART", size)
        assert len(list(parts_of(SPACED, size))) > 3
        got = encode_text(tokenizer, SPACED)
        assert got.tolist() == want and got.dtype == np.uint16


def test_parts_cover_the_text_and_are_bounded():
    text = "word\n" * 50 + "no line break at all " * 9
    parts = list(parts_of(text, 30))
    assert "".join(parts) == text and {len(part) for part in parts[:-1]} == {35}  # 30 and the line it falls on
    assert list(parts_of("", 30)) == []


def test_missing_files_and_directories_are_refused(tmp_path):
    (tmp_path / "text").write_text("a")
    for path, what in ((tmp_path, "is a directory"), (tmp_path / "none", "does not exist")):
        with pytest.raises(ValueError) as error:
            read_text(path)
        assert str(error.value) == f"a text must be a file, plain or .gz, but {path} {what}"
        with pytest.raises(ValueError, match=re.escape(str(path))):
            TextFiles(train=(tmp_path / "text",), valid=(path,)).read("characters", 0)
