"""Error rates against a plain Levenshtein, the definition by recursion, hands, and sacrebleu's bootstrap."""

import math
import random
import re
from dataclasses import replace

import jiwer
import numpy as np
import pytest
from sacrebleu.metrics import TER
from sacrebleu.significance import PairedTest

from transduce.score.measures import warn_without_words
from transduce.score.score import Score
from transduce.score.wer import Errors, cer, normalized, per, wer


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


@pytest.mark.parametrize(
    ("measure", "split"), [(wer, str.split), (cer, list), (per, str.split)], ids=["wer", "cer", "per"]
)
@pytest.mark.parametrize("seed", range(5))
def test_rates_and_counts_equal_levenshtein(measure, split, seed):
    references, hypotheses = random_lines(seed), random_lines(seed + 100)
    edits = [distance(split(h), split(r)) for h, r in zip(hypotheses, references, strict=True)]
    n_reference, n_hypothesis = (sum(len(split(line)) for line in lines) for lines in (references, hypotheses))
    rate = measure(hypotheses, references, resamples=0)
    assert rate.value == pytest.approx(100 * sum(edits) / n_reference, abs=1e-9)
    assert rate.errors.total == sum(edits)
    assert rate.errors.n_reference == n_reference
    assert rate.errors.hits + rate.errors.substitutions + rate.errors.insertions == n_hypothesis
    assert rate.n_right == edits.count(0)
    assert [errors.total for errors in rate.utterances] == edits


def test_short_lines_take_the_fewest_edits():
    lines = [""]
    for length in (1, 2, 3):
        lines += [" ".join(format(i, f"0{length}b")) for i in range(2**length)]
    pairs = [(h, r) for h in lines for r in lines]
    got = wer([h for h, _ in pairs], [r for _, r in pairs], resamples=0).utterances
    assert [errors.total for errors in got] == [fewest(h.split(), r.split()) for h, r in pairs]


@pytest.mark.parametrize(
    ("reference", "hypothesis", "errors"),
    [
        ("the cat sat on the mat", "the cat sat on the mat", Errors(hits=6)),
        ("the cat sat on the mat", "the bat sat on mat", Errors(substitutions=1, deletions=1, hits=4)),
        ("how to recognize speech", "how to wreck a nice speech", Errors(substitutions=1, insertions=2, hits=3)),
        ("we met", "well we met", Errors(insertions=1, hits=2)),
        ("we met", "we met today then", Errors(insertions=2, hits=2)),
        ("good morning", "", Errors(deletions=2)),
        ("", "good morning", Errors(insertions=2)),
        ("", "", Errors()),
        ("Cat", "cat", Errors(substitutions=1)),
        ("it's", "its", Errors(substitutions=1)),
    ],
)
def test_cases_counted_by_hand(reference, hypothesis, errors):
    assert wer([hypothesis, "a"], [reference, "a"], resamples=0).utterances == [errors, Errors(hits=1)]


def test_spaces_count_as_characters():
    assert cer(["ab  c"], [" a bc "], resamples=0).errors == Errors(insertions=1, deletions=1, hits=3)
    kitten = cer(["sitting"], ["kitten"], resamples=0)
    assert (kitten.errors, kitten.value) == (Errors(substitutions=2, insertions=1, hits=4), 50.0)
    assert cer(["a b"], ["ab"], resamples=0).value == pytest.approx(50)
    assert cer(["ab"], ["a b"], resamples=0).value == pytest.approx(100 / 3)


def test_phones_are_separated_by_white_space():
    rate = per(["DH AH0 K AE1 T"], ["DH AH0  K AA1 R T"], resamples=0)  # AA1 R became AE1
    assert (rate.errors, rate.name) == (Errors(substitutions=1, deletions=1, hits=4), "PER")
    assert rate.value == pytest.approx(100 * 2 / 6)
    assert re.fullmatch(r"case:mixed\|norm:no\|unit:phone\|jiwer:[\d.]+", rate.signature)
    assert rate.description.startswith("1 substitution, 0 insertions, 1 deletion in 6 reference phones\n")


def test_blank_lines_count_as_deletions_and_insertions():
    rate = wer(["", "uh um", "c d", " "], ["a b", "", "c d", "\t"], resamples=0)
    assert rate.errors == Errors(insertions=2, deletions=2, hits=2)
    assert (rate.value, rate.n_right, rate.n) == (100.0, 2, 4)


def test_any_white_space_separates_words():
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
        ("\u200fشكرًا لك\u200e، يا صديـقي", "شكرًا لك يا صديقي"),
        ("می\u200cخواهم co\xadoperate \ufeffสวัสดี\u200bครับ", "میخواهم cooperate สวัสดีครับ"),
        ("İyi I\u0307yi", "iyi iyi"),
        ("ג׳ורג׳ oʻzbek o‘zbek", "ג'ורג o'zbek o'zbek"),
        ("?!", ""),
    ],
)
def test_normalization_of_punctuation_case_and_unicode(text, want):
    assert normalized(text) == want


