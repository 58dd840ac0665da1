"""Models as ONNX in onnxruntime against the model itself: logits of any batch, and what a search finds."""

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import jaxtyping
import numpy as np
import pytest
import torch

import transduce as td
from tests.language_runs import any_tokenizer
from tests.runs import LITTLE, random_run
from transduce.cli.main import main
from transduce.interop.onnx import export_onnx
from transduce.interop.pretrained import Parts
from transduce.model.config import Frames, StackConfig, Tokens
from transduce.model.transformer import Transformer

PAGE = Path(__file__).parents[2] / "docs" / "models_in_and_out.md"
HALF = StackConfig(input=Tokens(vocab_size=37, multiple=8), n_layers=2)
BASE = replace(LITTLE, encoder=HALF, decoder=HALF, max_positions=64, tie="output")


@pytest.fixture(autouse=True)
def sizes_may_be_tensors() -> Iterator[None]:
    """As they are while a model is traced, so the shapes in signatures cannot be checked."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


@pytest.mark.parametrize(
    "changes",
    [
        {"encoder": None, "activation": "gelu_tanh", "n_kv_heads": 1, "head_width": 6},
        *(
            pytest.param(changes, marks=pytest.mark.long)
            for changes in (
                {
                    **{"norm_position": "pre", "activation": "gelu", "bias": False, "tie": "none"},
                    **{"sinusoids": "tensor2tensor", "first_position": 2, "output_bias": True, "embedding_norm": True},
                },
                {
                    "norm": "rms",
                    "gated": True,
                    "activation": "silu",
                    "positions": "rotary",
                    "n_heads": 4,
                    "n_kv_heads": 2,
                },
                {"positions": "learned", "qk_norm": True, "tie": "all"},
                {"conformer_kernel": 5, "norm_position": "pre"},
                {"ctc": True, "ctc_layers": (1,), "ctc_conditioning": True},
            )
        ),
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_stepwise_logits_equal_those_of_the_model(tmp_path, rng, changes):
    import onnxruntime

    torch.manual_seed(0)
    model = Transformer(replace(BASE, **changes)).eval()
    if model.config.output_bias:
        model.get_parameter("output_bias").data.normal_()
    config, tokenizer = model.config, any_tokenizer("sentencepiece")
    export_onnx(Parts(model, tokenizer, tokenizer, {"suppress": ()}), tmp_path)
    step = onnxruntime.InferenceSession(str(tmp_path / "step.onnx"))
    for n_rows, n_source, n_target in ((1, 1, 1), (3, 20, 25)):
        known, given = {}, {}
        if config.encoder is not None:
            source = torch.randint(37, (n_rows, n_source), generator=rng)
            lengths = torch.tensor([n_source - 2 * row for row in range(n_rows)])
            given = {"source": source, "source_lengths": lengths}
            encoder = onnxruntime.InferenceSession(str(tmp_path / "encoder.onnx"))
            got = encoder.run(None, {"source": source.numpy(), "lengths": lengths.numpy()})
            known = dict(zip(["memory_keys", "memory_values", "memory_lengths"], got, strict=True))
        target = torch.randint(37, (n_rows, n_target), generator=rng)
        with torch.no_grad():
            want = model(**given, target_in=target).numpy()
        keys = values = np.zeros((2, n_rows, config.kv_heads, 0, config.d_head), dtype=np.float32)
        for t in range(n_target):
            feeds = {"tokens": target[:, t].numpy(), "keys": keys, "values": values, **known}
            logits, keys, values = step.run(None, feeds)
            np.testing.assert_allclose(logits, want[:, t], rtol=1e-4, atol=1e-4)


def test_embedding_rows_without_a_token_are_suppressed(tmp_path):
    tokenizer = any_tokenizer("sentencepiece")
    n = tokenizer.vocab_size
    table = StackConfig(input=Tokens(vocab_size=n + 3), n_layers=1)
    model = Transformer(replace(BASE, encoder=None, decoder=table)).eval()
    export_onnx(Parts(model, None, tokenizer, {"suppress": [9]}), tmp_path)
    never = json.loads((tmp_path / "config.json").read_text())["suppressed"]
    named = {*tokenizer.tokens(never[:-3])}
    assert (
        {"<unk>", "<s>", tokenizer.tokens([9])[0]} <= named and "</s>" not in named and never[-3:] == [n, n + 1, n + 2]
    )


def test_documented_code_translates_like_the_run(tmp_path, capsys, monkeypatch):
    run, lines = random_run(tmp_path / "run", model=LITTLE), ["Open the old letter.", "Print it."]
    monkeypatch.chdir(tmp_path)
    assert main(["export", "run", "exported", "--to", "onnx"]) == 0
    assert capsys.readouterr() == ("exported\n", "")
    (code,) = re.findall(r"```python\n(import json\n.*?)```", PAGE.read_text(), flags=re.DOTALL)
    exec(compile(code, str(PAGE), "exec"), {})
    want = td.load_translator(run)(lines, beam_size=1, max_length=20, length_extra=20)
    assert capsys.readouterr().out == f"{want}\n"


def test_nothing_is_written_without_the_onnx_library(tmp_path, capsys, monkeypatch):
    run = random_run(tmp_path / "run", model=LITTLE)
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert main(["export", str(run), str(tmp_path / "out"), "--to", "onnx"]) == 2
    assert "pip install '.[onnx]'" in capsys.readouterr().err and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"window": 3}, "ONNX supports only window=None, but this model has window=3; it cannot be exported"),
        ({"n_experts": 4}, "but this model has n_experts=4; "),
        ({"attention": "linear"}, "but this model has attention='linear'; "),
        ({"encoder": StackConfig(input=Frames(n_features=5))}, "but this model's encoder takes frames; "),
        ({"decoder": None}, "but this model has only an encoder; "),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_unsupported_features_are_refused_by_name(tmp_path, changes, message):
    tokenizer = any_tokenizer("sentencepiece")
    with pytest.raises(ValueError, match=re.escape(message)):
        export_onnx(Parts(Transformer(replace(BASE, **changes)), tokenizer, tokenizer, {}), tmp_path / "out")
    assert not (tmp_path / "out").exists()
