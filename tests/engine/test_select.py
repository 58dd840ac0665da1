"""Which engine computes a loaded model, and what the log says if it is not C++."""

import pytest
import torch

import transduce as td
from tests.contract import random_model
from tests.kernels import needs_cpp
from tests.model.test_contract import CASES
from tests.runs import random_run
from transduce import kernels
from transduce.engine.cpu import CPUEngine
from transduce.engine.select import engine_for
from transduce.model.transformer import Transformer


@needs_cpp
def test_load_gives_an_engine_and_load_model_a_plain_model(tmp_path):
    run = random_run(tmp_path)
    task, trained = td.load(run), td.load_model(run)
    assert isinstance(task.engine, CPUEngine) and task.engine.name == "C++ in float32"
    assert task.engine.model is task.model and type(task.model) is Transformer and type(trained) is Transformer
    assert all(weight.requires_grad for weight in trained.parameters())


@needs_cpp
@pytest.mark.parametrize(
    ("dtype", "variable", "reason"),
    [(torch.float64, "1", "its weights are torch.float64"), (torch.float32, "0", "TRANSDUCE_KERNELS=0")],
)
def test_fallback_to_the_layers_is_logged_and_refuses_int8(dtype, variable, reason, rng, monkeypatch, caplog):
    caplog.set_level("INFO", logger="transduce")
    monkeypatch.setenv("TRANSDUCE_KERNELS", variable)
    model = random_model(CASES["decoder-pre-learned"], rng).to(dtype)
    assert engine_for(model) is model and f"decoding by PyTorch's layers: {reason}" in caplog.text
    with pytest.raises(ValueError, match=f"int8 computes in C.*, but {reason}; use fp32 or bf16"):
        engine_for(model, int8=True)


def test_without_a_compiler_the_layers_are_used(rng, monkeypatch, caplog):
    caplog.set_level("INFO", logger="transduce")
    monkeypatch.setattr(kernels, "find_compiler", lambda: None)
    monkeypatch.setattr(kernels, "shipped_library", lambda: None)
    monkeypatch.setattr(kernels, "loaded", kernels.loaded.__wrapped__)
    model = random_model(CASES["decoder-pre-learned"], rng).float()
    assert engine_for(model) is model and "there are no C++ kernels: no C++ compiler (g++) was found" in caplog.text


@needs_cpp
def test_the_log_names_the_half_computed_by_the_layers(rng, caplog):
    caplog.set_level("INFO", logger="transduce")
    engine_for(random_model(CASES["frames-tokens-conformer-wide"], rng).float())
    assert "decoding by C++ in float32; encoder by its layers (conformer_kernel=" in caplog.text


@needs_cpp
def test_a_run_can_be_loaded_in_int8(tmp_path):
    translator = td.load(random_run(tmp_path), dtype=torch.int8)
    assert translator.engine.name == "C++ in int8" and translator.engine.output.int8
    assert translator(["Print it."], beam_size=3, max_length=5)
    assert next(translator.model.parameters()).dtype == torch.float32
