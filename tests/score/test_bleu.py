"""BLEU against the formula of the paper, chrF and TER against small sums, all three against the sacrebleu command."""

import json
import math
import os
import random
import re
import signal
import sys
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest

from transduce.score.measures import bleu, bleu_lowercase, chrf, ter
from transduce.score.score import Score


@pytest.fixture
def sacrebleu_command():
    """The program; to import it lets a closed pipe end the process, which other tests do not expect."""
    before = signal.getsignal(signal.SIGPIPE)
    from sacrebleu.sacrebleu import main

    signal.signal(signal.SIGPIPE, before)
    return main


def ngrams(line, n):
    words = line.split()
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def bleu_written_out(hypotheses, references, *, smooth):
    """Papineni et al. (2002), equations 1 to 3, for words that are split at spaces; `smooth` as NIST's mteval-v13a."""
    c = sum(len(line.split()) for line in hypotheses)
    r = 0
    matched, total = [0] * 5, [0] * 5
    for line, *rights in zip(hypotheses, *references, strict=True):
        lengths = [len(right.split()) for right in rights]
        r += min(lengths, key=lambda length: (abs(length - len(line.split())), length))  # closest, then shortest
        for n in (1, 2, 3, 4):
            seen = ngrams(line, n)
            total[n] += sum(seen.values())
            matched[n] += sum(min(k, max(ngrams(right, n)[gram] for right in rights)) for gram, k in seen.items())
    brevity = 1.0 if c >= r else math.exp(1 - r / c)
    log_precision, halvings = 0.0, 0
    for n in (1, 2, 3, 4):
        if matched[n] == 0 and not smooth:
            return 0.0
        halvings += matched[n] == 0
        log_precision += math.log((matched[n] or 0.5**halvings) / total[n]) / 4
    return 100 * brevity * math.exp(log_precision)


def system(references, rate, seed):
    """The references with a share of their words spoiled."""
    rng = random.Random(seed)
    return [" ".join("x" if rng.random() < rate else word for word in line.split()) for line in references]


@pytest.fixture
def references():
    rng = random.Random(7)
    return [" ".join(rng.choices("abcdefghijk", k=rng.randint(5, 13))) for _ in range(101)]


SHORT = ["a b c d e f", "b a"]
ONE = [["a b c d e g h", "a b c"]]
COUNTS_DIFFER = (
    "hypotheses and references must have the same number of lines, but hypotheses has 1 and {}; "
    "look for lines lost, added or split on the way"
)
TWO = [["a b c d e g h", "a b c"], ["z a b c d f", "b c"]]


@pytest.mark.parametrize("references", [ONE, TWO], ids=["one reference", "two references"])
def test_bleu_is_the_formula_written_out(references):
    want = bleu_written_out(SHORT, references, smooth=False)
    assert 0 < want < 100
    assert bleu(SHORT, *references).value == pytest.approx(want, abs=1e-9)


def test_a_longer_hypothesis_pays_no_brevity_penalty():
    hypotheses = ["a b c d e f g h i j"]
    want = 100 * math.exp((math.log(5 / 10) + math.log(4 / 9) + math.log(3 / 8) + math.log(2 / 7)) / 4)
    assert bleu(hypotheses, ["a b c d e"]).value == pytest.approx(want, abs=1e-9)


def test_an_order_without_a_match_is_smoothed_by_halving():
    hypotheses, references = ["the the the the the the the"], [["the cat is on the mat"]]
    assert bleu_written_out(hypotheses, references, smooth=False) == 0
    want = bleu_written_out(hypotheses, references, smooth=True)
    assert want == pytest.approx(100 * math.exp(sum(map(math.log, (2 / 7, 1 / 12, 1 / 20, 1 / 32))) / 4))
    assert bleu(hypotheses, *references).value == pytest.approx(want, abs=1e-9)


def test_a_blank_hypothesis_is_scored_not_dropped():
    hypotheses, references = ["a b c d e", "", " "], ["a b c d e", "f g", "h"]
    score = bleu(hypotheses, references)
    assert score.value == pytest.approx(100 * math.exp(1 - 8 / 5), abs=1e-9)
    assert score.n == 3


def test_ter_counts_edits_and_chrf_characters():
    assert ter(["a b c d x"], ["a b c d e"]).value == pytest.approx(100 / 5)  # one substitution
    assert ter(["b c d e a"], ["a b c d e"]).value == pytest.approx(100 / 5)  # one shift
    assert ter([""], ["a b"]).value == pytest.approx(100)
    assert chrf(["abc"], ["abd"]).value == pytest.approx(100 * (2 / 3 + 1 / 2 + 0 / 1) / 3)  # precision = recall


@pytest.mark.parametrize("measure", [bleu, chrf, ter])
def test_case_counts_unless_lowercase(measure):
    hypotheses, references = ["The Cat sat on THE mat"], ["the cat sat on the mat"]
    same = measure(references, references)
    assert measure(hypotheses, references).value != pytest.approx(same.value)
    assert "case:mixed" in same.signature
    lowered = replace(measure, lowercase=True)(hypotheses, references)
    assert lowered.value == pytest.approx(same.value)
    assert "case:lc" in lowered.signature
    assert bleu_lowercase(hypotheses, references).value == pytest.approx(100)


