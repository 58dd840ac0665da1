"""The words that an output may be made of, however the tokenizer could cut them."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from transduce.decode.phrases import Vocabulary

SPACE = ord(" ")


class Lexicon:
    """Words, with spaces between them, are all that may come out.

    Source: Graves and Jaitly (2014), Towards end-to-end speech recognition with recurrent neural networks, section 4, for a
    search that is restricted to a dictionary.

    Args:
        words: in UTF-8, each without a space.
    """

    def __init__(self, vocabulary: Vocabulary, words: Sequence[bytes]) -> None:
        self.vocabulary, self.words = vocabulary, words
        children: list[dict[int, int]] = [{}]  # by state, which is the beginning of a word; 0 is that of all
        ends = [0]
        for word in words:
            state = 0
            for byte in word:
                if byte not in children[state]:
                    children[state][byte] = len(children)
                    children.append({})
                state = children[state][byte]
            ends.append(state)
        self.nowhere = len(children)
        known = sorted({SPACE, *(byte for word in words for byte in word)})
        self.column = np.full(256, len(known))
        self.column[known] = range(len(known))
        self.next = np.full((len(children) + 1, len(known) + 1), self.nowhere, dtype=np.int32)
        """By state and column of a byte, the state that follows; the last row, and column, lead nowhere."""
        for state, own in enumerate(children):
            self.next[state, self.column[list(own)]] = list(own.values())
        self.next[ends, self.column[SPACE]] = 0
        self._row = lru_cache(maxsize=4096)(self._ruled_out)

    def ruled_out(self, rows: Sequence[Sequence[int]]) -> Bool[Tensor, "N V"]:
        """For every row of tokens, the tokens behind which it could not go on to words of the lexicon."""
        return torch.stack([self._row(self.vocabulary.text(row).rpartition(b" ")[2]) for row in rows])

    def _ruled_out(self, begun: bytes) -> Bool[Tensor, " V"]:
        """The same behind what there is of the last word."""
        state = 0
        for byte in begun:
            state = int(self.next[state, self.column[byte]])
        states = np.full(len(self.vocabulary.surfaces), state, dtype=np.int32)
        for ids, bytes_there in self.vocabulary.columns:
            states[ids] = self.next[states[ids], self.column[bytes_there]]
        return torch.from_numpy(states == self.nowhere)
