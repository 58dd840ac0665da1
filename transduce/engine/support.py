"""Which configurations kernels.cpp computes; it is read without torch."""

from transduce.model.config import StackConfig, TransformerConfig

REFUSED = {
    "conformer_kernel": 0,
    "ctc_conditioning": False,
    "n_experts": 0,
    "attention": "softmax",
}
"""Fields of a configuration that kernels.cpp does not compute, and the values with which it
does."""


def unsupported(config: TransformerConfig, stack: StackConfig | None) -> str:
    """Name the field because of which a stack is not computed in C++; empty if it is.

    Conformer layers and conditioning on CTC are the encoder's alone.
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
    """The halves that are computed by their layers, and why: "; encoder by its layers
    (n_experts=4)"; often nothing."""
    halves = {"encoder": config.encoder, "decoder": config.decoder}
    reasons = {
        name: unsupported(config, stack) for name, stack in halves.items() if stack is not None
    }
    return "".join(
        f"; {name} by its layers ({reason})" for name, reason in reasons.items() if reason
    )
