"""opus-mt as it is: MarianMTModel and MarianTokenizer of random sizes, against transformers."""

import json
import random
import re
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.interop.rivals import compare, drawn, pieces_of, random_search, random_sizes, randomize
from transduce.cli.main import main
from transduce.data.imported_tokenizer import ImportedTokenizer
from transduce.data.tokenizer_files import load_tokenizer
from transduce.interop import read_run
from transduce.interop.encoder_decoder import export_marian
from transduce.interop.pretrained import read_settings

pytestmark = pytest.mark.usefixtures("transformers")

SPECIAL = {"bos": 2, "eos": 0, "pad": 2, "unk": 1}
TAGS = [">>deu<<", ">>fra<<"]


def rival(directory: Path, seed: int, spm: list[bytes]) -> tuple[Any, Any]:
    """A model and its tokenizer, saved. Some pieces of the source have no id, so they are unknown."""
    import transformers

    rng = random.Random(seed)
    directory.mkdir()
    separate, sides = rng.random() < 0.3, [pieces_of(model) for model in spm]
    sides[0] = sides[0][: -rng.randint(0, 20)] if rng.random() < 0.5 else sides[0]
    tables = sides if separate else [list(dict.fromkeys(sides[0] + sides[1])), []]
    for table in tables:
        rng.shuffle(table)
        table += TAGS * (rng.random() < 0.5)
        table[:0], table[len(table) :] = ["</s>", "<unk>"], ["<pad>"]
    if separate:  # what ends and pads has one id
        shorter = min(tables, key=len)
        shorter[-1:] = [f"<filler{i}>" for i in range(max(map(len, tables)) - len(shorter))] + ["<pad>"]
    for name, content in zip(("source.spm", "target.spm"), spm, strict=True):
        (directory / name).write_bytes(content)
    paths = {"vocab": directory / "vocab.json", "target_vocab_file": directory / "target_vocab.json"}
    for path, table in zip(paths.values(), tables, strict=True):
        path.write_text(json.dumps({piece: i for i, piece in enumerate(table)}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it recommends a package
        files = {name: str(path) for name, path in paths.items() if separate or name == "vocab"}
        files |= {f"{side}_spm": str(directory / f"{side}.spm") for side in ("source", "target")}
        tokenizer = transformers.MarianTokenizer(**files, separate_vocabs=separate)
    tokenizer.save_pretrained(directory)
    pad, size = len(tables[0]) - 1, len(tables[0])
    config = transformers.MarianConfig(
        **random_sizes(rng), vocab_size=size, decoder_vocab_size=size, pad_token_id=pad, decoder_start_token_id=pad,
        eos_token_id=0, forced_eos_token_id=rng.choice([0, None]), max_position_embeddings=rng.choice([97, 101]),
        share_encoder_decoder_embeddings=not separate, tie_word_embeddings=rng.random() < 0.7,
    )  # fmt: skip
    torch.manual_seed(seed)
    model = transformers.MarianMTModel(config)
    randomize(model, rng, eos_id=0)
    more = {"pad_token_id": pad, "eos_token_id": 0, "decoder_start_token_id": pad, "bad_words_ids": [[pad]]}
    model.generation_config = random_search(rng, forced_eos_token_id=config.forced_eos_token_id, **more)
    model.save_pretrained(directory)
    return model, tokenizer


@pytest.fixture(scope="module")
def saved(tmp_path_factory, spm) -> Path:
    """A model with 108 pieces."""
    rival(directory := tmp_path_factory.mktemp("marian") / "theirs", 0, spm)
    return directory


def changed(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def without(path: Path, piece: str) -> None:
    path.write_text(json.dumps({name: i for name, i in json.loads(path.read_text()).items() if name != piece}))


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (
            lambda d: changed(d / "generation_config.json", do_sample=True),
            "do_sample must be false, but in {} it is true; change it in generation_config.json",
        ),
        (
            lambda d: changed(d / "generation_config.json", early_stopping="never"),
            "it must be true or false, but it is 'never' @ $.early_stopping",
        ),
        (
            lambda d: changed(d / "generation_config.json", num_beams=2, repetition_penalty=1.5),
            "repetition_penalty must be 1.0, but in {} it is 1.5",
        ),
        (
            lambda d: changed(d / "generation_config.json", bad_words_ids=[[107], [3, 4]]),
            "bad_words_ids must be tokens, one each, but in {} they are [[107], [3, 4]]",
        ),
        (
            lambda d: changed(d / "generation_config.json", num_beams=0),
            "but beam_size=0",
        ),
        (
            lambda d: changed(d / "vocab.json", wrong=108),
            "{}/vocab.json must have an id of 0 to 107 for every piece, but 'wrong' has 108",
        ),
        (lambda d: without(d / "vocab.json", "<unk>"), "{}/vocab.json must have the piece <unk>, but it does not"),
        (
            lambda d: (d / "added_tokens.json").write_text('{"<ctx>": 108}'),
            "its ids must be less than size=108",
        ),
        (lambda d: (d / "source.spm").unlink(), "{}/source.spm does not exist"),
        (
            lambda d: (d / "source.spm").write_bytes(b"spam"),
            "a tokenizer of an imported model",
        ),
        (lambda d: (d / "target.spm").write_bytes(b""), "a tokenizer of an imported model"),
    ],
)
def test_inconsistent_files_and_settings_are_refused(tmp_path, capsys, saved, harm, message):
    shutil.copytree(saved, tmp_path / "theirs")
    harm(tmp_path / "theirs")
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "run")]) == 2
    assert message.format(tmp_path / "theirs") in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size": 3}, "it has 7 tokens, but size=3"),
        ({"size": "7"}, "its ids must be less than size=7"),
        ({"special": {"bos": 2}}, "KeyError('eos')"),
        ({"opening": [7]}, "its ids must be less than size=7"),
        ({"place": "nowhere"}, "place must be one of opening, first, closing, bos"),
        ({"sentencepiece": "!"}, "but: "),
        ({"pieces": [1] * 7}, "but: "),
        ({"languages": 5}, "but: "),
    ],
)
def test_damaged_tokenizer_files_are_refused(tmp_path, spm, changes, message):
    good = ImportedTokenizer.of_pieces(spm[0], ["</s>", "<unk>", "<pad>", "▁", "Open", *TAGS], special=SPECIAL)
    (tmp_path / "t.json").write_text(json.dumps(json.loads(good.model) | changes))
    with pytest.raises(ValueError, match=f"t.json: .*{re.escape(message)}"):
        load_tokenizer(tmp_path / "t.json")


