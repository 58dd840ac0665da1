"""Model FLOPs utilization (MFU): how much of a device a training uses."""

from typing import Any

import torch

from transduce.errors import InputError

PEAKS = {
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "B200": 2250e12,
    "L40S": 362e12,
}
"""Dense bf16 operations a second, from NVIDIA's data sheets, by part of the device's name."""


def peak_flops(device: torch.device) -> float | None:
    """Return the peak of a GPU in dense bf16 operations a second; None: it is not in PEAKS."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in PEAKS.items() if part in name), None)


def full_speed(device: torch.device, flops_per_token: float | None) -> float | None:
    """Tokens a second that would use the whole device; None: unknown."""
    peak = peak_flops(device)
    return peak / flops_per_token if peak and flops_per_token else None


def flops_per_token(model: Any) -> float:
    """Operations of training a decoder on one token of a full context: 6 N + 12 L d T.

    With linear attention, the width of a head stands for T: each token is added to a state, and
    reads it.

    N counts the parameters that a token is multiplied with: not the tables that are only looked up,
    nor the experts that a token does not visit. T is max_positions.

    Args:
        model: a Transformer (model/transformer.py).

    Raises:
        InputError: the model has an encoder, so that the lengths of two sides matter.
    Source: Chowdhery et al. (2022), PaLM, appendix B.
    """
    config = model.config
    if config.decoder is None or config.encoder is not None:
        raise InputError(f"flops_per_token() takes a decoder alone, but the model is {config}")
    config = config.for_stack(config.decoder)
    n = sum(p.numel() for p in model.parameters())
    if config.positions == "learned":
        n -= config.max_positions * config.d_model
    if config.tie == "none":
        n -= config.decoder.input.padded_size * config.d_model
    if config.n_experts:
        experts = sum(p.numel() for name, p in model.named_parameters() if ".experts." in name)
        n -= experts * (config.n_experts - config.experts_per_token) // config.n_experts
    width = config.n_heads * config.d_head
    seen = config.max_positions if config.attention == "softmax" else config.d_head
    return 6.0 * n + 12.0 * config.decoder.n_layers * width * seen
