"""One id a character: the smallest vocabulary that loses nothing."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path


class CharTokenizer:
    """Characters (code points) in the order of their code points. No id begins or ends a text."""

    bos_id = eos_id = None
    suppressed: tuple[int, ...] = ()

    def __init__(self, model: bytes) -> None:
        """Read what `model` of another one holds: JSON with the characters as one string.

        Raises:
            ValueError: it is something else.
        """
        self.model = model
        try:
            characters = json.loads(model)["characters"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f'characters must come as JSON {{"characters": "..."}}, but: {error!r}') from error
        if not isinstance(characters, str) or not characters or len(set(characters)) < len(characters):
            raise ValueError(f"characters must be a string in which each stands once, but it is {characters!r:.60}")
        self._characters = characters
        self._ids = {character: i for i, character in enumerate(characters)}

    @classmethod
    def train(cls, texts: Iterable[str]) -> "CharTokenizer":
        """Every character that occurs.

        Raises:
            ValueError: none does.
        """
        characters = "".join(sorted(set().union(*texts)))
        return cls(json.dumps({"characters": characters}).encode())

    @classmethod
    def load(cls, path: Path | str) -> "CharTokenizer":
        """Read a characters.json."""
        return cls(Path(path).read_bytes())

    def save(self, path: Path | str) -> None:
        """Write a characters.json."""
        Path(path).write_bytes(self.model)

    @property
    def vocab_size(self) -> int:
        """Number of characters."""
        return len(self._characters)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """An id per character, a list per text.

        Raises:
            ValueError: a character that is not in the vocabulary.
        """
        try:
            return [[self._ids[character] for character in text] for text in texts]
        except KeyError as error:
            (unknown,) = error.args
            raise ValueError(
                f"a text may hold the {self.vocab_size} characters that were trained on, but {unknown!r} "
                f"(U+{ord(unknown):04X}) is none of them; leave it out or train with a text that has it"
            ) from error

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Text of each list of ids."""
        return ["".join(self._characters[i] for i in row) for row in ids]

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """The characters one by one."""
        return [self._characters[i] for i in ids]
