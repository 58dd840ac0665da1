"""Diverse beam search against the same rules in lists: one sentence, one group, one hypothesis after the other."""

import math
from collections import Counter

import pytest

from tests.decode.language import BOS, EOS, PAD, Language, LanguageScorer, penalty
from tests.decode.test_beam import constrained, same, starts
from transduce.decode.beam import beam_search
from transduce.decode.beams import Hypothesis
from transduce.decode.config import BeamConfig

SUPPRESSED = [PAD, BOS]


def in_lists(
    language: Language, sentence: int, bound: int, groups: int, size: int, diversity: float, alpha: float
) -> list[Hypothesis]:
    """All hypotheses that the groups have in the end, `size` each, best first."""
    live: list[list[tuple[tuple[int, ...], float]]] = [[((), 0.0)] for _ in range(groups)]
    kept: list[list[Hypothesis]] = [[] for _ in range(groups)]
    for length in range(1, bound + 1):
        taken: Counter[int] = Counter()
        for group in range(groups):
            weighed = sorted(
                (diversity * taken[token] - log_prob - gain, log_prob + gain, (*tokens, token))
                for tokens, log_prob in live[group]
                for token, gain in enumerate(language.log_probs(sentence, tokens))
                if token not in SUPPRESSED
            )
            others = [h.tokens for before in kept[:group] for h in before]
            ended = [each for each in weighed[:size] if each[2][-1] == EOS and [*each[2][:-1]] not in others]
            kept[group] += [Hypothesis([*t[:-1]], lp, lp / penalty(length, alpha), True) for _, lp, t in ended]
            kept[group] = sorted(kept[group], key=lambda h: -h.score)[:size]
            live[group] = [(tokens, lp) for _, lp, tokens in weighed[: 2 * size] if tokens[-1] != EOS][:size]
            taken.update(tokens[-1] for tokens, _ in live[group])
        best = [max(lp for _, lp in some) / penalty(length, alpha) for some in live]
        if all(len(some) == size and top <= some[-1].score for some, top in zip(kept, best, strict=True)):
            break
    found = []
    for finished, going in zip(kept, live, strict=True):
        unfinished = [Hypothesis([*t], lp, lp / penalty(len(t), alpha), False) for t, lp in going]
        known = [(h.tokens, h.finished) for h in found]
        found += [h for h in finished + unfinished if (h.tokens, h.finished) not in known][:size]
    return sorted(found, key=lambda h: -h.score)


@pytest.mark.parametrize(("groups", "size"), [(2, 1), (3, 2), (2, 3)])
@pytest.mark.parametrize("diversity", [0.0, 0.7, 20.0])
@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_groups_of_a_beam_are_the_search_in_lists(groups, size, diversity, alpha):
    language, sentences = Language(seed=5, vocab_size=9), list(range(12))
    bounds, k = [1 + i % 6 for i in sentences], groups * size
    settings = {"beam_size": k, "n_best": k, "alpha": alpha, "beam_groups": groups, "diversity": diversity}
    limits = constrained(bounds, suppressed=SUPPRESSED)
    together = beam_search(LanguageScorer(language, sentences), starts(12), limits, BeamConfig(**settings))
    for i, hypotheses in enumerate(together):
        same(hypotheses, in_lists(language, i, bounds[i], groups, size, diversity, alpha))
        assert len({(*h.tokens, h.finished) for h in hypotheses}) == len(hypotheses)
        for h in hypotheses:
            prefixes = [tuple(h.tokens[:t]) for t in range(len(h.tokens) + 1)]
            each = zip(prefixes, [*h.tokens, *[EOS] * h.finished], strict=False)
            own = math.fsum(language.log_probs(i, prefix)[token] for prefix, token in each)
            assert h.log_prob == pytest.approx(own, rel=1e-6)


def test_groups_that_do_not_divide_the_beam_are_refused():
    with pytest.raises(ValueError, match=r"^beam_groups must divide beam_size, but beam_groups=2 and beam_size=5$"):
        BeamConfig(beam_size=5, beam_groups=2)
