"""Constraints on outputs: against transformers' processors, brute force over all sequences, and greedy search."""

import math
import os
import re
from itertools import pairwise

import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"

from transformers import NoRepeatNGramLogitsProcessor, RepetitionPenaltyLogitsProcessor

from tests.decode.language import BOS, EOS, PAD, Language, LanguageScorer, brute_force
from tests.decode.test_beam import constrained, greedy as greedily, same, search, starts
from transduce.decode.beam import Hypothesis, beam_search
from transduce.decode.config import BeamConfig, RulesConfig
from transduce.decode.rules import Constraints, no_repeat_ngram
from transduce.decode.sample import GREEDY, Sampler


def repeats(tokens: list[int], n: int) -> bool:
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return len(grams) != len(set(grams))


def greedy(language: Language, sentences: list[int], bounds: list[int], **settings) -> list[Hypothesis]:
    return greedily(LanguageScorer(language, sentences), bounds, **settings)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_no_repeat_ngram_equals_transformers(rng, n):
    for length in (1, 2, 3, 4, 19):
        tokens, scores = torch.randint(3, (300, length), generator=rng), torch.randn(300, 5, generator=rng)
        want = NoRepeatNGramLogitsProcessor(n)(tokens, scores.clone())
        no_repeat_ngram(n, scores, tokens, range(300))
        assert torch.equal(scores, want), length
        assert (scores == -math.inf).any() == (length >= n), length


@pytest.mark.parametrize("n", [1, 2, 3])
def test_exhaustive_beam_with_no_repeat_ngram_equals_brute_force(n):
    language, bound = Language(seed=3), 6
    for sentence in (7, 8):
        every = brute_force(language, sentence, bound, 0.6, [PAD, BOS])
        want = [h for h in every if not repeats(h.tokens, n)]
        assert 1 < len(want) < len(every)
        settings = {"beam_size": len(every), "n_best": len(every), "alpha": 0.6, "suppressed": [PAD, BOS]}
        (got,) = search(language, [sentence], [bound], **settings, no_repeat_ngram=n)
        same(got, want)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_beam_of_one_with_no_repeat_ngram_equals_greedy(n):
    sentences, bounds = list(range(100)), [1 + i % 19 for i in range(100)]
    settings = {"suppressed": [PAD], "no_repeat_ngram": n}
    beam = search(Language(seed=5), sentences, bounds, beam_size=1, **settings)
    got = greedy(Language(seed=5), sentences, bounds, **settings)
    assert [(h.tokens, h.finished) for (h,) in beam] == [(h.tokens, h.finished) for h in got]
    assert [h.log_prob for (h,) in beam] == pytest.approx([h.log_prob for h in got], rel=1e-12)
    assert not any(repeats(h.tokens, n) for h in got)
    without = greedy(Language(seed=5), sentences, bounds, suppressed=[PAD])
    for h, free in zip(got, without, strict=True):
        assert h.tokens == free.tokens or repeats(free.tokens, n)
    assert any(repeats(h.tokens, n) for h in without)


def test_no_repeat_ngram_in_beams_does_not_depend_on_the_batch():
    bounds = [1 + 5 * i % 17 for i in range(20)]
    settings = {"beam_size": 4, "n_best": 4, "no_repeat_ngram": 2}
    together = search(Language(seed=9), list(range(20)), bounds, **settings)
    assert not any(repeats(h.tokens, 2) for hypotheses in together for h in hypotheses)
    for sentence, bound in enumerate(bounds):
        (alone,) = search(Language(seed=9), [sentence], [bound], **settings)
        assert alone == together[sentence]


def test_hypotheses_end_if_the_rules_leave_no_token():
    """Two tokens without EOS: at most five in a row hold no pair twice (aabba and its like)."""
    language, settings = Language(seed=1), {"suppressed": [PAD, BOS, EOS], "no_repeat_ngram": 2}
    got = greedy(language, list(range(30)), [40] * 30, **settings)
    beams = search(language, list(range(30)), [40] * 30, beam_size=3, n_best=3, **settings)
    for h in [*got, *(h for hypotheses in beams for h in hypotheses)]:
        pairs = set(pairwise(h.tokens))
        assert h.finished and not repeats(h.tokens, 2)
        assert all((h.tokens[-1], token) in pairs for token in (3, 4))
        assert math.isfinite(h.log_prob)
    assert max(len(h.tokens) for h in got) == 5


# Repetition penalty, minimum length, suppressed tokens


@pytest.mark.parametrize("penalty", [0.5, 1.2, 3.0])
def test_repetition_penalty_equals_transformers(rng, penalty):
    logits, new = torch.randn(7, 53, generator=rng), torch.randint(53, (7, 20), generator=rng)
    bos = torch.full((7, 1), BOS)
    want = RepetitionPenaltyLogitsProcessor(penalty)(torch.cat((bos, new), dim=1), logits.clone())
    constrained([30] * 7, repetition_penalty=penalty).penalize(logits, new, range(7))
    assert torch.equal(logits, want)


