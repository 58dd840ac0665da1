"""Export to ONNX, which many programs run: the encoder, and one decoder step with its cache."""

import warnings
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from transduce.data.tokenizer_files import write_tokenizers
from transduce.errors import require
from transduce.files import write_json
from transduce.interop.pretrained import CONFIG, Parts, check_exportable
from transduce.model.cache import Cache, LayerCache, ProjectedMemory
from transduce.model.transformer import Transformer

ENCODER, STEP = "encoder.onnx", "step.onnx"
OPSET = 18
MEMORY = {1: "sentences", 3: "positions"}
PAST = {1: "rows", 3: "length"}
LONGER = {1: "rows", 3: "length + 1"}
AXES = {
    "source": {0: "sentences", 1: "source positions"},
    "lengths": {0: "sentences"},
    "memory_keys": MEMORY,
    "memory_values": MEMORY,
    "memory_lengths": {0: "sentences"},
    "tokens": {0: "rows"},
    "keys": PAST,
    "values": PAST,
    "logits": {0: "rows"},
    "new_keys": LONGER,
    "new_values": LONGER,
}
"""The dynamic axes of each input and output."""


MemoryKeys = Float[Tensor, "C B K M E"]
"""Keys or values of the memory: C layers, K heads, M positions."""


class GivenCache(LayerCache):
    """The cache of one layer as input tensors; the result of `append` is the output."""

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return all positions in new tensors."""
        keys, values = self.buffers
        self.buffers = [torch.cat((keys, key), dim=2), torch.cat((values, value), dim=2)]
        return self.buffers[0], self.buffers[1]


def rms_norm(norm: nn.RMSNorm, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
    """RMSNorm written out, as this version of ONNX has no operator for it."""
    assert norm.eps is not None
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + norm.eps) * norm.weight


def encode_memory(
    model: Transformer, source: Int[Tensor, "B S"], lengths: Int[Tensor, " B"]
) -> tuple[MemoryKeys, MemoryKeys, Int[Tensor, " B"]]:
    """The projected keys and values of every layer's cross-attention, and the lengths of the
    memory."""
    memory = model.encode(source, lengths)
    assert model.decoder is not None and memory.lengths is not None
    layers: Any = model.decoder.layers
    parts = [layer.cross.project(memory)[:2] for layer in layers]
    keys, values = (torch.stack(side) for side in zip(*parts, strict=True))
    return keys, values, memory.lengths


def decode_step(
    model: Transformer,
    tokens: Int[Tensor, " N"],
    keys: Float[Tensor, "C N K L E"],
    values: Float[Tensor, "C N K L E"],
    *memory: Tensor,
) -> tuple[Float[Tensor, "N V"], Float[Tensor, "C N K P E"], Float[Tensor, "C N K P E"]]:
    """The logits of one more token of every row, and keys and values with one position more.

    Args:
        memory: the results of `encode_memory`; none for a decoder-only model.
    """
    cache = Cache(0)
    for i in range(len(keys)):
        layer = GivenCache()
        layer.buffers = [keys[i], values[i]]
        layer.length = keys.size(3)
        if memory:
            layer.memory = ProjectedMemory(memory[0][i], memory[1][i], memory[2])
        cache.layers.append(layer)
    logits = model.decode(tokens[:, None], cache=cache)
    new_keys, new_values = (
        torch.stack([layer.buffers[side] for layer in cache.layers]) for side in (0, 1)
    )
    return logits[:, 0], new_keys, new_values


def export_onnx(parts: Parts, directory: Path) -> None:
    """Write step.onnx, encoder.onnx if the model has an encoder, and config.json with what a search
    needs.

    Batches and lengths may have any size; lengths are limited by max_positions if positions come
    from a table.

    Raises:
        InputError: the library onnx is not installed, or the model has no decoder, or unsupported
            parts.
    """
    model, source, target, decoding, _ = parts
    config = model.config
    check_exportable(config, "ONNX", ("attention", "window", "n_experts"))
    require("onnx", "this export", "onnx")
    model = deepcopy(model).eval().requires_grad_(False)
    for module in model.modules():
        if isinstance(module, nn.RMSNorm):
            module.forward = partial(rms_norm, module)  # type: ignore[method-assign]
    directory.mkdir(parents=True, exist_ok=True)
    assert config.decoder is not None
    past = torch.zeros(config.decoder.n_layers, 2, config.kv_heads, 3, config.d_head)
    inputs = {"tokens": torch.zeros(2, dtype=torch.long), "keys": past, "values": past}
    if config.encoder is not None:
        sources = {"source": torch.zeros(2, 5, dtype=torch.long), "lengths": torch.tensor([5, 4])}
        names = ["memory_keys", "memory_values", "memory_lengths"]
        _write_onnx(model, encode_memory, directory / ENCODER, sources, names)
        inputs |= dict(zip(names, encode_memory(model, *sources.values()), strict=True))
    _write_onnx(model, decode_step, directory / STEP, inputs, ["logits", "new_keys", "new_values"])
    write_tokenizers(directory, source, target, alone=config.encoder is None)
    no_tokens = range(target.vocab_size, config.vocab_size)
    settings = {
        "n_layers": config.decoder.n_layers,
        "n_kv_heads": config.kv_heads,
        "d_head": config.d_head,
        "vocab_size": config.vocab_size,
        "bos_id": target.bos_id,
        "eos_id": target.eos_id,
        "suppressed": sorted({*target.suppressed, *no_tokens, *decoding["suppress"]}),
    }
    write_json(directory / CONFIG, settings)


def _write_onnx(
    model: nn.Module,
    function: Callable[..., tuple[Tensor, ...]],
    path: Path,
    inputs: dict[str, Tensor],
    outputs: list[str],
) -> None:
    """Trace a function of a model and these inputs, and write what it computes."""
    model.forward = partial(function, model)
    with warnings.catch_warnings():
        # tracing warns that sizes which choose a computation become constants
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model,
            tuple(inputs.values()),
            str(path),
            input_names=[*inputs],
            output_names=outputs,
            dynamic_axes={name: AXES[name] for name in (*inputs, *outputs)},
            opset_version=OPSET,
            dynamo=False,
        )
