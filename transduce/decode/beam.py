"""Beam search over a Scorer, also in groups: the likeliest sequences, as far as a beam can see."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transduce.decode.beams import Beams, Growth, Hypotheses, concatenate, grow
from transduce.decode.config import BeamConfig
from transduce.decode.constraints import Constraints
from transduce.decode.hypothesis import Hypothesis
from transduce.decode.required import Required, RequiredBeams
from transduce.decode.scorer import Scorer
from transduce.decode.topk import Continuations, top_k
from transduce.errors import InputError


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


DEFAULT = BeamConfig()


@torch.inference_mode()
def beam_search(
    scorer: Scorer,
    prompts: Int[Tensor, "B P"],
    constraints: Constraints,
    config: BeamConfig = DEFAULT,
    *,
    required: Required | None = None,
    coverage: Callable[[], Float[Tensor, " N"]] | None = None,
) -> list[list[Hypothesis]]:
    """The n best hypotheses of every sentence, best score first.

    Every step weighs the 2 * beam_size likeliest continuations of a sentence. A sentence is done
    when it has beam_size finished hypotheses and its best active one, scored at its present length,
    beats none of them; or at its own bound. Done sentences leave the batch.

    Args:
        scorer: begins with one row per sentence, and has seen all of the prompt but the last token.
        prompts: the tokens before the output, at least BOS, on the device of the search.
        required: the phrases that each output must hold.
        coverage: the coverage of each row that the scorer has seen; it is never above 0, and is
            added to the scores of its continuations with the weight `config.coverage_penalty`.

    Raises:
        InputError: there are groups and required phrases.
    Source: Wu et al. (2016), section 7, for the penalties; transformers for the rule to stop.
    """
    if required and config.beam_groups > 1:
        raise InputError(
            f"groups of a beam know no required phrases, but beam_groups={config.beam_groups}; "
            "leave one of them out"
        )
    if required:
        beams: Beams = RequiredBeams(required, config, constraints, scorer.n_sentences)
    else:
        kind = DiverseBeams if config.beam_groups > 1 else Beams
        beams = kind(config, constraints, scorer.n_sentences)
    last = prompts[:, -1]
    while beams.sentences:
        active = beams.active
        past = active.tokens.flatten(0, 1)
        scores, normalizer = constraints.scores(scorer, last, past, beams.sentences)
        offset = active.log_prob - normalizer.view_as(active.log_prob)
        penalty = None if coverage is None else config.coverage_penalty * coverage().view_as(offset)
        parents = beams.extend(scores, offset, penalty)
        rest = beams.retire()
        scorer.reorder((parents if rest is None else parents[rest]).flatten())
        if rest is not None:
            scorer.keep(rest)
        last = beams.active.tokens[:, :, -1].flatten()
    return beams.best()
