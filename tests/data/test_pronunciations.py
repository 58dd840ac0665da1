"""Pronunciations: words to phones and back, against every possible sequence of words, written out."""

import gzip
import itertools
import json

import pytest

from transduce.data.pronunciations import PRIOR, PronunciationTokenizer, read_dictionary
from transduce.data.tokenizer_files import load_tokenizer
from transduce.decode.text_rules import lexicon
from transduce.tasks.outputs import word_spans

DICTIONARY = """\
;;; a remark
to T UW1
too T UW1
two T UW1 # the number
two(2) T AO1
see S IY1
sea S IY1
the DH AH0
the(2) DH IY0
dogs D AO1 G Z
i AY1
eye AY1
want W AA1 N T
have HH AE1 V
me M IY1
"""
TEXTS = [
    "I want to see the sea.",
    "I want to see two dogs",
    "I have two dogs too",
    "the two dogs want to see me",
    "two dogs see the sea.",
    "I see Fido",
]


@pytest.fixture
def path(tmp_path):
    (tmp_path / "words.dict").write_text(DICTIONARY)
    return tmp_path / "words.dict"


@pytest.fixture
def tokenizer(path):
    return PronunciationTokenizer.train(TEXTS, read_dictionary(path))


def test_a_dictionary_keeps_the_first_pronunciation_of_each_word(path):
    packed = path.with_suffix(".dict.gz")
    packed.write_bytes(gzip.compress(DICTIONARY.encode()))
    for file in (path, packed):
        got = read_dictionary(file)
        assert got["two"] == "T UW" and got["the"] == "DH AH" and "two(2)" not in got and len(got) == 12


def test_lookup_ignores_punctuation_and_unicode_composition(tmp_path):
    path = tmp_path / "words.dict"
    path.write_text("दुनिया D U N\nكيف K Y F\nحالك H L K\ncafé K F E\nde\u0301ja\u0300 D J\n", encoding="utf-8")
    texts = ["दुनिया।", "كيف، حالك؟", "cafe\u0301 déjà"]
    tokenizer = PronunciationTokenizer.train(texts, read_dictionary(path))
    assert all(tokenizer.unk_id not in row for row in tokenizer.encode(texts))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.dict", b"to\n", "a line must be a word and its phones, but {path}, line 1, is 'to'; add them"),
        ("a.dict", b";;; no\n", "words and their phones, but {path} has none; "),
        ("a.dict", None, "must be a file, plain or .gz, but {path} does not exist"),
        ("a.gz", b"to T UW1\n", "{path} is not a whole gzip file: "),
    ],
    ids=["a word alone", "no word", "no file", "not packed"],
)
def test_invalid_dictionaries_are_refused(tmp_path, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError) as error:
        read_dictionary(path)
    assert message.format(path=path) in str(error.value)


def test_digits_that_are_not_stress_are_kept(tmp_path):
    """Tones, and vowels of X-SAMPA."""
    (tmp_path / "a.dict").write_text("妈 m a1\n麻 m a2\n鱼 AI1\ndeux d 2\nER ER0\nroses r ow1 z IX0 z\n")
    want = {"妈": "m a1", "麻": "m a2", "鱼": "AI1", "deux": "d 2", "er": "ER", "roses": "r ow z IX z"}
    assert read_dictionary(tmp_path / "a.dict") == want
    (tmp_path / "b.dict").write_text("高 g ao1\n好 h ao3\n二 er4\n儿 er2\nor AO1 R\n")
    assert [*read_dictionary(tmp_path / "b.dict").values()] == ["g ao1", "h ao3", "er4", "er2", "AO R"]
    (tmp_path / "c.dict").write_text("高 G AO1\n好 H AO3\n二 ER4\nor ao1 r\n")
    assert [*read_dictionary(tmp_path / "c.dict").values()] == ["G AO1", "H AO3", "ER4", "ao r"]


