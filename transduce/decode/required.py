"""Phrases that outputs must hold, in any tokens, and the beam search that sees to it."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from transduce.data.base_tokenizer import Tokenizer
from transduce.decode.beams import Beams
from transduce.decode.config import BeamConfig
from transduce.decode.constraints import Constraints
from transduce.decode.rules import ids_tensor
from transduce.decode.topk import Continuations
from transduce.decode.vocabulary import Matcher, Vocabulary, phrase_bytes, vocabulary
from transduce.errors import InputError


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
            for state in range(
                1, len(phrase)
            ):  # the longest end from where the phrase can be completed
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


class RequiredBeams(Beams):
    """Beams in which only hypotheses with all required phrases may end.

    The places of a sentence are shared out among banks of progress, from none to all: one for the
    best of each bank, then one for the second best of each, and so on; and the furthest of all
    always has one.

    Source: Post and Vilar (2018), Fast lexically constrained decoding with dynamic beam allocation;
    Hu et al. (2019), Improved lexically constrained decoding for translation and monolingual
    rewriting, for the batch.
    """

    def __init__(
        self, required: Required, config: BeamConfig, constraints: Constraints, n_sentences: int
    ) -> None:
        super().__init__(config, constraints, n_sentences)
        self.required = required

    def continuations(self, scores: Tensor, offset: Tensor) -> Continuations:
        """Continuations that are ends, then beam_size that go on."""
        n_sentences, n_rows = offset.shape
        vocab_size = scores.size(1)
        total = (scores.view(n_sentences, n_rows, -1) + offset[:, :, None]).flatten(1)
        rows = self.active.tokens.flatten(0, 1).tolist()
        progress = (
            self.required.progress(rows, self.sentences).to(scores.device).view(n_sentences, -1)
        )
        needed = ids_tensor([self.required.totals[i] for i in self.sentences], scores.device)
        complete = progress >= needed[:, None]
        ends = torch.arange(total.size(1), device=total.device) % vocab_size == self.eos_id
        total, complete = self._allowed(total, complete, ends)
        last_bank = max(1, self.config.beam_size - 1) - 1
        bank = progress * last_bank // needed.clamp_min(1)[:, None]
        bank = bank.masked_fill(complete, last_bank)
        best, index = share_out(total, progress, ends.expand_as(total), bank, self.config.beam_size)
        return Continuations(best, index % vocab_size, index // vocab_size)

    def _allowed(self, total: Tensor, complete: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
        """Leave out incomplete ends; at the bound, all that is incomplete if anything is complete.

        A sentence may end incomplete if nothing of it has ended, and the rules leave it nothing but
        ends.
        """
        unfinished = self.finished.score[:, 0] == -torch.inf
        stuck = unfinished & (total.masked_fill(ends, -torch.inf) == -torch.inf).all(dim=1)
        complete = complete | stuck[:, None]
        total = total.masked_fill(ends & ~complete, -torch.inf)
        at_bound = self.max_lengths <= self.length + 1
        closing = at_bound & (complete & (total > -torch.inf)).any(dim=1)
        return total.masked_fill(closing[:, None] & ~complete, -torch.inf), complete


def share_out(
    total: Float[Tensor, "A M"], progress: Tensor, ends: Tensor, bank: Tensor, beam_size: int
) -> tuple[Tensor, Tensor]:
    """Values and places of ends among the beam_size best of the last bank, then of as many that go
    on: the furthest, then the best of each bank from the last to the first, then the second best.

    Args:
        total: log-probability of every continuation; the others are of its shape.
    """
    size = min(beam_size, total.size(1))
    banks = range(max(1, beam_size - 1))
    finished = total.masked_fill(bank != banks[-1], -torch.inf).topk(size)
    ended = finished.values.masked_fill(~ends.gather(1, finished.indices), -torch.inf)
    going = total.masked_fill(ends, -torch.inf)
    reached = progress.masked_fill(going == -torch.inf, -1)
    is_furthest = reached == reached.amax(dim=1, keepdim=True)
    furthest = going.masked_fill(~is_furthest, -torch.inf).max(dim=1, keepdim=True)
    best = [going.masked_fill(bank != i, -torch.inf).topk(size) for i in reversed(banks)]
    values, index = (torch.stack(each, dim=2).flatten(1) for each in zip(*best, strict=True))
    values = values.masked_fill(index == furthest.indices, -torch.inf)
    values = torch.cat((furthest.values, values), dim=1)
    index = torch.cat((furthest.indices, index), dim=1)
    order = (values == -torch.inf).byte().sort(dim=1, stable=True).indices[:, :beam_size]
    return (
        torch.cat((ended, values.gather(1, order)), dim=1),
        torch.cat((finished.indices, index.gather(1, order)), dim=1),
    )
