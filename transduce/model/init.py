"""Every initial value in one place."""

from typing import TYPE_CHECKING

from torch import nn

from transduce.model.inputs import TokenInput
from transduce.model.positions import Positions

if TYPE_CHECKING:
    from transduce.model.transformer import Transformer


def initialise(model: "Transformer") -> None:
    """Xavier for every matrix, each fused part on its own; zero biases; embeddings with variance 1 / d_model.

    The embeddings' variance makes them unit vectors after the paper's scaling, and good output weights without it.

    Source: Glorot and Bengio (2010); embeddings as in tensor2tensor.
    """
    d_model = model.config.d_model
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            fused = name.endswith((".qkv", ".kv"))
            for part in module.weight.split(d_model) if fused else (module.weight,):
                nn.init.xavier_uniform_(part)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, TokenInput):
            nn.init.normal_(module.weight, std=d_model**-0.5)
        elif isinstance(module, Positions) and module.learned is not None:
            nn.init.normal_(module.learned, std=0.02)
    if model.output is not None and model.output is not getattr(model.target_input, "weight", None):
        nn.init.normal_(model.output, std=d_model**-0.5)