def test_stress_of_lowercase_and_reduced_vowels_is_removed(tmp_path):
    (tmp_path / "a.dict").write_text("zero z ih1 r ow0\nroses r ow1 z ix0 z\nabout AX0 B AW1 T\nmurder m er1 d axr0\n")
    assert [*read_dictionary(tmp_path / "a.dict").values()] == ["z ih r ow", "r ow z ix z", "AX B AW T", "m er d axr"]


def test_probabilities_before_the_phones_are_no_phones(tmp_path):
    """Those of Kaldi's lexiconp.txt, and of the Montreal Forced Aligner: pronunciation, silence after it, before it, none."""
    (tmp_path / "a.dict").write_text("the 1.0 DH AH0\n.5 1.0 HH AE1 F\ndogs\t0.99\t0.18\t1.0\t.5\tD AO1 G Z\n")
    assert read_dictionary(tmp_path / "a.dict") == {"the": "DH AH", ".5": "HH AE F", "dogs": "D AO G Z"}


def test_a_damaged_gzip_dictionary_is_refused(tmp_path):
    """Bytes that are lost or changed on the way, wherever they are behind the header."""
    path, whole = tmp_path / "a.gz", gzip.compress(DICTIONARY.encode())
    for damaged in (whole[:40], whole[:12] + b"\xff" * 8 + whole[20:], whole[:-8] + b"\0" * 8):
        path.write_bytes(damaged)
        with pytest.raises(ValueError) as error:
            read_dictionary(path)
        assert str(error.value).startswith(f"{path} is not a whole gzip file: ")


def test_words_become_phones_and_unknown_words_unk(tokenizer):
    (ids,) = tokenizer.encode(["I want two dogs"])
    assert " ".join(tokenizer.tokens(ids)) == "AY ▁ W AA N T ▁ T UW ▁ D AO G Z"
    assert tokenizer.tokens(tokenizer.encode(["I see Fido"])[0])[-2:] == ["▁", "<unk>"]
    assert tokenizer.writes_phones
    assert tokenizer.required("pad_id", "unk_id", "bos_id", "eos_id") == (0, 1, 2, 3)
    assert set(tokenizer.tokens(range(5, tokenizer.vocab_size))) == {
        *["AY", "W", "AA", "N", "T", "UW", "S", "IY", "DH", "AH", "D", "AO", "G", "Z", "HH", "AE", "V", "M"]
    }
    assert tokenizer.encode(["", "  "]) == [[], []] and tokenizer.decode([[], [4, 4], [2, 0, 3]]) == ["", "", ""]


def test_homophones_are_decoded_by_the_bigram_model(tokenizer):
    """Of all sequences of words with these phones, that whose product of pairs is greatest, counted from the texts here."""
    written = [*dict.fromkeys(word for text in TEXTS for word in text.split() if word != "Fido")]
    said = {"sea.": "see", "too": "to", "two": "to"}
    sounds = {word: said.get(word, word) for word in written}
    counts = {word: sum(text.split().count(word) for text in TEXTS) for word in written}
    total = sum(counts.values())

    def likelihood(words):
        product = 1.0
        for before, word in itertools.pairwise(["", *words, ""]):
            pair = sum(pair == (before, word) for t in TEXTS for pair in itertools.pairwise(["", *t.split(), ""]))
            share = (counts.get(word, 0) + 1) / (total + 1)
            product *= (pair + PRIOR * share) / (counts.get(before, 0) + PRIOR)
        return product

    several = 0
    for spoken in (
        "I want to see to dogs",
        "the see",
        "to dogs have to dogs to",
        "see see see",
        "me to",
        "I see the see",
    ):
        choices = [[word for word in written if sounds[word] == sound] for sound in spoken.split()]
        ranked = sorted(itertools.product(*choices), key=likelihood)
        several += len(ranked)
        assert tokenizer.decode(tokenizer.encode([spoken])) == [" ".join(ranked[-1])]
    assert several > 60
    assert tokenizer.decode(tokenizer.encode(["I want to see two dogs"])) == ["I want to see two dogs"]


