"""Characters stay what they are, unless a normalization is asked for; small letters are those of `str.lower`."""

import unicodedata

import pytest

from transduce.data.sentencepiece_bpe import SentencePieceTokenizer

TEXTS = [
    "你好，世界！（是的）：“好”；？",
    "10 m² ½ ™ … № ℃",
    "Größe: 5 µm ≥ 3 ﬁ",
    "« Bonjour\u202f! » dit-il\u00a0: 100\u202f000",
    "Cafe\u0301 Café",
    "ＡＢＣ ﾊﾝｶｸ",
]
CAPITALS = ["Die Große STRASSE ist weiß.", "ΟΔΟΣ ΣΟΦΟΣ, ΣΑΣ.", "İstanbul IĞDIR", "ŐÁ Ǆ ẞ", "МОСКВА"]


def trained(texts, **options):
    return SentencePieceTokenizer.train(texts * 3, vocab_size=420, **options)


def test_every_character_is_preserved():
    """Those of the training text, and others, which are bytes."""
    for texts in (TEXTS, CAPITALS):
        tokenizer = trained(texts)
        for text in [*TEXTS, *CAPITALS, "😀 𝔘𝔫𝔦"]:
            assert tokenizer.decode(tokenizer.encode([text])) == [text]


def test_line_breaks_and_tabs_become_spaces():
    tokenizer = trained(TEXTS)
    for mark in "\t\n\v\f\r\x1c\x1d\x1e\x85\u2028\u2029":
        assert tokenizer.decode(tokenizer.encode([f"one{mark}two"])) == ["one two"]
        assert tokenizer.encode([f"one two{mark}"]) == tokenizer.encode(["one two"])


def test_nfkc_equals_that_of_unicodedata():
    tokenizer = trained(TEXTS, normalization="nmt_nfkc")
    for text in TEXTS:
        want = " ".join(unicodedata.normalize("NFKC", text).split())
        assert tokenizer.decode(tokenizer.encode([text])) == [want]


def test_lowercase_equals_that_of_python():
    tokenizer = trained(CAPITALS, lowercase=True, symbols=["<2DE>"])
    for text in [*CAPITALS, *TEXTS]:
        want = "".join(letter.lower() for letter in text)  # a sigma does not look where it stands
        assert tokenizer.decode(tokenizer.encode([text])) == [want], text
    assert tokenizer.decode(tokenizer.encode(["<2DE> DIE"])) == ["<2DE> die"]


@pytest.mark.parametrize("lowercase", [False, True])
def test_the_saved_model_gives_the_same_ids_in_sentencepiece(tmp_path, lowercase):
    import sentencepiece

    tokenizer = trained([*TEXTS, *CAPITALS], lowercase=lowercase)
    other = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    texts = [*TEXTS, *CAPITALS]
    assert other.encode(texts) == tokenizer.encode(texts)
