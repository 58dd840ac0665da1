"""A language of random numbers, and two searches in it without tensors, with which beam search is compared."""

import functools
import math
import random
from dataclasses import dataclass

import torch
from torch import Tensor

from transduce.decode.beam import Hypothesis

PAD, BOS, EOS = 0, 1, 2


@dataclass(frozen=True)
class Language:
    """Next-token logits are random, but fixed for every seed, sentence and prefix."""

    seed: int
    vocab_size: int = 5

    @functools.cache  # noqa: B019
    def logits(self, sentence: int, prefix: tuple[int, ...]) -> list[float]:
        """Computed once for all equal languages, as several searches need it."""
        rng = random.Random(repr((self.seed, sentence, prefix)))
        return [rng.gauss(0, 2) for _ in range(self.vocab_size)]

    @functools.cache  # noqa: B019
    def log_probs(self, sentence: int, prefix: tuple[int, ...]) -> list[float]:
        logits = self.logits(sentence, prefix)
        total = math.log(sum(math.exp(x) for x in logits))
        return [x - total for x in logits]


class LanguageScorer:
    """A Scorer of a Language: every row is a sentence and a prefix. It counts the rows of each step."""

    additive = False

    def __init__(self, language: Language, sentences: list[int]) -> None:
        self.language, self.n_sentences = language, len(sentences)
        self.rows: list[tuple[int, tuple[int, ...]]] = [(sentence, ()) for sentence in sentences]
        self.n_rows: list[int] = []

    def step(self, tokens: Tensor) -> Tensor:
        self.rows = [(s, (*prefix, t)) for (s, prefix), t in zip(self.rows, tokens.tolist(), strict=True)]
        self.n_rows.append(len(self.rows))
        return torch.tensor([self.language.logits(s, prefix[1:]) for s, prefix in self.rows], dtype=torch.float64)

    def reorder(self, rows: Tensor) -> None:
        self.rows = [self.rows[row] for row in rows.tolist()]

    def keep(self, sentences: Tensor) -> None:
        self.n_sentences = len(sentences)


def penalty(length: int, alpha: float) -> float:
    return (5 + length) ** alpha / 6**alpha


def brute_force(language: Language, sentence: int, bound: int, alpha: float, suppressed: list[int]) -> list[Hypothesis]:
    """Every possible sequence, best score first."""
    got: list[Hypothesis] = []

    def grow(prefix: tuple[int, ...], log_prob: float) -> None:
        if len(prefix) == bound:
            got.append(Hypothesis(list(prefix), log_prob, log_prob / penalty(bound, alpha), False))
            return
        for token, gain in enumerate(language.log_probs(sentence, prefix)):
            total = log_prob + gain
            if token == EOS and EOS not in suppressed:
                got.append(Hypothesis(list(prefix), total, total / penalty(len(prefix) + 1, alpha), True))
            elif token not in suppressed:
                grow((*prefix, token), total)

    grow((), 0.0)
    return sorted(got, key=lambda hypothesis: -hypothesis.score)


def plain_beam_search(
    language: Language,
    sentence: int,
    bound: int,
    size: int,
    alpha: float,
    suppressed: list[int],
    finished_first: bool = True,
) -> list[Hypothesis]:
    """The rules of beam_search in lists, one sentence at a time, over all continuations instead of the best 2K."""
    live: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    finished: list[Hypothesis] = []
    for length in range(1, bound + 1):
        candidates = sorted(
            (
                (log_prob + gain, (*prefix, token))
                for log_prob, prefix in live
                for token, gain in enumerate(language.log_probs(sentence, prefix))
                if token not in suppressed
            ),
            reverse=True,
        )
        ended = [(log_prob, prefix) for log_prob, prefix in candidates[:size] if prefix[-1] == EOS]
        finished += [Hypothesis(list(p[:-1]), x, x / penalty(length, alpha), True) for x, p in ended]
        finished = sorted(finished, key=lambda hypothesis: -hypothesis.score)[:size]
        live = [candidate for candidate in candidates if candidate[1][-1] != EOS][:size]
        if not live or (len(finished) == size and live[0][0] / penalty(length, alpha) <= finished[-1].score):
            break
    else:
        cut = [Hypothesis(list(prefix), x, x / penalty(bound, alpha), False) for x, prefix in live]
        finished += cut[: size - len(finished)] if finished_first else cut
    return sorted(finished, key=lambda hypothesis: -hypothesis.score)[:size]
