"""Masks are filled, in as many lines as came, in their order, each line as if it were alone."""

import random
import re
from copy import deepcopy
from pathlib import Path

import pytest
import torch

import transduce as td
from tests.interop.rivals import sentencepiece_model
from tests.language_runs import TEXT, any_tokenizer
from transduce.data.base_tokenizer import CharTokenizer
from transduce.data.sentencepiece_bpe import BOS, EOS, SentencePieceTokenizer
from transduce.errors import InputError
from transduce.files import save_weights
from transduce.model.config import StackConfig, Tokens, TransformerConfig
from transduce.model.transformer import Transformer
from transduce.run import Run, save_run
from transduce.tasks.fill_mask import FillMask, encode_masked
from transduce.tasks.generate import Generator
from transduce.tasks.load import load_as

LINES = ["ROMEO: But _, what light!", "", "_ me.", "Speak, speak; it's done.", "Ay_ me. _ _", "  two  blanks  "]


def encoder_run(directory: Path, kind: str = "sentencepiece", more: int = 1) -> Path:
    """A run directory of masked language modelling that has learned nothing, but answers lively."""
    tokenizer = any_tokenizer(kind)
    stack = StackConfig(input=Tokens(vocab_size=tokenizer.vocab_size + more), n_layers=2)
    torch.manual_seed(3)
    model = Transformer(TransformerConfig(encoder=stack, d_model=16, n_heads=2, d_ff=24, norm_position="pre"))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)
    save_run(directory, Run(model.config, {"seed": 3}, tokenizer, tokenizer))
    save_weights(directory / "model.safetensors", model)
    return directory


@pytest.fixture(scope="module", params=["characters", "bytes", "sentencepiece"])
def fill_mask(request, tmp_path_factory) -> FillMask:
    return td.load(encoder_run(tmp_path_factory.mktemp("run"), request.param, more=4))


def test_every_mask_gets_the_most_probable_token(fill_mask):
    """With the gaps written by hand: ids of the text around them, the mask symbol in between."""
    tokenizer = fill_mask.tokenizer
    (before,) = tokenizer.encode(["ROMEO:"])
    gap, marks = tokenizer.vocab_size, tokenizer.bos_id != tokenizer.eos_id
    ids = [*[BOS] * marks, *before, gap, gap, *[EOS] * marks]
    with torch.no_grad():
        logits = fill_mask.model(source=torch.tensor([ids]))[0, :, : tokenizer.vocab_size]
    logits[:, list(tokenizer.suppressed)] = -torch.inf
    best = [int(row.argmax()) if i == gap else i for i, row in zip(ids, logits, strict=True)]
    (want,) = tokenizer.decode([best])
    words = "ROMEO:__" if isinstance(tokenizer, CharTokenizer) else "ROMEO: _ _"
    assert fill_mask([words]) == [want.replace("\n", " ")]
    assert fill_mask([words.replace("_", "<?>")], mask_word="<?>") == fill_mask([words])


def test_order_batch_size_and_padding_change_no_output(fill_mask):
    alone = [fill_mask([line])[0] for line in LINES]
    assert fill_mask(LINES) == fill_mask(LINES, batch_tokens=1) == alone
    order = random.Random(5).sample(range(len(LINES)), len(LINES))
    assert fill_mask([LINES[i] for i in order]) == [alone[i] for i in order]
    assert [out == line for out, line in zip(alone, LINES, strict=True)] == ["_" not in line for line in LINES]
    assert fill_mask([]) == [] and not any("\n" in line for line in alone)


def test_mask_word_inside_a_word_is_a_mask_only_for_characters(fill_mask):
    if not isinstance(fill_mask.tokenizer, CharTokenizer):
        assert fill_mask(["  foo_bar   stays"]) == ["  foo_bar   stays"]
        filled, same = fill_mask(["Ay _ me foo_bar"]), fill_mask(["Ay <?> me foo_bar"], mask_word="<?>")
        assert filled == same and "foo_bar" in filled[0]
    else:
        assert fill_mask(["Sp_ak"])[0][:2] == "Sp" and "_" not in fill_mask(["Sp_ak"])[0]


