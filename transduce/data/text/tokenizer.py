"""What every tokenizer offers."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

AnyKind = TypeVar("AnyKind", bound="Tokenizer")


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

    @abstractmethod
    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids without bos_id and eos_id, a list per text."""

    @abstractmethod
    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """The text of each list of ids, without bos_id and eos_id."""

    @abstractmethod
    def tokens(self, ids: Sequence[int]) -> list[str]:
        """The tokens one by one, readable, for pictures and reports."""
