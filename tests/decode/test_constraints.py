"""No n-gram twice: against transformers' processor, brute force over all sequences, and greedy search."""

import math
from itertools import pairwise

import pytest
import torch
from transformers import NoRepeatNGramLogitsProcessor

from tests.decode.language import BOS, EOS, PAD, Language, LanguageScorer, brute_force
from tests.decode.test_beam import greedy as greedily, same, search
from transduce.decode.constraints import Constraints, suppress_repeats
from transduce.decode.hypothesis import Hypothesis


def repeats(tokens: list[int], n: int) -> bool:
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return len(grams) != len(set(grams))


def greedy(language: Language, sentences: list[int], bounds: list[int], **settings) -> list[Hypothesis]:
    return greedily(LanguageScorer(language, sentences), bounds, **settings)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 19])
def test_what_is_ruled_out_is_what_transformers_rules_out(rng, n, length):
    tokens, scores = torch.randint(3, (53, length), generator=rng), torch.randn(53, 5, generator=rng)
    want = NoRepeatNGramLogitsProcessor(n)(tokens, scores.clone())
    suppress_repeats(scores, tokens, n)
    assert torch.equal(scores, want)
    assert (scores == -math.inf).any() == (length >= n)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_beam_as_wide_as_the_space_finds_all_that_repeats_nothing(n):
    language, bound = Language(seed=3), 6
    for sentence in (7, 8):
        every = brute_force(language, sentence, bound, 0.6, [PAD, BOS])
        want = [h for h in every if not repeats(h.tokens, n)]
        assert 1 < len(want) < len(every)
        settings = {"beam_size": len(every), "n_best": len(every), "alpha": 0.6, "suppressed": [PAD, BOS]}
        (got,) = search(language, [sentence], [bound], **settings, no_repeat_ngram=n)
        same(got, want)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_beam_of_one_is_greedy_and_nothing_occurs_twice(n):
    sentences, bounds = list(range(100)), [1 + i % 19 for i in range(100)]
    settings = {"suppressed": [PAD], "no_repeat_ngram": n}
    beam = search(Language(seed=5), sentences, bounds, beam_size=1, **settings)
    found = greedy(Language(seed=5), sentences, bounds, **settings)
    assert [(h.tokens, h.finished) for (h,) in beam] == [(h.tokens, h.finished) for h in found]
    assert [h.log_prob for (h,) in beam] == pytest.approx([h.log_prob for h in found], rel=1e-12)
    assert not any(repeats(h.tokens, n) for h in found)
    without = greedy(Language(seed=5), sentences, bounds, suppressed=[PAD])
    for h, free in zip(found, without, strict=True):
        assert h.tokens == free.tokens or repeats(free.tokens, n)
    assert any(repeats(h.tokens, n) for h in without)


def test_a_wide_beam_repeats_nothing_and_neighbours_change_nothing():
    bounds = [1 + 5 * i % 17 for i in range(20)]
    settings = {"beam_size": 4, "n_best": 4, "no_repeat_ngram": 2}
    together = search(Language(seed=9), list(range(20)), bounds, **settings)
    assert not any(repeats(h.tokens, 2) for hypotheses in together for h in hypotheses)
    for sentence, bound in enumerate(bounds):
        (alone,) = search(Language(seed=9), [sentence], [bound], **settings)
        assert alone == together[sentence]


def test_where_nothing_is_left_a_hypothesis_ends_even_if_it_may_not():
    """Two tokens without EOS: at most five in a row hold no pair twice (aabba and its like)."""
    language, settings = Language(seed=1), {"suppressed": [PAD, BOS, EOS], "no_repeat_ngram": 2}
    found = greedy(language, list(range(30)), [40] * 30, **settings)
    beams = search(language, list(range(30)), [40] * 30, beam_size=3, n_best=3, **settings)
    for h in [*found, *(h for hypotheses in beams for h in hypotheses)]:
        pairs = set(pairwise(h.tokens))
        assert h.finished and not repeats(h.tokens, 2)
        assert all((h.tokens[-1], token) in pairs for token in (3, 4))
        assert math.isfinite(h.log_prob)
    assert max(len(h.tokens) for h in found) == 5


@pytest.mark.parametrize(("n", "eos_id"), [(-1, EOS), (2, None)])
def test_an_n_gram_rule_that_cannot_be_kept_is_refused(n, eos_id):
    message = (
        "no_repeat_ngram must be at least 0 (0 = off), and off where no EOS can end what has no token left, "
        f"but no_repeat_ngram={n} and eos_id={eos_id}"
    )
    with pytest.raises(ValueError) as caught:
        Constraints(torch.tensor([3]), eos_id=eos_id, no_repeat_ngram=n)
    assert str(caught.value) == message