@pytest.mark.parametrize("behind", [" me", "  me", ", me"])
def test_spaces_after_a_mask_are_kept(behind):
    """As in Llama's SentencePiece, which begins every text with one more."""
    how = {"remove_extra_whitespaces": False, "byte_fallback": True, "normalization_rule_name": "identity"}
    tokenizer = SentencePieceTokenizer(sentencepiece_model(TEXT, vocab_size=330, kind="bpe", **how))
    (*_, sign) = tokenizer.encode(["Speak;"])[0]
    _, *ids, _ = encode_masked(tokenizer, f"Speak _{behind}", "_")
    filled = [sign if i == tokenizer.vocab_size else i for i in ids]
    assert tokenizer.decode([filled]) == [f"Speak;{behind}"]


def test_decoded_line_breaks_become_spaces(fill_mask, monkeypatch):
    monkeypatch.setattr(fill_mask.tokenizer, "decode", lambda rows: ["two\nlines\r"] * len(rows))
    assert fill_mask(["Speak _"]) == ["two lines "]


def test_suppressed_ids_are_never_predicted(fill_mask):
    fill_mask = FillMask(deepcopy(fill_mask.model), fill_mask.tokenizer)
    table = fill_mask.model.output
    ids, places = torch.tensor([[1, 2, 3]]), torch.tensor([[True, False, True]])
    assert len(fill_mask.suppressed) == len(fill_mask.tokenizer.suppressed) + 4
    with torch.no_grad():
        fill_mask.model.output[[i for i in range(len(table)) if i not in fill_mask.suppressed]] = 0.0
        fill_mask.model.output[fill_mask.suppressed] *= 100.0
        got = fill_mask.likeliest(ids, torch.tensor([3]), places)
    assert got.shape == (2,) and not set(fill_mask.suppressed) & set(got.tolist())


def test_loading_another_kind_of_run_is_an_error(text_run, tmp_path):
    run = encoder_run(tmp_path / "run")
    with pytest.raises(ValueError) as caught:
        load_as(Generator, run)
    assert str(caught.value) == (
        f"generating takes a run of a language model, but {run} fills masks; "
        "use td.load(RUN)(['a line with a _']) in Python"
    )
    with pytest.raises(ValueError, match=f"{re.escape(str(text_run))} translates; use transduce translate$"):
        load_as(FillMask, text_run)


def test_invalid_inputs_and_models_are_refused(letters_run, tmp_path):
    fill_mask = td.load(encoder_run(tmp_path / "run"))
    with pytest.raises(ValueError) as caught:
        fill_mask(7)
    assert str(caught.value) == "masks are filled in a list of lines, but got int; make a list of it"
    size = fill_mask.tokenizer.vocab_size
    with pytest.raises(ValueError) as caught:
        td.load(encoder_run(tmp_path / "less", more=0))
    assert str(caught.value) == (
        "the model must have every id of its tokenizer and the mask symbol after them, "
        f"but it has {size} ids and the tokenizer {size}"
    )
    decoder = td.load(letters_run)
    with pytest.raises(ValueError) as caught:
        FillMask(decoder.model, decoder.tokenizer)
    assert str(caught.value) == (
        "masks are filled by an encoder-only model of tokens, but this model has encoder=None and "
        f"decoder={decoder.model.config.decoder}; use td.load(directory)"
    )


@pytest.mark.parametrize("kind", ["characters", "sentencepiece"])
def test_lines_beyond_learned_positions_are_refused(kind):
    """The longest line that fits is found by the tokenizer alone."""
    tokenizer, limit = any_tokenizer(kind), 20
    stack = StackConfig(input=Tokens(vocab_size=tokenizer.vocab_size + 1), n_layers=1)
    sizes = {"d_model": 16, "n_heads": 2, "d_ff": 24, "positions": "learned", "max_positions": limit}
    fill = FillMask(Transformer(TransformerConfig(encoder=stack, **sizes)).eval(), tokenizer)
    marks = 2 if tokenizer.bos_id != tokenizer.eos_id else 0
    words = next(n for n in range(1, 99) if len(tokenizer.encode(["me " * (n + 1)])[0]) + 1 + marks > limit)
    longest = "me " * words + "_"
    assert "_" not in fill([longest])[0]
    with pytest.raises(InputError, match=r"line 2 must fit into the model's learned positions, which end at 20"):
        fill([longest, "me " * limit + "_"])
    assert fill(["me " * 99]) == ["me " * 99]


def test_an_empty_mask_word_is_refused(fill_mask):
    with pytest.raises(InputError, match="mask_word must be what stands for a masked token, but it is empty"):
        fill_mask(LINES, mask_word="")
