"""Where the text of a language model comes from: files, one text cut in two, or shards; and its tokenizer."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Integer

from transduce.data.text.corpus import check_text, read_lines
from transduce.data.text.stream import Stream, open_shards, smallest_type
from transduce.data.text.tokenizers import Tokenizer, TokenizerKind, load_tokenizer, train_tokenizer

PART = 1 << 20
"""Characters encoded at a time: tokenizers take some hundred bytes for each."""

CUT = re.compile(r"\S\n(?=\S)")
"""A text may be cut behind it: byte-level BPE takes spaces and line breaks in a row together, but for the last."""


def encode_text(tokenizer: Tokenizer, text: str) -> Integer[np.ndarray, " n"]:
    """All ids of a text. Where texts begin and end with different ids, every line that is not blank is one.

    Where nothing or the same id marks both, the text is one as it stands, line breaks and all, behind that id.
    """
    start, end, kind = tokenizer.bos_id, tokenizer.eos_id, smallest_type(tokenizer.vocab_size)
    found = [np.array([] if start is None or start != end else [start], dtype=kind)]
    for part in parts_of(text, PART):
        if start != end:
            rows = tokenizer.encode([line for line in part.split("\n") if line.strip()])
            ids = [i for row in rows for i in (start, *row, end) if i is not None]
        else:
            (ids,) = tokenizer.encode([part])
        found.append(np.array(ids, dtype=kind))
    return np.concatenate(found)


def parts_of(text: str, size: int) -> Iterator[str]:
    """A text in parts of at least `size` characters, cut where no tokenizer can tell."""
    start = 0
    while start < len(text):
        cut = CUT.search(text, start + size - 1)
        stop = cut.end() if cut else len(text)
        yield text[start:stop]
        start = stop


def read_text(path: Path) -> str:
    """A whole UTF-8 file, plain or .gz; its last line ends like the others.

    Raises:
        ValueError: there is no such file, or it is not UTF-8.
    """
    check_text(path)
    return "\n".join([*read_lines(path), ""])


@dataclass(frozen=True)
class Language:
    """A tokenizer and the two streams it made."""

    tokenizer: Tokenizer
    train: Stream
    valid: Stream

    def fingerprints(self) -> dict[str, str]:
        """What the data is, wherever it lies."""
        return {"train": self.train.fingerprint(), "valid": self.valid.fingerprint()}


@dataclass(frozen=True, kw_only=True)
class TextFiles:
    """Any text in files."""

    train: tuple[Path, ...] = ()
    valid: tuple[Path, ...] = ()

    def read(self, kind: TokenizerKind, vocab_size: int, tokenizer: Tokenizer | None = None) -> Language:
        """Train the tokenizer, unless there is one, and encode both sides, each file by itself.

        Raises:
            ValueError: a side or a file is missing.
        """
        if not self.train or not self.valid:
            raise ValueError(
                "a language model needs text to train on and text to validate on: give --train FILES and --valid FILES, "
                f"but there are {len(self.train)} and {len(self.valid)}"
            )
        return _encode(
            tokenizer, kind, vocab_size, [read_text(p) for p in self.train], [read_text(p) for p in self.valid]
        )


@dataclass(frozen=True, kw_only=True)
class OneText:
    """One text, whose end is held out."""

    data: Path | None = None
    name: str = "input.txt"
    valid_share: float = 0.1

    def read(self, kind: TokenizerKind, vocab_size: int, tokenizer: Tokenizer | None = None) -> Language:
        """Cut at a character, train the tokenizer, unless there is one, and encode both sides.

        Raises:
            ValueError: no folder is named, or it lacks the file.
        """
        if self.data is None or not (self.data / self.name).is_file():
            raise ValueError(f"the text must be DIR/{self.name} with --data DIR, but --data is {self.data}")
        text = read_text(self.data / self.name)
        cut = int(len(text) * (1 - self.valid_share))
        return _encode(tokenizer, kind, vocab_size, [text[:cut]], [text[cut:]])


@dataclass(frozen=True, kw_only=True)
class Shards:
    """Ids on a disk, as scripts/make_shards.py writes them: train-*.bin, valid-*.bin and the tokenizer."""

    data: Path | None = None
    verify: bool = False
    """Compare all bytes with their checksums first."""

    def read(self, kind: TokenizerKind, vocab_size: int, tokenizer: Tokenizer | None = None) -> Language:
        """Map both sides. The tokenizer is the shards' own, whatever the arguments say.

        Raises:
            ValueError: no folder is named, or it lacks a part.
        """
        if self.data is None:
            raise ValueError("shards lie in a folder: use --data DIR; scripts/make_shards.py makes them from text")
        tokenizer = load_tokenizer(self.data)
        train, valid = (
            open_shards(sorted(self.data.glob(f"{split}-*.bin")), tokenizer=tokenizer.model, verify=self.verify)
            for split in ("train", "valid")
        )
        return Language(tokenizer, train, valid)


def _encode(
    tokenizer: Tokenizer | None, kind: TokenizerKind, vocab_size: int, train: list[str], valid: list[str]
) -> Language:
    if tokenizer is None:
        seen = [*train, *valid] if kind == "characters" else train  # which characters there are is no secret
        tokenizer = train_tokenizer(kind, seen, vocab_size=vocab_size)
    sides = [Stream([encode_text(tokenizer, text) for text in texts]) for texts in (train, valid)]
    return Language(tokenizer, *sides)
