"""Beam search over a Scorer, also with required phrases: the likeliest sequences, as far as a beam
can see."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transduce.decode.beams import Beams, Hypothesis
from transduce.decode.config import BeamConfig
from transduce.decode.phrases import Required
from transduce.decode.rules import Constraints
from transduce.decode.scorer import Continuations, Scorer, ids_tensor

DEFAULT = BeamConfig()


@torch.inference_mode()
def beam_search(
    scorer: Scorer,
    prompts: Int[Tensor, "B P"],
    constraints: Constraints,
    config: BeamConfig = DEFAULT,
    *,
    required: Required | None = None,
) -> list[list[Hypothesis]]:
    """The n best hypotheses of every sentence, best score first.

    Every step weighs the 2 * beam_size likeliest continuations of a sentence. A sentence is done
    when it has beam_size finished hypotheses and its best active one, scored at its present length,
    beats none of them; or at its own bound. Done sentences leave the batch.

    Args:
        scorer: begins with one row per sentence, and has seen all of the prompt but the last token.
        prompts: the tokens before the output, at least BOS, on the device of the search.
        required: the phrases that each output must hold.

    Source: Wu et al. (2016), section 7, for the penalty; transformers for the rule to stop.
    """
    beams = (
        RequiredBeams(required, config, constraints, scorer.n_sentences)
        if required
        else Beams(config, constraints, scorer.n_sentences)
    )
    last = prompts[:, -1]
    while beams.sentences:
        active = beams.active
        past = active.tokens.flatten(0, 1)
        scores, normalizer = constraints.scores(scorer, last, past, beams.sentences)
        offset = active.log_prob - normalizer.view_as(active.log_prob)
        parents = beams.extend(scores, offset)
        rest = beams.retire()
        scorer.reorder((parents if rest is None else parents[rest]).flatten())
        if rest is not None:
            scorer.keep(rest)
        last = beams.active.tokens[:, :, -1].flatten()
        if type(beams) is Beams:
            beams.let_engine_finish(scorer, constraints)
    return beams.best()


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
