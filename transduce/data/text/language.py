"""Text for language models, from files, from one text that is split in two, or from shards; and its
tokenizer."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Integer

from transduce.config import Common, within
from transduce.data.text.base_tokenizer import Tokenizer
from transduce.data.text.lines import read_lines
from transduce.data.text.shards import Stream, open_shards, smallest_type
from transduce.data.text.tokenizer_files import (
    KINDS,
    TokenizerKind,
    load_tokenizer,
    train_tokenizer,
)
from transduce.errors import InputError

PART = 1 << 20
"""Characters that are encoded at a time: tokenizers take some hundred bytes for each."""

CUT = re.compile(r"\S\n(?=\S)")
"""A text may be split after this. Byte-level BPE joins white space in a row, except for its last
character."""


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
    """A tokenizer and the streams of ids that it made of the training and the validation text."""

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
        """Train the tokenizer, unless there is one, and encode both sides, each text by itself.

        Raises:
            InputError: a text is not named, or missing.
        """
        train, valid = self.texts()
        if isinstance(kind, Path):
            tokenizer = tokenizer or load_tokenizer(kind)
        elif tokenizer is None:
            seen = (
                [*train, *valid] if kind == "characters" else train
            )  # a set of characters gives nothing away
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
                "FILES and "
                f"--valid FILES, but there are {len(self.train)} and {len(self.valid)}"
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
        within("(0, 1)", valid_share=self.valid_share)

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


@dataclass(frozen=True, kw_only=True)
class Shards:
    """A folder of shards, as `transduce data shards` writes it: train-*.bin, valid-*.bin and the
    tokenizer."""

    data: Common[Path | None] = None
    """The folder."""
    verify: bool = False
    """Whether to compare all bytes with their checksums first."""

    def read(
        self,
        kind: TokenizerKind | Path,
        vocab_size: int,
        tokenizer: Tokenizer | None = None,
        symbols: Sequence[str] = (),
    ) -> Language:
        """Map the shards into memory. The tokenizer is the shards' own, and vocab_size is not used.

        Args:
            tokenizer: that of the file `kind`, where it is one; otherwise it is not used.

        Raises:
            InputError: no folder is named, it lacks shards or the tokenizer, or another tokenizer
                or symbols are named.
        """
        if self.data is None:
            raise InputError(
                "shards lie in a folder: use --data DIR; transduce data shards makes them from text"
            )
        own = load_tokenizer(self.data)
        if isinstance(kind, Path):
            matches = (tokenizer or load_tokenizer(kind)).model == own.model
        else:
            matches = isinstance(own, KINDS[kind])
        if symbols or not matches:
            raise InputError(
                f"shards are ids of the tokenizer in their folder, a {type(own).__name__} in "
                f"{self.data}, but there is tokenizer={kind}, symbols={' '.join(symbols)!r}; leave "
                "these out, or make other shards: transduce data shards --tokenizer FILE"
            )
        train, valid = (
            open_shards(
                sorted(self.data.glob(f"{split}-*.bin")), tokenizer=own.model, verify=self.verify
            )
            for split in ("train", "valid")
        )
        return Language(own, train, valid)
