"""Where abilities of the search meet: ensembles, rules, phrases and samples."""

from pathlib import Path

import pytest
import torch

import transduce as td
from tests.runs import ENGLISH, LITTLE, random_run
from tests.tasks.test_search import SHORT

LINES = ENGLISH[:3]
PREFIX = ["Druck", "", "Mach bitte den "]
REQUIRE = [["Größe"], ["Anna", " lang"], []]
DRAWN = {"sample": True, "beam_size": 4, "n_best": 4}


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    return [random_run(folder / str(seed), model=LITTLE, seed=seed) for seed in (3, 4)]


def ensemble(runs: list[Path]) -> td.Translator:
    got = td.load_translator(runs, dtype=torch.float64)
    got.decoding = SHORT
    return got


@pytest.mark.parametrize("at_max_length", ["finished_first", "by_score"])
def test_rules_and_phrases_apply_to_ensembles(runs, at_max_length):
    """A model twice is the model, and the order of models says nothing."""
    how = {"forbid": ["E", "ff"], "beam_size": 3, "n_best": 3, "at_max_length": at_max_length}
    sets = [[runs[0]], [runs[0]] * 2, runs, runs[::-1]]
    got = [ensemble(each).translate(LINES, prefix=PREFIX, require=REQUIRE, **how) for each in sets]
    flat = [[output for outputs in each for output in outputs] for each in got]
    for one, other in ((flat[0], flat[1]), (flat[2], flat[3])):
        assert [o.text for o in one] == [o.text for o in other]
        assert [o.score for o in one] == pytest.approx([o.score for o in other], abs=1e-6)
    assert [o.score for o in flat[0]] != pytest.approx([o.score for o in flat[2]], abs=1e-3)
    for each in (got[0], got[2]):
        for outputs, begin, phrases in zip(each, PREFIX, REQUIRE, strict=True):
            for output in outputs:
                assert output.text.startswith(begin) and "E" not in output.text and "ff" not in output.text
                assert all(phrase.strip() in output.text for phrase in phrases)


def test_renormalized_scores_do_not_depend_on_other_lines(runs):
    """Whether one beside it has phrases, for which beam search is needed, of one beam too."""
    translator = ensemble(runs[:1])
    how = {"beam_size": 1, "no_repeat_ngram": 1, "forbid": ["E"]}
    ((plain,),) = translator.translate(LINES[:1], **how)
    ((alone,),) = translator.translate(LINES[:1], renormalize=True, **how)
    (beside,), _ = translator.translate(LINES[:2], renormalize=True, require=[[], ["Anna"]], **how)
    assert alone.text == beside.text == plain.text
    assert alone.log_prob == pytest.approx(beside.log_prob, abs=1e-9) and alone.log_prob > plain.log_prob + 0.01


def test_samples_keep_the_rules_and_begin_with_their_prefix(runs):
    translator = ensemble(runs)
    how = {**DRAWN, "forbid": ["u"], "repetition_penalty": 1.3, "min_length": 4}
    got = translator.translate(LINES, prefix=PREFIX, **how)
    for outputs, begin in zip(got, PREFIX, strict=True):
        for output in outputs:
            assert output.text.startswith(begin) and "u" not in output.text.removeprefix(begin)
            assert len(output.tokens) >= 4
    for number, (line, begin) in enumerate(zip(LINES, PREFIX, strict=True), start=1):
        ((*alone,),) = translator.translate([line], prefix=[begin], first_line=number, **how)
        assert [o.text for o in alone] == [o.text for o in got[number - 1]]


def test_samples_refuse_required_phrases(runs):
    with pytest.raises(ValueError, match=r"^sampling cannot require phrases, but sample=True; leave one of them out$"):
        ensemble(runs[:1]).translate(LINES, require=REQUIRE, **DRAWN)
