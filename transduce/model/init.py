"""Every initial value in one place."""

from typing import TYPE_CHECKING

import torch
from torch import nn

from transduce.model.inputs import TokenInput
from transduce.model.positions import Positions

if TYPE_CHECKING:
    from transduce.model.transformer import Transformer


@torch.no_grad()
def initialise(model: "Transformer") -> None:
    """Zero biases, and matrices as config.init says; norms begin at one by themselves.

    xavier: every matrix on its own, where several are fused, those of the layers times config.init_gain; embeddings
    with variance 1 / d_model, which makes them unit vectors after the paper's scaling, and good output weights without.

    Source: Glorot and Bengio (2010); embeddings as in tensor2tensor. For gpt2 see `_as_gpt2`.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    if model.config.init == "gpt2":
        return _as_gpt2(model)
    config = model.config
    query, key = config.n_heads * config.d_head, config.kv_heads * config.d_head
    fused = {"qkv": [query, key, key], "kv": [key, key], "wide": [config.d_ff] * (2 if config.gated else 1)}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            for part in module.weight.split(fused.get(name.split(".")[-1], [len(module.weight)])):
                nn.init.xavier_uniform_(part, gain=config.init_gain if ".layers." in name else 1.0)
        elif isinstance(module, TokenInput):
            _fill(module.weight, module.tokens.vocab_size, std=config.d_model**-0.5)
        elif isinstance(module, Positions) and module.learned is not None:
            nn.init.normal_(module.learned, std=0.02)
    if model.output is not None and model.output is not getattr(model.target_input, "weight", None):
        _fill(model.output, model.vocab_size, std=config.d_model**-0.5)
    return None


def _fill(weight: nn.Parameter, rows: int, *, std: float) -> None:
    """So many rows normal, whatever the table is filled up with: that is zero, and no random number is drawn for it."""
    nn.init.normal_(weight[:rows], std=std)
    nn.init.zeros_(weight[rows:])


def _as_gpt2(model: "Transformer") -> None:
    """Normal with deviation 0.02; what ends in a residual, divided by sqrt of how many residuals its stack adds up.

    Source: Radford et al. (2019), Language models are unsupervised multitask learners, section 2.3.
    """
    tables = {m.weight: m.tokens.vocab_size for m in model.modules() if isinstance(m, TokenInput)}
    if model.output is not None:
        tables[model.output] = model.vocab_size
    for parameter in model.parameters():
        if parameter.dim() > 1:
            _fill(parameter, tables.get(parameter, len(parameter)), std=0.02)
    for stack in (model.encoder, model.decoder):
        modules = [] if stack is None else list(stack.named_modules())
        n_residuals = sum(name.endswith("_sublayer") for name, _ in modules)
        for name, module in modules:
            if isinstance(module, nn.Linear) and name.endswith((".output", ".narrow")):
                module.weight.mul_(n_residuals**-0.5)
