"""One id per character: the smallest vocabulary that loses nothing."""

import json
from collections.abc import Iterable, Sequence

from transduce.data.text.tokenizer import Tokenizer
from transduce.errors import InputError


class CharTokenizer(Tokenizer):
    """Characters (code points) in the order of their code points. No id begins or ends a text."""

    def __init__(self, model: bytes) -> None:
        """Read JSON that holds the characters as one string.

        Raises:
            InputError: `model` is something else.
        """
        super().__init__(model)
        try:
            characters = json.loads(model)["characters"]
            str(characters).encode()  # no half of a character
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise InputError(f'characters must come as JSON {{"characters": "..."}}, but: {error!r:.200}') from error
        if not isinstance(characters, str) or not characters or len(set(characters)) < len(characters):
            raise InputError(f"characters must be a string in which each stands once, but it is {characters!r:.60}")
        self._characters = characters
        self._ids = {character: i for i, character in enumerate(characters)}

    @classmethod
    def train(cls, texts: Iterable[str]) -> "CharTokenizer":
        """A vocabulary of every character that occurs in the texts.

        Raises:
            InputError: the texts are empty.
        """
        characters = "".join(sorted(set().union(*texts)))
        return cls(json.dumps({"characters": characters}).encode())

    @property
    def vocab_size(self) -> int:
        return len(self._characters)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """An id per character.

        Raises:
            InputError: a character that is not in the vocabulary.
        """
        try:
            return [[self._ids[character] for character in text] for text in texts]
        except KeyError as error:
            (unknown,) = error.args
            raise InputError(
                f"a text may hold the {self.vocab_size} characters that were trained on, but {unknown!r} "
                f"(U+{ord(unknown):04X}) is none of them; leave it out or train with a text that has it"
            ) from error

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        return ["".join(self._characters[i] for i in row) for row in ids]

    def tokens(self, ids: Sequence[int]) -> list[str]:
        return [self._characters[i] for i in ids]
