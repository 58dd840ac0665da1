"""Tokenizers that were made elsewhere, symbols, and vocabularies that come out smaller than asked for."""

import io
import json
import logging
import re

import pytest
import sentencepiece
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.language_runs import any_tokenizer
from transduce.data.base_tokenizer import CharTokenizer
from transduce.data.json_tokenizer import JSONTokenizer
from transduce.data.sentencepiece_bpe import EOS, SentencePieceTokenizer
from transduce.data.tokenizer_files import load_tokenizer, train_tokenizer, write_tokenizers

TEXT = [
    f"the {colour} {animal} sat on the {place}"
    for colour in ("red", "green", "old")
    for animal in ("cat", "dog", "bird", "horse")
    for place in ("mat", "roof", "tree", "table")
]


def foreign(**options) -> bytes:
    """A model as the library SentencePiece learns it, with special ids of another toolkit."""
    model = io.BytesIO()
    options = {"vocab_size": 320 if options.get("byte_fallback") else 60, "hard_vocab_limit": False} | options
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(TEXT), model_writer=model, minloglevel=2, **options)
    return model.getvalue()


LAYOUTS = {
    "its own": {},
    "T5": {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
    "ours": {"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3},
    "no end": {"eos_id": -1, "bos_id": -1},
    "other names": {"pad_id": 3, "pad_piece": "[PAD]", "bos_piece": "[CLS]", "eos_piece": "[SEP]"},
    "symbols": {"user_defined_symbols": ["<2de>"], "byte_fallback": True},
}


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_sentencepiece_models_segment_like_the_library(tmp_path, kind, layout):
    """Whatever its special ids were: the pieces of a text are the same, and padding, unknown, begin, end are 0 to 3."""
    model = foreign(model_type=kind, **LAYOUTS[layout])
    (tmp_path / "my.vocabulary").write_bytes(model)
    tokenizer = load_tokenizer(tmp_path / "my.vocabulary")
    rival = sentencepiece.SentencePieceProcessor(model_proto=model)
    assert isinstance(tokenizer, SentencePieceTokenizer)
    texts = [*TEXT, "the <2de> red horse", "a table, the Xylophone é"]
    for text, ids in zip(texts, tokenizer.encode(texts), strict=True):
        want = rival.encode(text, out_type=str)
        if 1 not in ids:  # the library writes an unknown character as it stands
            assert tokenizer.tokens(ids) == want and tokenizer.decode([ids]) == [text]
        assert len(ids) == len(want) and not {0, 2, 3} & set(ids)
    if layout != "ours":  # which is taken as it is
        assert tokenizer.tokens(range(4)) == ["<pad>", "<unk>", "<s>", "</s>"]
    assert SentencePieceTokenizer(tokenizer.model).encode(texts) == tokenizer.encode(texts)  # as a run keeps it


def test_json_tokenizers_are_byte_level_bpe_or_characters(tmp_path):
    library = Tokenizer(models.BPE())
    library.pre_tokenizer, library.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    library.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=280, show_progress=False))
    library.save(str(tmp_path / "mine.json"))
    tokenizer = load_tokenizer(tmp_path / "mine.json")
    assert isinstance(tokenizer, JSONTokenizer)
    assert tokenizer.encode(TEXT) == [each.ids for each in library.encode_batch(TEXT)]
    (tmp_path / "letters").write_text(json.dumps({"characters": "abc"}))
    assert isinstance(load_tokenizer(tmp_path / "letters"), CharTokenizer)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"hello world, this is a text", "this is not a SentencePiece model: "),
        (b"", "this is not a SentencePiece model: "),
        (b"{}", "tokenizer.json must be one of the library tokenizers, but: "),
        (b'{"a": ', "Expecting value: line 1 column 7 (char 6)"),
    ],
)
def test_an_invalid_tokenizer_file_is_refused(tmp_path, content, what):
    (tmp_path / "a.model").write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(f"{tmp_path / 'a.model'}: {what}")):
        load_tokenizer(tmp_path / "a.model")


