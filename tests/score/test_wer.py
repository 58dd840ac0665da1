"""Error rates against a plain Levenshtein, the definition by recursion, hands, and sacrebleu's bootstrap."""

import math
import random
import re

import numpy as np
import pytest
from sacrebleu.metrics import TER
from sacrebleu.significance import PairedTest

from transduce.score.alignment import Errors, Step, align, error_report
from transduce.score.bleu import Score
from transduce.score.wer import Group, cer, compare, normalized, wer


def distance(hypothesis, reference):
    """Wagner and Fischer (1974), row by row."""
    row = list(range(len(hypothesis) + 1))
    for i, right in enumerate(reference, start=1):
        diagonal, row[0] = row[0], i
        for j, word in enumerate(hypothesis, start=1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (word != right))
    return row[-1]


def fewest(hypothesis, reference):
    """The same by definition: every way to edit is tried."""
    if not hypothesis or not reference:
        return len(hypothesis) + len(reference)
    return min(
        fewest(hypothesis[1:], reference[1:]) + (hypothesis[0] != reference[0]),
        fewest(hypothesis[1:], reference) + 1,
        fewest(hypothesis, reference[1:]) + 1,
    )


def random_lines(seed, n=61, letters="abcde", longest=11):
    """Lines of one-letter words, some of them blank."""
    rng = random.Random(seed)
    return [" ".join(rng.choices(letters, k=rng.randint(0, longest))) for _ in range(n)]


def spoiled(lines, rate, seed):
    """The lines with a share of their words replaced by one that stands nowhere else."""
    rng = random.Random(seed)
    return [" ".join("x" if rng.random() < rate else word for word in line.split()) for line in lines]


@pytest.mark.parametrize(("measure", "split"), [(wer, str.split), (cer, list)], ids=["wer", "cer"])
@pytest.mark.parametrize("seed", range(5))
def test_rate_and_counts_are_levenshtein_s(measure, split, seed):
    references, hypotheses = random_lines(seed), random_lines(seed + 100)
    edits = [distance(split(h), split(r)) for h, r in zip(hypotheses, references, strict=True)]
    n_reference, n_hypothesis = (sum(len(split(line)) for line in lines) for lines in (references, hypotheses))
    rate = measure(hypotheses, references, resamples=0)
    assert rate.value == pytest.approx(100 * sum(edits) / n_reference, abs=1e-9)
    assert rate.errors.total == sum(edits)
    assert (rate.errors.n_reference, rate.errors.n_hypothesis) == (n_reference, n_hypothesis)
    assert rate.n_right == edits.count(0)
    assert [each.errors.total for each in rate.alignments] == edits


@pytest.mark.parametrize("seed", range(3))
def test_the_steps_of_an_alignment_spell_both_sides_and_count_its_errors(seed):
    references, hypotheses = random_lines(seed), random_lines(seed + 100)
    for alignment, reference, hypothesis in zip(align(hypotheses, references), references, hypotheses, strict=True):
        steps = list(alignment.steps)
        assert " ".join(step.reference for step in steps if step.reference is not None) == reference
        assert " ".join(step.hypothesis for step in steps if step.hypothesis is not None) == hypothesis
        marks = [step.mark for step in steps]
        assert alignment.errors == Errors(
            substitutions=marks.count("S"),
            insertions=marks.count("I"),
            deletions=marks.count("D"),
            hits=marks.count(""),
        )


def test_every_pair_of_short_lines_takes_the_fewest_edits():
    lines = [""]
    for length in (1, 2, 3):
        lines += [" ".join(format(i, f"0{length}b")) for i in range(2**length)]
    pairs = [(h, r) for h in lines for r in lines]
    alignments = align([h for h, _ in pairs], [r for _, r in pairs])
    assert [a.errors.total for a in alignments] == [fewest(h.split(), r.split()) for h, r in pairs]


@pytest.mark.parametrize(
    ("reference", "hypothesis", "marks"),
    [
        ("the cat sat on the mat", "the cat sat on the mat", "......"),
        ("the cat sat on the mat", "the bat sat on mat", ".S..D."),
        ("how to recognize speech", "how to wreck a nice speech", None),  # where the two insertions stand is free
        ("we met", "well we met", "I.."),
        ("we met", "we met today then", "..II"),
        ("good morning", "", "DD"),
        ("", "good morning", "II"),
        ("", "", ""),
        ("Cat", "cat", "S"),
        ("it's", "its", "S"),
    ],
)
def test_cases_aligned_by_hand(reference, hypothesis, marks):
    (alignment,) = align([hypothesis], [reference])
    if marks is not None:
        assert "".join(step.mark or "." for step in alignment.steps) == marks
    else:
        assert alignment.errors == Errors(substitutions=1, insertions=2, hits=3)


