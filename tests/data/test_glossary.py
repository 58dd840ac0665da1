"""Terms of a glossary: which are found in a text, and what a file of them may hold."""

import re

import pytest

from transduce.data.glossary import Glossary, at_word, parse_glossary

TERMS = {"dog": "Hund", "hot dog": "Hotdog", "IT": "EDV", "New York": "New York", "dog show": "Schau", "犬": "Hund!"}
TERMS |= {"\u03bcm": "Mikrometer", "σίσυφοσ": "Sisyphos", "Dog Tag": "Marke", "istanbul": "Stambul"}


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("A dog, a Dog and a DOG.", ["Hund"]),
        ("A hotdog, dogs, underdog, dog's_", ["Hund"]),
        ("dogs; underdog", []),
        ("it is IT", ["EDV"]),
        ("A hot dog show in New York.", ["Hotdog", "New York"]),
        ("Hot  dog", ["Hund"]),
        ("A hot dog of 5 µm, as the ΣΊΣΥΦΟΣ.", ["Hotdog", "Mikrometer", "Sisyphos"]),
        ("Dog Tag, dog tag", ["Marke", "Hund"]),
        ("İstanbul, ISTANBUL, ıstanbul", ["Stambul"]),
        ("", []),
        ("白い犬が dog", ["Hund!", "Hund"]),
    ],
)
def test_the_longest_whole_word_term_matches_first(text, want):
    assert Glossary(tuple(TERMS.items()))(text) == want
    assert Glossary(())(text) == []


def test_lookup_in_a_large_glossary_is_fast():
    """A pattern of all terms would take minutes; see conftest.py for the bound on a test's time."""
    glossary = Glossary(tuple((f"term {n:05d}", str(n)) for n in range(3_000)))
    for n in range(100):
        assert glossary(f"The Term {n:05d} and term {2999 - n:05d}, not term {n:06d} again") == [str(n), str(2999 - n)]


@pytest.mark.parametrize(
    ("term", "with_it", "without"),
    [
        ("من", "خرج من البيت", "ثمن الكتاب"),  # Arabic: from; price
        ("על", "הספר על השולחן", "הבעל שלה"),  # Hebrew: on; husband
        ("पर", "किताब घर पर। है", "परिवार यहाँ है"),  # Hindi: on; family
        ("क", "क ख ग", "किताब"),  # a vowel behind it is no letter of its own
        ("ሰው", "አንድ ሰው", "ሰውነት"),  # Amharic: man; body
        ("cafe", "a cafe", "cafe\u0301 noir"),
        ("ti\u1ebfng", "tie\u0302\u0301ng Vi\u1ec7t", "tieng"),  # Vietnamese, either way to write it
        ("tie\u0302\u0301ng", "ti\u1ebfng Vi\u1ec7t", "tieng"),
        ("iPhone", "我用iPhone打电话", "iPhones"),
        ("친구", "친구는 왔다", "친척"),  # Korean: friend, with a particle; relative
        ("ไทย", "คนไทย", "คนลาว"),
    ],
)
def test_word_boundaries_depend_on_the_script(term, with_it, without):
    glossary = Glossary(((term, "X"),))
    assert (glossary(with_it), glossary(without)) == (["X"], [])


def test_matches_equal_a_greedy_search_in_python():
    text = "a b a b c b a"
    for terms in (["a", "a b", "b c", "c b a"], ["c b a", "b c", "a b", "a"]):
        left, want = text, []
        while left:  # the longest term at each word
            fits = [term for term in terms if re.match(rf"{term}\b", left)]
            if fits:
                want.append(max(fits, key=len).upper())
            left = left[len(max(fits, key=len)) :].lstrip() if fits else left.partition(" ")[2]
        assert Glossary(tuple((term, term.upper()) for term in terms))(text) == list(dict.fromkeys(want))


def test_at_word_adds_a_space_in_spaced_scripts():
    terms = ["Hund", "犬", "5G", "école", "من", "घर", "친구"]
    assert [at_word(term) for term in terms] == [" Hund", "犬", " 5G", " école", " من", " घर", "친구"]


def test_parse_glossary_with_and_without_translations():
    assert parse_glossary(["dog\tHund", "", " Anna \r", "\t", "dog\tHund"], "x") == (("dog", "Hund"), ("Anna", "Anna"))
    assert parse_glossary([], "x") == ()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            ["a", "b\tc\td"],
            r"^x: line 2 of a glossary must be TERM or TERM<TAB>TRANSLATION, but it is 'b\\tc\\td'; correct it$",
        ),
        (["\tc"], "line 1"),
        (["c\t"], "line 1"),
        (
            ["a\tb", "a\tc"],
            "^x: a term of a glossary has one translation, but line 2 has 'c' for 'a', and an earlier one has 'b'",
        ),
    ],
)
def test_malformed_lines_are_refused(lines, message):
    with pytest.raises(ValueError, match=message):
        parse_glossary(lines, "x")


def test_a_table_with_commas_is_refused():
    """A term would be "dog,Hund", which no text has."""
    message = (
        "a glossary has tabs between terms and translations, but words.CSV is named as CSV, with commas; save it with "
        "tabs, as .tsv"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        parse_glossary(["dog,Hund"], "words.CSV")
