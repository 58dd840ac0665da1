"""T5 1.0 and 1.1 and mT5 against transformers: logits, greedy and beam search, tokenizers."""

import json
import random
from dataclasses import replace

import pytest
import torch

import transduce as td
from tests.interop.rivals import compare, drawn, sentencepiece_model
from tests.interop.test_gpt2 import changed
from tests.runs import ENGLISH, GERMAN, TINY, random_run
from transduce.cli.main import main
from transduce.interop.encoder_decoder import _read_vocabulary
from transduce.interop.pretrained import read_settings
from transduce.model.inputs import distance_buckets

pytestmark = pytest.mark.usefixtures("transformers")


def rival(directory, seed: int, kind: str, *, gated: bool):
    """A model with random weights and sizes, and its tokenizer, saved; 1.1 has an output table of its own."""
    import transformers

    rng = random.Random(seed)
    directory.mkdir()
    (directory / "spiece.model").write_bytes(
        sentencepiece_model(
            ENGLISH + GERMAN, vocab_size=90, pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
            pad_piece="<pad>", eos_piece="</s>", unk_piece="<unk>",
        )
    )  # fmt: skip
    tokenizer = transformers.T5Tokenizer.from_pretrained(directory, extra_ids=3)
    torch.manual_seed(seed)
    configuration, architecture = (
        getattr(transformers, f"{kind}{part}") for part in ("Config", "ForConditionalGeneration")
    )
    model = architecture(
        configuration(
            vocab_size=len(tokenizer) + 5, d_model=rng.randint(11, 30), d_kv=rng.randint(3, 9), d_ff=rng.randint(11, 40),
            num_layers=rng.randint(2, 3), num_decoder_layers=rng.randint(1, 2), num_heads=rng.choice([1, 2, 3]),
            feed_forward_proj="gated-gelu" if gated else "relu", decoder_start_token_id=0, tie_word_embeddings=not gated,
        )
    ).eval()  # fmt: skip
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.2 * torch.randn_like(parameter) + (parameter.dim() == 1))
        model.shared.weight.mul_(5)  # so that outputs are no near ties
        if gated:
            model.lm_head.weight = torch.nn.Parameter(0.5 * torch.randn_like(model.shared.weight))
    beams = rng.choice([1, 2, 4])
    model.generation_config.update(num_beams=beams, max_length=rng.randint(15, 40), suppress_tokens=[0])
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return model, tokenizer


@pytest.mark.parametrize(("kind", "gated"), [("T5", False), ("T5", True), ("MT5", True)])
@pytest.mark.parametrize("seed", drawn(20, default=(0, 1), long=range(2, 6)))
def test_logits_and_outputs_equal_those_of_transformers(tmp_path, seed, kind, gated):
    theirs, tokenizer = rival(tmp_path / "theirs", seed, kind, gated=gated)
    difference, got, want = compare(theirs, tokenizer, tmp_path / "theirs")
    assert difference < 1e-4 and got == want
    assert any(want)


@pytest.mark.parametrize("activation", ["gelu", "silu", "relu"])
def test_dense_act_fn_overrides_feed_forward_proj(tmp_path, activation):
    """transformers writes both, and computes with the one that dense_act_fn names."""
    theirs, tokenizer = rival(directory := tmp_path / "theirs", 0, "MT5", gated=True)
    changed(directory, dense_act_fn=activation)
    loaded = type(theirs).from_pretrained(directory).eval()
    difference, got, want = compare(loaded, tokenizer, directory)
    assert difference < 1e-4 and got == want


@pytest.mark.parametrize("causal", [False, True])
def test_distance_buckets_equal_those_of_transformers(causal):
    from transformers.models.t5.modeling_t5 import T5Attention

    distance = torch.arange(-3000, 3000)[None]
    want = T5Attention._relative_position_bucket(distance, bidirectional=not causal)
    assert torch.equal(distance_buckets(distance, causal=causal), want)


