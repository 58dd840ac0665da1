"""Text goes in and comes out; nothing is unknown; the same text makes the same model."""

import itertools
import sys

import pytest
import sentencepiece

from transduce.data.json_tokenizer import JSONTokenizer
from transduce.data.sentencepiece_bpe import BOS, EOS, PAD, UNK, SentencePieceTokenizer, train_tokenizer_pair
from transduce.errors import InputError

TEXT = [
    f"the {colour} {animal} sat on the {place}"
    for colour, animal, place in itertools.product(
        ("red", "green", "old", "tiny"), ("cat", "dog", "bird", "horse"), ("mat", "roof", "tree", "table")
    )
]


@pytest.fixture(scope="module")
def tokenizer() -> SentencePieceTokenizer:
    return SentencePieceTokenizer.train(TEXT, vocab_size=320)


@pytest.mark.parametrize(
    "text",
    [
        "the red cat sat on the mat",
        "Capitals, digits 1234567890 & punctuation (never seen)!",
        "😀 👩‍👩‍👧 🇫🇷",
        "漢字とかな 한국어 ไทย",
        "שלום مرحبا नमस्ते",
        "naïve Ægir Žižek ẞ",
        "<s> </s> <unk> <pad> <0x41>",  # markup in the text is text
        "",
    ],
)
def test_round_trip_without_unknown_tokens(tokenizer, text):
    (ids,) = tokenizer.encode([text])
    assert tokenizer.decode([ids]) == [text]
    assert not {PAD, UNK, BOS, EOS} & set(ids)
    assert all(0 <= i < tokenizer.vocab_size for i in ids)


def test_runs_of_spaces_are_one_space(tokenizer):
    """What else becomes of characters is in test_normalization.py."""
    assert tokenizer.decode(tokenizer.encode(["  two  spaces\tand a tab "])) == ["two spaces and a tab"]


def test_a_batch_equals_its_sentences_one_by_one(tokenizer):
    assert tokenizer.encode(TEXT) == [tokenizer.encode([text])[0] for text in TEXT]
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT
    assert tokenizer.encode([]) == [] and tokenizer.decode([]) == []
    assert tokenizer.decode([[], [], tokenizer.encode(["cat"])[0], []]) == ["", "", "cat", ""]


def test_special_ids_are_zero_to_three_and_have_no_text(tokenizer):
    assert (PAD, UNK, BOS, EOS) == (0, 1, 2, 3)
    assert tokenizer.tokens([PAD, UNK, BOS, EOS]) == ["<pad>", "<unk>", "<s>", "</s>"]
    (ids,) = tokenizer.encode(["the cat"])
    assert tokenizer.decode([[BOS, *ids, EOS, PAD, PAD]]) == ["the cat"]


def test_merges_are_learnt(tokenizer):
    (ids,) = tokenizer.encode(["the cat sat on the table"])
    assert len(ids) < len("the cat sat on the table") / 2
    assert tokenizer.tokens(ids)[0] == "▁the"
    assert tokenizer.vocab_size == 320


def test_the_same_sentences_make_the_same_model(tokenizer):
    assert SentencePieceTokenizer.train(iter(TEXT), vocab_size=320).model == tokenizer.model


def test_a_saved_model_gives_the_same_ids(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "a.model")
    assert SentencePieceTokenizer.load(tmp_path / "a.model").encode(TEXT) == tokenizer.encode(TEXT)
    rival = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "a.model"))
    assert rival.encode(TEXT) == tokenizer.encode(TEXT)


def test_a_small_corpus_gives_a_small_vocabulary():
    small = SentencePieceTokenizer.train(["a b", "b a"], vocab_size=1000)
    assert 4 + 256 + 3 <= small.vocab_size < 300  # the special pieces, the bytes and a, b, ▁ are always there
    assert small.decode(small.encode(["a b"])) == ["a b"]


def test_a_vocabulary_without_room_for_the_characters_is_refused():
    letters = len(set("".join(TEXT)) - {" "}) + 1  # ▁ is a letter
    for size, symbols in ((264, ()), (0, ()), (1, ("<2de>",)), (259, ())):
        with pytest.raises(InputError) as caught:
            SentencePieceTokenizer.train(TEXT, vocab_size=size, symbols=symbols)
        assert str(caught.value) == (
            f"vocab_size must be at least {260 + len(symbols) + letters}, for special pieces, {'symbols, ' * len(symbols)}"
            f"bytes and the characters of the text, but vocab_size={size}"
        )
    SentencePieceTokenizer.train(TEXT, vocab_size=260 + letters)


@pytest.mark.parametrize("kind", [SentencePieceTokenizer, JSONTokenizer])
def test_an_impossible_vocab_size_is_refused(kind):
    for size in (-1, 2**31, 10**12, 10**30):
        with pytest.raises(InputError, match=f"vocab_size={size}$"):
            kind.train(TEXT, vocab_size=size)


def test_an_old_protobuf_is_an_error_with_advice(monkeypatch):
    monkeypatch.delattr(sentencepiece, "sentencepiece_model_pb2", raising=False)
    monkeypatch.setitem(sys.modules, "sentencepiece.sentencepiece_model_pb2", None)
    with pytest.raises(InputError, match=r"SentencePiece needs a newer protobuf .*pip install --upgrade protobuf"):
        SentencePieceTokenizer.train(TEXT, vocab_size=300)


def test_lowercase_equals_python_and_keeps_symbols():
    texts = [*TEXT, "Die Straße in ÖSTERREICH, Ένα Και ДВА, ÉTÉ und Ǆ"]
    tokenizer = SentencePieceTokenizer.train(texts, vocab_size=420, symbols=("<2DE>",), lowercase=True)
    assert tokenizer.decode(tokenizer.encode(texts)) == [text.lower() for text in texts]
    (ids,) = tokenizer.encode(["<2DE> THE CAT"])
    assert tokenizer.decode([ids]) == ["<2DE> the cat"]
    letters = "".join(tokenizer.tokens(range(5 + 256, tokenizer.vocab_size)))
    assert letters == letters.lower() and len(letters) > 150


def test_a_text_may_be_one_long_line():
    short = SentencePieceTokenizer.train(["αβγδ εζηθ " * 100, "a b c"], vocab_size=290)
    long = SentencePieceTokenizer.train(["αβγδ εζηθ " * 120_000, "a b c"], vocab_size=290)
    assert long.encode(["αβγδ εζηθ"]) == short.encode(["αβγδ εζηθ"]) and len(long.encode(["αβγδ"])[0]) <= 2


def test_a_space_is_a_space_although_the_training_lines_are_long():
    """As DNA has them: of a hundred thousand letters, one is a space, which is no token of its own without a rule."""
    tokenizer = SentencePieceTokenizer.train(["ACGT" * 25_000], vocab_size=270)
    assert tokenizer.decode(tokenizer.encode(["AC GT"])) == ["AC GT"]


def test_a_joint_pair_is_one_tokenizer_and_a_separate_pair_two():
    german = [text.replace("the", "das").replace("cat", "Kätzchen") for text in TEXT]
    one, same = train_tokenizer_pair(TEXT, german, vocab_size=380, joint=True)
    assert one is same
    english, other = train_tokenizer_pair(TEXT, german, vocab_size=380, joint=False)
    assert english is not other
    assert "▁Kätzchen" in other.tokens(range(other.vocab_size))
    assert "▁Kätzchen" not in english.tokens(range(english.vocab_size))
