"""Characters to ids, and what else may stand in a characters.json."""

import json
import re

import pytest

from transduce.data.base_tokenizer import CharTokenizer, Tokenizer

TEXTS = ["To be,\n\tor not\r\n", "東京 🙂 e\u0301é\u2028\x00", ""]


def test_ids_are_indices_in_the_sorted_characters(tmp_path):
    """As nanoGPT's data/shakespeare_char numbers them."""
    tokenizer = CharTokenizer.train(TEXTS)
    characters = sorted(set("".join(TEXTS)))
    assert tokenizer.vocab_size == len(characters)
    ids = tokenizer.encode(TEXTS)
    assert ids == [[characters.index(character) for character in text] for text in TEXTS]
    assert tokenizer.decode(ids) == TEXTS
    assert tokenizer.tokens(ids[1]) == list(TEXTS[1])
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.suppressed) == (None, None, ())
    assert isinstance(tokenizer, Tokenizer)
    tokenizer.save(tmp_path / "characters.json")
    assert json.loads((tmp_path / "characters.json").read_text()) == {"characters": "".join(characters)}
    assert CharTokenizer.load(tmp_path / "characters.json").encode(TEXTS) == ids


def test_an_unknown_character_is_named():
    message = (
        "a text may only have the 3 characters of the training text, but 'ß' (U+00DF) is not one of them; "
        "leave it out or train with a text that has it"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        CharTokenizer.train(["abc"]).encode(["ab", "bßc"])
    with pytest.raises(ValueError, match=re.escape(r"'\x07' (U+0007)")):
        CharTokenizer.train(["abc"]).encode(["\x07"])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (b'{"letters": "ab"}', """characters must come as JSON {"characters": "..."}, but: KeyError('characters')"""),
        (b'{"characters": "aba"}', "string without duplicates, but it is 'aba'"),
        (b'{"characters": ""}', "string without duplicates, but it is ''"),
        (b'{"characters": 3}', "string without duplicates, but it is 3"),
    ],
)
def test_invalid_character_files_are_refused(model, message):
    with pytest.raises(ValueError, match=f"{re.escape(message)}$"):
        CharTokenizer(model)
