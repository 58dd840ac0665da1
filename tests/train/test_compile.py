"""torch.compile changes the speed of a training but not its result, and does not compile for every batch."""

import os
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.train import toy
from transduce.data.text_batches import Stream, TokenWindows
from transduce.model.config import StackConfig, Tokens, TransformerConfig
from transduce.model.layers import Dropout
from transduce.model.transformer import Transformer
from transduce.train.config import LossConfig
from transduce.train.objectives import CrossEntropy, Objective

UPDATES = 12


def test_compiled_training_keeps_weight_names(tmp_path, monkeypatch):
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda call, **how: compiled.append(how) or call)
    model = toy.model()
    toy.trainer(tmp_path, objective=CrossEntropy(model), config=toy.config(max_updates=1, compile=True)).run()
    assert compiled == [{"dynamic": True}]
    assert (
        load_file(tmp_path / "checkpoints" / "00000001" / "model.safetensors").keys()
        == dict(model.named_parameters()).keys()
    )


def weights(directory: Path, how: dict[str, bool], *, objective: Objective, **parts: Any) -> dict[str, Tensor]:
    """The weights after UPDATES updates."""
    config = toy.config(max_updates=UPDATES, **how, static_shapes=isinstance(parts["data"], TokenWindows))
    trainer = toy.trainer(directory / str(len(how)), objective=objective.double(), config=config, **parts)
    trainer.run()
    return toy.weights(trainer.model)


def language() -> dict[str, Any]:
    """A decoder alone on windows of one shape, its table filled up."""
    torch.manual_seed(0)
    decoder = StackConfig(input=Tokens(vocab_size=12, multiple=8), n_layers=1)
    config = TransformerConfig(decoder=decoder, d_model=16, n_heads=2, d_ff=32, dropout=0.0)
    ids = np.random.default_rng(1).integers(12, size=400).astype(np.uint16)
    return {
        "objective": CrossEntropy(Transformer(config)),
        "data": TokenWindows(stream=Stream([ids]), context=16, batch_size=2),
    }


def translation() -> dict[str, Any]:
    """Both halves on pairs of many lengths, in batches with and without padding."""
    return {"objective": CrossEntropy(toy.model()), "data": toy.Backwards(length=(2, 9), tokens_per_batch=64)}


def speech() -> dict[str, Any]:
    """The same with CTC beside cross-entropy."""
    torch.manual_seed(0)
    model = Transformer(replace(toy.model().config, ctc=True))
    return {**translation(), "objective": CrossEntropy(model, LossConfig(ctc_weight=0.3))}


@pytest.mark.long
@pytest.mark.skipif("SHAPES" in os.environ, reason="torch.compile cannot look through the checks of shapes")
@pytest.mark.filterwarnings("ignore")  # of the compiler
@pytest.mark.parametrize(
    ("made", "at_most"),
    [(language, 1), pytest.param(translation, 4, marks=pytest.mark.nightly), (speech, 8)],
)
def test_compiled_training_has_the_same_weights_and_few_graphs(tmp_path, monkeypatch, made, at_most):
    """Whatever the shapes: graphs before, between and after the losses that stay outside, some of them twice.

    The backend captures and differentiates a graph as on a GPU, but needs no C++ compiler.
    """
    from torch._dynamo.testing import CompileCounterWithBackend  # a second, which only this test needs

    torch._dynamo.reset()
    graphs = CompileCounterWithBackend("aot_eager")
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=graphs))
    before = toy.weights(made()["objective"].model)
    batches = {(batch.target_in.shape, batch.n_tokens) for batch in islice(made()["data"].epoch(0), UPDATES)}
    plain, compiled = (weights(tmp_path, given, **made()) for given in ({}, {"compile": True}))
    # with no gradient none would move
    assert max(float((plain[key] - before[key]).abs().max()) for key in plain) > 1e-3
    assert max(float((plain[key] - compiled[key]).abs().max()) for key in plain) < 1e-9
    n_graphs = sum(any(node.op.startswith("call") for node in graph.graph.nodes) for graph in graphs.graphs)
    assert 1 <= n_graphs <= at_most and (made is language or len(batches) > at_most)


@pytest.mark.long
@pytest.mark.skipif("SHAPES" in os.environ, reason="torch.compile cannot look through the checks of shapes")
@pytest.mark.filterwarnings("ignore")  # of the compiler
def test_dropout_compiles_without_graph_breaks():
    """With the share of zeros and the scale of its formula. A graph break would be an error here."""
    torch._dynamo.reset()
    values = torch.compile(Dropout(0.3), backend="aot_eager", fullgraph=True)(torch.ones(200, 500))
    assert (values == 0).double().mean().item() == pytest.approx(0.3, abs=0.01)  # seven standard deviations
    torch.testing.assert_close(values[values != 0].unique(), torch.tensor([1 / 0.7]))


@pytest.mark.long
@pytest.mark.skipif("SHAPES" in os.environ, reason="torch.compile cannot look through the checks of shapes")
@pytest.mark.filterwarnings("ignore")  # of the compiler
def test_experts_compile_with_graph_breaks(monkeypatch):
    """Experts do so, as the positions of each are counted on the host."""
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    made = language()
    model, batch = Transformer(replace(made["objective"].model.config, n_experts=3)), made["data"].epoch(0)[0]
    compiled = CrossEntropy(model)
    compiled.compile(dynamic=False)
    torch.testing.assert_close(compiled(batch).total, CrossEntropy(model)(batch).total)
