"""Phrases that an output begins with or must hold, in any tokens: what tokens write, as bytes.

Phrases are compared as bytes (UTF-8), so every way to spell one counts, and a token may write the
end of a phrase and more. A text is seen between two spaces, which it does not hold itself: a phrase
that begins or ends with a space stands at the beginning or the end of a word.
"""

from bisect import bisect_left
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
    """What the tokens of a vocabulary write.

    Args:
        surfaces: what each token adds to a text, in UTF-8; nothing for special ones.
        eos_id: stands for the space behind the text; None: there is none.
    """

    def __init__(self, surfaces: Sequence[bytes], eos_id: int | None) -> None:
        self.surfaces = list(surfaces)
        self.eos_id = eos_id
        self.ordered = sorted(
            (surface, i) for i, surface in enumerate(surfaces) if surface and i != eos_id
        )
        self.longest = max((len(surface) for surface, _ in self.ordered), default=0)
        if eos_id is not None:
            self.surfaces[eos_id] = b" "
        lengths = np.array([len(surface) for surface in self.surfaces])
        columns = [np.flatnonzero(lengths > j) for j in range(max(lengths))]
        self.columns = [
            (ids, np.array([self.surfaces[i][j] for i in ids])) for j, ids in enumerate(columns)
        ]
        """For every place in a token, which tokens have a byte there, and which byte."""

    def text(self, tokens: Sequence[int]) -> bytes:
        """What these tokens write, behind the space before a text."""
        return b" " + b"".join([self.surfaces[i] for i in tokens])

    def beyond(self, text: bytes) -> list[tuple[bytes, int]]:
        """The tokens that write this, and perhaps more behind it, each behind what it writes."""
        first = last = bisect_left(self.ordered, (text, -1))
        while last < len(self.ordered) and self.ordered[last][0].startswith(text):
            last += 1
        return self.ordered[first:last]

    def ways(self, text: bytes) -> list[list[int]]:
        """For every place in a text, and its end, the tokens that may come next to write all of it.

        The last one may write more. Where there is none, but before the end, the rest cannot be
        written.
        """
        ways: list[list[int]] = [[] for _ in text]
        for start in reversed(range(len(text))):
            ways[start] = [i for _, i in self.beyond(text[start:])]
            for stop in range(start + 1, min(len(text), start + self.longest + 1)):
                if stop < len(text) and ways[stop]:
                    part = text[start:stop]
                    ways[start] += [i for surface, i in self.beyond(part) if surface == part]
        return [*ways, []]


@lru_cache(maxsize=4)
def vocabulary(tokenizer: Tokenizer, size: int = 0) -> Vocabulary:
    """What the tokens of a tokenizer write; those beyond it, up to `size`, write nothing."""
    surfaces = tokenizer.surfaces
    return Vocabulary([*surfaces, *[b""] * (size - len(surfaces))], tokenizer.eos_id)


def phrase_bytes(tokenizer: Tokenizer, phrase: str) -> bytes:
    """The phrase as the tokenizer normalizes it, with a space at either end if it has one there.

    Raises:
        InputError: not all of it has a token.
    """
    if not (bare := phrase.strip(" ")):
        return phrase.encode()
    inner = tokenizer.spelled(bare).strip(b" ")
    return b" " * phrase.startswith(" ") + inner + b" " * phrase.endswith(" ")


