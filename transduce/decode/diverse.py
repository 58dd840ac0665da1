"""Diverse beam search: groups of a beam, each of which prefers other tokens than those before it."""

import math

import torch
from torch import Tensor

from transduce.decode.beams import Beams, Growth, concatenate, grow
from transduce.decode.topk import Continuations, top_k


class DiverseBeams(Beams):
    """Beams in groups, each of which searches with its share of the beam; a sentence is done when all of them are.

    A continuation counts as if it was less likely by `diversity` for each active hypothesis of an earlier group that
    has just taken the same token. Diversity changes the selection, not the final score. A group does not end with a
    text of an earlier group (in the paper and in transformers it may, and one output comes twice): it goes on to
    another one.

    Source: Vijayakumar et al. (2018), Diverse beam search for improved description of complex scenes.
    """

    def grown(self, scores: Tensor, offset: Tensor, penalty: float, coverage: Tensor | None) -> Growth:
        """The groups after one more token, one after the other."""
        table = scores.view(*offset.shape, -1)
        taken = torch.zeros_like(table[:, 0])
        grown: list[Growth] = []
        for group in self.groups:
            rows = group if offset.size(1) > 1 else slice(0, 1)  # all begin as one
            active = self.active[:, rows]
            cost = self.config.diversity * taken
            rivals = (table[:, rows] - cost[:, None]).flatten(0, 1)
            log_prob, token, parent = top_k(rivals, offset[:, rows], 2 * (group.stop - group.start))
            bias = cost.gather(1, token)
            if grown:
                ended = concatenate([each.finished for each in grown])
                same = (active.append(parent, token)[:, :, None] == ended.tokens[:, None]).all(dim=3)
                log_prob = log_prob.masked_fill((same & (ended.score > -math.inf)[:, None]).any(dim=2), -math.inf)
            growth = grow(
                active,
                self.finished[:, group],
                Continuations(log_prob + bias, token, parent),
                self.eos_id,
                penalty,
                None if coverage is None else coverage[:, rows],
                bias,
            )
            exists = (growth.active.log_prob > -math.inf).to(taken.dtype)
            taken = taken.scatter_add(1, growth.active.tokens[:, :, -1], exists)
            grown.append(growth._replace(parent=rows.start + growth.parent))
        return Growth(
            concatenate([each.active for each in grown]),
            concatenate([each.finished for each in grown]),
            torch.cat([each.parent for each in grown], dim=1),
            torch.stack([each.done for each in grown]).all(dim=0),
        )

    def assign_slots(self, parents: Tensor) -> Tensor:
        """Leave the hypotheses in the places of their groups."""
        return parents
