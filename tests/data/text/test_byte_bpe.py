"""What is no byte-level BPE is refused; that its ids are right is proved in tests/interop/test_gpt2.py."""

import re

import pytest
from tokenizers import Tokenizer, decoders, models

from transduce.data.text.byte_bpe import ByteBPE


def test_another_kind_of_tokenizer_is_refused():
    library = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    library.decoder = decoders.ByteLevel()
    message = "tokenizer.json must be byte-level BPE, as GPT-2's, but it has model WordLevel and decoder ByteLevel"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        ByteBPE(library.to_str().encode())
    with pytest.raises(ValueError, match=r"^tokenizer\.json must be one of the library tokenizers, but: "):
        ByteBPE(b"{}")


def test_without_an_end_there_is_none():
    library = Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    library.decoder = decoders.ByteLevel()
    tokenizer = ByteBPE(library.to_str().encode())
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.vocab_size) == (None, None, 2)
    assert tokenizer.decode(tokenizer.encode(["abba"])) == ["abba"]


def test_a_directory_without_one_is_refused(tmp_path):
    (tmp_path / "vocab.json").write_text("{}")
    message = (
        f"a byte-level tokenizer is tokenizer.json, or vocab.json and merges.txt, but {tmp_path} has neither; "
        "copy them from where the model came from"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        ByteBPE.load(tmp_path)


def test_a_trained_one_merges_what_is_frequent_and_loses_nothing():
    text = "low lower lowest\n" * 3
    tokenizer = ByteBPE.train([text], vocab_size=262)
    assert tokenizer.vocab_size == 262 and tokenizer.bos_id == tokenizer.eos_id == 0
    ids = tokenizer.encode([text, "Größe 🙂\n"])
    assert tokenizer.decode(ids) == [text, "Größe 🙂\n"]
    assert "low" in tokenizer.tokens(ids[0])
    with pytest.raises(ValueError) as error:
        ByteBPE.train([text], vocab_size=256)
    assert str(error.value) == "vocab_size must be at least 257, for END and all bytes, but vocab_size=256"
