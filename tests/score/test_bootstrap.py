"""Resampled sums are those of the lines that were drawn, and take the memory of one draw."""

import random
import tracemalloc

import numpy as np
import pytest

from transduce.score.measures import bleu, chrf, ter
from transduce.score.score import resampled_sums
from transduce.score.wer import cer, wer


def test_sums_are_those_of_the_drawn_lines():
    statistics = np.random.default_rng(3).normal(size=(41, 3))
    lines = np.random.default_rng(5).choice(41, size=(17, 41), replace=True)  # as sacrebleu draws them, all at once
    want = [[sum(statistics[i, k] for i in draw) for k in range(3)] for draw in lines]
    np.testing.assert_allclose(resampled_sums(statistics, 17, 5), want, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "measure", [bleu, wer, *(pytest.param(measure, marks=pytest.mark.long) for measure in (chrf, ter, cer))]
)
def test_memory_does_not_grow_with_lines_times_draws(measure):
    """1,000 draws of 1,500 lines are 12 MB as indices, and with ten statistics of each line 60 MB."""
    rng = random.Random(1)
    references = [" ".join(rng.choices("abcdefgh", k=4)) for _ in range(1500)]
    hypotheses = [line.replace("a", "b") for line in references]
    measure(hypotheses[:100], references[:100])  # what stays in caches
    tracemalloc.start()
    try:
        measure(hypotheses, references)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 9e6