@pytest.mark.parametrize(
    ("line", "warned"),
    [
        ("我今天去学校，你呢，想去哪里？", True),
        ("今日は学校に行きます", True),
        ("ฉันกำลังกลับบ้าน", True),
        ("ខ្ញុំទៅសាលារៀន", True),
        ("我 今天 去 学校", False),
        ("ฉัน กำลัง กลับ บ้าน", False),
        ("나는 오늘 학교에 갑니다", False),
        ("मैं घर जा रहा हूँ", False),
        ("Donaudampfschifffahrtsgesellschaft", False),
        ("", False),
    ],
)
def test_word_rates_of_text_without_spaces_cause_a_warning(line, warned, caplog):
    for measure in ("wer", "ter", "cer", "bleu"):
        warn_without_words(measure, [line])
    assert ("WER counts words between spaces" in caplog.text, "--validate-by cer" in caplog.text) == (warned, warned)
    assert ("TER counts words between spaces" in caplog.text, "--validate-by chrf" in caplog.text) == (warned, warned)
    assert len(caplog.records) == 2 * warned


def test_normalization_is_idempotent():
    """Of the Basic Multilingual Plane, without the great blocks of ideographs and Hangul, and without surrogates."""
    letters = map(chr, [*range(0x3400), *range(0xA000, 0xAC00), *range(0xF900, 0x10000)])
    once = {normalized(f"a{letter}b {letter}") for letter in letters}
    assert [text for text in once if normalized(text) != text] == []


def test_normalize_acts_on_both_sides_and_is_in_the_signature():
    hypotheses, references = ["the CAT’S mat"], ["The cat's mat."]
    assert wer(hypotheses, references).value == pytest.approx(100)
    rate = replace(wer, normalize=True)(hypotheses, references)
    assert rate.value == 0
    assert re.fullmatch(r"bs:1000\|seed:12345\|case:lc\|norm:nfkc-nopunct\|unit:word\|jiwer:[\d.]+", rate.signature)
    plain = cer(hypotheses, references, resamples=0)
    assert re.fullmatch(r"case:mixed\|norm:no\|unit:char\|space:yes\|jiwer:[\d.]+", plain.signature)


def test_rates_print_like_other_scores():
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


def test_interval_has_the_binomial_width():
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


def test_interval_and_p_value_equal_sacrebleu_for_substitutions():
    """There TER is WER: no shift can help, for the spoiled words stand nowhere in the reference."""
    references = [line for line in random_lines(31, n=131) if line]
    first, second = spoiled(references, 0.20, seed=32), spoiled(references, 0.30, seed=33)
    named = [("second", second), ("first", first)]
    _, results = PairedTest(named, {"ter": TER(case_sensitive=True)}, [references], "bs", n_samples=1000)()
    theirs = results["TER"]
    ours = wer.compare(first, second, references)
    for score, result in ((ours.other, theirs[0]), (ours.system, theirs[1])):
        assert score.value == pytest.approx(result.score, abs=1e-6)
        assert (score.high - score.low) / 2 == pytest.approx(result.ci, abs=0.05)
    assert ours.difference < 0
    assert 0.001 < ours.p_value < 0.2
    assert ours.p_value == pytest.approx(theirs[1].p_value, abs=0.003)
    assert wer.compare(second, first, references).p_value == ours.p_value


def test_comparison_distinguishes_equal_and_better_systems():
    references = random_lines(41, n=101)
    good, bad = (spoiled(references, rate, seed=42) for rate in (0.1, 0.3))
    same, better, worse = (wer.compare(*pair, references) for pair in ((good, good), (good, bad), (bad, good)))
    assert (same.difference, same.p_value) == (0, 1)
    assert better.difference < 0 < worse.difference
    assert better.p_value == worse.p_value == pytest.approx(1 / 1001)
    assert (better.system.value, better.other.value) == (wer(good, references).value, wer(bad, references).value)


def test_comparison_of_equally_good_systems_is_not_significant():
    references = random_lines(43, n=200)
    noisy = spoiled(references, 0.2, seed=44)
    first, second = noisy[:100] + references[100:], references[:100] + noisy[100:]
    assert wer.compare(first, second, references).p_value > 0.05


def test_invalid_comparisons_are_refused():
    with pytest.raises(ValueError, match="resamples=10"):
        wer.compare(["a"], ["a"], ["a"], resamples=10)
    with pytest.raises(ValueError, match="hypotheses has 1 and other has 2"):
        wer.compare(["a"], ["a", "b"], ["a"])


