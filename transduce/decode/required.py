"""Phrases that the output of each sentence must hold, in any tokens."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from transduce.data.text.base_tokenizer import Tokenizer
from transduce.decode.vocabulary import Matcher, Vocabulary, phrase_bytes, vocabulary
from transduce.errors import InputError


class Required:
    """Phrases that the output of each sentence must hold, and the progress of hypotheses with them.

    Progress is the bytes of complete phrases, and of the longest beginning of another one at the end of the hypothesis
    from where tokens can complete it. Such a token always exists; a hypothesis that takes the one of most progress each
    time completes all phrases.

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
            for state in range(1, len(phrase)):  # the longest end from where the phrase can be completed
                useful[state] = state if ways[state] else useful[matcher.shorter[state]]
            self._matchers[phrase] = matcher, useful
            if not self._progress(((phrase, 0),)).any():
                raise InputError(
                    f"a required phrase must be made of tokens, but this vocabulary cannot spell {phrase.decode()!r}"
                )

    def progress(self, rows: Sequence[Sequence[int]], sentences: Sequence[int]) -> Int[Tensor, "N V"]:
        """For every row of tokens, the progress with each next token.

        Args:
            sentences: their numbers, each of len(rows) / len(sentences) neighbouring rows.
        """
        n_rows = len(rows) // len(sentences)
        progress = []
        for row, tokens in enumerate(rows):
            text = self.vocabulary.text(tokens)
            phrases = self.phrases[sentences[row // n_rows]]
            states = ((each, -1 if each in text else self._matchers[each][0].state(text)) for each in phrases)
            progress.append(self._progress_behind(tuple(states)))
        return torch.from_numpy(np.stack(progress))

    def _progress(self, states: tuple[tuple[bytes, int], ...]) -> np.ndarray:
        """The progress behind every token, from the state in every phrase, or -1 where it is complete."""
        complete = begun = np.zeros(len(self.vocabulary.surfaces), dtype=np.int64)
        for phrase, state in states:
            matcher, useful = self._matchers[phrase]
            after, ended = matcher.walk(max(state, 0), self.vocabulary)
            ended |= state < 0
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
