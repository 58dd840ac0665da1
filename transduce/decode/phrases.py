"""Phrases that an output begins with or must contain, in any tokenization.

Phrases are compared as UTF-8 bytes, so every tokenization of a phrase counts, and a token may write
the end of a phrase and more. Texts are matched as if they were between two spaces: so a space at
either end of a phrase also matches the beginning or end of the text.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from transduce.data.base_tokenizer import Tokenizer
from transduce.data.lines import read_lines
from transduce.errors import InputError
from transduce.files import write_file


class Vocabulary:
    """The bytes that the tokens of a vocabulary write.

    Args:
        surfaces: what each token adds to a text, in UTF-8; nothing for special ones.
        eos_id: it writes the space after the text; None: there is no EOS.
    """

    def __init__(self, surfaces: Sequence[bytes], eos_id: int | None) -> None:
        self.surfaces = list(surfaces)
        self.eos_id = eos_id
        self.ids = defaultdict[bytes, list[int]](list)
        """The tokens that write exactly these bytes."""
        for i, surface in enumerate(surfaces):
            if surface and i != eos_id:
                self.ids[surface].append(i)
        self.ordered = sorted(self.ids)
        self.longest = max(map(len, self.ordered), default=0)
        if eos_id is not None:
            self.surfaces[eos_id] = b" "
        lengths = np.array([len(surface) for surface in self.surfaces])
        columns = [np.flatnonzero(lengths > j) for j in range(max(lengths))]
        self.columns = [
            (ids, np.array([self.surfaces[i][j] for i in ids])) for j, ids in enumerate(columns)
        ]
        """For every byte position in a token: the tokens that have a byte there, and that byte."""

    def text(self, tokens: Sequence[int]) -> bytes:
        """The space before a text, then the bytes that these tokens write."""
        return b" " + b"".join([self.surfaces[i] for i in tokens])

    def starting_with(self, text: bytes) -> list[int]:
        """The tokens whose bytes begin with these."""
        first = bisect_left(self.ordered, text)
        last = bisect_right(self.ordered, text, first, key=lambda surface: surface[: len(text)])
        return [i for surface in self.ordered[first:last] for i in self.ids[surface]]

    def ways(self, text: bytes) -> list[list[int]]:
        """For every byte position in a text, and its end, the next tokens with which all of it can
        be written.

        The last token may write more. If a position before the end has none, tokens cannot write
        the rest.
        """
        ways: list[list[int]] = [[] for _ in text]
        for start in reversed(range(len(text))):
            ways[start] = self.starting_with(text[start:])
            for stop in range(start + 1, min(len(text), start + self.longest + 1)):
                if ways[stop]:
                    ways[start] += self.ids.get(text[start:stop], [])
        return [*ways, []]


@lru_cache(maxsize=4)
def vocabulary(tokenizer: Tokenizer, size: int = 0) -> Vocabulary:
    """The vocabulary of a tokenizer; further ids, up to `size`, write nothing."""
    surfaces = tokenizer.surfaces
    return Vocabulary([*surfaces, *[b""] * (size - len(surfaces))], tokenizer.eos_id)


def phrase_bytes(tokenizer: Tokenizer, phrase: str) -> bytes:
    """The phrase as the tokenizer normalizes it, with a space at either end if it has one there.

    Raises:
        InputError: tokens cannot write all of it.
    """
    if not (bare := phrase.strip(" ")):
        return phrase.encode()
    inner = tokenizer.spelled(bare).strip(b" ")
    return b" " * phrase.startswith(" ") + inner + b" " * phrase.endswith(" ")


class Trie:
    """A trie of some strings: its states are their prefixes, and state 0 is the empty one.

    Args:
        more: bytes that may get transitions, in addition to those of the strings.
    """

    def __init__(self, strings: Iterable[bytes], more: bytes = b"") -> None:
        self.children: list[dict[int, int]] = [{}]
        self.ends: list[int] = []
        """The state of each string."""
        for string in strings:
            state = 0
            for byte in string:
                if byte not in self.children[state]:
                    self.children[state][byte] = len(self.children)
                    self.children.append({})
                state = self.children[state][byte]
            self.ends.append(state)
        self.dead = len(self.children)
        """The state without a way out, after bytes that continue no string."""
        alphabet = sorted({*more, *(byte for children in self.children for byte in children)})
        self.column = np.full(256, len(alphabet))
        self.column[alphabet] = range(len(alphabet))
        self.next = np.full((len(self.children) + 1, len(alphabet) + 1), self.dead, dtype=np.int32)
        """The next state, by state and column of a byte; the last row and column are dead."""
        for state, children in enumerate(self.children):
            self.next[state, self.column[list(children)]] = list(children.values())

    def state(self, text: bytes) -> int:
        """The state after a text."""
        state = 0
        for byte in text:
            state = int(self.next[state, self.column[byte]])
        return state

    def walk(
        self, state: int, tokens: Vocabulary, value: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """For every token: the state after it, and the sum of the values of all states up to it."""
        states = np.full(len(tokens.surfaces), state, dtype=np.int32)
        total = np.zeros(len(states), dtype=np.float32)
        for ids, column in tokens.columns:
            states[ids] = self.next[states[ids], self.column[column]]
            total[ids] += value[states[ids]]
        return states, total


class Matcher(Trie):
    """Finds strings in texts: a state is the longest suffix of a text that is a prefix of a string.

    Source: Aho and Corasick (1975), Efficient string matching.
    """

    def __init__(self, strings: Collection[bytes]) -> None:
        super().__init__(strings)
        self.longest = max(map(len, strings), default=0)
        self.shorter = np.zeros(len(self.children), dtype=np.int32)
        """Each state's failure link: the next shorter suffix that is a state."""
        self.order = queue = [0]
        """The states, shorter ones first."""
        for state in queue:
            shorter = self.shorter[state]
            for byte, child in self.children[state].items():
                self.shorter[child] = self.next[shorter, self.column[byte]] if state else 0
                queue.append(child)
            otherwise = self.next[shorter] if state else 0
            self.next[state] = np.where(self.next[state] == self.dead, otherwise, self.next[state])

    def values(self, of_strings: Iterable[float]) -> np.ndarray:
        """By state, the sum of the values of the strings that end there."""
        value = np.zeros(len(self.next), dtype=np.float32)
        value[self.ends] = list(of_strings)
        for state in self.order:
            value[state] += value[self.shorter[state]]
        return value

    def state(self, text: bytes) -> int:
        """The state after a text; only its last bytes matter."""
        return super().state(text[-self.longest :])


