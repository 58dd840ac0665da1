"""Two batches decoded with compiled steps; prints for every model its slots, graphs and compiled frames, how many were
compiled for the second batch, and how far the logits are from those of the layers' way.

A program of its own, for torch.compile cannot look through the type checks that the tests switch on.
"""

from copy import deepcopy
from dataclasses import replace
from functools import partial

import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters

from tests import contract
from tests.model.test_contract import CASES, one_layer
from transduce.model import static

if __name__ == "__main__":
    static.POSITIONS = static.KEYS = 4
    torch._dynamo.config.recompile_limit = 64
    for name in ("tokens-tokens-rotary", "decoder-pre-learned"):
        torch._dynamo.reset()
        counters.clear()
        rng = torch.Generator().manual_seed(3)
        graphs = CompileCounterWithBackend("aot_eager")
        plain = contract.random_model(replace(one_layer(CASES[name]), max_positions=31), rng)
        compiler = partial(torch.compile, backend=graphs, fullgraph=True, dynamic=False)
        model, apart, n_frames = static.make_static(deepcopy(plain), compiler), 0.0, []
        with torch.inference_mode():
            for n_rows in (3, 4):
                example = contract.random_example(model.config, rng, rows=n_rows)
                pieces = (1,) * 10
                got = contract.in_pieces(model, example.target[:, :10], example.memory(model), pieces)
                apart = max(apart, float((got - example.logits(plain)[:, :10]).abs().max()))
                n_frames.append(counters["stats"]["unique_graphs"])
        print(name, len(model.slots.known), graphs.frame_count, n_frames[0], n_frames[1] - n_frames[0], apart)
