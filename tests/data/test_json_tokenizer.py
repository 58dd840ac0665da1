"""BPE and unigram of the library tokenizers; GPT-2's byte-level BPE is proved in tests/interop/test_gpt2.py."""

import re

import pytest
from tokenizers import Tokenizer, decoders, models

from tests.runs import ENGLISH, library_tokenizer
from transduce.data.base_tokenizer import END
from transduce.data.json_tokenizer import JSONTokenizer, special_tokens

LAYOUTS = {
    "SentencePiece's names": ("<unk>", "</s>", "<mask>", "<pad>", "<s>"),
    "BERT's names": ("[UNK]", "[SEP]", "[MASK]", "[PAD]", "[CLS]"),
    "nothing begins": ("<unk>", "</s>", "<mask>", "<pad>", "<pad>"),  # T5's and Marian's: padding does
    "one for both ends": ("<unk>", END, "<mask>", "<pad>", END),
}


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_ids_and_texts_equal_those_of_tokenizers(kind, layout):
    """Although the file was saved while it padded and cut."""
    unk, eos, _, pad, bos = LAYOUTS[layout]
    library = library_tokenizer(kind, ENGLISH, special=tuple(dict.fromkeys(LAYOUTS[layout])))
    texts = [*ENGLISH[:6], "", "Öffne the old X-letter. ", f"the {eos} end"]
    want = [each.ids for each in library.encode_batch(texts, add_special_tokens=False)]
    library.enable_padding(length=50)
    library.enable_truncation(3)
    tokenizer = JSONTokenizer(library.to_str().encode())
    assert tokenizer.encode(texts) == want and tokenizer.decode(want) == library.decode_batch(want)
    assert tokenizer.decode(want[:6]) == texts[:6]
    assert tokenizer.vocab_size == library.get_vocab_size()
    assert tokenizer.tokens(want[0]) == [library.id_to_token(i) for i in want[0]]
    got = (tokenizer.unk_id, tokenizer.eos_id, tokenizer.pad_id, tokenizer.bos_id)
    assert got == tuple(library.token_to_id(name) for name in (unk, eos, pad, bos))
    assert set(tokenizer.suppressed) == {tokenizer.unk_id, tokenizer.pad_id, tokenizer.bos_id} - {tokenizer.eos_id}
    assert tokenizer.with_eos([[7], []]) == [[7, tokenizer.eos_id], [tokenizer.eos_id]]


def test_invalid_files_and_unknown_characters_are_refused():
    """The file itself, and a text's letters."""
    with pytest.raises(ValueError, match=r"^tokenizer\.json must be one of the library tokenizers, but: "):
        JSONTokenizer(b"{}")
    tokenizer = JSONTokenizer(Tokenizer(models.Unigram([("a", -1.0)])).to_str().encode())
    with pytest.raises(ValueError) as error:
        tokenizer.encode(["abba"])
    assert str(error.value) == (
        "a text must be made of tokens, but this vocabulary cannot spell one: Encountered an unknown token but `unk_id` is "
        "missing; name another tokenizer"
    )
    assert tokenizer.unk_id is None and tokenizer.suppressed == ()


def test_missing_special_tokens_are_named_and_can_be_added():
    tokenizer = JSONTokenizer(library_tokenizer("bpe", ENGLISH, special=("<unk>",)).to_str().encode())
    with pytest.raises(ValueError) as error:
        tokenizer.required("bos_id", "eos_id")
    assert str(error.value) == (
        "a model that turns one sequence into another needs a special token for each of bos_id, eos_id, but this "
        "JSONTokenizer has none for bos_id (<s>, <bos>, [BOS], <|begin_of_text|>, [CLS], <|endoftext|>) and eos_id (</s>, "
        "<eos>, [EOS], <|end_of_text|>, [SEP], <|endoftext|>, <|im_end|>, <|eot_id|>); add what is missing with --symbols "
        "'<s> </s>', or name another tokenizer with --tokenizer FILE"
    )
    more, n = tokenizer.with_symbols(["<s>", "</s>", "<2de>"]), tokenizer.vocab_size
    assert more.required("bos_id", "eos_id") == (n, n + 1)
    assert more.decode([[n, *more.encode(["Print it."])[0], n + 1]]) == ["Print it."]  # they are special now


def test_a_vocabulary_without_eos_has_no_eos_id():
    library = Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    library.decoder = decoders.ByteLevel()
    tokenizer = JSONTokenizer(library.to_str().encode())
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.vocab_size) == (None, None, 2)
    assert tokenizer.decode(tokenizer.encode(["abba"])) == ["abba"]


def test_a_directory_without_a_tokenizer_is_refused(tmp_path):
    (tmp_path / "vocab.json").write_text("{}")
    message = f"a byte-level tokenizer is tokenizer.json, or vocab.json and merges.txt, but {tmp_path} has neither: "
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        JSONTokenizer.load(tmp_path)


def test_trained_byte_bpe_merges_and_is_lossless():
    text = "low lower lowest\n" * 3
    tokenizer = JSONTokenizer.train([text], vocab_size=262)
    assert tokenizer.vocab_size == 262 and tokenizer.bos_id == tokenizer.eos_id == 0
    ids = tokenizer.encode([text, "Größe 🙂\n"])
    assert tokenizer.decode(ids) == [text, "Größe 🙂\n"]
    assert "low" in tokenizer.tokens(ids[0])
    with pytest.raises(ValueError, match=r"at least 257, .*vocab_size=256"):
        JSONTokenizer.train([text], vocab_size=256)


def test_special_tokens_are_known_in_every_form_of_the_settings():
    """transformers writes a token as a string or an object, and has changed the lists more than once."""
    added = {"7": {"content": "<c>", "special": True}, "8": {"content": "d", "special": False}, "9": "e"}
    settings = {"eos_token": "</s>", "bos_token": {"content": "<s>"}, "pad_token": None, "add_bos_token": False}
    settings |= {"additional_special_tokens": ["<a>", {"content": "<b>"}], "added_tokens_decoder": added}
    assert special_tokens(settings) == {"</s>", "<s>", "<a>", "<b>", "<c>"}
    for value in (None, 5, "x"):
        assert special_tokens({"additional_special_tokens": value, "added_tokens_decoder": value}) == set()