def test_leading_language_tag_is_one_token(tmp_path, spm):
    """As in MarianTokenizer, where there is any; else it is text."""
    tagged = ImportedTokenizer.of_pieces(spm[0], ["</s>", "<unk>", "<pad>", "▁", "Open", *TAGS], special=SPECIAL)
    assert tagged.encode([">>fra<< Open", ">>xxx<<Open", "Open >>fra<<"])[0][0] == 6
    assert tagged.encode([">>xxx<<"]) == [[1]]
    assert tagged.decode([[6, 4, 1, 0]]) == [">>fra<<Open"]
    assert 1 not in tagged.suppressed and 2 in tagged.suppressed
    tagged.save(tmp_path / "any.json")
    assert load_tokenizer(tmp_path / "any.json").encode([">>fra<<"]) == [[6]]
    plain = ImportedTokenizer.of_pieces(spm[0], ["</s>", "<unk>", "<pad>"], special=SPECIAL)
    assert len(plain.encode([">>fra<<"])[0]) > 1


@pytest.mark.parametrize("seed", drawn(200, default=(1, 2), long=range(0, 200, 20)))
def test_logits_and_outputs_equal_those_of_transformers(tmp_path, spm, seed):
    difference, got, want = compare(*rival(tmp_path / "theirs", seed, spm), tmp_path / "theirs")
    assert difference < 1e-4
    assert got == want


@pytest.mark.parametrize("adds", ["add_tokens", "add_special_tokens"])
def test_added_tokens_are_read_and_written_whole(tmp_path, spm, adds):
    """As people add them before they fine-tune: a domain, or a mark around a term. A special one is read only."""
    theirs, tokenizer = rival(directory := tmp_path / "theirs", 0, spm)
    names = ["<ctx>", "NEWWORD", "NEW"]
    getattr(tokenizer, adds)(names if adds == "add_tokens" else {"additional_special_tokens": names})
    theirs.resize_token_embeddings(len(tokenizer))
    for part in (theirs, tokenizer):
        part.save_pretrained(directory)
    _, source, target, *_ = read_run(read_settings(directory))
    lines = ["<ctx> Open the letter.", "the NEWWORD is NEW", "NEWNEWWORD<ctx>it"]
    rows = tokenizer(lines)["input_ids"]
    assert source is not None and source.with_eos(source.encode(lines)) == rows
    rows = [[*row[2:], *row[:2]] for row in rows]
    assert target.decode(rows) == tokenizer.batch_decode(rows, skip_special_tokens=True)


def test_spaces_are_cleaned_up_as_tokenizer_config_says(tmp_path, spm):
    """transformers 4 saved that for every tokenizer by default; it survives an export to Marian."""
    _, tokenizer = rival(directory := tmp_path / "theirs", 0, spm)
    rows = tokenizer(text_target=["Der Brief .", "Es ist , was ' s ist !"])["input_ids"]
    spaced = tokenizer.batch_decode(rows, skip_special_tokens=True)
    tokenizer.clean_up_tokenization_spaces = True
    changed(directory / "tokenizer_config.json", clean_up_tokenization_spaces=True)
    parts = read_run(read_settings(directory))
    want = tokenizer.batch_decode(rows, skip_special_tokens=True)
    assert parts.target_tokenizer.decode(rows) == want != spaced
    assert export_marian(parts, tmp_path / "again")
    stored = json.loads((tmp_path / "again" / "tokenizer_config.json").read_text())
    assert stored["clean_up_tokenization_spaces"] is True


def test_search_is_exported_where_the_tokenizer_cannot_be(tmp_path, spm):
    """A SentencePiece model alone would split the added tokens; their own tokenizer still fits the model."""
    theirs, _ = rival(directory := tmp_path / "theirs", 0, spm)
    size = theirs.config.vocab_size
    (directory / "added_tokens.json").write_text(json.dumps({"<ctx>": size}))
    theirs.resize_token_embeddings(size + 1)
    theirs.generation_config.num_beams = 3
    theirs.save_pretrained(directory)
    assert not export_marian(read_run(read_settings(directory)), tmp_path / "again")
    stored = json.loads((tmp_path / "again" / "generation_config.json").read_text())
    assert (stored["num_beams"], stored["eos_token_id"]) == (3, theirs.config.eos_token_id)
    assert theirs.config.pad_token_id in stored["suppress_tokens"]
