"""The initial values of all weights."""

import torch
from torch import Tensor, nn

from transduce.model.attention import split_rows
from transduce.model.config import TransformerConfig
from transduce.model.inputs import Positions, TokenInput


@torch.no_grad()
def initialize(module: nn.Module, config: TransformerConfig) -> None:
    """Set biases to zero and matrices as config.init says; norms are one from the start.

    With xavier and he, each of several fused maps is initialized by itself, and the maps of the
    layers are multiplied by config.init_gain. Embeddings get variance 1 / d_model: the paper's
    scaling turns them into unit variance, and unscaled they are good output weights. For gpt2 see
    `_initialize_as_gpt2`.

    Args:
        module: a Transformer, whose output table is the parameter named "output"; on the device
            meta it stays as it is.

    Source: Glorot and Bengio (2010); He et al. (2015), equation 10; embeddings as in tensor2tensor.
    """
    parameters = dict(module.named_parameters())
    if next(iter(parameters.values())).is_meta:
        return
    for name, parameter in parameters.items():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
    tables = {
        part.weight: part.tokens.vocab_size
        for part in module.modules()
        if isinstance(part, TokenInput)
    }
    if "output" in parameters:
        tables.setdefault(parameters["output"], config.vocab_size)
    if config.init == "gpt2":
        _initialize_as_gpt2(module, tables)
        return
    for name, part in module.named_modules():
        _initialize_by_sizes(name, part, config)
    if "output" in parameters and config.tie == "none":
        _fill_normally(parameters["output"], config.vocab_size, std=config.d_model**-0.5)


def _initialize_by_sizes(name: str, part: nn.Module, config: TransformerConfig) -> None:
    match part:
        case nn.Linear():
            fused = split_rows(part, part.weight).values()
            gain = config.init_gain if ".layers." in name else 1.0
            # value and gate of a Conformer's convolution, which LoRA and Muon take as one map
            for matrix in part.weight.chunk(2) if name.endswith(".pointwise") else fused:
                _fill_uniformly(matrix, config, gain=gain)
        case nn.Conv1d() if part.groups > 1:  # as many numbers come into a channel as out of it
            bound = (3 / part.kernel_size[0]) ** 0.5
            nn.init.uniform_(part.weight, -bound, bound)
        case nn.Conv1d():
            nn.init.xavier_uniform_(part.weight)
        case Positions() if part.learned is not None:
            nn.init.normal_(part.learned, std=0.02)
        case TokenInput():
            _fill_normally(part.weight, part.tokens.vocab_size, std=config.d_model**-0.5)


def _fill_uniformly(matrix: Tensor, config: TransformerConfig, *, gain: float) -> None:
    if config.init == "xavier":
        nn.init.xavier_uniform_(matrix, gain=gain)
    else:
        nn.init.kaiming_uniform_(matrix, nonlinearity="relu").mul_(gain)


def _fill_normally(weight: Tensor, vocab_size: int, *, std: float) -> None:
    """Normal for the rows of tokens, zero for padding rows, which draw no random numbers."""
    nn.init.normal_(weight[:vocab_size], std=std)
    nn.init.zeros_(weight[vocab_size:])


def _initialize_as_gpt2(module: nn.Module, tables: dict[nn.Parameter, int]) -> None:
    """Normal, deviation 0.02; maps that end a sublayer are divided by sqrt(sublayers of the stack).

    Source: Radford et al. (2019), Language models are unsupervised multitask learners, section 2.3.
    """
    for parameter in module.parameters():
        if parameter.dim() > 1:
            _fill_normally(parameter, tables.get(parameter, len(parameter)), std=0.02)
    modules = dict(module.named_modules())
    for name, part in modules.items():
        if isinstance(part, nn.Linear) and name.endswith((".output", ".narrow")):
            stack = name.split(".")[0] + "."
            n_sublayers = sum(
                other.startswith(stack) and other.endswith("_sublayer") for other in modules
            )
            part.weight.mul_(n_sublayers**-0.5)