@pytest.mark.parametrize("other", ["characters", "pieces"])
def test_separate_character_tokenizers_are_refused(tmp_path, other):
    source = CharTokenizer.train(["abc"])
    target = CharTokenizer.train(["xyz"]) if other == "characters" else any_tokenizer("sentencepiece")
    with pytest.raises(ValueError, match="characters must be shared by both sides, but the source has one of its own"):
        write_tokenizers(tmp_path, source, target, alone=False)
    assert not [*tmp_path.iterdir()]
    write_tokenizers(tmp_path, source, source, alone=False)
    assert (tmp_path / "characters.json").read_bytes() == source.model


def test_a_missing_tokenizer_is_refused_with_the_possible_names(tmp_path):
    with pytest.raises(ValueError) as error:
        load_tokenizer(tmp_path / "b.model")
    assert str(error.value) == (
        "a tokenizer is one of characters.json, tokenizer.json, tokenizer.model, tokenizer.imported.json, "
        f"tokenizer.pronunciations.json, or a folder with one, but {tmp_path / 'b.model'} does not exist"
    )


SYMBOLS = ("<2de>", "<2fr>", "→")


@pytest.mark.parametrize("kind", ["byte_bpe", "sentencepiece"])
@pytest.mark.parametrize("later", [False, True], ids=["trained with", "added later"])
def test_a_symbol_is_always_one_token(kind, later):
    twice = (*SYMBOLS, *SYMBOLS)  # counts once
    tokenizer = train_tokenizer(kind, TEXT, vocab_size=300, symbols=() if later else twice)
    plain = tokenizer
    if later:
        tokenizer = tokenizer.with_symbols(twice)
        assert tokenizer.vocab_size == plain.vocab_size + 3 and tokenizer.encode(TEXT) == plain.encode(TEXT)
        assert tokenizer.tokens(range(plain.vocab_size)) == plain.tokens(range(plain.vocab_size))
        assert tokenizer.with_symbols(SYMBOLS).vocab_size == tokenizer.vocab_size
    texts = ["<2de> the red cat", "the<2fr>cat → <2de>", "→→"]
    rows = tokenizer.encode(texts)
    for text, row in zip(texts, rows, strict=True):
        tokens = tokenizer.tokens(row)
        assert [token for token in tokens if token in SYMBOLS] == re.findall("<2..>|→", text)
    assert tokenizer.decode(rows) == texts
    assert type(tokenizer)(tokenizer.model).encode(texts) == rows


@pytest.mark.parametrize(
    ("kind", "symbols", "message"),
    [
        ("characters", ["<2de>"], "but this is a CharTokenizer; "),
        ("sentencepiece", ["<2de>", "</s>"], "a symbol must be no special piece, but </s> "),
        ("byte_bpe", ["<|endoftext|>"], "a symbol must be no special token, but <|endoftext|> "),
        ("byte_bpe", ["→", "für"], "a symbol of byte-level BPE must have other letters than 'für', "),
    ],
)
def test_invalid_symbols_are_refused(kind, symbols, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        train_tokenizer(kind, TEXT, vocab_size=300, symbols=symbols)


@pytest.mark.parametrize("kind", ["byte_bpe", "sentencepiece"])
def test_a_smaller_vocabulary_gives_a_warning(kind, caplog):
    caplog.set_level(logging.WARNING)
    tokenizer = train_tokenizer(kind, ["a b", "b a"], vocab_size=1234)
    assert tokenizer.vocab_size < 300
    assert caplog.messages == [
        f"the vocabulary has {tokenizer.vocab_size} tokens instead of 1,234: the text has no more"
    ]
    caplog.clear()
    train_tokenizer(kind, TEXT, vocab_size=290, symbols=["<2de>"])
    assert caplog.messages == []


def test_eos_of_t5_is_mapped_to_id_3():
    """T5's end has the id 1, and what a run learns as the end is 3."""
    tokenizer = SentencePieceTokenizer(foreign(**LAYOUTS["T5"]))
    assert tokenizer.eos_id == EOS == 3 and tokenizer.decode([[*tokenizer.encode(["the cat"])[0], EOS]]) == ["the cat"]