class Trie:
    """The beginnings of some strings as numbered states, of which 0 is the empty one.

    Args:
        more: bytes that lead somewhere besides those of the strings.
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
        self.nowhere = len(self.children)
        alphabet = sorted({*more, *(byte for children in self.children for byte in children)})
        self.column = np.full(256, len(alphabet))
        self.column[alphabet] = range(len(alphabet))
        self.next = np.full(
            (len(self.children) + 1, len(alphabet) + 1), self.nowhere, dtype=np.int32
        )
        """By state and column of a byte, the state that follows; the last row and column lead
        nowhere."""
        for state, children in enumerate(self.children):
            self.next[state, self.column[list(children)]] = list(children.values())

    def state(self, text: bytes) -> int:
        """The state behind a text."""
        state = 0
        for byte in text:
            state = int(self.next[state, self.column[byte]])
        return state

    def walk(
        self, state: int, tokens: Vocabulary, value: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """For every token: the state behind it, and the sum of the values of the states to it."""
        states = np.full(len(tokens.surfaces), state, dtype=np.int32)
        total = np.zeros(len(states), dtype=np.float32)
        for ids, column in tokens.columns:
            states[ids] = self.next[states[ids], self.column[column]]
            total[ids] += value[states[ids]]
        return states, total


class Matcher(Trie):
    """Finds strings in texts: a state is the longest end of a text with which one begins.

    Source: Aho and Corasick (1975), Efficient string matching.
    """

    def __init__(self, strings: Collection[bytes]) -> None:
        super().__init__(strings)
        self.longest = max(map(len, strings), default=0)
        self.shorter = np.zeros(len(self.children), dtype=np.int32)
        """By state, the next shorter one."""
        self.order = queue = [0]
        """The states, shorter ones first."""
        for state in queue:
            shorter = self.shorter[state]
            for byte, child in self.children[state].items():
                self.shorter[child] = self.next[shorter, self.column[byte]] if state else 0
                queue.append(child)
            otherwise = self.next[shorter] if state else 0
            self.next[state] = np.where(
                self.next[state] == self.nowhere, otherwise, self.next[state]
            )

    def values(self, of_strings: Iterable[float]) -> np.ndarray:
        """By state, the sum of the values of the strings that end there."""
        value = np.zeros(len(self.next), dtype=np.float32)
        value[self.ends] = list(of_strings)
        for state in self.order:
            value[state] += value[self.shorter[state]]
        return value

    def state(self, text: bytes) -> int:
        """The state behind a text, of which the last bytes decide."""
        return super().state(text[-self.longest :])


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
    if text[-1] != " ":
        free = free.rstrip(b" ")  # of tokens that end words
    ended = not tokenizer.spelled(text).endswith(b" ") and text[-1] == " "
    prefix = Prefix(vocabulary(tokenizer), ids[:last], free + b" " * ended)
    # where no text has a space before its first word, a byte could still write one
    if not last and not tokenizer.decode([ids])[0].startswith(" "):
        bare = tokenizer.decode([[token] for token in prefix.ways[0]])
        prefix.ways[0] = [
            i for i, text in zip(prefix.ways[0], bare, strict=True) if not text.startswith(" ")
        ]
    return prefix


class Required:
    """Phrases that the output of each sentence must hold, and the progress of hypotheses with them.

    Progress is the bytes of complete phrases, and of the longest beginning of another one at the
    end of the hypothesis from where tokens can complete it. Such a token always exists; a
    hypothesis that takes the one of most progress each time completes all phrases.

    Args:
        phrases: those of each sentence.

    Raises:
        InputError: no tokens write one of them.
    """

    def __init__(self, vocabulary: Vocabulary, phrases: Sequence[Sequence[bytes]]) -> None:
        self.vocabulary = vocabulary
        self.phrases = [tuple(dict.fromkeys(each)) for each in phrases]
        self.totals = [sum(map(len, each)) for each in self.phrases]
        """The progress with which each sentence is complete."""
        self._matchers: dict[bytes, tuple[Matcher, np.ndarray]] = {}
        self._progress_behind = lru_cache(maxsize=256)(self._progress)
        for phrase in dict.fromkeys(phrase for each in self.phrases for phrase in each):
            matcher = Matcher([phrase])
            ways = vocabulary.ways(phrase)
            useful = np.arange(len(phrase) + 1)
            # the longest end from where the phrase can be completed
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
        """For every row of tokens, the progress with each next token.

        Args:
            sentences: their numbers, each of len(rows) / len(sentences) neighbouring rows.
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
            progress.append(self._progress_behind(tuple(states)))
        return torch.from_numpy(np.stack(progress))

    def _progress(self, states: tuple[tuple[bytes, int], ...]) -> np.ndarray:
        """The progress behind every token, from the state in every phrase; -1: complete."""
        complete = begun = np.zeros(len(self.vocabulary.surfaces), dtype=np.int64)
        for phrase, state in states:
            matcher, useful = self._matchers[phrase]
            after, n_ended = matcher.walk(max(state, 0), self.vocabulary, matcher.values([1.0]))
            ended = (n_ended > 0) | (state < 0)
            complete = complete + len(phrase) * ended
            begun = np.maximum(begun, np.where(ended, 0, useful[after]))
        return complete + begun


def required(tokenizer: Tokenizer, phrases: Sequence[Sequence[str]]) -> Required | None:
    """The phrases that each output must hold; None if there is none at all.

    Raises:
        InputError: not all of a phrase has a token.
    """
    rows = [[phrase_bytes(tokenizer, phrase) for phrase in each] for each in phrases]
    return Required(vocabulary(tokenizer), rows) if any(rows) else None


LEXICON = "lexicon.txt"


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