def test_tokenizer_json_equals_spiece_model_and_exports_are_refused(tmp_path, capsys):
    """And another number of rows for distances is refused."""
    _, tokenizer = rival(tmp_path / "theirs", 0, "T5", gated=True)
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "json")]) == 0
    (tmp_path / "theirs" / "tokenizer.json").unlink()
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "pieces")]) == 0
    for run in ("json", "pieces"):
        translator = td.load_translator(tmp_path / run)
        assert [list(row) for row in translator.sources(ENGLISH)] == tokenizer(ENGLISH)["input_ids"], run
    for kind in ("ctranslate2", "onnx"):
        capsys.readouterr()
        assert main(["export", str(tmp_path / "json"), str(tmp_path / "out"), "--to", kind]) == 2
        assert (
            "export does not support relative positions, which this model has; it cannot be exported"
            in capsys.readouterr().err
        )
    changed(tmp_path / "theirs", relative_attention_num_buckets=16)
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "other")]) == 2
    assert "relative_attention_num_buckets must be 32, but in" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "more"),
    [({}, 100), ({"extra_ids": 5}, 5), ({"extra_ids": 0}, 0), ({"clean_up_tokenization_spaces": True}, 100)],
)
def test_sentinels_beside_spiece_model_equal_those_of_transformers(tmp_path, settings, more):
    """T5 1.1 and mT5 on the hub have no tokenizer.json, and <extra_id_0> is the last of 100 ids, unless there is no room."""
    import transformers

    rival(directory := tmp_path / "theirs", 0, "T5", gated=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (directory / name).unlink()
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    plain = replace(read_settings(directory), vocab_size=90 + more)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    vocabulary = _read_vocabulary(plain, 1, "m2m100")
    ours = vocabulary.make(special={"bos": 0, "eos": 1, "pad": 0, "unk": vocabulary.unk_id})
    lines = ["The <extra_id_0> letter <extra_id_4>.", *ENGLISH[:3], "it 's <extra_id_99> , it ' s !"]
    rows = tokenizer(lines)["input_ids"]
    assert ours.with_eos(ours.encode(lines)) == rows
    assert ours.decode(rows) == [text.strip() for text in tokenizer.batch_decode(rows, skip_special_tokens=True)]


@pytest.mark.parametrize("half", ["encoder", "decoder"])
@pytest.mark.parametrize("kind", ["ctranslate2", "onnx"])
def test_relative_positions_of_one_stack_are_not_exported(tmp_path, half, kind, capsys):
    stack = replace(getattr(TINY, half), positions="relative")
    run = random_run(tmp_path / "run", model=replace(TINY, **{half: stack}))
    assert main(["export", str(run), str(tmp_path / "out"), "--to", kind]) == 2
    assert (
        "export does not support relative positions, which this model has; it cannot be exported"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "it must be a string, but it is null @ $.feed_forward_proj"),
        (3, "it must be a string, but it is 3 @ $.feed_forward_proj"),
        ("glu-gelu", "feed_forward_proj must be 'gelu_new' or "),
        ("glu-gelu", " or 'gated-swish', but in {}/theirs it is 'glu-gelu'"),
    ],
)
def test_unknown_feed_forward_proj_is_refused(tmp_path, value, message, capsys):
    rival(tmp_path / "theirs", 0, "T5", gated=False)
    changed(tmp_path / "theirs", feed_forward_proj=value)
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "run")]) == 2
    assert message.format(tmp_path) in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"junk"])
def test_broken_sentencepiece_model_is_reported(tmp_path, content, capsys):
    rival(tmp_path / "theirs", 0, "T5", gated=False)
    (tmp_path / "theirs" / "tokenizer.json").unlink()
    (tmp_path / "theirs" / "spiece.model").write_bytes(content)
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "run")]) == 2
    assert "spiece.model is no SentencePiece model: " in capsys.readouterr().err