class Penalized(Language):
    """The language whose next token has the logits that the definition of Keskar et al. makes."""

    def logits(self, sentence: int, prefix: tuple[int, ...]) -> list[float]:
        before = {BOS, *prefix}
        scores = super().logits(sentence, prefix)
        return [(s / 1.7 if s > 0 else 1.7 * s) if token in before else s for token, s in enumerate(scores)]


def test_penalized_search_equals_search_of_penalized_logits():
    """For a beam that holds all sequences, narrow beams, and greedy search, with neighbours of other lengths."""
    bounds = [1 + i % 6 for i in range(20)]
    for beam_size in (1, 3, 200):
        settings = {"suppressed": [PAD], "beam_size": beam_size, "n_best": beam_size}
        got = search(Language(seed=4), list(range(20)), bounds, repetition_penalty=1.7, **settings)
        for one, other in zip(got, search(Penalized(seed=4), list(range(20)), bounds, **settings), strict=True):
            same(one, other)
    ours = greedy(Language(seed=4), list(range(20)), bounds, suppressed=[PAD], repetition_penalty=1.7)
    same(ours, greedy(Penalized(seed=4), list(range(20)), bounds, suppressed=[PAD]))
    assert ours != greedy(Language(seed=4), list(range(20)), bounds, suppressed=[PAD])


@pytest.mark.parametrize(("rules", "keeps"), [
    ({"min_length": 3}, lambda h: len(h.tokens) >= 3),
    ({"suppress": (4,)}, lambda h: 4 not in h.tokens),
    ({"suppress_first": (4, EOS)}, lambda h: h.tokens and h.tokens[0] != 4),
    ({"min_length": 2, "no_repeat_ngram": 2}, lambda h: len(h.tokens) >= 2 and not repeats(h.tokens, 2)),
    ({"min_length": 99}, lambda h: not h.finished),
])  # fmt: skip
def test_exhaustive_beam_with_rules_equals_brute_force(rules, keeps):
    language, bound = Language(seed=6), 5
    every = brute_force(language, 3, bound, 0.6, [PAD, BOS])
    want = [h for h in every if keeps(h)]
    assert 1 <= len(want) < len(every)
    settings = {"suppressed": [PAD, BOS], **rules}
    (got,) = search(language, [3], [bound], beam_size=len(every), n_best=len(every), **settings)
    same(got, want)
    (best,), (ours,) = (
        search(language, [3], [bound], beam_size=1, **settings),
        greedy(language, [3], [bound], **settings),
    )
    same(best, [ours])
    assert keeps(ours)


def test_rules_that_leave_neither_token_nor_eos_are_refused():
    scorer = LanguageScorer(Language(seed=1), [0])
    message = (
        "the rules must leave a token to go on with, but after 2 tokens they leave none, and no EOS can end the text; "
        "loosen no_repeat_ngram=1, or suppress and forbid less"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        greedily(scorer, [9], eos_id=None, suppressed=[PAD, BOS, EOS], no_repeat_ngram=1)


@pytest.mark.parametrize(("fields", "message"), [
    ({"no_repeat_ngram": -1}, "no_repeat_ngram=-1"),
    ({"min_length": -1}, "min_length=-1"),
    ({"repetition_penalty": 0.0}, "repetition_penalty=0.0"),
    ({"suppress_first": (-2,)}, "suppress_first=-2"),
    ({"suppress": (3, -2)}, "suppress=-2"),
])  # fmt: skip
def test_impossible_rules_are_refused(fields, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        RulesConfig(**fields)


@pytest.mark.parametrize("beam_size", [1, 3, 363])
def test_custom_rules_apply_to_greedy_and_beam_search(beam_size):
    """The rule forbids a token after its neighbour in the alphabet; in beam and greedy search, and in brute force."""

    def no_neighbours(scores, tokens, sentences):
        assert len(tokens) % len(sentences) == 0
        for row, text in enumerate(tokens.tolist()):
            scores[row, [i for i in range(3, 6) if text and abs(i - text[-1]) == 1]] = -math.inf
        return scores

    def keeps(h: Hypothesis) -> bool:
        return not any(abs(a - b) == 1 for a, b in pairwise(h.tokens))

    language, bound = Language(seed=3, vocab_size=6), 5
    bounds = torch.full((2,), bound)
    constraints = Constraints(
        bounds, eos_id=EOS, suppressed=[PAD, BOS], config=RulesConfig(min_length=1), rules=[no_neighbours]
    )
    scorer = LanguageScorer(language, [3, 4])
    if beam_size == 1:
        score = BeamConfig()
        got = Sampler(scorer, starts(2), constraints, sampling=GREEDY, score=score).run()
    else:
        got = beam_search(scorer, starts(2), constraints, BeamConfig(beam_size=beam_size, n_best=beam_size))
    for sentence, hypotheses in zip([3, 4], got, strict=True):
        assert hypotheses and all(keeps(h) and h.tokens for h in hypotheses)
        if beam_size > 3:
            every = brute_force(language, sentence, bound, 0.6, [PAD, BOS])
            same(hypotheses, [h for h in every if keeps(h) and h.tokens][:beam_size])