def test_characters_are_aligned_by_hand_and_a_space_is_one():
    (alignment,) = align(["ab  c"], [" a bc "], unit="char")
    assert next(iter(alignment.steps)) == Step("a", "a")
    assert alignment.errors == Errors(insertions=1, deletions=1, hits=3)
    kitten = cer(["sitting"], ["kitten"], resamples=0)
    assert (kitten.errors, kitten.value) == (Errors(substitutions=2, insertions=1, hits=4), 50.0)
    assert cer(["a b"], ["ab"], resamples=0).value == pytest.approx(50)
    assert cer(["ab"], ["a b"], resamples=0).value == pytest.approx(100 / 3)


def test_blank_lines_count_as_deletions_and_insertions():
    rate = wer(["", "uh um", "c d", " "], ["a b", "", "c d", "\t"], resamples=0)
    assert rate.errors == Errors(insertions=2, deletions=2, hits=2)
    assert (rate.value, rate.n_right, rate.n) == (100.0, 2, 4)


def test_white_space_of_every_kind_separates_words_once():
    assert wer(["a  b\tc\u3000d\u2028e "], ["a b c d e"], resamples=0).value == 0
    assert cer(["a \t b"], ["a b"], resamples=0).value == 0


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("Don’t stop, please!", "don't stop please"),
        ("It's the dogs' 'home'.", "it's the dogs home"),
        ("rock ’n’ roll — o´clock", "rock n roll o'clock"),
        ("well-known; yes…no", "well known yes no"),
        ("ＡＢＣ　ﬁne №5", "abc fine no5"),
        ("Cafe\u0301 ÉCOLE", "café école"),
        ("«Straße» 3,5 $", "straße 3 5 $"),
        ("हिन्दी में।", "हिन्दी में"),
        ("  a \t b\u2028", "a b"),
        ("?!", ""),
    ],
)
def test_normalization_keeps_what_can_be_heard(text, want):
    assert normalized(text) == want


def test_normalizing_twice_is_normalizing_once_for_every_letter():
    """Of the Basic Multilingual Plane, without the great blocks of ideographs and Hangul, and without surrogates."""
    letters = map(chr, [*range(0x3400), *range(0xA000, 0xAC00), *range(0xF900, 0x10000)])
    once = {normalized(f"a{letter}b {letter}") for letter in letters}
    assert [text for text in once if normalized(text) != text] == []


def test_normalize_acts_on_both_sides_and_is_in_the_signature():
    hypotheses, references = ["the CAT’S mat"], ["The cat's mat."]
    assert wer(hypotheses, references).value == pytest.approx(100)
    rate = wer(hypotheses, references, normalize=True)
    assert rate.value == 0
    assert re.fullmatch(r"bs:1000\|seed:12345\|case:lc\|norm:nfkc-nopunct\|unit:word\|jiwer:[\d.]+", rate.signature)
    plain = cer(hypotheses, references, resamples=0)
    assert re.fullmatch(r"case:mixed\|norm:no\|unit:char\|space:yes\|jiwer:[\d.]+", plain.signature)


def test_a_rate_prints_as_every_score():
    rate = wer(["a x"], ["a b"], resamples=0)
    assert isinstance(rate, Score)
    assert str(rate) == f"WER 50.00 {rate.signature}"
    assert str(wer(["a x"], ["a b"])).startswith("WER 50.00 [50.00, 50.00] bs:1000|seed:12345|case:mixed|")


