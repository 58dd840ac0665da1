"""Which configurations kernels.cpp supports; this module does not import torch."""

from transduce.model.config import StackConfig, TransformerConfig

REFUSED = {
    "conformer_kernel": 0,
    "ctc_conditioning": False,
    "n_experts": 0,
    "attention": "softmax",
}
"""Fields of a configuration of which kernels.cpp supports one value only, and that value."""


def unsupported(config: TransformerConfig, stack: StackConfig | None) -> str:
    """Name the fields because of which C++ cannot compute a stack; empty if it can.

    Conformer layers and conditioning on CTC concern the encoder only.
    """
    if stack is None:
        return "none"
    names = REFUSED if stack is config.encoder else ("n_experts", "attention")
    refused = [
        f"{name}={getattr(config, name)}"
        for name in names
        if getattr(config, name) != REFUSED[name]
    ]
    if config.for_stack(stack).positions == "relative":
        refused.append("positions=relative")
    return ", ".join(refused)


def by_layers(config: TransformerConfig) -> str:
    """The halves that PyTorch's layers compute, and why, such as "; encoder by its layers
    (n_experts=4)"; empty if C++ computes all."""
    halves = {"encoder": config.encoder, "decoder": config.decoder}
    reasons = {
        name: unsupported(config, stack) for name, stack in halves.items() if stack is not None
    }
    return "".join(
        f"; {name} by its layers ({reason})" for name, reason in reasons.items() if reason
    )
