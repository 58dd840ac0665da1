"""Diverse beam search: groups of a beam that prefer other tokens than earlier groups."""

import math

import torch
from torch import Tensor

from transduce.decode.beams import Beams, Growth, Hypotheses, concatenate, grow
from transduce.decode.topk import Continuations, top_k


class DiverseBeams(Beams):
    """Beams in groups, each with its share of the beam; a sentence is done when all of them are.

    A continuation counts as if it was less likely by `diversity` for each active hypothesis of an
    earlier group that has just taken the same token. Diversity changes the selection, not the final
    score. A group does not end with a text of an earlier group (in the paper and in transformers it
    may, and one output comes twice): it goes on to another one.

    Source: Vijayakumar et al. (2018), Diverse beam search for improved description of complex
    scenes.
    """

    def grown(
        self, scores: Tensor, offset: Tensor, penalty: float, coverage: Tensor | None
    ) -> Growth:
        """The groups after one more token, one after the other."""
        table = scores.view(*offset.shape, -1)
        taken = torch.zeros_like(table[:, 0])
        active, finished, parents = list[Hypotheses](), list[Hypotheses](), list[Tensor]()
        for group in self.groups:
            rows = group if offset.size(1) > 1 else slice(0, 1)  # all begin as one
            past = self.active[:, rows]
            cost = self.config.diversity * taken
            rivals = (table[:, rows] - cost[:, None]).flatten(0, 1)
            log_prob, token, parent = top_k(rivals, offset[:, rows], 2 * (group.stop - group.start))
            bias = cost.gather(1, token)
            if finished:
                ended = concatenate(finished)
                same = (past.append(parent, token)[:, :, None] == ended.tokens[:, None]).all(dim=3)
                log_prob = log_prob.masked_fill(
                    (same & (ended.score > -math.inf)[:, None]).any(dim=2), -math.inf
                )
            continuations = Continuations(log_prob + bias, token, parent)
            covered = None if coverage is None else coverage[:, rows]
            new = grow(
                past, self.finished[:, group], continuations, self.eos_id, penalty, covered, bias
            )
            exists = (new[0].log_prob > -math.inf).to(taken.dtype)
            taken = taken.scatter_add(1, new[0].tokens[:, :, -1], exists)
            active.append(new[0])
            finished.append(new[1])
            parents.append(rows.start + new[2])
        return concatenate(active), concatenate(finished), torch.cat(parents, dim=1)
