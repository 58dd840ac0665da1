"""Marian translation models, as transformers saves them, become Transformers: the same numbers under other names.

One thing differs. Marian's positions are [all sines | all cosines], the paper's and ours take turns. The order of the
d_model dimensions is a convention, though: reorder what reads from and writes to the residual stream, and the outputs
stay the same. So nothing in the model knows about it.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from safetensors.torch import load_file
from torch import Tensor

from transduce.model.config import Activation, StackConfig, Tokens, TransformerConfig
from transduce.model.transformer import Transformer

ACTIVATIONS: dict[str, Activation] = {"relu": "relu", "gelu": "gelu", "gelu_new": "gelu_tanh"}
"""Theirs to ours."""


class Marian(NamedTuple):
    """A model, and the ids that its search needs."""

    model: Transformer
    bos_id: int
    """What target_in begins with; in Marian's models the padding id."""
    eos_id: int
    pad_id: int


def import_marian(directory: Path) -> Marian:
    """Read config.json and model.safetensors of a MarianMTModel. The model is in evaluation mode.

    Raises:
        ValueError: the directory holds another kind of model, or one with parts that a Transformer here lacks.
    Source: Junczys-Dowmunt et al. (2018), Marian; file format of transformers' save_pretrained.
    """
    theirs = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    _check(theirs, directory)
    weights = load_file(directory / "model.safetensors")
    bias = weights.get("final_logits_bias")
    if bias is not None and bias.any():
        raise ValueError(
            f"final_logits_bias must be zero, for output logits have no bias here, "
            f"but in {directory} its largest absolute value is {bias.abs().max().item():.4g}"
        )
    config = _config(theirs)
    model = Transformer(config)
    model.load_state_dict(_renamed(weights, config))
    return Marian(model.eval(), theirs["decoder_start_token_id"], theirs["eos_token_id"], theirs["pad_token_id"])


def _check(theirs: dict[str, Any], directory: Path) -> None:
    """Raise ValueError for whatever would silently give other numbers."""
    if theirs.get("model_type") != "marian":
        raise ValueError(f"model_type must be 'marian', but in {directory} it is {theirs.get('model_type')!r}")
    if theirs["activation_function"] not in ACTIVATIONS:
        raise ValueError(
            f"activation_function must be one of {', '.join(ACTIVATIONS)}, "
            f"but in {directory} it is {theirs['activation_function']!r}"
        )
    for one, other in (("encoder_attention_heads", "decoder_attention_heads"), ("encoder_ffn_dim", "decoder_ffn_dim")):
        if theirs[one] != theirs[other]:
            raise ValueError(f"{one} must equal {other}, but in {directory} they are {theirs[one]} and {theirs[other]}")


def _config(theirs: dict[str, Any]) -> TransformerConfig:
    shared = theirs.get("share_encoder_decoder_embeddings", True)
    source = Tokens(vocab_size=theirs["vocab_size"])
    target = source if shared else Tokens(vocab_size=theirs["decoder_vocab_size"])
    tied = theirs.get("tie_word_embeddings", True)
    return TransformerConfig(
        encoder=StackConfig(input=source, n_layers=theirs["encoder_layers"]),
        decoder=StackConfig(input=target, n_layers=theirs["decoder_layers"]),
        d_model=theirs["d_model"],
        n_heads=theirs["encoder_attention_heads"],
        d_ff=theirs["encoder_ffn_dim"],
        dropout=theirs["dropout"],
        attention_dropout=theirs["attention_dropout"],
        activation=ACTIVATIONS[theirs["activation_function"]],
        max_positions=theirs["max_position_embeddings"],
        scale_embeddings=theirs["scale_embedding"],
        tie="none" if not tied else "all" if shared else "output",
    )


def residual_order(d_model: int) -> Int[Tensor, " D"]:
    """Our dimension i of the residual stream is Marian's dimension order[i]: sine 0, cosine 0, sine 1, cosine 1, ..."""
    return torch.arange(d_model).view(2, -1).T.flatten()


def _renamed(theirs: dict[str, Tensor], config: TransformerConfig) -> dict[str, Tensor]:
    """The weights under our names, and in our order."""
    order = residual_order(config.d_model)
    table = {"source": "encoder.embed_tokens", "target": "decoder.embed_tokens"}
    ours = {}
    for side, name in table.items():
        weight = theirs.get(f"model.{name}.weight", theirs.get("model.shared.weight"))
        assert weight is not None
        ours[f"{side}_input.weight"] = weight[:, order]
    ours["output"] = theirs["lm_head.weight"][:, order] if config.tie == "none" else ours["target_input.weight"]
    for half, stack in (("encoder", config.encoder), ("decoder", config.decoder)):
        assert stack is not None
        for i in range(stack.n_layers):
            layer = _layer(theirs, f"model.{half}.layers.{i}.", order)
            ours |= {f"{half}.layers.{i}.{name}": weight for name, weight in layer.items()}
    return ours


def _layer(theirs: dict[str, Tensor], prefix: str, order: Int[Tensor, " D"]) -> dict[str, Tensor]:
    """One layer: cross-attention too, where there is one."""

    def reads(*names: str) -> dict[str, Float[Tensor, "..."]]:
        """Linear maps from the residual stream, stacked into one."""
        return {
            "weight": torch.cat([theirs[f"{prefix}{name}.weight"][:, order] for name in names]),
            "bias": torch.cat([theirs[f"{prefix}{name}.bias"] for name in names]),
        }

    def writes(name: str) -> dict[str, Float[Tensor, "..."]]:
        """A linear map into the residual stream, or its norm."""
        return {kind: theirs[f"{prefix}{name}.{kind}"][order] for kind in ("weight", "bias")}

    parts = {
        "attention.qkv": reads("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "attention.output": writes("self_attn.out_proj"),
        "attention_sublayer.norm": writes("self_attn_layer_norm"),
        "feed_forward.wide": reads("fc1"),
        "feed_forward.narrow": writes("fc2"),
        "feed_forward_sublayer.norm": writes("final_layer_norm"),
    }
    if f"{prefix}encoder_attn.q_proj.weight" in theirs:
        parts |= {
            "cross.q": reads("encoder_attn.q_proj"),
            "cross.kv": reads("encoder_attn.k_proj", "encoder_attn.v_proj"),
            "cross.output": writes("encoder_attn.out_proj"),
            "cross_sublayer.norm": writes("encoder_attn_layer_norm"),
        }
    return {f"{part}.{kind}": weight for part, pair in parts.items() for kind, weight in pair.items()}
