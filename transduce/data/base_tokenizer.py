"""The interface of all tokenizers, and the simplest one, with an id per character."""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from transduce.errors import InputError, errors_of, logger

AnyTokenizer = TypeVar("AnyTokenizer", bound="Tokenizer")  # beartype takes no Self in a method
END = "<|endoftext|>"
"""The token between the texts of GPT-2's training data."""
LARGEST = "[0, 10000000]"
"""The allowed sizes of a trained vocabulary; above, the libraries fail or take all memory."""
SPECIAL = {
    "pad_id": ("<pad>", "[PAD]", "<|pad|>"),
    "bos_id": ("<s>", "<bos>", "[BOS]", "<|begin_of_text|>", "[CLS]", END),
    "eos_id": (
        "</s>",
        "<eos>",
        "[EOS]",
        "<|end_of_text|>",
        "[SEP]",
        END,
        "<|im_end|>",
        "<|eot_id|>",
    ),
}
"""Names of special tokens in vocabularies that do not say which one is which."""
BYTE = re.compile("<0x([0-9A-F]{2})>")
"""The name of a byte in vocabularies with byte fallback."""
TAG = re.compile(r"<2([^<>\s]+)>")
"""The tag before a source of a multilingual model, which names the target language: <2de>."""


def tag_of(language: str) -> str:
    """The tag of this language."""
    return f"<2{language}>"


