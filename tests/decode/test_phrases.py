"""Phrases that outputs begin with, or must or must not contain, against every possible sequence, read as text."""

import math
import random
from dataclasses import replace

import pytest
import torch

from tests.decode.language import EOS, Language, LanguageScorer, brute_force
from tests.decode.test_beam import same, starts
from transduce.decode.beam import Hypothesis, beam_search
from transduce.decode.config import BeamConfig, RulesConfig
from transduce.decode.phrases import Prefix, Required, Vocabulary
from transduce.decode.rules import Constraints
from transduce.decode.sample import GREEDY, Sampler
from transduce.decode.text_rules import TextRule, biased_phrases, by_sentence

SURFACES = [b"", b"", b"", b"a", b"b", b"ab", b" a", b"ba"]
VOCABULARY = Vocabulary(SURFACES, EOS)
SPECIAL = [0, 1]
BOUND, WIDE = 4, 1 + 5 + 25 + 125 + 625
"""Tokens, and how many sequences of up to so many there are."""


def text(h: Hypothesis) -> str:
    return b"".join(SURFACES[i] for i in h.tokens).decode()


def between(h: Hypothesis) -> str:
    """The text in which phrases are searched: between spaces, without the last one if it was cut off."""
    return f" {text(h)} " if h.finished else f" {text(h)}"


def every(language: Language, sentence: int, bound: int = BOUND) -> list[Hypothesis]:
    return brute_force(language, sentence, bound, 0.6, SPECIAL)


def search(
    language: Language,
    sentences: list[int],
    beam_size: int,
    bound: int = BOUND,
    required: Required | None = None,
    **more,
) -> list[list[Hypothesis]]:
    """All hypotheses; by greedy search if the beam size is 1."""
    bounds, prompts, scorer = torch.tensor([bound] * len(sentences)), starts(len(sentences)), LanguageScorer
    constraints = Constraints(bounds, eos_id=EOS, suppressed=SPECIAL, prompts=prompts, **more)
    if beam_size == 1:
        how = {"sampling": GREEDY, "score": BeamConfig()}
        return Sampler(scorer(language, sentences), prompts, constraints, **how).run()
    beam = BeamConfig(beam_size=beam_size, n_best=beam_size)
    return beam_search(scorer(language, sentences), prompts, constraints, beam, required=required)


def test_the_ways_of_a_long_chinese_text_equal_brute_force():
    """All tokens with the first byte of a character were compared at each place, 8 ms; conftest.py bounds a test's time."""
    signs = [chr(0x4E00 + i) for i in range(4096)]
    pieces = [*signs, *(a + b for k in (1, 7, 99, 500, 999) for a, b in zip(signs, signs[k:], strict=False))]
    surfaces = [b"", *(bytes([i]) for i in range(256)), *(piece.encode() for piece in pieces)]
    written = "".join(random.Random(0).choices(signs, k=2_000)).encode()
    ways = Vocabulary(surfaces, EOS).ways(written)
    for start in range(0, len(written), 501):
        rest = written[start:]
        assert sorted(ways[start]) == [i for i, each in enumerate(surfaces) if each and rest.startswith(each)]


def never(*phrases: bytes) -> TextRule:
    return biased_phrases(VOCABULARY, dict.fromkeys(phrases, -math.inf))


@pytest.mark.parametrize("phrases", [["aa"], ["ab", "b a"], ["a "], [" b", "bb", "aba"], ["b"], ["a", "b"]])
def test_forbidden_phrases_equal_a_filter_of_brute_force(phrases):
    language = Language(seed=2, vocab_size=len(SURFACES))
    forbidden = never(*(phrase.encode() for phrase in phrases))
    wide = search(language, [4, 5], WIDE, rules=[by_sentence([forbidden] * 2)])
    for sentence, got in zip([4, 5], wide, strict=True):
        want = [h for h in every(language, sentence) if not any(phrase in between(h) for phrase in phrases)]
        assert 1 <= len(want) < len(every(language, sentence))
        same(got, want)
    for beam_size in (1, 3):
        ours = search(language, list(range(30)), beam_size, rules=[by_sentence([forbidden] * 30)])
        alone = [search(language, [i], beam_size, rules=[by_sentence([forbidden])])[0] for i in (0, 17)]
        assert [ours[0], ours[17]] == alone
        assert not any(phrase in between(h) for each in ours for h in each for phrase in phrases)