def test_group_table_is_sorted_and_adds_up():
    rate = wer(["a", "x y", "", "uh", "d e"], ["a", "b c", "c", "", "d e f g"], resamples=0)
    table = rate.table("speaker", ["ann", "bob", "ann", "silence", "eve"])
    assert [line.split() for line in table.splitlines()] == [
        ["speaker", "utterances", "words", "WER", "S", "I", "D"],
        ["silence", "1", "0", "inf", "0", "1", "0"],
        ["bob", "1", "2", "100.00", "2", "0", "0"],
        ["ann", "2", "2", "50.00", "0", "0", "1"],
        ["eve", "1", "4", "50.00", "0", "0", "2"],
        ["all", "5", "8", "75.00", "2", "1", "3"],
    ]
    assert Errors().rate == 0
    with pytest.raises(ValueError, match=r"shorter|longer"):
        rate.table("speaker", ["ann"])


REPORT = """\
3 utterances of 4 with errors, the worst first

third: nothing said (0 substitutions, 1 insertion, 0 deletions)
REF: **
HYP: uh
      I

first: 50.00 % of 4 words (1 substitution, 0 insertions, 1 deletion)
REF: my  cat sat there
HYP: my cart sat *****
           S         D

fourth: 20.00 % of 5 words (1 substitution, 0 insertions, 0 deletions)
REF: a  cat is a cat
HYP: a cart is a cat
          S

=== SUBSTITUTIONS ===
cat  --> cart = 2x

=== INSERTIONS ===
uh = 1x

=== DELETIONS ===
there = 1x
"""


def test_report_equals_one_written_by_hand():
    hypotheses = ["my cart sat", "right", "uh", "a cart is a cat"]
    references = ["my cat sat there", "right", "", "a cat is a cat"]
    report = wer(hypotheses, references, resamples=0).report(["first", "second", "third", "fourth"])
    assert "".join(f"{line.rstrip()}\n" for line in report.split("\n")[:-1]) == REPORT
    assert wer(["a"], ["a"], resamples=0).report(["only"]).startswith("0 utterances of 1 with errors")


@pytest.mark.parametrize("unit", ["word", "char"])
def test_report_has_the_alignments_and_error_counts_of_jiwer(unit):
    references, hypotheses = random_lines(51, n=17, longest=40), random_lines(52, n=17, longest=40)
    rate = {"word": wer, "char": cer}[unit](hypotheses, references, resamples=0)
    process = {"word": jiwer.process_words, "char": jiwer.process_characters}[unit]
    hypotheses, references = (
        [line.replace(" ", "␣" if unit == "char" else " ") for line in lines] for lines in (hypotheses, references)
    )
    report = rate.report([f"line {i}" for i in range(17)], most=3)
    theirs = process(references, hypotheses)
    blocks = jiwer.visualize_alignment(theirs, show_measures=False, line_width=100).split("=== SENTENCE ")[1:]
    assert len(blocks) > 10
    for block in blocks:
        assert block.split("\n\n", 1)[1].strip("\n") in report
    assert report.endswith("\n\n" + jiwer.visualize_error_counts(theirs, top_k=3) + "\n")
    assert max(map(len, report.splitlines())) <= 105


def test_a_report_of_characters_shows_spaces():
    lines = cer(["a bc d"], ["ab c e"], resamples=0).report(["one"]).splitlines()
    assert lines[2] == "one: 50.00 % of 6 characters (1 substitution, 1 insertion, 1 deletion)"
    assert lines[3:6] == ["REF: a*b␣c␣e", "HYP: a␣b*c␣d", "      I D  S"]
    assert "␣ = 1x" in lines


@pytest.mark.parametrize(
    ("hypotheses", "references", "resamples", "message"),
    [
        (["a"], ["a", "b"], 0, "hypotheses has 1 and references has 2"),
        ([], [], 0, "hypotheses has none"),
        (["a"], "a", 0, "references is one string, 'a'"),
        (["a"], ["a"], 10, "resamples=10"),
    ],
)
def test_mismatched_or_empty_lines_are_refused(hypotheses, references, resamples, message):
    for measure in (wer, cer):
        with pytest.raises(ValueError, match=re.escape(message)):
            measure(hypotheses, references, resamples=resamples)


def test_references_without_a_word_are_refused():
    message = "an error rate needs at least one {} in the references, but all 2 are blank{}; "
    message += "look for a wrong file or column"
    with pytest.raises(ValueError, match=f"^{re.escape(message.format('word', ''))}$"):
        wer(["a", "b"], ["", " "])
    with pytest.raises(ValueError, match=f"^{re.escape(message.format('character', ' after normalization'))}$"):
        replace(cer, normalize=True)(["a", "b"], ["?", "..."])
