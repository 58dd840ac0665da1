"""Several scorers as one: ensembles, joint CTC/attention search, shallow fusion."""

from collections.abc import Sequence

import torch

from transduce.decode.scorer import Places, Scorer, Scores, Tokens, log_probs
from transduce.errors import InputError


def combined(scorers: Sequence[tuple[float, Scorer]]) -> Scorer:
    """The weighted sum of log-probabilities as one scorer; weight 0 is not computed.

    Equal weights that sum to 1 make the ensemble whose probability is the geometric mean of its
    members'; 1 - w for attention and w for CTC is joint CTC/attention search, where the frames
    check attention's freedom to skip and repeat; a model at 1 and a language model at less is
    shallow fusion. One scorer at 1 is returned as it is.

    Args:
        scorers: pairs of weight and scorer, of one vocabulary and of the same sentences.

    Raises:
        InputError: a weight is negative, all are 0, or the scorers have not the same number of
            sentences.
    Source: Watanabe et al. (2017), Hybrid CTC/attention architecture for end-to-end speech
    recognition; Gulcehre et al. (2015), On using monolingual corpora in neural machine translation,
    section 4.1, for shallow fusion.
    """
    weights = [weight for weight, _ in scorers]
    sizes = [scorer.n_sentences for _, scorer in scorers]
    if not any(weights) or min(weights) < 0:
        raise InputError(
            "weights of scorers must not be negative, and one at least positive, but they are "
            f"{weights}"
        )
    if len(set(sizes)) > 1:
        raise InputError(f"scorers must have the same sentences, but they have {sizes} sentences")
    parts = [(weight, scorer) for weight, scorer in scorers if weight]
    weight, scorer = parts[0]
    return scorer if len(parts) == 1 and weight == 1 else JointScorer(parts)


class JointScorer:
    """The weighted sum of several scorers; `combined` makes it and checks its parts."""

    additive = True

    def __init__(self, parts: Sequence[tuple[float, Scorer]]) -> None:
        self.parts = parts
        self.n_sentences = parts[0][1].n_sentences

    def step(self, tokens: Tokens) -> Scores:
        """Append one token to every row; the weighted sum of the log-probabilities of the next."""
        return torch.stack(
            [weight * log_probs(scorer, tokens) for weight, scorer in self.parts]
        ).sum(dim=0)

    def reorder(self, rows: Places) -> None:
        for _, scorer in self.parts:
            scorer.reorder(rows)

    def keep(self, sentences: Places) -> None:
        for _, scorer in self.parts:
            scorer.keep(sentences)
        self.n_sentences = len(sentences)
