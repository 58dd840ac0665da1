"""Models on the meta device, which take no memory: their size, filling them with given weights, and
the FLOPs of training."""

import torch
from torch import nn

from transduce.device import memory
from transduce.errors import InputError
from transduce.files import Weights, check_weights, weights_of
from transduce.model.config import Tokens, TransformerConfig
from transduce.model.inputs import Positions
from transduce.model.transformer import Transformer

TRAINING = 16
"""Bytes per parameter in training: its weight, its gradient and Adam's two moments, each in
float32."""

INFERENCE = 4
"""Bytes per parameter in inference: its weight in float32."""


def n_parameters(config: TransformerConfig) -> int:
    """The number of parameters of a Transformer; a shared table counts once.

    Raises:
        InputError: the model has a weight that is too large for any memory.
    """
    return _sizes(config)[0]


def check_fits(
    config: TransformerConfig, device: torch.device, *, bytes_each: int = INFERENCE
) -> None:
    """Check, before anything is allocated, that a model can fit into the memory of a device.

    Args:
        bytes_each: bytes per parameter, such as TRAINING or INFERENCE.

    Raises:
        InputError: it cannot.
    """
    n, n_computed = _sizes(config)
    available = memory(device)
    needed = n * bytes_each + 4 * n_computed
    if available is not None and needed > available:
        use = "training takes" if bytes_each > INFERENCE else "its weights take"
        raise InputError(
            f"a model must fit into memory, but this one has {n:,} parameters and {use} "
            f"{_gib(needed)}, where {device} has {_gib(available)}; take fewer layers or smaller "
            "ones"
        )


def _sizes(config: TransformerConfig) -> tuple[int, int]:
    """The number of parameters, and of computed numbers such as sinusoids."""
    try:
        model = on_meta(config)
    except (RuntimeError, TypeError) as error:
        if "verflow" not in str(error):
            raise
        raise InputError(
            "a model must fit into memory, but one weight of this one has 2**63 bytes or more; "
            "take smaller layers"
        ) from error
    return model.n_parameters, sum(buffer.numel() for buffer in model.buffers())


def _gib(n_bytes: int) -> str:
    return (
        f"{n_bytes // 2**20 / 2**10:,.1f} GiB" if n_bytes < 2**60 else f"{n_bytes // 2**30:,} GiB"
    )


def flops_per_token(model: Transformer) -> float:
    """FLOPs of training a decoder on one token of a full context: 6 N + 12 L d T.

    N counts the parameters that a token is multiplied with: not the tables that are only looked up,
    nor the experts that a token does not visit. T is max_positions; in linear attention, the width
    of a head replaces it, as each token updates and reads a state.

    Raises:
        InputError: the model has an encoder, so that the lengths of two sides matter.
    Source: Chowdhery et al. (2022), PaLM, appendix B.
    """
    config = model.config
    stack = config.decoder
    if stack is None or not isinstance(stack.input, Tokens) or config.encoder is not None:
        raise InputError(f"flops_per_token() takes a decoder alone, but the model is {config}")
    config = config.for_stack(stack)
    n = model.n_parameters
    if config.positions == "learned":
        n -= config.max_positions * config.d_model
    if config.tie == "none":
        n -= stack.input.padded_size * config.d_model
    if config.n_experts:
        experts = sum(p.numel() for name, p in model.named_parameters() if ".experts." in name)
        n -= experts * (config.n_experts - config.experts_per_token) // config.n_experts
    width = config.n_heads * config.d_head
    seen = config.max_positions if config.attention == "softmax" else config.d_head
    return 6.0 * n + 12.0 * stack.n_layers * width * seen


def filled_transformer(
    config: TransformerConfig, weights: Weights, name: str, device: torch.device
) -> Transformer:
    """A Transformer in evaluation mode with a copy of these weights, in float32.

    Args:
        name: says in errors where the weights come from.

    Raises:
        InputError: a name is missing or unknown, or a shape differs.
    """
    model = on_meta(config)
    empty = weights_of(model)
    check_weights(empty, weights, name)
    return _assign(model, {n: weights[n].to(device, torch.float32, copy=True) for n in empty})


def blank_transformer(config: TransformerConfig) -> Transformer:
    """A Transformer on the CPU in evaluation mode: norms are identities, all other weights zero."""
    model = on_meta(config)
    _assign(model, {name: torch.zeros(old.shape) for name, old in weights_of(model).items()})
    for module in model.modules():
        if isinstance(module, nn.LayerNorm | nn.RMSNorm):
            module.reset_parameters()
    return model


def on_meta(config: TransformerConfig) -> Transformer:
    """A Transformer without memory."""
    with torch.device("meta"):
        return Transformer(config)


def _assign(model: Transformer, weights: Weights) -> Transformer:
    """Give a model on the meta device its weights; a shared one is listed by its first name."""
    empty = model.state_dict(keep_vars=True)
    parameters = {id(empty[name]): nn.Parameter(weight) for name, weight in weights.items()}
    model.load_state_dict({name: parameters[id(old)] for name, old in empty.items()}, assign=True)
    for module in model.modules():
        if isinstance(module, Positions):
            module.fill_table(model.device)
    return model.eval()