@pytest.mark.parametrize(("fixed", "free"), [([], "ab"), ([], " a"), ([4], "ba"), ([], "aba"), ([3, 6], "")])
def test_prefixes_in_any_tokens_equal_a_filter_of_brute_force(fixed, free):
    language, prefix = Language(seed=3, vocab_size=len(SURFACES)), Prefix(VOCABULARY, fixed, free.encode())
    begun = b"".join(SURFACES[i] for i in fixed).decode()
    with_prefix, without = search(language, [8, 8], WIDE, prefixes=[prefix, None])
    same(without, every(language, 8))
    fits = [h for h in without if h.tokens[: len(fixed)] == fixed and text(h).startswith(begun + free)]
    assert 1 <= len(fits) < len(without)
    same(with_prefix, fits)
    for beam_size in (1, 3):
        for each in search(language, [1, 2, 3], beam_size, prefixes=[prefix] * 3):
            assert all(text(h).startswith(begun + free) for h in each)


def test_a_prefix_overrides_forbidden_phrases():
    language = Language(seed=3, vocab_size=len(SURFACES))
    forbidden, prefix = never(b"ab"), Prefix(VOCABULARY, [], b"ab")
    for beam_size in (1, 4):
        for each in search(language, [1, 2], beam_size, prefixes=[prefix] * 2, rules=[by_sentence([forbidden] * 2)]):
            assert all(text(h).startswith("ab") and "ab" not in text(h)[1:] for h in each)


@pytest.mark.parametrize("seed", range(4))
def test_byte_by_byte_matching_equals_python(seed):
    rng = random.Random(seed)
    for _ in range(5):
        check_byte_by_byte_matching(rng)


def check_byte_by_byte_matching(rng: random.Random) -> None:
    words = ["".join(rng.choices("ab ", k=rng.randint(1, 4))) for _ in range(rng.randint(1, 4))]
    forbidden = never(*(word.encode() for word in words))
    for _ in range(20):
        tokens = rng.choices(range(3, 8), k=rng.randint(0, 6))
        before = (b" " + b"".join(SURFACES[i] for i in tokens)).decode()
        for token, added in enumerate(forbidden(tokens).tolist()):
            after = before + (" " if token == EOS else SURFACES[token].decode())
            assert (added == -math.inf) == any(
                after.find(word, max(0, len(before) - len(word) + 1)) >= 0 for word in words
            )


def test_a_prefix_that_cannot_be_tokenized_is_refused():
    with pytest.raises(ValueError, match=r"^a prefix must be made of tokens, but this vocabulary cannot spell 'abc'$"):
        Prefix(VOCABULARY, [], b"abc")


# Phrases with a bias


def bonus(text: str, bias: dict[str, float]) -> float:
    """A bonus once for each phrase in the text, and the largest share for a beginning with which it ends."""
    times = {phrase: sum(text.startswith(phrase, i) for i in range(len(text))) for phrase in bias}
    left = {phrase: nats for phrase, nats in bias.items() if nats > 0 and not times[phrase]}
    begun = [(p[:n], nats * n / len(p)) for p, nats in left.items() for n in range(1, len(p)) if p[:n] != " "]
    shares = [share for beginning, share in begun if text.endswith(beginning)]
    total = sum(nats * (times[phrase] > 0 if nats > 0 else times[phrase]) for phrase, nats in bias.items())
    return total + (max([*shares, 0.0]) if not text.endswith("$") else 0.0)