def percentile(values, share):
    """Between the two nearest of the sorted values, in proportion."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def test_the_interval_is_the_bootstrap_written_out():
    references, hypotheses = random_lines(21, n=17), random_lines(22, n=17)
    pairs = [(h.split(), r.split()) for h, r in zip(hypotheses, references, strict=True)]
    draws = np.random.default_rng(12345).integers(17, size=(200, 17)).tolist()
    rates = []
    for draw in draws:
        edits, words = sum(distance(*pairs[i]) for i in draw), sum(len(pairs[i][1]) for i in draw)
        rates.append(100 * edits / words)
    rate = wer(hypotheses, references, resamples=200)
    assert rate.low == pytest.approx(percentile(rates, 0.025), abs=1e-9)
    assert rate.high == pytest.approx(percentile(rates, 0.975), abs=1e-9)


def test_the_interval_has_the_width_that_statistics_expects_and_narrows_with_more_lines():
    references = random_lines(23, n=401)
    hypotheses = spoiled(references, 0.2, seed=24)
    few, many = wer(hypotheses[:101], references[:101]), wer(hypotheses, references)
    for rate in (few, many):
        assert rate.low < rate.value < rate.high
        # words are spoiled independently: a binomial share, normal at this size
        sigma = 100 * math.sqrt(0.2 * 0.8 / rate.errors.n_reference)
        assert rate.high - rate.low == pytest.approx(2 * 1.96 * sigma, rel=0.25)
    assert many.high - many.low < 0.65 * (few.high - few.low)


def test_draws_without_a_word_in_the_reference_are_left_out():
    rate = wer(["a", "uh"], ["a b", ""])  # draws: twice the first, once each (either order), twice the second
    assert (rate.value, rate.low, rate.high) == (100.0, 50.0, 100.0)


def test_interval_and_p_value_are_those_of_sacrebleu_where_errors_are_substitutions():
    """There TER is WER: no shift can help, for the spoiled words stand nowhere in the reference."""
    references = [line for line in random_lines(31, n=131) if line]
    first, second = spoiled(references, 0.20, seed=32), spoiled(references, 0.30, seed=33)
    named = [("second", second), ("first", first)]
    _, results = PairedTest(named, {"ter": TER(case_sensitive=True)}, [references], "bs", n_samples=1000)()
    theirs = results["TER"]
    ours = compare(wer(first, references), wer(second, references))
    for score, result in ((ours.other, theirs[0]), (ours.system, theirs[1])):
        assert score.value == pytest.approx(result.score, abs=1e-6)
        assert (score.high - score.low) / 2 == pytest.approx(result.ci, abs=0.05)
    assert ours.difference < 0
    assert 0.001 < ours.p_value < 0.2
    assert ours.p_value == pytest.approx(theirs[1].p_value, abs=0.003)
    assert compare(ours.other, ours.system).p_value == ours.p_value


def test_comparison_tells_equal_systems_from_a_better_one():
    references = random_lines(41, n=101)
    good, bad = (wer(spoiled(references, rate, seed=42), references) for rate in (0.1, 0.3))
    assert (compare(good, good).difference, compare(good, good).p_value) == (0, 1)
    assert compare(good, bad).difference < 0 < compare(bad, good).difference
    assert compare(good, bad).p_value == compare(bad, good).p_value == pytest.approx(1 / 1001)


def test_comparison_finds_nothing_between_two_draws_of_one_system():
    references = random_lines(43, n=200)
    noisy = spoiled(references, 0.2, seed=44)
    first, second = noisy[:100] + references[100:], references[:100] + noisy[100:]
    assert compare(wer(first, references), wer(second, references)).p_value > 0.05


def test_what_cannot_be_compared_is_refused():
    rate, version = wer(["a"], ["a"], resamples=0), jiwer_version()
    message = "a comparison needs at least 100 resamples, but resamples=10; 1000 is usual"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        compare(rate, rate, resamples=10)
    words, letters = f"case:mixed|norm:no|unit:word|{version}", f"case:mixed|norm:no|unit:char|space:yes|{version}"
    for other, counted in ((cer(["a"], ["a"], resamples=0), letters), (wer(["a"], ["b"], resamples=0), words)):
        message = (
            "two rates can be compared if they were counted in the same way on the same references, "
            f"but they are {words} over 1 and {counted} over 1 in 1 and 1 utterances; score both against one file"
        )
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            compare(rate, other)


def jiwer_version():
    return wer(["a"], ["a"], resamples=0).signature.split("|")[-1]


def test_groups_add_up_to_the_whole_and_the_worst_stands_first():
    rate = wer(["a", "x y", "", "uh", "d e"], ["a", "b c", "c", "", "d e f g"], resamples=0)
    groups = rate.by_group(["ann", "bob", "ann", "silence", "eve"])
    assert groups == [
        Group("silence", 1, Errors(insertions=1)),
        Group("bob", 1, Errors(substitutions=2)),
        Group("ann", 2, Errors(deletions=1, hits=1)),
        Group("eve", 1, Errors(deletions=2, hits=2)),
    ]
    assert sum((group.errors for group in groups), Errors()) == rate.errors
    assert [group.errors.rate for group in groups] == [math.inf, 100, 50, 50]
    assert Errors().rate == 0
    with pytest.raises(ValueError, match=r"^every utterance needs a label, but there are 5 utterances, 1 labels$"):
        rate.by_group(["ann"])


REPORT = """\
3 utterances of 4 with errors, the worst first