@pytest.mark.filterwarnings("ignore:.*unclosed file", "ignore::pytest.PytestUnraisableExceptionWarning")  # sacrebleu's
@pytest.mark.parametrize("lowercase", [pytest.param(False, marks=pytest.mark.long), True])
@pytest.mark.parametrize(
    ("measure", "name", "switch"),
    [(bleu, "bleu", "--lowercase"), (chrf, "chrf", "--chrf-lowercase"), (ter, "ter", "--ter-case-sensitive")],
    ids=["bleu", "chrf", "ter"],
)
def test_score_interval_and_signature_equal_those_of_sacrebleu(
    tmp_path, monkeypatch, sacrebleu_command, references, measure, name, switch, lowercase
):
    hypotheses = [line.replace("a", "A") for line in system(references, 0.2, seed=1)]
    second = system(references, 0.1, seed=2)
    for file, lines in (("hyp", hypotheses), ("ref1", references), ("ref2", second)):
        (tmp_path / file).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    options = ["-m", name, "-w", "6", "-f", "json", "--confidence"] + [switch] * (lowercase != (name == "ter"))
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "argv", ["sacrebleu", "ref1", "ref2", "-i", "hyp", *options])
        for stream, file in (("stdin", "hyp"), ("stdout", "said")):  # which it opens anew
            patch.setattr(sys, stream, SimpleNamespace(fileno=lambda file=file: os.open(file, os.O_RDWR | os.O_CREAT)))
        sacrebleu_command()
        sys.stdin.close()
        sys.stdout.close()
    said = json.loads((tmp_path / "said").read_text())
    score = replace(measure, lowercase=lowercase)(hypotheses, references, second)
    assert score.name == said["name"]
    assert score.signature == said["signature"]
    assert score.value == pytest.approx(said["score"], abs=1e-6)
    assert score.low == pytest.approx(said["confidence_mean"] - said["confidence_var"], abs=1e-4)
    assert score.high == pytest.approx(said["confidence_mean"] + said["confidence_var"], abs=1e-4)


@pytest.mark.parametrize("measure", [bleu, chrf, ter])
def test_the_interval_holds_the_score_and_narrows_with_more_lines(measure, references):
    hypotheses = system(references, 0.2, seed=3)
    few, many = measure(hypotheses[:23], references[:23]), measure(hypotheses, references)
    for score in (few, many):
        assert score.low < score.value < score.high
    assert many.high - many.low < 0.7 * (few.high - few.low)  # about sqrt(23 / 101) = 0.48 is expected
    bare = measure(hypotheses, references, resamples=0)
    assert (bare.value, bare.low, bare.high) == (pytest.approx(many.value), None, None)
    assert "bs:" not in bare.signature


def test_a_score_prints_value_interval_and_signature():
    assert str(Score("BLEU", 41.234, "nrefs:1|case:lc", 7, 40.1, 42.346)) == "BLEU 41.23 [40.10, 42.35] nrefs:1|case:lc"
    assert str(Score("BLEU", 41.234, "nrefs:1|case:lc", 7)) == "BLEU 41.23 nrefs:1|case:lc"


@pytest.mark.parametrize("measure", [bleu, chrf, ter])
def test_comparison_distinguishes_equal_and_worse_systems(measure, references):
    good, bad = system(references, 0.1, seed=4), system(references, 0.3, seed=5)
    same = measure.compare(good, good, references)
    assert (same.difference, same.p_value) == (0, 1)
    worse = measure.compare(bad, good, references)
    assert worse.p_value < 0.05
    assert worse.difference < 0 if measure.higher_is_better else worse.difference > 0
    assert (worse.system, worse.other) == (measure(bad, references), measure(good, references))


def test_comparison_of_equally_good_systems_is_not_significant(references):
    """The same noise spoils either half of the lines, so neither system is better."""
    spoiled, half = system(references, 0.2, seed=6), len(references) // 2
    first, second = spoiled[:half] + references[half:], references[:half] + spoiled[half:]
    assert bleu.compare(first, second, references).p_value > 0.05


@pytest.mark.parametrize(
    ("hypotheses", "references", "message"),
    [
        (
            ["a"],
            [["a"], ["a", "b"]],
            COUNTS_DIFFER.format("reference 2 has 2"),
        ),
        ([], [[]], "a score needs at least one line, but hypotheses has none"),
        (["a"], [[]], "references has none"),
        (["a"], ["a"], "references is one string, 'a'"),
    ],
)
def test_mismatched_or_empty_lines_are_refused(hypotheses, references, message):
    for measure in (bleu, chrf, ter):
        with pytest.raises(ValueError, match=f"{re.escape(message)}$"):
            measure(hypotheses, *references)


def test_too_few_resamples_are_refused():
    message = "resamples must be at least 100, or 0 for no interval, but resamples=10; 1000 is usual"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        bleu(["a"], ["a"], resamples=10)
    with pytest.raises(ValueError, match="resamples=0"):
        bleu.compare(["a"], ["a"], ["a"], resamples=0)
    with pytest.raises(ValueError, match="hypotheses has 1 and other has 2"):
        bleu.compare(["a"], ["a", "b"], ["a"])
