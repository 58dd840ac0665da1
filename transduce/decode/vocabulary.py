"""What tokens write, as bytes (UTF-8), and tries of byte strings that tokens walk through.

Phrases are compared as bytes, so every way to spell one counts, and a token may write the end of a
phrase and more. A text is seen between two spaces, which it does not hold itself: a phrase that
begins or ends with a space stands at the beginning or the end of a word.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np

from transduce.data.base_tokenizer import Tokenizer


class Vocabulary:
    """What the tokens of a vocabulary write.

    Args:
        surfaces: what each token adds to a text, in UTF-8; nothing for special ones.
        eos_id: stands for the space behind the text; None: there is none.
    """

    def __init__(self, surfaces: Sequence[bytes], eos_id: int | None) -> None:
        self.surfaces = list(surfaces)
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
        """For every place in a text, and its end, the tokens that may come next to write all of it.

        The last one may write more. Where there is none, but before the end, the rest cannot be
        written.
        """
        ways: list[list[int]] = [[] for _ in text]
        for start in reversed(range(len(text))):
            ways[start] = [i for _, i in self.beyond(text[start:])]
            for stop in range(start + 1, min(len(text), start + self.longest + 1)):
                if stop < len(text) and ways[stop]:
                    ways[start] += self.writing(text[start:stop])
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
        self.is_end = np.zeros(len(self.next), dtype=bool)
        """By state, whether a string ends in it."""
        self.is_end[self.ends] = True

    def state(self, text: bytes) -> int:
        """The state behind a text."""
        state = 0
        for byte in text:
            state = int(self.next[state, self.column[byte]])
        return state

    def walk(self, state: int, tokens: Vocabulary) -> tuple[np.ndarray, np.ndarray]:
        """For every token: the state behind it, and whether a string ended in it."""
        states = np.full(len(tokens.surfaces), state, dtype=np.int32)
        ended = np.zeros(len(states), dtype=bool)
        for ids, column in tokens.columns:
            states[ids] = self.next[states[ids], self.column[column]]
            ended[ids] |= self.is_end[states[ids]]
        return states, ended


class Matcher(Trie):
    """Finds strings in texts: a state is the longest end of a text with which one begins.

    Source: Aho and Corasick (1975), Efficient string matching.
    """

    def __init__(self, strings: Sequence[bytes]) -> None:
        super().__init__(strings)
        self.longest = max(map(len, strings), default=0)
        self.shorter = np.zeros(len(self.children), dtype=np.int32)
        """By state, the next shorter one."""
        queue = [0]
        for state in queue:
            shorter = self.shorter[state]
            for byte, child in self.children[state].items():
                self.shorter[child] = self.next[shorter, self.column[byte]] if state else 0
                self.is_end[child] |= self.is_end[self.shorter[child]]
                queue.append(child)
            otherwise = self.next[shorter] if state else 0
            self.next[state] = np.where(
                self.next[state] == self.nowhere, otherwise, self.next[state]
            )

    def state(self, text: bytes) -> int:
        """The state behind a text, of which the last bytes decide."""
        return super().state(text[-self.longest :])
