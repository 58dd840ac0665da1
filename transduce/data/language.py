"""Text for language models as a stream of ids: from files, or one text that is split in two."""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int, Integer

from transduce.config import Common, within
from transduce.data.base_tokenizer import Tokenizer
from transduce.data.lines import read_lines
from transduce.data.tokenizer_files import (
    TokenizerKind,
    load_tokenizer,
    train_tokenizer,
)
from transduce.errors import InputError

CHUNK = 1 << 22
"""Ids that are read at a time where a whole stream is read."""


def smallest_type(vocab_size: int) -> np.dtype:
    """uint16 where it holds every id, else uint32; both little-endian, as in files."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


class Stream:
    """Concatenated ids, which may lie in several arrays.

    Args:
        checksums: one per array, where they are known; then a fingerprint is made without reading
            the ids.
        vocab_size: all ids that are read must be below it; None: they are known to be.
    """

    def __init__(
        self,
        parts: Sequence[Integer[np.ndarray, " _"]],
        checksums: Sequence[str] = (),
        vocab_size: int | None = None,
    ) -> None:
        self.parts = list(parts)
        self.checksums = list(checksums)
        self.vocab_size = vocab_size
        self.ends = np.cumsum([len(part) for part in self.parts], dtype=np.int64)

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def read(self, start: int, stop: int) -> Int[np.ndarray, " n"]:
        """The ids start ... stop - 1, or up to the end, across the borders of arrays.

        Raises:
            InputError: one of them is not below vocab_size.
        """
        first, last = np.searchsorted(self.ends, (start, stop - 1), side="right")
        pieces = []
        for part, end in zip(
            self.parts[first : last + 1], self.ends[first : last + 1].tolist(), strict=True
        ):
            begin = end - len(part)
            pieces.append(part[max(start - begin, 0) : stop - begin])
        ids = np.concatenate(pieces).astype(np.int64)
        if self.vocab_size is not None and (largest := ids.max(initial=0)) >= self.vocab_size:
            raise InputError(
                f"ids of shards must be below the {self.vocab_size} of their tokenizer, but one is "
                f"{largest}; make them again: transduce data shards replaces damaged ones"
            )
        return ids

    def chunks(self, overlap: int = 0, limit: int | None = None) -> Iterator[Int[np.ndarray, " _"]]:
        """The first `limit` ids, or all, in chunks; each chunk ends with the first `overlap` ids of
        the next one."""
        stop = len(self) if limit is None else min(limit, len(self))
        for start in range(0, stop, CHUNK):
            yield self.read(start, min(start + CHUNK + overlap, stop))

    def fingerprint(self) -> str:
        """SHA-256 of the checksums if they are known, else of the ids, independent of their
        type."""
        digest = hashlib.sha256("".join(self.checksums).encode())
        for chunk in [] if self.checksums else self.chunks():
            digest.update(chunk.astype("<u4").tobytes())
        return digest.hexdigest()


PART = 1 << 20
"""Characters that are encoded at a time: tokenizers take some hundred bytes for each."""

CUT = re.compile(r"\S\n(?=\S)")
"""A text may be split after this without a change of its tokens: byte-level BPE joins consecutive
white space, except for its last character."""


def encode_text(tokenizer: Tokenizer, text: str) -> Integer[np.ndarray, " n"]:
    """All ids of a text.

    If texts begin and end with different ids (SentencePiece), every line that is not blank is a
    text. If one id marks both (byte-level BPE), or none does (characters), the file is one text
    with its line breaks, after that id.
    """
    start, end = tokenizer.bos_id, tokenizer.eos_id
    kind = smallest_type(tokenizer.vocab_size)
    parts = [np.array([] if start is None or start != end else [start], dtype=kind)]
    for part in parts_of(text, PART):
        if start != end:
            rows = tokenizer.encode([line for line in part.split("\n") if line.strip()])
            ids = [i for row in rows for i in (start, *row, end) if i is not None]
        else:
            (ids,) = tokenizer.encode([part])
        parts.append(np.array(ids, dtype=kind))
    return np.concatenate(parts)


def parts_of(text: str, size: int) -> Iterator[str]:
    """A text in parts of at least `size` characters, split where that changes no token."""
    start = 0
    while start < len(text):
        cut = CUT.search(text, start + size - 1)
        stop = cut.end() if cut else len(text)
        yield text[start:stop]
        start = stop


def read_text(path: Path) -> str:
    """A whole UTF-8 file, plain or .gz. Every line ends in a line break, the last one too.

    Raises:
        InputError: there is no such file, or it is not UTF-8.
    """
    return "\n".join([*read_lines(path), ""])


@dataclass(frozen=True)
class Language:
    """A tokenizer, and the training and the validation text as streams of its ids."""

    tokenizer: Tokenizer
    train: Stream
    valid: Stream

    def fingerprints(self) -> dict[str, str]:
        """Hashes of both streams, which do not depend on where the files are."""
        return {"train": self.train.fingerprint(), "valid": self.valid.fingerprint()}


class PlainText:
    """Training and validation text that is encoded when it is read."""

    def texts(self) -> tuple[list[str], list[str]]:
        """The training and the validation texts."""
        raise NotImplementedError

    def read(
        self,
        kind: TokenizerKind | Path,
        vocab_size: int,
        tokenizer: Tokenizer | None = None,
        symbols: Sequence[str] = (),
    ) -> Language:
        """Train the tokenizer, unless there is one, and encode both splits, each text by itself.

        Raises:
            InputError: a text is not named, or missing.
        """
        train, valid = self.texts()
        if isinstance(kind, Path):
            tokenizer = tokenizer or load_tokenizer(kind)
        elif tokenizer is None:
            # the set of characters reveals nothing else of the validation text
            seen = [*train, *valid] if kind == "characters" else train
            tokenizer = train_tokenizer(kind, seen, vocab_size=vocab_size, symbols=symbols)
        streams = (
            Stream([encode_text(tokenizer, text) for text in texts]) for texts in (train, valid)
        )
        return Language(tokenizer, *streams)


@dataclass(frozen=True, kw_only=True)
class TextFiles(PlainText):
    """Text in files of any name."""

    train: Common[tuple[Path, ...]] = ()
    """Files to train on, plain or .gz."""
    valid: Common[tuple[Path, ...]] = ()
    """Files to validate on."""

    def texts(self) -> tuple[list[str], list[str]]:
        """The text of every file.

        Raises:
            InputError: there is no training or no validation file, or a file is missing.
        """
        if not self.train or not self.valid:
            raise InputError(
                "a language model needs text to train on and text to validate on: give --train "
                f"FILES and --valid FILES, but there are {len(self.train)} and {len(self.valid)}"
            )
        return [*map(read_text, self.train)], [*map(read_text, self.valid)]


@dataclass(frozen=True, kw_only=True)
class OneText(PlainText):
    """One text, whose end is the validation text."""

    data: Common[Path | None] = None
    """The folder of the text."""
    name: str = "input.txt"
    """The text's file in it, plain or .gz."""
    valid_share: float = 0.1
    """The share of the text, at its end, that is the validation text."""

    def __post_init__(self) -> None:
        within("(0, 1)", self, "valid_share")

    def texts(self) -> tuple[list[str], list[str]]:
        """The text, split at a character.

        Raises:
            InputError: no folder is named, or it lacks the file.
        """
        if self.data is None or not (self.data / self.name).is_file():
            raise InputError(
                f"the text must be DIR/{self.name} with --data DIR, but {self.data or 'no --data'} "
                "has none"
            )
        text = read_text(self.data / self.name)
        n_train = int(len(text) * (1 - self.valid_share))
        return [text[:n_train]], [text[n_train:]]