class Tokenizer(ABC):
    """Converts text to ids and back; subclasses use SentencePiece, the library `tokenizers`, single
    characters or phones."""

    file_name: str
    """The name of its file in a run directory; if each side has a tokenizer, "source" or "target"
    replaces "tokenizer" in it."""
    vocab_size: int
    """Number of tokens, special ones included."""
    all_tokens: list[str]
    """The tokens of the whole vocabulary, by their ids; "" where an id has none."""
    bos_id: int | None = None
    """The id at the beginning of every text; None if there is none."""
    eos_id: int | None = None
    """The id at the end of every text; None if there is none. If it equals bos_id, it separates
    texts."""
    pad_id: int | None = None
    """The id of padding, which is also the blank of CTC; None if there is none."""
    unk_id: int | None = None
    """The id of the unknown token; None if there is none."""
    opening: tuple[int, ...] = ()
    """Ids after bos_id at the beginning of every text, such as a language tag."""
    writes_phones = False
    """Whether tokens are phones, from which the words of a text are looked up."""
    lacks_language = False
    """Whether texts need a language tag, but no language was chosen (`with_language`)."""
    languages: Mapping[str, int] = MappingProxyType({})
    """The ids of the language tags that texts may have, by the name of the language."""
    tagged_languages: tuple[str, ...] = ()
    """The target languages that a tag before a source can name, if the model was trained with such
    tags."""
    timestamp_begin_id: int | None = None
    """The id of the first timestamp token, for 0 seconds, if there are any, as in Whisper."""
    no_speech_id: int | None = None
    """The id of the no-speech token, if there is one, as in Whisper."""

    def __init__(self, model: bytes) -> None:
        self.model = model
        """The content of the tokenizer's file."""

    @classmethod
    def load(cls: type[AnyTokenizer], path: Path | str) -> AnyTokenizer:
        """Read a file that `save` wrote.

        Raises:
            InputError: the file holds something else; the message names it.
        """
        with errors_of(f"{path} holds no tokenizer of this kind"):
            return cls(Path(path).read_bytes())

    def save(self, path: Path | str) -> None:
        """Write the tokenizer to one file."""
        Path(path).write_bytes(self.model)

    @property
    def suppressed(self) -> tuple[int, ...]:
        """Ids that occur in no text and that a model must not produce."""
        ids = dict.fromkeys((self.pad_id, self.unk_id, self.bos_id))
        return tuple(i for i in ids if i is not None and i != self.eos_id)

    @cached_property
    def surfaces(self) -> list[bytes]:
        """The UTF-8 bytes that each token adds to a text between other tokens; empty for special
        tokens."""
        special = {*self.suppressed, self.eos_id}
        ids = range(self.vocab_size)
        alone = self.decode([[i] for i in ids])
        anchors = [i for i in ids if alone[i] and i not in special] or [0]
        # one without a space at either side, if there is any
        anchor = next((i for i in anchors if " " not in self.decode([[i, i]])[0]), anchors[0])
        before, both, *texts = self.decode(
            [[anchor], [anchor, anchor], *([anchor, i, anchor] for i in ids)]
        )
        n_behind = len(both) - len(before)
        return [
            bytes.fromhex(byte[1])
            if (byte := BYTE.fullmatch(name))
            else b""
            if i in special
            else text[len(before) : len(text) - n_behind].encode()
            for i, name, text in zip(ids, self.tokens(ids), texts, strict=True)
        ]

    def spelled(self, text: str) -> bytes:
        """The bytes of the text when its tokens follow others: normalized, and with the space that
        the tokenizer may put before a word.

        Raises:
            InputError: a part of it has no token.
        """
        (ids,) = self.encode([text])
        if self.unk_id is not None and self.unk_id in ids:
            raise InputError(
                f"a phrase must be made of tokens, but this vocabulary cannot spell {text!r}; "
                "change it"
            )
        return b"".join(self.surfaces[i] for i in ids)

    def required(self, *names: str) -> tuple[int, ...]:
        """The special ids of these names, such as "bos_id" and "eos_id", all of which must exist.

        Raises:
            InputError: there is no such token.
        """
        ids = [getattr(self, name) for name in names]
        if missing := [name for name, i in zip(names, ids, strict=True) if i is None]:
            tokens = " and ".join(f"{name} ({', '.join(SPECIAL[name])})" for name in missing)
            raise InputError(
                "a model that turns one sequence into another needs a special token for each of "
                f"{', '.join(names)}, but this {type(self).__name__} has none for {tokens}; add "
                "what is missing with --symbols "
                f"'{' '.join(SPECIAL[name][0] for name in missing)}', or name another tokenizer "
                "with --tokenizer FILE"
            )
        return tuple(ids)

    def with_eos(self, rows: Iterable[Sequence[int]]) -> list[list[int]]:
        """These lists of ids, each with `opening` before and eos_id after it.

        Raises:
            InputError: there is no eos_id.
        """
        (eos,) = self.required("eos_id")
        return [[*self.opening, *row, eos] for row in rows]

    def with_language(self: AnyTokenizer, language: str) -> AnyTokenizer:
        """The same tokenizer for texts of this language, if the model has language tags.

        Raises:
            InputError: it has no such language.
        """
        raise InputError(
            "only an imported multilingual model takes a language, but this has a "
            f"{type(self).__name__}; leave out {language!r}"
        )

    def with_tag(self: AnyTokenizer, language: str) -> AnyTokenizer:
        """The same tokenizer, which begins every source with the tag of this target language.

        Raises:
            InputError: there is no such tag.
        """
        languages = ", ".join(self.tagged_languages) or "none"
        raise InputError(
            f"a language must be one that the model writes ({languages}), but it is {language!r}"
        )

    def with_symbols(self: AnyTokenizer, symbols: Sequence[str]) -> AnyTokenizer:
        """The same tokenizer, in which each of these symbols, such as <2de>, is always one token.

        The ids of all other tokens stay as they are; a symbol that is not yet a token gets a new id
        after them.

        Raises:
            InputError: this kind of tokenizer has no symbols, or one of them has another meaning.
        """
        raise InputError(
            "symbols need SentencePiece or the library tokenizers, but this is a "
            f"{type(self).__name__}; leave them out or take another tokenizer (--tokenizer "
            "byte_bpe)"
        )

    @abstractmethod
    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids without bos_id and eos_id, a list per text."""

    @abstractmethod
    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """The text of each list of ids, without bos_id and eos_id."""

    def beginnings(self, ids: Sequence[int]) -> list[str]:
        """The text up to each of these tokens; its last word may be incomplete."""
        return self.decode([ids[:n] for n in range(1, len(ids) + 1)])

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """The tokens one by one, readable, for pictures and reports."""
        return [self.all_tokens[i] for i in ids]

    @property
    def token_ids(self) -> dict[str, int]:
        """The id of each token."""
        return {token: i for i, token in enumerate(self.all_tokens)}


class CharTokenizer(Tokenizer):
    """One token per character, in the order of code points. There is no BOS and no EOS."""

    file_name = "characters.json"

    def __init__(self, model: bytes) -> None:
        """Read JSON that holds the characters as one string.

        Raises:
            InputError: `model` is something else.
        """
        super().__init__(model)
        try:
            characters = json.loads(model)["characters"]
            str(characters).encode()  # no lone surrogates
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise InputError(
                f'characters must come as JSON {{"characters": "..."}}, but: {error!r:.200}'
            ) from error
        if (
            not isinstance(characters, str)
            or not characters
            or len(set(characters)) < len(characters)
        ):
            raise InputError(
                "characters must be a non-empty string without duplicates, but it is "
                f"{characters!r:.60}"
            )
        self.vocab_size = len(characters)
        self.all_tokens = list(characters)
        self._ids = {character: i for i, character in enumerate(characters)}

    @classmethod
    def train(
        cls, texts: Iterable[str], *, vocab_size: int = 0, symbols: Sequence[str] = ()
    ) -> "CharTokenizer":
        """A vocabulary of every character that occurs in the texts; vocab_size has no effect.

        Raises:
            InputError: the texts are empty, or there are symbols.
        """
        characters = "".join(sorted(set().union(*texts)))
        tokenizer = cls(json.dumps({"characters": characters}).encode())
        return tokenizer.with_symbols(symbols) if symbols else tokenizer

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """An id per character.

        Raises:
            InputError: a character is not in the vocabulary.
        """
        try:
            return [[self._ids[character] for character in text] for text in texts]
        except KeyError as error:
            (unknown,) = error.args
            raise InputError(
                f"a text may only have the {self.vocab_size} characters of the training text, but "
                f"{unknown!r} (U+{ord(unknown):04X}) is not one of them; leave it out or train "
                "with a text that has it"
            ) from error

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        return ["".join(self.tokens(row)) for row in ids]


def warn_if_smaller(size: int, requested: int) -> None:
    """Warn that a text has too few distinct pieces for a vocabulary of the requested size."""
    if size < requested:
        logger.warning(
            "the vocabulary has %s tokens instead of %s: the text has no more",
            f"{size:,}",
            f"{requested:,}",
        )


TAIL = 8
"""Tokens of context that are enough to decode the next ones: earlier tokens change nothing."""


class TextStream:
    """Decodes tokens to text as they arrive after a prompt, from a window of tokens, so that the
    time per token does not grow with the text.

    The window has tokens before the new ones, because SentencePiece leaves out a space at the
    beginning of a text, and because a character may consist of several byte tokens.

    Args:
        space: whether the tokens of the prompt leave out the space at its end; it is not shown
            again.
        stop: stop strings; nothing is shown after the first of them.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt: Sequence[int],
        *,
        space: bool = False,
        stop: Sequence[str] = (),
    ) -> None:
        self.tokenizer = tokenizer
        self.window = list(prompt)
        self.shown = len(self._text()) + space
        """Characters of the window's text that were already returned."""
        self.stop = stop
        self.tail = ""
        """The end of the returned text, in which a stop string may have begun."""
        self.stopped = False
        """Whether the text that was returned last ends with a stop string."""

    def add(self, tokens: Sequence[int], *, last: bool = False) -> str:
        """The text that these tokens add, without an unfinished character unless `last`."""
        new = self._added(tokens, last=last)
        if self.stop:
            text = self.tail + new
            ends = [text.find(each) + len(each) for each in self.stop if each in text]
            self.stopped = bool(ends)
            new = text[len(self.tail) : min(ends, default=None)]
            self.tail = text[-max(map(len, self.stop)) :]
        return new

    def _added(self, tokens: Sequence[int], *, last: bool) -> str:
        self.window += tokens
        text = self._text()
        # a character has four bytes at most
        n_open = 0 if last else min(3, len(text) - len(text.rstrip("\ufffd")))
        settled = text[: len(text) - n_open]
        new = settled[self.shown :]
        self.shown = max(self.shown, len(settled))
        if len(self.window) > 2 * TAIL:
            self.window = self.window[-TAIL:]
            self.shown -= len(text) - len(self._text())
        return new

    def _text(self) -> str:
        return self.tokenizer.decode([self.window])[0]
