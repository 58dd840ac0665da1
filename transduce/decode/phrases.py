"""Texts that an output begins with, must not hold, or is made of, in any tokens."""

from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache, partial
from pathlib import Path

import torch
from jaxtyping import Bool
from torch import Tensor

from transduce.data.text.base_tokenizer import Tokenizer
from transduce.data.text.lines import read_lines
from transduce.decode.rules import Rule, behind_prompt, ids_tensor
from transduce.decode.vocabulary import Matcher, Trie, Vocabulary, phrase_bytes, vocabulary
from transduce.errors import InputError
from transduce.files import write_file


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
            i for i, own in zip(prefix.ways[0], bare, strict=True) if not own.startswith(" ")
        ]
    return prefix


class Forbidden:
    """Phrases that no output holds."""

    def __init__(self, vocabulary: Vocabulary, phrases: Sequence[bytes]) -> None:
        self.vocabulary = vocabulary
        self.matcher = Matcher(phrases)
        self._ruled_out = lru_cache(maxsize=256)(
            lambda state: torch.from_numpy(self.matcher.walk(state, vocabulary)[1])
        )

    def ruled_out(self, rows: Sequence[Sequence[int]]) -> Bool[Tensor, "N V"]:
        """For every row of tokens, the tokens that would complete a phrase behind it."""
        return torch.stack(
            [self._ruled_out(self.matcher.state(self.vocabulary.text(tokens))) for tokens in rows]
        )

    def rule(self, prompts: Tensor | None = None) -> Rule:
        """The rule for outputs behind these prompts, in which a phrase may begin."""
        return partial(self._apply, prompts)

    def _apply(
        self, prompts: Tensor | None, scores: Tensor, tokens: Tensor, sentences: Sequence[int]
    ) -> Tensor:
        ruled_out = self.ruled_out(behind_prompt(prompts, tokens, sentences).tolist())
        return scores.masked_fill_(ruled_out.to(scores.device), -torch.inf)


@lru_cache(maxsize=4)
def forbidden(tokenizer: Tokenizer, phrases: tuple[str, ...], size: int = 0) -> Forbidden:
    """The phrases as they stand, and as the tokenizer normalizes them."""
    strings = {phrase.encode() for phrase in phrases}
    for phrase in phrases:
        try:
            strings.add(phrase_bytes(tokenizer, phrase))
        except InputError:  # a phrase without tokens comes out of none
            continue
    return Forbidden(vocabulary(tokenizer, size), sorted(strings))


LEXICON = "lexicon.txt"


class Lexicon:
    """Outputs are made of these words, with spaces between them.

    Source: Graves and Jaitly (2014), Towards end-to-end speech recognition with recurrent neural
    networks, section 4, for a search that is restricted to a dictionary.

    Args:
        words: in UTF-8, each without a space.
    """

    def __init__(self, vocabulary: Vocabulary, words: Sequence[bytes]) -> None:
        self.vocabulary = vocabulary
        self.words = words
        self.trie = Trie(words, b" ")
        self.trie.next[[0, *self.trie.ends], self.trie.column[ord(" ")]] = 0
        self._ruled_out_behind = lru_cache(maxsize=4096)(self._ruled_out)

    def ruled_out(self, rows: Sequence[Sequence[int]]) -> Bool[Tensor, "N V"]:
        """For every row of tokens, those behind which it could not go on to known words."""
        return torch.stack(
            [self._ruled_out_behind(self.vocabulary.text(row).rpartition(b" ")[2]) for row in rows]
        )

    def rule(self, free: Collection[int] = ()) -> Rule:
        """The rule for all sentences but those with the numbers `free`."""
        return partial(self._apply, free)

    def _ruled_out(self, begun: bytes) -> Bool[Tensor, " V"]:
        """The same behind the beginning of a word."""
        states, _ = self.trie.walk(self.trie.state(begun), self.vocabulary)
        return torch.from_numpy(states == self.trie.nowhere)

    def _apply(
        self, free: Collection[int], scores: Tensor, tokens: Tensor, sentences: Sequence[int]
    ) -> Tensor:
        n_rows = len(tokens) // max(1, len(sentences))
        rows = [row for row in range(len(tokens)) if sentences[row // n_rows] not in free]
        if rows:
            index = ids_tensor(rows, scores.device)
            ruled_out = self.ruled_out(tokens[index].tolist()).to(scores.device)
            scores[index] = scores[index].masked_fill(ruled_out, -torch.inf)
        return scores


@lru_cache(maxsize=4)
def lexicon(tokenizer: Tokenizer, words: tuple[str, ...]) -> Lexicon:
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
    return Lexicon(vocabulary(tokenizer), sorted(known))


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
