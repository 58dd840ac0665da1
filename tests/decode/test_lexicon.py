"""Outputs of known words only, against every possible sequence, read as text."""

import pytest

from tests.decode.language import EOS, Language
from tests.decode.test_beam import same
from tests.decode.test_phrases import SURFACES, VOCABULARY, WIDE, every, search, text
from transduce.decode.beam import Hypothesis
from transduce.decode.phrases import Prefix, Required
from transduce.decode.text_rules import TextRule, by_sentence, known_words

LEXICONS = [["a"], ["ab", "ba"], ["aba", "b"], ["a", "ab", "abb", "baab"]]


def known(h: Hypothesis, words: list[str]) -> bool:
    """Whether all of its words are known; one that was cut off may end in the middle of a word."""
    *whole, last = text(h).split(" ")
    if h.finished:
        return {*whole, last} - {""} <= {*words}
    return {*whole} - {""} <= {*words} and any(word.startswith(last) for word in words)


def lexicon(words: list[str]) -> TextRule:
    return known_words(VOCABULARY, [word.encode() for word in words])


@pytest.mark.parametrize("words", LEXICONS)
def test_lexicon_search_equals_brute_force_over_known_words(words):
    language = Language(seed=2, vocab_size=len(SURFACES))
    wide = search(language, [4, 5], WIDE, rules=[by_sentence([lexicon(words)] * 2)])
    for sentence, got in zip([4, 5], wide, strict=True):
        want = [h for h in every(language, sentence) if known(h, words)]
        assert 1 <= len(want) < len(every(language, sentence))
        same(got, want)
    for beam_size in (1, 3):
        ours = search(language, list(range(30)), beam_size, rules=[by_sentence([lexicon(words)] * 30)])
        alone = [search(language, [i], beam_size, rules=[by_sentence([lexicon(words)])])[0] for i in (0, 17)]
        assert [ours[0], ours[17]] == alone
        assert all(known(h, words) for each in ours for h in each)


def test_no_token_may_follow_bytes_of_no_word():
    added = [lexicon(["b"])(tokens).tolist() for tokens in ([], [4], [4, 4])]
    writes = {EOS: " ", **{i: surface.decode() for i, surface in enumerate(SURFACES) if surface}}
    free = [{writes[i] for i in writes if row[i] == 0} for row in added]
    assert free == [{" ", "b"}, {" "}, set()]


def test_prefixes_and_required_phrases_switch_the_lexicon_off():
    """Its neighbours are not."""
    language, words = Language(seed=3, vocab_size=len(SURFACES)), ["b"]
    prefix = Prefix(VOCABULARY, [], b"ab")
    for beam_size in (1, 3):
        rules = [by_sentence([None, lexicon(words), lexicon(words)])]
        got = search(language, [8, 8, 7], beam_size, prefixes=[prefix, None, None], rules=rules)
        assert got[0] == search(language, [8], beam_size, prefixes=[prefix])[0]
        assert got[1:] == search(language, [8, 7], beam_size, rules=[by_sentence([lexicon(words)] * 2)])
    required = Required(VOCABULARY, [[b"ab"], []])
    first, second = search(language, [8, 7], 3, required=required, rules=[by_sentence([None, lexicon(words)])])
    assert [first] == search(language, [8], 3, required=Required(VOCABULARY, [[b"ab"]]))
    assert all(known(h, words) for h in second)
