"""One definition of p for every measure: sacrebleu's."""

import random

import numpy as np
import pytest
from sacrebleu.significance import _compute_p_value

from transduce.score.measures import bleu
from transduce.score.score import p_value, resampled_sums
from transduce.score.wer import wer


def test_p_value_equals_that_of_sacrebleu():
    rng = np.random.default_rng(1)
    for difference, spread in ((0.3, 1.0), (-2.0, 1.0), (0.01, 0.2)):
        leads = rng.normal(difference, spread, size=200)
        absolute = np.abs(leads)
        assert p_value(difference, leads) == _compute_p_value(absolute - absolute.mean(), abs(difference))


def test_two_equal_systems_do_not_differ():
    assert p_value(0.0, np.zeros(100)) == 1.0


@pytest.mark.parametrize("measure", [bleu, wer])
def test_measures_compute_p_values_from_shared_draws(measure):
    """Worked out from scores of drawn lists of lines."""
    rng = random.Random(2)
    references = [" ".join(rng.choices("abcdef", k=9)) for _ in range(25)]
    better, worse = ([line.replace(letter, "x") for line in references] for letter in ("a", "b"))
    got = measure.compare(better, worse, references, resamples=100)
    draws = resampled_sums(np.eye(25), 100, 12345).astype(int)  # how often each line is drawn

    def on_draws(lines):
        return np.array(
            [
                measure(*([line for line, n in zip(side, drawn, strict=True) for _ in range(n)] for side in (lines, references)),
                        resamples=0).value
                for drawn in draws
            ]
        )  # fmt: skip

    leads = np.abs(on_draws(better) - on_draws(worse))
    exceeding = sum(lead - leads.mean() > abs(got.difference) for lead in leads)
    assert got.p_value == pytest.approx((exceeding + 1) / 101)
