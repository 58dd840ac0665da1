"""Beam search where phrases are required: continuations are shared out among banks by their progress."""

import sys

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from transduce.decode.beams import Beams
from transduce.decode.rules import ids_tensor
from transduce.decode.topk import Continuations


class RequiredBeams(Beams):
    """Beams in which only hypotheses with all required phrases may end.

    The places of a sentence are shared out among banks of progress, from none to all: one for the best of each bank,
    then one for the second best of each, and so on; and the furthest of all always has one.

    Source: Post and Vilar (2018), Fast lexically constrained decoding with dynamic beam allocation; Hu et al. (2019),
    Improved lexically constrained decoding for translation and monolingual rewriting, for the batch.
    """

    def continuations(self, scores: Tensor, offset: Tensor) -> Continuations:
        """2 * beam_size continuations: the first half are ends, the second half goes on."""
        n_sentences, n_rows = offset.shape
        vocab_size = scores.size(1)
        required = self.constraints.required
        assert required is not None
        total = (scores.view(n_sentences, n_rows, -1) + offset[:, :, None]).flatten(1)
        rows = self.active.tokens.flatten(0, 1).tolist()
        progress = required.progress(rows, self.sentences).to(scores.device).view(n_sentences, -1)
        needed = ids_tensor([required.totals[i] for i in self.sentences], scores.device)
        complete = progress >= needed[:, None]
        ends = torch.arange(total.size(1), device=total.device) % vocab_size == self.eos_id
        total, complete = self._allowed(total, complete, ends)
        if (missing := 2 * self.config.beam_size - total.size(1)) > 0:
            total = F.pad(total, (0, missing), value=-torch.inf)
            progress, complete, ends = (F.pad(each, (0, missing)) for each in (progress, complete, ends))
        last_bank = max(1, self.config.beam_size - 1) - 1
        bank = (progress * last_bank // needed.clamp_min(1)[:, None]).masked_fill(complete, last_bank)
        best, index = share_out(total, progress, ends.expand_as(total), bank, self.config.beam_size)
        return Continuations(best, index % vocab_size, (index // vocab_size).clamp_max(n_rows - 1))

    def _allowed(
        self, total: Float[Tensor, "A M"], complete: Bool[Tensor, "A M"], ends: Bool[Tensor, " M"]
    ) -> tuple[Float[Tensor, "A M"], Bool[Tensor, "A M"]]:
        """Leave out incomplete ends, and at a sentence's bound all that is incomplete if anything is complete.

        A sentence may end incomplete if nothing of it has ended, and the rules leave it nothing but ends.
        """
        unfinished = self.finished.score[:, 0] == -torch.inf
        stuck = unfinished & (total.masked_fill(ends, -torch.inf) == -torch.inf).all(dim=1)
        complete = complete | stuck[:, None]
        total = total.masked_fill(ends & ~complete, -torch.inf)
        at_bound = self.max_lengths <= self.length + 1
        closing = at_bound & (complete & (total > -torch.inf)).any(dim=1)
        return total.masked_fill(closing[:, None] & ~complete, -torch.inf), complete


def share_out(
    total: Float[Tensor, "A M"],
    progress: Int[Tensor, "A M"],
    ends: Bool[Tensor, "A M"],
    bank: Int[Tensor, "A M"],
    beam_size: int,
) -> tuple[Float[Tensor, "A n"], Int[Tensor, "A n"]]:
    """The beam_size best ends, and beam_size continuations that go on, bank by bank: their values and places.

    Args:
        total: log-probability of every continuation.
        bank: its bank.
    """
    n, n_banks = 2 * beam_size, max(1, beam_size - 1)
    best = [total.masked_fill(bank != i, -torch.inf).topk(n) for i in range(n_banks)]
    goes_on = (total > -torch.inf) & ~ends
    reached = progress.masked_fill(~goes_on, -1)
    most = reached.amax(dim=1, keepdim=True)
    furthest = total.masked_fill(~goes_on | (reached != most), -torch.inf).max(dim=1)
    log_prob = torch.cat([each.values for each in best] + [furthest.values[:, None]], dim=1)
    index = torch.cat([each.indices for each in best] + [furthest.indices[:, None]], dim=1)
    is_end = ends.gather(1, index)
    rank = torch.cat([torch.arange(n, device=total.device)] * n_banks + [index.new_zeros(1)])
    finished = log_prob.masked_fill(~is_end | (rank >= beam_size), -torch.inf)
    finished[:, -1] = -torch.inf
    finished_best = finished.topk(beam_size)

    active = ~is_end & (log_prob > -torch.inf)
    place = torch.cat([active[:, i * n : (i + 1) * n].long().cumsum(dim=1) for i in range(n_banks)], dim=1)
    order = place * n_banks + torch.arange(n_banks, device=total.device).flip(0).repeat_interleave(n)
    is_furthest = index == furthest.indices[:, None]
    listed = (is_furthest & active)[:, :-1].any(dim=1, keepdim=True)
    order = torch.cat((order, torch.zeros_like(order[:, :1]).masked_fill_(listed, sys.maxsize)), dim=1)
    order[:, :-1].masked_fill_(is_furthest[:, :-1], 0)
    chosen = order.masked_fill(~active, sys.maxsize).topk(beam_size, largest=False)
    going = log_prob.gather(1, chosen.indices).masked_fill(chosen.values == sys.maxsize, -torch.inf)
    return (
        torch.cat((finished_best.values, going), dim=1),
        torch.cat((index.gather(1, finished_best.indices), index.gather(1, chosen.indices)), dim=1),
    )