@pytest.mark.parametrize(
    "bias",
    [{"aa": 2.0}, {"ab": 2.0, "b a ": 1.0}, {"a ": 4.0, "aab ": -2.0}, {" b": 3.0, "bb": 0.5, "abab": 8.0},
     {"abba": 4.0, "ba": -4.0}],
    ids=str,
)  # fmt: skip
def test_a_bias_counts_once_and_is_withdrawn_from_incomplete_phrases(bias):
    """The whole space of outputs, ranked anew; a neighbour has other phrases, or none."""
    language = Language(seed=2, vocab_size=len(SURFACES))
    rule = biased_phrases(VOCABULARY, {phrase.encode(): nats for phrase, nats in bias.items()})
    other = biased_phrases(VOCABULARY, {b"ba": 2.0})
    ours = search(language, [4, 5, 6], WIDE, rules=[by_sentence([rule, None, other])])
    for sentence, got, each in zip([4, 5, 6], ours, [bias, {}, {"ba": 2.0}], strict=True):
        want = []
        for h in every(language, sentence):
            log_prob = h.log_prob + bonus(between(h) + "$" * h.finished, each)
            want.append(replace(h, log_prob=log_prob, score=h.score * log_prob / h.log_prob))
        same(got, sorted(want, key=lambda h: -h.score))


@pytest.mark.parametrize(("bias", "added"), [({b"b": 2.0}, [0, 2, 2]), ({b"b": -2.0, b"bb": 5.0}, [0, 0.5, 1])])
def test_a_bonus_counts_once_per_token_and_a_penalty_each_time(bias, added):
    assert biased_phrases(Vocabulary([b"a", b"b", b"bb"], None), bias)([0]).tolist() == added


# Required phrases


def required(n: int, *phrases: str) -> Required:
    return Required(VOCABULARY, [[phrase.encode() for phrase in phrases]] * n)


@pytest.mark.parametrize(
    ("bound", "wide"), [(3, WIDE - 625), pytest.param(BOUND, WIDE, marks=pytest.mark.long)], ids=["3", "4"]
)
@pytest.mark.parametrize("phrases", [["ab"], ["aba"], ["b a", "bb"], ["a "], [" b", "ba"], ["a", "b"], ["ab", "bab"]])
def test_required_phrases_equal_a_filter_of_brute_force(phrases, bound, wide):
    """A beam has nearly as many banks as places, so only short outputs are enumerated completely."""
    language = Language(seed=2, vocab_size=len(SURFACES))
    needed, plain = Required(VOCABULARY, [[p.encode() for p in phrases], []]), every(language, 4, bound)
    with_phrases, without = search(language, [4, 4], wide, bound, required=needed)
    want = [h for h in plain if all(phrase in between(h) for phrase in phrases)]
    assert 1 <= len(want) < len(plain)
    same(with_phrases, want)
    same(without, plain)
    for beam_size in (2, 5):
        got = search(language, list(range(20)), beam_size, required=required(20, *phrases))
        assert all(got) and all(phrase in between(h) for each in got for h in each for phrase in phrases)
        assert search(language, [7], beam_size, required=required(1, *phrases)) == [got[7]]


@pytest.mark.parametrize("beam_size", [2, 3, 6])
def test_sentences_without_required_phrases_are_unchanged(beam_size):
    language = Language(seed=9, vocab_size=len(SURFACES))
    needed = Required(VOCABULARY, [[b"ab"], *[[]] * 20])
    ours = search(language, list(range(21)), beam_size, required=needed)
    for got, want in zip(ours[1:], search(language, list(range(1, 21)), beam_size), strict=True):
        same(got, want)


@pytest.mark.parametrize("beam_size", [2, 3])
def test_impossible_required_phrases_still_give_an_output(beam_size):
    """Without b there is no "ab", and a may come once: for the first sentence, the beam has nothing left but EOS."""
    rules, needed = RulesConfig(suppress=(4, 5, 6, 7), no_repeat_ngram=1), Required(VOCABULARY, [[b"ab"], [b"a"]])
    stuck, free = search(Language(seed=2, vocab_size=len(SURFACES)), [4, 5], beam_size, config=rules, required=needed)
    assert [(h.tokens, h.finished) for h in stuck] == [(h.tokens, h.finished) for h in free] == [([3], True)]


def test_a_required_phrase_that_cannot_be_tokenized_is_refused():
    message = "a required phrase must be made of tokens, but this vocabulary cannot spell 'c'"
    with pytest.raises(ValueError, match=f"^{message}$"):
        required(1, "c")
