"""Texts that an output begins with, holds or must not hold, however the tokenizer could cut them.

What tokens write is compared as bytes (UTF-8), so every way to spell a phrase counts, and a token may write the end of a
phrase and more. A text is seen between two spaces, which it does not hold itself: a phrase that begins or ends with a
space stands at the beginning or the end of a word.
"""

from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


class Vocabulary:
    """What the tokens of a vocabulary write.

    Args:
        surfaces: what each token adds to a text, in UTF-8; nothing for special ones.
        eos_id: stands for the space behind the text; None: there is none.
    """

    def __init__(self, surfaces: Sequence[bytes], eos_id: int | None) -> None:
        self.surfaces = list(surfaces)
        self.ordered = sorted((surface, i) for i, surface in enumerate(surfaces) if surface and i != eos_id)
        self.longest = max((len(surface) for surface, _ in self.ordered), default=0)
        if eos_id is not None:
            self.surfaces[eos_id] = b" "
        lengths = np.array([len(surface) for surface in self.surfaces])
        columns = [np.flatnonzero(lengths > j) for j in range(max(lengths))]
        self.columns = [(ids, np.array([self.surfaces[i][j] for i in ids])) for j, ids in enumerate(columns)]
        """For every place in a token, which tokens have a byte there, and which byte."""

    def text(self, tokens: Sequence[int]) -> bytes:
        """What these tokens write, behind the space before a text."""
        return b" " + b"".join([self.surfaces[i] for i in tokens])

    def writing(self, text: bytes) -> list[int]:
        """The tokens that write exactly this."""
        return [i for surface, i in self.beyond(text) if surface == text]

    def beyond(self, text: bytes) -> list[tuple[bytes, int]]:
        """The tokens that write this, and perhaps more behind it, each behind what it writes."""
        first = last = bisect_left(self.ordered, (text, -1))
        while last < len(self.ordered) and self.ordered[last][0].startswith(text):
            last += 1
        return self.ordered[first:last]

    def ways(self, text: bytes) -> list[list[int]]:
        """For every place in a text, and its end, the tokens that may come next if all of it shall be written.

        The last one may write more. Where there is none, but before the end, the rest cannot be written.
        """
        found: list[list[int]] = [[] for _ in text]
        for start in reversed(range(len(text))):
            found[start] = [i for _, i in self.beyond(text[start:])]
            for stop in range(start + 1, min(len(text), start + self.longest + 1)):
                if stop < len(text) and found[stop]:
                    found[start] += self.writing(text[start:stop])
        return [*found, []]


class Prefix:
    """What one output begins with.

    Args:
        fixed: its first tokens.
        free: the text behind them, in any tokens, of which the last may write more.

    Raises:
        ValueError: no tokens write `free`.
    """

    def __init__(self, vocabulary: Vocabulary, fixed: Sequence[int], free: bytes) -> None:
        self.vocabulary, self.fixed, self.length = vocabulary, list(fixed), len(free)
        self.ways = vocabulary.ways(free)
        if free and not self.ways[0]:
            raise ValueError(f"a prefix must be made of tokens, but this vocabulary cannot spell {free.decode()!r}")

    @property
    def longest(self) -> int:
        """The most tokens that it can take."""
        return len(self.fixed) + self.length

    def next(self, tokens: Sequence[int]) -> list[int] | None:
        """The tokens that may follow these; None: any, for the prefix is there."""
        if len(tokens) < len(self.fixed):
            return [self.fixed[len(tokens)]]
        written = sum(len(self.vocabulary.surfaces[i]) for i in tokens[len(self.fixed) :])
        return self.ways[written] if written < self.length else None


class Matcher:
    """Finds phrases in what tokens write, byte by byte.

    A state is the longest end of a text with which a phrase begins; 0 is none.

    Source: Aho and Corasick (1975), Efficient string matching.
    """

    def __init__(self, phrases: Sequence[bytes]) -> None:
        self.longest = max(map(len, phrases), default=0)
        children: list[dict[int, int]] = [{}]
        ends = []
        for phrase in phrases:
            state = 0
            for byte in phrase:
                if byte not in children[state]:
                    children[state][byte] = len(children)
                    children.append({})
                state = children[state][byte]
            ends.append(state)
        self.found = np.zeros(len(children), dtype=bool)
        """Whether a phrase ends in a state."""
        self.found[ends] = True
        self.next = np.zeros((len(children), 256), dtype=np.int32)
        """By state and byte, the state that follows."""
        shorter, queue = np.zeros(len(children), dtype=np.int32), [0]
        for state in queue:
            for byte, child in children[state].items():
                shorter[child] = self.next[shorter[state], byte] if state else 0
                self.found[child] |= self.found[shorter[child]]
                queue.append(child)
            if state:
                self.next[state] = self.next[shorter[state]]
            for byte, child in children[state].items():
                self.next[state, byte] = child
        self.shorter = shorter
        """By state, the next shorter one."""

    def state(self, text: bytes) -> int:
        """The state behind a text."""
        state = 0
        for byte in text[-self.longest :]:
            state = int(self.next[state, byte])
        return state

    def follow(self, state: int, vocabulary: Vocabulary) -> tuple[np.ndarray, np.ndarray]:
        """For every token behind this state: the new state, and whether a phrase ended in the token."""
        states = np.full(len(vocabulary.surfaces), state, dtype=np.int32)
        found = np.zeros(len(states), dtype=bool)
        for ids, column in vocabulary.columns:
            states[ids] = self.next[states[ids], column]
            found[ids] |= self.found[states[ids]]
        return states, found


class Forbidden:
    """Phrases that no output holds."""

    def __init__(self, vocabulary: Vocabulary, phrases: Sequence[bytes]) -> None:
        self.vocabulary, self.matcher = vocabulary, Matcher(phrases)
        self._row = lru_cache(maxsize=256)(self._ruled_out)

    def ruled_out(self, rows: Sequence[Sequence[int]]) -> Bool[Tensor, "N V"]:
        """For every row of tokens, the tokens that would complete a phrase behind it."""
        return torch.stack([self._row(self.matcher.state(self.vocabulary.text(tokens))) for tokens in rows])

    def _ruled_out(self, state: int) -> Bool[Tensor, " V"]:
        return torch.from_numpy(self.matcher.follow(state, self.vocabulary)[1])