class Prefix:
    """The required beginning of one output.

    Args:
        fixed: its first tokens.
        free: the text after them, in any tokens; the last of these may write more.

    Raises:
        InputError: tokens cannot write `free`.
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
        """The largest number of tokens that it can take."""
        return len(self.fixed) + self.length

    def next(self, tokens: Sequence[int]) -> list[int] | None:
        """The tokens that may follow these; None: any, as the prefix is complete."""
        if len(tokens) < len(self.fixed):
            return [self.fixed[len(tokens)]]
        written = sum(len(self.vocabulary.surfaces[i]) for i in tokens[len(self.fixed) :])
        return self.ways[written] if written < self.length else None


def text_prefix(tokenizer: Tokenizer, text: str) -> Prefix | None:
    """The prefix for a text; None for an empty text.

    The words before the last one are tokenized as in training. The last word may be tokenized in
    any way and may continue, as a user may still be typing it; a space after it ends it.

    Raises:
        InputError: tokens cannot write all of it.
    """
    if not text.strip():
        return None
    (ids,) = tokenizer.encode([text])
    surfaces = tokenizer.surfaces
    last = max((i for i, token in enumerate(ids) if surfaces[token].startswith(b" ")), default=0)
    free = b"".join(surfaces[token] for token in ids[last:])
    if text[-1] != " ":
        free = free.rstrip(b" ")  # tokens may end a word with a space
    ended = not tokenizer.spelled(text).endswith(b" ") and text[-1] == " "
    prefix = Prefix(vocabulary(tokenizer), ids[:last], free + b" " * ended)
    # if texts have no space before their first word, a byte token must not write one
    if not last and not tokenizer.decode([ids])[0].startswith(" "):
        bare = tokenizer.decode([[token] for token in prefix.ways[0]])
        prefix.ways[0] = [
            i for i, text in zip(prefix.ways[0], bare, strict=True) if not text.startswith(" ")
        ]
    return prefix


class Required:
    """Phrases that the output of each sentence must contain, and the progress of hypotheses.

    Progress is the number of bytes of complete phrases, plus those of the longest beginning of
    another phrase with which the hypothesis ends and which tokens can complete. Some next token
    always adds progress, so a hypothesis that always takes the token with most progress completes
    all phrases.

    Args:
        phrases: those of each sentence.

    Raises:
        InputError: tokens cannot write one of them.
    """

    def __init__(self, vocabulary: Vocabulary, phrases: Sequence[Sequence[bytes]]) -> None:
        self.vocabulary = vocabulary
        self.phrases = [tuple(dict.fromkeys(each)) for each in phrases]
        self.totals = [sum(map(len, each)) for each in self.phrases]
        """The progress at which each sentence is complete."""
        self._matchers: dict[bytes, tuple[Matcher, np.ndarray]] = {}
        self._cached_progress = lru_cache(maxsize=256)(self._progress)
        for phrase in dict.fromkeys(phrase for each in self.phrases for phrase in each):
            matcher = Matcher([phrase])
            ways = vocabulary.ways(phrase)
            useful = np.arange(len(phrase) + 1)
            # the longest suffix from which tokens can complete the phrase
            for state in range(1, len(phrase)):
                useful[state] = state if ways[state] else useful[matcher.shorter[state]]
            self._matchers[phrase] = matcher, useful
            if not self._progress(((phrase, 0),)).any():
                raise InputError(
                    "a required phrase must be made of tokens, but this vocabulary cannot spell "
                    f"{phrase.decode()!r}"
                )

    def progress(
        self, rows: Sequence[Sequence[int]], sentences: Sequence[int]
    ) -> Int[Tensor, "N V"]:
        """For every row of tokens, the progress after each next token.

        Args:
            sentences: numbers of the sentences, each with len(rows) / len(sentences) consecutive
                rows.
        """
        n_rows = len(rows) // len(sentences)
        progress = []
        for row, tokens in enumerate(rows):
            text = self.vocabulary.text(tokens)
            phrases = self.phrases[sentences[row // n_rows]]
            states = (
                (each, -1 if each in text else self._matchers[each][0].state(text))
                for each in phrases
            )
            progress.append(self._cached_progress(tuple(states)))
        return torch.from_numpy(np.stack(progress))

    def _progress(self, states: tuple[tuple[bytes, int], ...]) -> np.ndarray:
        """The progress after every token, given the state in every phrase; -1: complete."""
        complete = begun = np.zeros(len(self.vocabulary.surfaces), dtype=np.int64)
        for phrase, state in states:
            matcher, useful = self._matchers[phrase]
            after, n_ended = matcher.walk(max(state, 0), self.vocabulary, matcher.values([1.0]))
            ended = (n_ended > 0) | (state < 0)
            complete = complete + len(phrase) * ended
            begun = np.maximum(begun, np.where(ended, 0, useful[after]))
        return complete + begun


def required(tokenizer: Tokenizer, phrases: Sequence[Sequence[str]]) -> Required | None:
    """The phrases that each output must contain; None if there is none at all.

    Raises:
        InputError: tokens cannot write a phrase.
    """
    rows = [[phrase_bytes(tokenizer, phrase) for phrase in each] for each in phrases]
    return Required(vocabulary(tokenizer), rows) if any(rows) else None


LEXICON = "lexicon.txt"


def save_lexicon(directory: Path, words: Iterable[str]) -> None:
    """Write the words into a run directory, one per line, unless it has a lexicon."""
    if words and not (directory / LEXICON).exists():
        write_file(directory / LEXICON, "".join(f"{word}\n" for word in words))


def load_lexicon(directory: Path) -> tuple[str, ...]:
    """The words of a run directory; none if it has no such file."""
    path = directory / LEXICON
    return (
        tuple(word for line in read_lines(path) for word in line.split()) if path.exists() else ()
    )
