"""What every tokenizer offers."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

AnyKind = TypeVar("AnyKind", bound="Tokenizer")
logger = logging.getLogger("transduce")


class Tokenizer(ABC):
    """Text to ids and back: SentencePiece, byte-level BPE or single characters."""

    suppressed: tuple[int, ...] = ()
    """Ids that no text holds and no model may produce."""

    def __init__(self, model: bytes) -> None:
        self.model = model
        """The whole tokenizer, as its file holds it."""

    @classmethod
    def load(cls: type[AnyKind], path: Path | str) -> AnyKind:
        """Read a file that `save` wrote.

        Raises:
            ValueError: it holds something else; the message names it.
        """
        try:
            return cls(Path(path).read_bytes())
        except ValueError as error:
            raise ValueError(f"{path} holds no tokenizer of this kind: {error}") from error

    def save(self, path: Path | str) -> None:
        """Write the whole tokenizer to one file."""
        Path(path).write_bytes(self.model)

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Number of tokens, special ones included."""

    @property
    def bos_id(self) -> int | None:
        """What every text begins with; None where nothing marks a beginning."""
        return None

    @property
    def eos_id(self) -> int | None:
        """What every text ends with; None where nothing marks an end. Equal to bos_id, it stands between texts."""
        return None

    def with_symbols(self: AnyKind, symbols: Sequence[str]) -> AnyKind:
        """The same tokenizer, in which each of these symbols, such as <2de>, is one token wherever a text has it.

        The ids of all other tokens stay as they are; a symbol that is no token yet gets one behind them.

        Raises:
            ValueError: this kind of tokenizer has no symbols, or one of them marks something else.
        """
        raise ValueError(
            f"symbols are tokens of SentencePiece or byte-level BPE, but this is a {type(self).__name__}; leave them out "
            "or take another tokenizer (--tokenizer byte_bpe)"
        )

    @abstractmethod
    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids without bos_id and eos_id, a list per text."""

    @abstractmethod
    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """The text of each list of ids, without bos_id and eos_id."""

    @abstractmethod
    def tokens(self, ids: Sequence[int]) -> list[str]:
        """The tokens one by one, readable, for pictures and reports."""


def say_if_smaller(found: int, asked: int) -> None:
    """Say in one line that a text has not enough pieces for the vocabulary that was asked for."""
    if found < asked:
        logger.warning("the vocabulary has %s tokens instead of %s: the text has no more", f"{found:,}", f"{asked:,}")
