"""Transformers with given weights: made on the device meta, so nothing is initialized in vain."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from transduce.files import check_weights, weights_of
from transduce.model.config import TransformerConfig
from transduce.model.positions import Positions
from transduce.model.transformer import Transformer


def filled_transformer(
    config: TransformerConfig, weights: Mapping[str, Tensor], name: str, device: torch.device
) -> Transformer:
    """A Transformer in evaluation mode with a copy of these weights, in the type of new models.

    Args:
        name: says in errors where the weights come from.

    Raises:
        InputError: a name is missing or unknown, or a shape differs.
    """
    model = _on_meta(config)
    empty = weights_of(model)
    check_weights(empty, weights, name)
    return _assign(
        model, {n: weights[n].to(device, own.dtype, copy=True) for n, own in empty.items()}
    )


def blank_transformer(config: TransformerConfig) -> Transformer:
    """A Transformer on the CPU in evaluation mode: norms are identities, all other weights zero."""
    model = _on_meta(config)
    _assign(model, {name: torch.zeros(own.shape) for name, own in weights_of(model).items()})
    for module in model.modules():
        if isinstance(module, nn.LayerNorm | nn.RMSNorm):
            module.reset_parameters()
    return model


def _on_meta(config: TransformerConfig) -> Transformer:
    with torch.device("meta"):
        return Transformer(config)


def _assign(model: Transformer, weights: dict[str, Tensor]) -> Transformer:
    """Give a model on the device meta its weights; a shared one stands under its first name."""
    empty = model.state_dict(keep_vars=True)
    parameters = {id(empty[name]): nn.Parameter(weight) for name, weight in weights.items()}
    model.load_state_dict({name: parameters[id(own)] for name, own in empty.items()}, assign=True)
    for module in model.modules():
        if isinstance(module, Positions):
            module.fill_table(model.device)
    return model.eval()
