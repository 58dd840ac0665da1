"""How large a model is, from its configuration alone: nothing is allocated for a model that is too large."""

import torch

from transduce.device import memory
from transduce.errors import InputError
from transduce.model.config import Frames, StackConfig, Tokens, TransformerConfig

TRAINING = 16
"""Bytes a parameter in training: its weight, its gradient and Adam's two moments, each in float32."""

INFERENCE = 4


def n_parameters(config: TransformerConfig) -> int:
    """How many parameters a Transformer of this configuration has; a shared table counts once."""
    d = config.d_model
    stacks = [stack for stack in (config.encoder, config.decoder) if stack is not None]
    n = sum(_stack(config, stack, cross=i == 1) for i, stack in enumerate(stacks))
    tables = [stack.input.padded_size * d for stack in stacks if isinstance(stack.input, Tokens)]
    n += tables[0] if len(tables) == 2 and config.tie == "all" else sum(tables)
    if config.tie == "none" and isinstance(stacks[-1].input, Tokens):
        n += tables[-1]
    if config.encoder is not None and isinstance(frames := config.encoder.input, Frames):
        shapes = [(frames.conv_kernel**frames.conv_dims * a, b) for a, b in frames.conv_shapes(d)]
        if shapes and frames.conv_dims == 2:
            shapes.append((frames.conv_width(d), d))
        if not shapes and (frames.width != d or frames.project):
            shapes = [(frames.width, d)]
        n += sum(_linear(config, *shape) for shape in shapes)
    n += config.vocab_size if config.output_bias else 0
    n += _linear(config, config.vocab_size, d) if config.ctc_conditioning else 0
    return n + (_linear(config, d, config.vocab_size) if config.ctc else 0)


def _stack(config: TransformerConfig, stack: StackConfig, *, cross: bool) -> int:
    """Everything of a half but its table."""
    d = config.d_model
    norm = d * (2 if config.norm == "layer" and config.bias else 1)
    query, key = config.n_heads * config.d_head, config.kv_heads * config.d_head
    attention = (d + config.attention_bias) * (query + 2 * key) + _linear(config, query, d)
    attention += 2 * config.d_head if config.qk_norm else 0
    wide = config.d_ff * (2 if config.gated else 1)
    feed_forward = _linear(config, d, wide) + _linear(config, config.d_ff, d)
    if config.n_experts:
        feed_forward = config.n_experts * (feed_forward + d)  # and a row of the router for each
    layer = (attention + norm) * (2 if cross else 1) + feed_forward + norm
    if config.conformer_kernel and stack is config.encoder:
        depthwise = d * (config.conformer_kernel + config.bias)
        convolution = _linear(config, d, 2 * d) + depthwise + norm + _linear(config, d, d)
        layer += feed_forward + norm + convolution + norm + norm
    told = config.of(stack)
    learned = told.max_positions * d if told.positions == "learned" else 0
    return stack.n_layers * layer + learned + norm * ((config.norm_position == "pre") + config.embedding_norm)


def _linear(config: TransformerConfig, width: int, height: int) -> int:
    return (width + config.bias) * height


def check_fits(config: TransformerConfig, device: torch.device, *, bytes_each: int = INFERENCE) -> None:
    """Check, before anything is allocated, that a model can fit into the memory of a device.

    Args:
        bytes_each: bytes a parameter, such as TRAINING or INFERENCE.

    Raises:
        InputError: it cannot.
    """
    n, has = n_parameters(config), memory(device)
    halves = [config.of(stack) for stack in (config.encoder, config.decoder) if stack is not None]
    table = sum(4 * half.max_positions * half.d_model for half in halves if half.positions not in ("learned", "none"))
    wanted = n * bytes_each + table
    if has is not None and wanted > has:
        what = "training takes" if bytes_each > INFERENCE else "its weights take"
        raise InputError(
            f"a model must fit into memory, but this one has {n:,} parameters and {what} {_gib(wanted)}, "
            f"where {device} has {_gib(has)}; take fewer layers or smaller ones"
        )


def _gib(n_bytes: int) -> str:
    return f"{n_bytes // 2**20 / 2**10:,.1f} GiB" if n_bytes < 2**60 else f"{n_bytes // 2**30:,} GiB"
