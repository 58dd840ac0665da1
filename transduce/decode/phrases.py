"""Texts that an output begins with, must not hold, or is made of, in any tokens."""

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from transduce.data.base_tokenizer import Tokenizer
from transduce.data.lines import read_lines
from transduce.decode.rules import Rule, behind_prompt
from transduce.decode.vocabulary import Matcher, Trie, Vocabulary, phrase_bytes, vocabulary
from transduce.errors import InputError
from transduce.files import write_file

StateT = TypeVar("StateT", int, bytes)


class Prefix:
    """What one output begins with.

    Args:
        fixed: its first tokens.
        free: the text behind them, in any tokens, of which the last may write more.

    Raises:
        InputError: no tokens write `free`.
    """

    def __init__(self, vocabulary: Vocabulary, fixed: Sequence[int], free: bytes) -> None:
        self.vocabulary = vocabulary
        self.fixed = list(fixed)
        self.length = len(free)
        self.ways = vocabulary.ways(free)
        if free and not self.ways[0]:
            raise InputError(
                "a prefix must be made of tokens, but this vocabulary cannot spell "
                f"{free.decode()!r}"
            )

    @property
    def longest(self) -> int:
        """The most tokens that it can take."""
        return len(self.fixed) + self.length

    def next(self, tokens: Sequence[int]) -> list[int] | None:
        """The tokens that may follow these; None: any, for the prefix is complete."""
        if len(tokens) < len(self.fixed):
            return [self.fixed[len(tokens)]]
        written = sum(len(self.vocabulary.surfaces[i]) for i in tokens[len(self.fixed) :])
        return self.ways[written] if written < self.length else None


def text_prefix(tokenizer: Tokenizer, text: str) -> Prefix | None:
    """A text as the beginning of an output; None for no text.

    The words before the last one are cut as in training, as it is these tokens that the model
    knows; the last word may be cut in any way, and go on, for whoever types may be in the middle of
    it. A space behind it ends it.

    Raises:
        InputError: not all of it has a token.
    """
    if not text.strip():
        return None
    (ids,) = tokenizer.encode([text])
    surfaces = tokenizer.surfaces
    last = max((i for i, token in enumerate(ids) if surfaces[token].startswith(b" ")), default=0)
    free = b"".join(surfaces[token] for token in ids[last:])
    ended = text[-1] == " " and not tokenizer.spelled(text).endswith(b" ")
    prefix = Prefix(vocabulary(tokenizer), ids[:last], free + b" " * ended)
    if not last and not text.startswith(
        " "
    ):  # no text has a space before its first word, but a byte could write one
        bare = tokenizer.decode([[token] for token in prefix.ways[0]])
        prefix.ways[0] = [
            i for i, text in zip(prefix.ways[0], bare, strict=True) if not text.startswith(" ")
        ]
    return prefix


class TextRule:
    """A rule that reads what a row of tokens writes, and rules out tokens behind it.

    Args:
        state: gives all that matters of a text for the next token.
        ruled_out_behind: gives the tokens that may not come next, (V,), from a state.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        state: Callable[[bytes], StateT],
        ruled_out_behind: Callable[[StateT], np.ndarray],
    ) -> None:
        behind = lru_cache(maxsize=1024)(lambda state: torch.from_numpy(ruled_out_behind(state)))
        self._next = lambda tokens: behind(state(vocabulary.text(tokens)))

    def ruled_out(self, rows: Sequence[Sequence[int]]) -> Bool[Tensor, "N V"]:
        """For every row of tokens, those that may not come next."""
        return torch.stack([self._next(tokens) for tokens in rows])

    def rule(self, prompts: Tensor | None = None, *, free: Collection[int] = ()) -> Rule:
        """The rule for outputs behind these prompts, but for the sentences with the numbers
        `free`."""
        return partial(self._apply, prompts, free)

    def _apply(
        self,
        prompts: Tensor | None,
        free: Collection[int],
        scores: Tensor,
        tokens: Tensor,
        sentences: Sequence[int],
    ) -> Tensor:
        ruled_out = self.ruled_out(behind_prompt(prompts, tokens, sentences).tolist())
        is_free = torch.tensor([number in free for number in sentences])
        ruled_out.view(len(sentences), -1)[is_free] = False
        return scores.masked_fill_(ruled_out.to(scores.device), -torch.inf)


def forbidden_phrases(vocabulary: Vocabulary, phrases: Sequence[bytes]) -> TextRule:
    """No output holds one of these phrases."""
    matcher = Matcher(phrases)
    return TextRule(vocabulary, matcher.state, lambda state: matcher.walk(state, vocabulary)[1])


@lru_cache(maxsize=4)
def forbidden(tokenizer: Tokenizer, phrases: tuple[str, ...], size: int = 0) -> TextRule:
    """The phrases as they stand, and as the tokenizer normalizes them."""
    strings = {phrase.encode() for phrase in phrases}
    for phrase in phrases:
        try:
            strings.add(phrase_bytes(tokenizer, phrase))
        except InputError:  # a phrase without tokens comes out of none
            continue
    return forbidden_phrases(vocabulary(tokenizer, size), sorted(strings))


LEXICON = "lexicon.txt"


def known_words(vocabulary: Vocabulary, words: Sequence[bytes]) -> TextRule:
    """Outputs are made of these words, with spaces between them.

    Source: Graves and Jaitly (2014), Towards end-to-end speech recognition with recurrent neural
    networks, section 4, for a search that is restricted to a dictionary.

    Args:
        words: in UTF-8, each without a space.
    """
    trie = Trie(words, b" ")
    trie.next[[0, *trie.ends], trie.column[ord(" ")]] = 0
    return TextRule(
        vocabulary,
        lambda text: text.rpartition(b" ")[2],
        lambda begun: trie.walk(trie.state(begun), vocabulary)[0] == trie.nowhere,
    )


@lru_cache(maxsize=4)
def lexicon(tokenizer: Tokenizer, words: tuple[str, ...]) -> TextRule:
    """The words as the tokenizer normalizes them.

    Raises:
        InputError: none of them has tokens.
    """
    known = set[bytes]()
    for word in words:
        try:
            known |= {*phrase_bytes(tokenizer, word).split()}
        except InputError:  # a word without tokens cannot come out
            continue
    if not known:
        raise InputError(
            f"known words must be such as the run's tokenizer can spell, but of {len(words)} it "
            "can spell none; "
            f"write others into the run's {LEXICON}, or say words=any"
        )
    return known_words(vocabulary(tokenizer), sorted(known))


def save_lexicon(directory: Path, words: Iterable[str]) -> None:
    """Write the words into a run directory, one in each line, unless it has a lexicon."""
    if words and not (directory / LEXICON).exists():
        write_file(directory / LEXICON, "".join(f"{word}\n" for word in words))


def load_lexicon(directory: Path) -> tuple[str, ...]:
    """The words of a run directory; none if it has no such file."""
    path = directory / LEXICON
    return (
        tuple(word for line in read_lines(path) for word in line.split()) if path.exists() else ()
    )
