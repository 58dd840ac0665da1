"""The initial values of all weights."""

import torch
from torch import nn

from transduce.model.config import TransformerConfig
from transduce.model.inputs import TokenInput
from transduce.model.linear import split_rows
from transduce.model.positions import Positions


@torch.no_grad()
def initialize(module: nn.Module, config: TransformerConfig) -> None:
    """Set biases to zero and matrices as config.init says; norms are one from the start.

    With xavier and he, matrices that are fused into one are initialized each by itself, and those of the layers are multiplied
    by config.init_gain. Embeddings get variance 1 / d_model: the paper's scaling turns them into unit variance, and
    unscaled they are good output weights. For gpt2 see `_as_gpt2`.

    Args:
        module: a Transformer, whose output table is the parameter named "output"; on the device meta it stays as it is.

    Source: Glorot and Bengio (2010); He et al. (2015), equation 10; embeddings as in tensor2tensor.
    """
    if next(module.parameters()).is_meta:
        return None
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Conv1d | nn.Conv2d) and part.bias is not None:
            nn.init.zeros_(part.bias)
    tables = {part.weight: part.tokens.vocab_size for part in module.modules() if isinstance(part, TokenInput)}
    own = dict(module.named_parameters())
    if "output_bias" in own:
        nn.init.zeros_(own["output_bias"])
    output = own.get("output")
    if output is not None:
        tables.setdefault(output, config.vocab_size)
    if config.init == "gpt2":
        return _as_gpt2(module, tables)
    for name, part in module.named_modules():
        if isinstance(part, nn.Linear):
            for matrix in split_rows(part, part.weight).values():
                gain = config.init_gain if ".layers." in name else 1.0
                if config.init == "xavier":
                    nn.init.xavier_uniform_(matrix, gain=gain)
                else:
                    nn.init.kaiming_uniform_(matrix, nonlinearity="relu").mul_(gain)
        elif isinstance(part, nn.Conv1d) and part.groups > 1:  # as many numbers come into each channel as out of it
            bound = (3 / part.kernel_size[0]) ** 0.5
            nn.init.uniform_(part.weight, -bound, bound)
        elif isinstance(part, nn.Conv1d | nn.Conv2d):
            nn.init.xavier_uniform_(part.weight)
        elif isinstance(part, Positions) and part.learned is not None:
            nn.init.normal_(part.learned, std=0.02)
        elif isinstance(part, TokenInput):
            _fill(part.weight, tables.pop(part.weight), std=config.d_model**-0.5)
    for weight, vocab_size in tables.items():  # an output table of its own
        _fill(weight, vocab_size, std=config.d_model**-0.5)
    return None


def _fill(weight: nn.Parameter, vocab_size: int, *, std: float) -> None:
    """Normal for the first rows, one per token; padding rows are zero, and no random number is drawn for them."""
    nn.init.normal_(weight[:vocab_size], std=std)
    nn.init.zeros_(weight[vocab_size:])


def _as_gpt2(module: nn.Module, tables: dict[nn.Parameter, int]) -> None:
    """Normal with deviation 0.02; maps that end a sublayer are divided by sqrt(number of sublayers of their stack).

    Source: Radford et al. (2019), Language models are unsupervised multitask learners, section 2.3.
    """
    for parameter in module.parameters():
        if parameter.dim() > 1:
            _fill(parameter, tables.get(parameter, len(parameter)), std=0.02)
    modules = dict(module.named_modules())
    for name, part in modules.items():
        if isinstance(part, nn.Linear) and name.endswith((".output", ".narrow")):
            stack = name.split(".")[0] + "."
            n_residuals = sum(other.startswith(stack) and other.endswith("_sublayer") for other in modules)
            part.weight.mul_(n_residuals**-0.5)
