"""Beam search over a Scorer: the likeliest sequences, as far as a beam can see."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transduce.decode.beams import Beams
from transduce.decode.config import BeamConfig
from transduce.decode.constraints import Constraints
from transduce.decode.diverse import DiverseBeams
from transduce.decode.hypothesis import Hypothesis
from transduce.decode.required import Required, RequiredBeams
from transduce.decode.scorer import Scorer
from transduce.errors import InputError

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
        scores, normalizer = constraints.scores(
            scorer, last, active.tokens.flatten(0, 1), beams.sentences
        )
        offset = active.log_prob - normalizer.view_as(active.log_prob)
        penalty = None if coverage is None else config.coverage_penalty * coverage().view_as(offset)
        parents = beams.extend(scores, offset, penalty)
        rest = beams.retire()
        scorer.reorder((parents if rest is None else parents[rest]).flatten())
        if rest is not None:
            scorer.keep(rest)
        last = beams.active.tokens[:, :, -1].flatten()
    return beams.best()