def test_unknown_phones_decode_to_the_nearest_word(tokenizer):
    """The fewest insertions, deletions and substitutions, by the recursion of the textbook."""

    def distance(a, b):
        if not a or not b:
            return len(a) + len(b)
        return min(distance(a[1:], b) + 1, distance(a, b[1:]) + 1, distance(a[1:], b[1:]) + (a[0] != b[0]))

    ids = {name: i for i, name in enumerate(tokenizer.tokens(range(tokenizer.vocab_size)))}
    words = ["I", "want", "the", "dogs", "have", "me"]
    for spoken in ("D AO G", "W AA Z N T", "HH V", "AH DH AH", "D G AO Z", "AE AE V"):
        phones = spoken.split()
        nearest = min(words, key=lambda word: distance(phones, tokenizer.tokens(tokenizer.encode([word])[0])))
        assert tokenizer.decode([[ids[phone] for phone in phones]]) == [nearest]


def test_the_lexicon_allows_only_phones_of_known_words(tokenizer):
    known = lexicon(tokenizer, ("dogs", "the", "me", "Fido"))
    names = tokenizer.tokens(range(tokenizer.vocab_size))
    wanted = [("D", "AO", "G", "Z"), ("DH", "AH"), ("M", "IY")]
    for begun in ([], ["D"], ["D", "AO", "G"], ["M", "IY"], ["DH", "AH", "▁"], ["DH", "AH", "▁", "D", "AO"], ["T"]):
        last = tuple(begun[begun.index("▁") + 1 :] if "▁" in begun else begun)
        may = {word[len(last)] for word in wanted if word[: len(last)] == last and len(word) > len(last)}
        if not last or last in wanted:  # spaces may follow each other, as in any text
            may |= {"▁", "</s>"}
        added = known([names.index(name) for name in begun]).tolist()
        got = {name for name, nats in zip(names, added, strict=True) if nats == 0}
        assert got - {"<pad>", "<unk>", "<s>"} == may  # which are ruled out elsewhere


def test_word_spans_have_the_spelling_chosen_in_context(path):
    tokenizer = PronunciationTokenizer.train(["sea the dogs"] * 9 + ["see"] * 30, read_dictionary(path))
    (ids,) = tokenizer.encode(["sea the dogs"])
    assert tokenizer.decode([ids[:2], ids]) == ["see", "sea the dogs"]
    assert word_spans(tokenizer, ids) == [("sea", 0, 2), ("the", 2, 5), ("dogs", 5, 10)]


def test_words_can_be_added_to_the_saved_json(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "mine.json")
    again = load_tokenizer(tmp_path / "mine.json")
    assert isinstance(again, PronunciationTokenizer) and again.encode(TEXTS) == tokenizer.encode(TEXTS)
    plain = json.loads(tokenizer.model)
    plain["pronunciations"]["zoo"] = "S UW"
    more = PronunciationTokenizer(json.dumps(plain).encode())
    assert more.decode(more.encode(["I see the zoo"])) == ["I see the zoo"]


@pytest.mark.parametrize(
    "model",
    [
        b"",
        b"[]",
        b"{}",
        b'{"pronunciations": {"a": 3}, "counts": {}, "pairs": {}}',
        b'{"pronunciations": [], "counts": {}}',
    ],
)
def test_invalid_json_is_refused(model):
    with pytest.raises(ValueError, match=r"^pronunciations must come as JSON "):
        PronunciationTokenizer(model)


def test_a_word_without_phones_and_texts_of_another_language_are_refused(path):
    with pytest.raises(ValueError) as error:
        PronunciationTokenizer(b'{"pronunciations": {"a": ""}, "counts": {}, "pairs": {}}')
    assert str(error.value) == "a word must have phones, but 'a' has none; add them or leave the word out"
    with pytest.raises(ValueError, match="it has none of their 2 words"):
        PronunciationTokenizer.train(["guten Tag", "Tag"], read_dictionary(path))
