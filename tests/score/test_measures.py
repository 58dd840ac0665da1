"""Measures as values: one call for all of them, found by name."""

import re

import jiwer
import pytest
import sacrebleu

from transduce.score.measures import MEASURES, get_measure

HYPOTHESES = ["The cat sat on a mat", "and looked at the Dog for a while", "birds"]
REFERENCES = ["the cat sat on the mat", "and looked at the dog for a while", "a bird sang"]

THEIRS = {
    "bleu": lambda h, r: sacrebleu.corpus_bleu(h, [r]).score,
    "bleu.lowercase": lambda h, r: sacrebleu.corpus_bleu(h, [r], lowercase=True).score,
    "chrf": lambda h, r: sacrebleu.corpus_chrf(h, [r]).score,
    "chrf++": lambda h, r: sacrebleu.corpus_chrf(h, [r], word_order=2).score,
    "ter": lambda h, r: sacrebleu.corpus_ter(h, [r], case_sensitive=True).score,
    "wer": lambda h, r: 100 * jiwer.wer(r, h),
    "cer": lambda h, r: 100 * jiwer.cer(r, h),
    "per": lambda h, r: 100 * jiwer.wer(r, h),
}


def test_every_measure_equals_that_of_its_library():
    assert set(MEASURES) == {*THEIRS, "comet"}  # test_comet.py has that one
    for name, theirs in THEIRS.items():
        measure = get_measure(name)
        score = measure(HYPOTHESES, REFERENCES)
        assert score.value == pytest.approx(theirs(HYPOTHESES, REFERENCES), abs=1e-9), name
        assert score.low <= score.high and score.n == 3
        assert (measure.name, measure.title.split(",")[0]) == (name, score.name)


def test_higher_is_better_matches_comparisons():
    for measure in (get_measure(name) for name in THEIRS):
        got = measure.compare(REFERENCES, HYPOTHESES, REFERENCES)
        assert got.difference != 0 and (got.difference > 0) == measure.higher_is_better
        assert measure.better == ("higher" if got.difference > 0 else "lower")


def test_an_unknown_measure_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=rf"one of {', '.join(map(re.escape, MEASURES))}, but it is 'blue'"):
        get_measure("blue")
