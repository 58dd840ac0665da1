"""Two short trainings, one of them compiled; prints how far apart the weights end, how far they went, and how many
graphs were compiled for how many different batches.

A program of its own, for torch.compile cannot look through the type checks that the tests switch on. Its backend here
captures and differentiates the graph as on a GPU, but needs no C++ compiler.
"""

import sys
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from tests.train import toy
from transduce.data.text.stream import Stream, Windows
from transduce.model.config import StackConfig, Tokens, TransformerConfig
from transduce.model.transformer import Transformer
from transduce.train.objectives import CrossEntropy, HybridCTC, Objective

UPDATES = 12


def weights(directory: Path, how: dict[str, bool], *, objective: Objective, **parts: Any) -> dict[str, Tensor]:
    """After UPDATES updates."""
    config = toy.config(max_updates=UPDATES, **how, static_shapes=isinstance(parts["data"], Windows))
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
        "data": Windows(stream=Stream([ids]), context=16, batch_size=2),
    }


def translation() -> dict[str, Any]:
    """Both halves on pairs of many lengths, in batches with and without padding."""
    return {"objective": CrossEntropy(toy.model()), "data": toy.Backwards(length=(2, 9), tokens_per_batch=64)}


def speech() -> dict[str, Any]:
    """The same with CTC beside cross-entropy."""
    torch.manual_seed(0)
    model = Transformer(replace(toy.model().config, ctc=True))
    return {**translation(), "objective": HybridCTC(model, ctc_weight=0.3)}


def layers() -> dict[str, Any]:
    """Translation with three layers a side, each compiled by itself."""
    torch.manual_seed(0)
    config = toy.model().config
    stack = replace(config.encoder, n_layers=3)
    return {**translation(), "objective": CrossEntropy(Transformer(replace(config, encoder=stack, decoder=stack)))}


if __name__ == "__main__":
    compile = torch.compile
    for made in (language, translation, speech, layers):
        name, how = made.__name__, {"compile_layers" if made is layers else "compile": True}
        torch._dynamo.reset()
        graphs = CompileCounterWithBackend("aot_eager")
        torch.compile = partial(compile, backend=graphs)
        before = toy.weights(made()["objective"].model)
        epoch = made()["data"].epoch(0)
        batches = {(b.target_in.shape, b.n_tokens) for b in islice(epoch, UPDATES)}
        plain, compiled = (weights(Path(sys.argv[1]) / name, how, **made()) for how in ({}, how))
        apart = max(float((plain[key] - compiled[key]).abs().max()) for key in plain)
        went = max(float((plain[key] - before[key]).abs().max()) for key in plain)
        n_graphs = sum(any(node.op.startswith("call") for node in g.graph.nodes) for g in graphs.graphs)
        print(f"\n{name} {apart} {went} {n_graphs} {len(batches)}")
