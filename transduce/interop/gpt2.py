"""GPT-2, as transformers saves it, to a Transformer and back: the same numbers under other names.

Two things differ. GPT-2's linear maps ("Conv1D") hold their matrices transposed, and its table of token vectors is the
output projection too, which we call tie="output".
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save as serialize
from torch import Tensor

from transduce.config import differences, to_dict
from transduce.data.text.byte_bpe import ByteBPE
from transduce.files import write_file
from transduce.model.config import Activation, StackConfig, Tokens, TransformerConfig
from transduce.model.transformer import Transformer

ACTIVATIONS: dict[str, Activation] = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
}
"""Theirs to ours; back, the first one counts."""

FIXED: dict[str, Any] = {
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "reorder_and_upcast_attn": False,
    "add_cross_attention": False,
}
"""Settings that have one value here."""

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"

TABLES = ("target_input.weight", "output")
"""Our names of what has a row per token."""

FREE = ("init", "init_gain", "recompute", "tie", "decoder.input.multiple", "bias")
"""Fields of ours that GPT-2's config.json does not hold, or holds otherwise, and that change no output.

Without biases, zeros stand in their places.
"""


class GPT2(NamedTuple):
    """A model in evaluation mode; the id that begins and ends texts."""

    model: Transformer
    eos_id: int | None


def import_gpt2(directory: Path) -> GPT2:
    """Read config.json and model.safetensors, in one file or in shards, of a GPT2LMHeadModel or GPT2Model.

    Raises:
        ValueError: the directory holds another kind of model, one with parts that a Transformer here lacks, or no
            safetensors.
    Source: Radford et al. (2019); file format of transformers' save_pretrained.
    """
    theirs = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    _check(theirs, directory)
    config = gpt2_config(theirs)
    weights = {name.removeprefix("transformer."): weight for name, weight in _read(directory).items()}
    if config.tie == "output":
        weights.pop("lm_head.weight", None)  # the table of tokens once more
    for name in [name for name in weights if name.endswith((".attn.bias", ".attn.masked_bias"))]:
        del weights[name]  # older files hold what every layer may look at
    table = {their_name: (name, turned) for name, their_name, turned in _names(config)}
    wrong = [f"{name} is missing" for name in table if name not in weights]
    wrong += [f"{name} is unknown" for name in weights if name not in table]
    if wrong:
        raise ValueError(f"a GPT-2 holds the weights of its config.json, but in {directory} {'; '.join(wrong[:5])}")
    model = Transformer(config)
    own = dict(model.named_parameters(remove_duplicate=False))  # one table may have two names
    with torch.no_grad():
        for their_name, weight in weights.items():
            name, turned = table[their_name]
            own[name].copy_(_fitting(weight.T if turned else weight, own[name], their_name, directory))
    return GPT2(model.eval(), theirs.get("eos_token_id", 50256))


def export_gpt2(model: Transformer, directory: Path, *, tokenizer: ByteBPE | None = None) -> None:
    """Write a directory that GPT2LMHeadModel.from_pretrained reads: config.json, model.safetensors, tokenizer.json.

    Raises:
        ValueError: the model is not a GPT-2; the message lists the fields that make it something else.
    """
    config, end = model.config, tokenizer.eos_id if tokenizer else None
    theirs = _their_config(config, end)
    changed = [
        line
        for line in differences(to_dict(gpt2_config(theirs)), to_dict(config))
        if not line.startswith(tuple(f"{name}:" for name in FREE))
    ]
    if changed:
        raise ValueError(f"a GPT-2 has fields of one value, but in this model they differ: {'; '.join(changed)}")
    own = dict(model.named_parameters(remove_duplicate=False))  # one table may have two names
    weights = {}
    for name, their_name, turned in _names(config):
        if name in own:
            weight = own[name].detach().cpu()
        else:  # a bias that this model does without
            weight = torch.zeros(len(own[name.removesuffix("bias") + "weight"]))
        if name in TABLES:
            weight = weight[: model.vocab_size]  # rows that only fill it up stay here
        prefix = "" if their_name == "lm_head.weight" else "transformer."
        weights[prefix + their_name] = (weight.T if turned else weight).contiguous()
    directory.mkdir(parents=True, exist_ok=True)
    write_file(directory / "config.json", json.dumps(theirs, indent=2) + "\n")
    write_file(directory / WEIGHTS, serialize(weights, metadata={"format": "pt"}))
    if tokenizer is not None:
        write_file(directory / "tokenizer.json", tokenizer.model)
        their_tokenizer: dict[str, Any] = {"tokenizer_class": "GPT2Tokenizer"}
        if end is not None:
            their_tokenizer |= dict.fromkeys(("bos_token", "eos_token", "unk_token"), tokenizer.tokens([end])[0])
        if config.positions == "learned":
            their_tokenizer["model_max_length"] = config.max_positions
        write_file(directory / "tokenizer_config.json", json.dumps(their_tokenizer, indent=2) + "\n")


def gpt2_config(theirs: dict[str, Any]) -> TransformerConfig:
    """GPT-2's config.json as ours; what is left out has GPT-2's default."""
    width: int = theirs.get("n_embd", 768)
    vocabulary = Tokens(vocab_size=theirs.get("vocab_size", 50257))
    return TransformerConfig(
        decoder=StackConfig(input=vocabulary, n_layers=theirs.get("n_layer", 12)),
        d_model=width,
        n_heads=theirs.get("n_head", 12),
        d_ff=theirs.get("n_inner") or 4 * width,
        dropout=float(theirs.get("resid_pdrop", 0.1)),
        attention_dropout=float(theirs.get("attn_pdrop", 0.1)),
        activation=ACTIVATIONS[theirs.get("activation_function", "gelu_new")],
        norm_position="pre",
        norm_eps=float(theirs.get("layer_norm_epsilon", 1e-5)),
        positions="learned",
        max_positions=theirs.get("n_positions", 1024),
        scale_embeddings=False,
        tie="output" if theirs.get("tie_word_embeddings", True) else "none",
    )


def _their_config(config: TransformerConfig, end: int | None) -> dict[str, Any]:
    """Ours as GPT-2's, as far as it goes.

    Raises:
        ValueError: the model is not a decoder alone, or its activation is none that GPT-2 has.
    """
    if config.encoder is not None or config.decoder is None or not isinstance(config.decoder.input, Tokens):
        raise ValueError("a GPT-2 is a decoder alone, but this model has an encoder; it cannot be exported as one")
    activations = {ours: name for name, ours in reversed(ACTIVATIONS.items())}
    if config.activation not in activations:
        raise ValueError(
            f"a GPT-2's activation is one of {', '.join(activations)}, but this model's is {config.activation!r}"
        )
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": config.decoder.input.vocab_size,
        "n_positions": config.max_positions,
        "n_embd": config.d_model,
        "n_layer": config.decoder.n_layers,
        "n_head": config.n_heads,
        "n_inner": config.d_ff,
        "activation_function": activations[config.activation],
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.dropout,
        "attn_pdrop": config.attention_dropout,
        "layer_norm_epsilon": config.norm_eps,
        "bos_token_id": end,
        "eos_token_id": end,
        "tie_word_embeddings": config.tie != "none",
        **FIXED,
    }


def _check(theirs: dict[str, Any], directory: Path) -> None:
    """Raise ValueError for whatever would silently give other numbers."""
    if theirs.get("model_type") != "gpt2":
        raise ValueError(f"model_type must be 'gpt2', but in {directory} it is {theirs.get('model_type')!r}")
    for name, value in FIXED.items():
        if theirs.get(name, value) != value:
            raise ValueError(f"{name} must be {value}, but in {directory} it is {theirs[name]}")
    activation = theirs.get("activation_function", "gelu_new")
    if activation not in ACTIVATIONS:
        raise ValueError(
            f"activation_function must be one of {', '.join(ACTIVATIONS)}, but in {directory} it is {activation!r}"
        )
    residual, embedding = theirs.get("resid_pdrop", 0.1), theirs.get("embd_pdrop", 0.1)
    if residual != embedding:
        raise ValueError(
            f"embd_pdrop must equal resid_pdrop, but in {directory} they are {embedding} and {residual}; "
            "they matter in training alone, so make them equal in config.json"
        )
    if not isinstance(theirs.get("eos_token_id", 50256), int | None):
        raise ValueError(f"eos_token_id must be one id or null, but in {directory} it is {theirs['eos_token_id']}")


def _read(directory: Path) -> dict[str, Tensor]:
    if (directory / WEIGHTS).is_file():
        return load_file(directory / WEIGHTS)
    if (directory / INDEX).is_file():
        shards = set(json.loads((directory / INDEX).read_text(encoding="utf-8"))["weight_map"].values())
        return {name: weight for shard in sorted(shards) for name, weight in load_file(directory / shard).items()}
    told = "has none"
    if (directory / "pytorch_model.bin").exists():
        told = "has pytorch_model.bin, which may run anything when it is read"
    raise ValueError(
        f"weights are read from {WEIGHTS}, but {directory} {told}; where you trust it, convert it with transformers: "
        "GPT2LMHeadModel.from_pretrained(DIRECTORY).save_pretrained(OTHER)"
    )


def _fitting(weight: Tensor, own: Tensor, name: str, directory: Path) -> Tensor:
    if weight.shape != own.shape:
        raise ValueError(
            f"weights must fit config.json, but in {directory} {name} makes {tuple(weight.shape)} "
            f"where it needs {tuple(own.shape)}"
        )
    return weight


def _names(config: TransformerConfig) -> Iterator[tuple[str, str, bool]]:
    """Every parameter: our name, theirs without "transformer.", and whether it is transposed."""
    yield "target_input.weight", "wte.weight", False
    yield "decoder.positions.learned", "wpe.weight", False
    yield "decoder.norm.weight", "ln_f.weight", False
    yield "decoder.norm.bias", "ln_f.bias", False
    if config.tie == "none":
        yield "output", "lm_head.weight", False
    assert config.decoder is not None
    for i in range(config.decoder.n_layers):
        for ours, name in LAYER.items():
            yield f"decoder.layers.{i}.{ours}.weight", f"h.{i}.{name}.weight", not name.startswith("ln")
            yield f"decoder.layers.{i}.{ours}.bias", f"h.{i}.{name}.bias", False


LAYER = {
    "attention_sublayer.norm": "ln_1",
    "attention.qkv": "attn.c_attn",
    "attention.output": "attn.c_proj",
    "feed_forward_sublayer.norm": "ln_2",
    "feed_forward.wide": "mlp.c_fc",
    "feed_forward.narrow": "mlp.c_proj",
}
"""The modules of a layer: ours to theirs."""