third: nothing said (0 substitutions, 1 insertion, 0 deletions)
    ref  **
    hyp  uh
         I

first: 50.00 % of 4 words (1 substitution, 0 insertions, 1 deletion)
    ref  my  cat   sat  there
    hyp  my  cart  sat  *****
             S          D

fourth: 20.00 % of 5 words (1 substitution, 0 insertions, 0 deletions)
    ref  a  cat   is  a  cat
    hyp  a  cart  is  a  cat
            S

Substitutions (reference → hypothesis): 2, 1 different
     2  cat → cart

Insertions: 1, 1 different
     1  uh

Deletions: 1, 1 different
     1  there
"""


def test_a_report_is_what_one_would_write_by_hand():
    hypotheses = ["my cart sat", "right", "uh", "a cart is a cat"]
    references = ["my cat sat there", "right", "", "a cat is a cat"]
    assert error_report(align(hypotheses, references), ["first", "second", "third", "fourth"]) == REPORT
    assert error_report(align(["a"], ["a"]), ["only"]).startswith("0 utterances of 1 with errors")


def test_a_report_of_characters_shows_spaces_that_are_wrong():
    lines = error_report(align(["a bc d"], ["ab c e"], unit="char"), ["one"], unit="char").splitlines()
    assert lines[2] == "one: 50.00 % of 6 characters (1 substitution, 1 insertion, 1 deletion)"
    assert lines[3:6] == ["    ref  a*b␣c e", "    hyp  a␣b*c d", "          I D  S"]
    assert "     1  ␣" in lines


def test_columns_stand_above_each_other_where_letters_are_wide_or_combine():
    (alignment,) = align(["東 cafe\u0301 z"], ["東Ｙ cafe y"])
    text = error_report([alignment], ["one"]).splitlines()
    assert text[3:6] == ["    ref  東Ｙ  cafe  y", "    hyp  東    cafe\u0301  z", "         S     S     S"]


def test_long_lines_are_cut_between_words_and_nothing_is_lost():
    reference = " ".join(f"word{i}" for i in range(101))
    text = error_report(align([reference.replace("word50", "")], [reference]), ["one"])
    shown = [line.strip() for line in text.splitlines()[3:]]
    said = [line.removeprefix("ref  ") for line in shown if line.startswith("ref  ")]
    assert len(said) > 1
    assert " ".join(said).split() == reference.split()
    assert max(map(len, text.splitlines())) <= 105


def test_only_the_most_frequent_errors_are_listed():
    text = error_report(align(["x x x y y z"], [""]), ["one"], most=2)
    assert "Insertions: 6, 3 different\n     3  x\n     2  y\n        and 1 more\n" in text


@pytest.mark.parametrize(
    ("hypotheses", "references", "resamples", "message"),
    [
        (
            ["a"],
            ["a", "b"],
            0,
            "hypotheses and references must have the same number of lines, but hypotheses has 1 and references has 2; "
            "look for lines lost, added or split on the way",
        ),
        ([], [], 0, "every side of a score must be a list of at least one line, but hypotheses is empty"),
        (["a"], "a", 0, "every side of a score must be a list of at least one line, but references is one string, 'a'"),
        (["a"], ["a"], 10, "resamples must be 0 (no interval) or at least 100, but resamples=10"),
    ],
)
def test_lines_that_cannot_be_scored_are_refused(hypotheses, references, resamples, message):
    for measure in (wer, cer):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            measure(hypotheses, references, resamples=resamples)


def test_references_without_a_word_are_refused():
    message = "an error rate needs at least one {} in the references, but all 2 are blank{}; "
    message += "look for a wrong file or column"
    with pytest.raises(ValueError, match=f"^{re.escape(message.format('word', ''))}$"):
        wer(["a", "b"], ["", " "])
    with pytest.raises(ValueError, match=f"^{re.escape(message.format('character', ' after normalization'))}$"):
        cer(["a", "b"], ["?", "..."], normalize=True)


def test_counts_below_zero_are_refused():
    with pytest.raises(ValueError, match=r"^a count of errors must be 0 or more, but deletions=-1$"):
        Errors(deletions=-1)
