"""Two short trainings, one of them compiled; prints by how much the weights end apart, and how far they went.

A program of its own, for torch.compile cannot look through the type checks that the tests switch on. Its backend here
captures and differentiates the graph as on a GPU, but needs no C++ compiler.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.train import toy
from transduce.data.stream import Stream, Windows
from transduce.model.config import StackConfig, Tokens, TransformerConfig
from transduce.model.transformer import Transformer
from transduce.train.ctc import hybrid_loss
from transduce.train.loss import sequence_loss


def weights(
    directory: Path, *, compiled: bool, model: Transformer, loss: Callable[..., Tensor], **parts: Any
) -> dict[str, Tensor]:
    """After three updates in batches of several shapes."""
    config = toy.config(max_updates=3, compile=compiled, static_shapes="data" in parts)
    trainer = toy.trainer(directory / str(compiled), model=model.double(), loss=loss, config=config, **parts)
    trainer.run()
    return toy.weights(trainer.model)


def language() -> dict[str, Any]:
    """A decoder alone on windows of one shape."""
    torch.manual_seed(0)
    decoder = StackConfig(input=Tokens(vocab_size=12), n_layers=1)
    ids = np.random.default_rng(1).integers(12, size=400).astype(np.uint16)
    return {
        "model": Transformer(TransformerConfig(decoder=decoder, d_model=16, n_heads=2, d_ff=32, dropout=0.0)),
        "data": Windows(stream=Stream([ids]), context=16, rows=2),
        "loss": sequence_loss,
    }


def speech() -> dict[str, Any]:
    """Both halves on pairs of many lengths, with CTC beside cross-entropy."""
    torch.manual_seed(0)
    return {"model": Transformer(replace(toy.model().config, ctc=True)), "loss": hybrid_loss}


if __name__ == "__main__":
    torch.compile = partial(torch.compile, backend="aot_eager")
    for name, made in (("language", language), ("speech", speech)):
        before = toy.weights(made()["model"])
        plain, compiled = (weights(Path(sys.argv[1]) / name, compiled=c, **made()) for c in (False, True))
        apart = max(float((plain[key] - compiled[key]).abs().max()) for key in plain)
        went = max(float((plain[key] - before[key]).abs().max()) for key in plain)
        print(f"\n{name} {apart} {went}")
