"""Beam search over a Scorer, also with required phrases: hypotheses as tensors, how they are
extended by one token, and how they are ranked."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from transduce.decode.config import BeamConfig
from transduce.decode.phrases import Required
from transduce.decode.rules import Constraints
from transduce.decode.scorer import (
    Continuations,
    Places,
    Prompts,
    Scorer,
    Scores,
    at_least_float32,
    ids_tensor,
    partition,
    top_k,
)

LOOP = 24
"""Tokens from which a repetition counts as a loop: more than a speaker's "zero zero zero" has."""


@dataclass(frozen=True)
class Hypothesis:
    """One output of a search."""

    tokens: list[int]
    """Without BOS and EOS."""
    log_prob: float
    """Sum of the natural log-probabilities of all tokens, including EOS if it was reached; nan if
    not computed. With an additive scorer, the sum of its scores."""
    score: float
    """log_prob / length_penalty, by which beam search ranks."""
    finished: bool
    """False if the length bound cut it off before EOS."""


def loops(hypothesis: Hypothesis) -> bool:
    """Whether it was cut off, or a span repeats three or more times in a row over LOOP or more
    tokens."""
    tokens = hypothesis.tokens
    return not hypothesis.finished or any(
        _longest_repetition(tokens, period) >= max(3 * period, LOOP)
        for period in range(1, len(tokens) // 3 + 1)
    )


def _longest_repetition(tokens: list[int], period: int) -> int:
    """The length of the longest run of tokens that repeat with this period; 0 if there is none."""
    longest = run = 0
    for before, token in zip(tokens, tokens[period:], strict=False):
        run = run + 1 if token == before else 0
        longest = max(longest, run)
    return longest + period if longest else 0


@dataclass(frozen=True)
class Hypotheses:
    """K hypotheses of every sentence; log_prob and score are -inf for missing ones."""

    tokens: Int[Tensor, "A K L"]
    log_prob: Float[Tensor, "A K"]
    score: Float[Tensor, "A K"]

    def __getitem__(self, index: Any) -> "Hypotheses":
        """Some sentences, or [:, span] for some hypotheses of each."""
        return Hypotheses(self.tokens[index], self.log_prob[index], self.score[index])

    def gather(self, index: Int[Tensor, "A k"]) -> "Hypotheses":
        """The hypotheses with these indices, which are chosen for each sentence."""
        tokens = self.tokens.gather(1, index[:, :, None].expand(-1, -1, self.tokens.size(2)))
        return Hypotheses(tokens, self.log_prob.gather(1, index), self.score.gather(1, index))

    def lists(self, eos_id: int) -> Iterator[list[Hypothesis]]:
        """The hypotheses of each sentence; those with a score of -inf do not exist."""
        for columns in zip(
            self.tokens.tolist(), self.log_prob.tolist(), self.score.tolist(), strict=True
        ):
            yield [
                Hypothesis(
                    row[: row.index(eos_id)] if eos_id in row else row,
                    log_prob,
                    score,
                    eos_id in row,
                )
                for row, log_prob, score in zip(*columns, strict=True)
                if score > -math.inf
            ]


def concatenate(parts: Sequence[Hypotheses]) -> Hypotheses:
    """All hypotheses of every sentence."""
    columns = zip(*(vars(part).values() for part in parts), strict=True)
    return Hypotheses(*(torch.cat(column, dim=1) for column in columns))


class Beams:
    """Active and finished hypotheses of the sentences that are still searched; each sentence begins
    with an empty one."""

    def __init__(self, config: BeamConfig, constraints: Constraints) -> None:
        self.config = config
        self.eos_id = -1 if constraints.eos_id is None else constraints.eos_id  # no token is -1
        self.max_lengths = constraints.max_lengths
        n_sentences = len(self.max_lengths)
        self.sentences = list(range(n_sentences))
        empty = self.max_lengths.new_empty(n_sentences, config.beam_size, 0)
        zero = empty.new_zeros(n_sentences, 1, dtype=torch.float32)
        missing = zero.new_full(empty.shape[:2], -math.inf)
        self.active = Hypotheses(empty[:, :1], zero, zero)
        self.finished = Hypotheses(empty, missing, missing)
        self.results: list[tuple[list[int], Hypotheses]] = []

    @property
    def length(self) -> int:
        """New tokens of every active hypothesis."""
        return self.active.tokens.size(2)

    def extend(self, scores: Scores, offset: Float[Tensor, "A k"]) -> Int[Tensor, "A K"]:
        """Append one token; returns the rows of `scores` that the active hypotheses continue.

        A continuation that ends counts if it is among the best beam_size.

        Args:
            scores: of the next token of every active hypothesis.
            offset: number to add to them, so that they are log-probabilities of the extended
                hypotheses.
        """
        config = self.config
        first_row = torch.arange(0, offset.numel(), offset.size(1), device=offset.device)[:, None]
        log_prob, token, parent = self.continuations(scores, offset)
        past = self.active.tokens.gather(1, parent[:, :, None].expand(-1, -1, self.length))
        tokens = torch.cat((past, token[:, :, None]), dim=2)
        score = log_prob / config.length_penalty(tokens.size(2))
        ends = token == self.eos_id
        going, ended = (
            Hypotheses(tokens, *(each.masked_fill(out, -math.inf) for each in (log_prob, score)))
            for out in (ends, ~ends)
        )
        padded = F.pad(self.finished.tokens, (0, 1), value=self.eos_id)
        earlier = replace(self.finished, tokens=padded)
        finished = concatenate((earlier, ended[:, : config.beam_size]))
        self.finished = finished.gather(finished.score.topk(config.beam_size).indices)
        chosen = going.score.topk(config.beam_size).indices
        self.active = going.gather(chosen)
        return first_row + parent.gather(1, chosen)

    def continuations(self, scores: Tensor, offset: Tensor) -> Continuations:
        """The 2 * beam_size best, so that beam_size active hypotheses remain when others end."""
        return top_k(scores, offset, 2 * self.config.beam_size)

    def retire(self) -> Places | None:
        """Remove sentences that are done or at their bound; returns the indices of the others, or
        None if none was removed."""
        at_bound = self.max_lengths <= self.length
        # a sentence is done when no active hypothesis beats its worst finished one
        ended = self.active.score[:, 0] <= self.finished.score[:, -1]
        if self.config.early_stopping:
            ended = (self.finished.score > -math.inf).all(dim=1)
            unused = (ended & ~at_bound)[:, None]
            score = self.active.score.masked_fill(unused, -math.inf)
            self.active = replace(self.active, score=score)
        flags: list[bool] = (ended | at_bound).tolist()  # the one host sync of a step
        if not any(flags):
            return None
        done, running = partition(flags)
        out, rest = (ids_tensor(each, self.max_lengths.device) for each in (done, running))
        numbers = [self.sentences[i] for i in done]
        self.results.append((numbers, concatenate((self.finished[out], self.active[out]))))
        self.sentences = [self.sentences[i] for i in running]
        self.max_lengths = self.max_lengths[rest]
        self.active = self.active[rest]
        self.finished = self.finished[rest]
        return rest

    def let_engine_finish(self, scorer: Scorer, constraints: Constraints) -> None:
        """Run all further steps in one call of the engine, if none of them needs Python."""
        by_engine = constraints.engine_scorer(scorer)
        if by_engine is None or self.config.early_stopping or not self.sentences:
            return
        tables, lengths = by_engine.model.beam(
            [*vars(self.active).values(), *vars(self.finished).values()],
            self.max_lengths,
            by_engine.cache,
            eos_id=self.eos_id,
            suppressed=constraints.suppressed_ids,
            penalty=self.config.length_penalty,
        )
        grown = concatenate((Hypotheses(*tables[3:]), Hypotheses(*tables[:3])))
        for i, n in enumerate(lengths.tolist()):
            row = grown[i : i + 1]
            self.results.append(([self.sentences[i]], replace(row, tokens=row.tokens[:, :, :n])))
        self.sentences = []

    def best(self) -> list[list[Hypothesis]]:
        """The n best of every sentence, finished ones before active ones; sorted."""
        capacity = None if self.config.at_max_length == "by_score" else self.config.beam_size
        best: dict[int, list[Hypothesis]] = {}
        for sentences, hypotheses in self.results:
            for sentence, each in zip(sentences, hypotheses.lists(self.eos_id), strict=True):
                ranked = sorted(each[:capacity], key=lambda hypothesis: -hypothesis.score)
                best[sentence] = ranked[: self.config.n_best]
        return [best[sentence] for sentence in sorted(best)]


class RequiredBeams(Beams):
    """Beams in which only hypotheses with all required phrases may end.

    Hypotheses are grouped into banks by their progress with the phrases, from none to all. The
    places in a sentence's beam go to the best of each bank, then to the second best of each, and so
    on; the hypothesis with most progress always gets one.

    Source: Post and Vilar (2018), Fast lexically constrained decoding with dynamic beam allocation;
    Hu et al. (2019), Improved lexically constrained decoding for translation and monolingual
    rewriting, for the batch.
    """

    def __init__(self, required: Required, config: BeamConfig, constraints: Constraints) -> None:
        super().__init__(config, constraints)
        self.required = required

    def continuations(self, scores: Tensor, offset: Tensor) -> Continuations:
        """Finished continuations, then beam_size unfinished ones."""
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
        """Forbid the end of incomplete hypotheses; at the length bound, also forbid incomplete
        hypotheses if the sentence has a complete one.

        A sentence may end incomplete if none of its hypotheses has ended, and the rules allow
        nothing but EOS.
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
    """Choose finished continuations, then beam_size unfinished ones; returns values and indices.

    Finished ones are those among the beam_size best of the last bank. Unfinished ones are the one
    with most progress, then the best of each bank from the last to the first, then the second best
    of each, and so on.

    Args:
        total: log-probability of every continuation.
        progress: progress of every continuation, (A, M).
        ends: whether a continuation ends with EOS, (A, M).
        bank: bank of every continuation, (A, M).
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


@torch.inference_mode()
def beam_search(
    scorer: Scorer,
    prompts: Prompts,
    constraints: Constraints,
    config: BeamConfig,
    *,
    required: Required | None = None,
) -> list[list[Hypothesis]]:
    """The n best hypotheses of every sentence, best score first.

    Every step considers the 2 * beam_size most probable continuations of a sentence. A sentence is
    done when it has beam_size finished hypotheses and its best active one, scored at its present
    length, beats none of them; or at its own bound. Done sentences leave the batch.

    Args:
        scorer: begins with one row per sentence, and has seen all of the prompt but the last token.
        prompts: the tokens before the output, at least BOS, on the device of the search.
        required: the phrases that each output must contain.

    Source: Wu et al. (2016), section 7, for the penalty; transformers for the rule to stop.
    """
    beams = RequiredBeams(required, config, constraints) if required else Beams(config, constraints)
    last = prompts[:, -1]
    while beams.sentences:
        active = beams.active
        past = active.tokens.flatten(0, 1)
        scores, normalizer = constraints.scores(
            at_least_float32(scorer.step(last)),
            past,
            beams.sentences,
            normalize=not scorer.additive,
        )
        offset = active.log_prob - normalizer.view_as(active.log_prob)
        parents = beams.extend(scores, offset)
        rest = beams.retire()
        scorer.reorder((parents if rest is None else parents[rest]).flatten())
        if rest is not None:
            scorer.keep(rest)
        last = beams.active.tokens[:, :, -1].flatten()
        if not required:
            beams.let_engine_finish(scorer, constraints)
    return beams.best()
