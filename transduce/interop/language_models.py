"""Read and write language models as transformers saves them: GPT-2, Llama and others, OPT, XGLM.

No number changes. GPT-2's linear maps (class "Conv1D" in transformers) store their matrices
transposed. OPT and XGLM come from fairseq, and their layers are those of its BART.
"""

import json
import re
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer as LibraryTokenizer

from transduce.config import shown
from transduce.data.text.base_tokenizer import Tokenizer
from transduce.data.text.imported import ImportedTokenizer
from transduce.data.text.json_tokenizer import JSONTokenizer
from transduce.errors import InputError
from transduce.interop.config_json import (
    CONFIG,
    known_fields,
    our_config,
    our_fields,
    require_value,
    their_settings,
)
from transduce.interop.generation import Generation, read_sampling
from transduce.interop.pretrained import (
    TOKENIZER,
    Imported,
    check_decoder_alone,
    check_same,
    read_optional,
    write_json_tokenizer,
    write_model,
)
from transduce.interop.settings import (
    GPT2Settings,
    LlamaLikeSettings,
    LlamaSettings,
    MistralSettings,
    OPTSettings,
    Qwen2Settings,
    Qwen3Settings,
    Settings,
    XGLMSettings,
)
from transduce.interop.weights import (
    GPT2,
    LLAMA,
    OPT,
    PHI3,
    XGLM,
    fill_transformer,
    named_weights,
    read_tensors,
)
from transduce.model.config import TransformerConfig
from transduce.model.transformer import Transformer

KINDS: dict[str, type[LlamaLikeSettings]] = {
    "llama": LlamaSettings,
    "qwen2": Qwen2Settings,
    "qwen3": Qwen3Settings,
    "mistral": MistralSettings,
}
"""The models that are written."""

BANDS = ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
"""The settings of rotary_bands."""


def read_model(directory: Path, settings: Settings) -> Transformer:
    """Read the weights, in one file or in shards, as a model in evaluation mode.

    Raises:
        InputError: the model has parts that a Transformer here lacks, or there are no weights.
    Source: Radford et al. (2019), GPT-2; Touvron et al. (2023), LLaMA; Yang et al. (2024), Qwen2;
    Yang et al. (2025), Qwen3; Jiang et al. (2023), Mistral 7B; Gemma team (2024), Gemma; Abdin et
    al. (2024), Phi-3; Groeneveld et al. (2024), OLMo; Zhang et al. (2022), OPT; Lin et al. (2022),
    XGLM; file format of transformers' save_pretrained.
    """
    kind = settings.model_type
    config = _our_config(settings, directory)
    names = {"gpt2": GPT2, "phi3": PHI3, "xglm": XGLM, "opt": OPT}.get(kind, LLAMA)
    prefix = "transformer." if kind == "gpt2" else "model."
    weights = read_tensors(directory, prefix, without_position=2 if kind == "opt" else 0)
    optional = r"norm\.weight" if kind == "olmo" else "$^"  # its norms have no weights
    model = fill_transformer(config, names, weights, directory, optional=optional)
    if kind == "gemma":  # which stores what is added to 1
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("norm.weight"):
                    parameter.add_(1)
    return model


def _our_config(settings: Settings, directory: Path) -> TransformerConfig:
    """Translate the settings of config.json."""
    ours = our_fields(settings)
    if isinstance(settings, GPT2Settings):
        ours["d_ff"] = settings.n_inner or 4 * settings.n_embd
    if isinstance(settings, XGLMSettings):  # any other would make a position zero
        require_value(settings, "pad_token_id", [0, 1], directory)
    if isinstance(settings, OPTSettings):
        require_value(settings, "word_embed_proj_dim", [None, settings.hidden_size], directory)
    if isinstance(settings, LlamaLikeSettings):
        ours |= _rotation(settings, directory)
        if not isinstance(settings, LlamaSettings):
            require_value(settings, "attention_bias", [False], directory)
    if isinstance(settings, Qwen2Settings):
        ours["window"] = _window(settings, directory)
    if settings.model_type == "gemma" and ours["activation"] == "gelu":
        ours["activation"] = "gelu_tanh"  # its files mean the approximation
    return our_config(ours, directory)


def _rotation(settings: LlamaLikeSettings, directory: Path) -> dict[str, Any]:
    """How positions rotate: older files have rope_scaling, newer ones rope_parameters."""
    rope = settings.rope_parameters or settings.rope_scaling or {}
    ours = {"rotary_theta": rope["rope_theta"]} if "rope_theta" in rope else {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", "linear", "llama3") or rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise InputError(
            "rope_type must be 'default' or 'linear' or 'llama3', of whole heads, but in "
            f"{directory} it is {rope}"
        )
    if kind != "default":
        ours["rotary_factor"] = rope.get("factor")
    if kind == "llama3":
        ours["rotary_bands"] = [rope.get(name) for name in BANDS]
    return ours


def _window(settings: Qwen2Settings, directory: Path) -> int | None:
    """How far every layer sees; None: all positions.

    Raises:
        InputError: some layers see further than others.
    """
    size = settings.sliding_window if settings.use_sliding_window else None
    ends = (0, max(0, settings.num_hidden_layers - 1))
    kinds = settings.layer_types or [
        "sliding_attention" if size and i >= settings.max_window_layers else "full_attention"
        for i in ends
    ]
    if len({*kinds}) != 1 or kinds[0] not in ("full_attention", "sliding_attention"):
        raise InputError(
            f"all layers must see equally far, but in {directory} layer_types are "
            f"{', '.join(kinds)}"
        )
    return size if kinds[0] == "sliding_attention" else None


def read_run(
    directory: Path, settings: Settings, model: Transformer, generation: Generation
) -> Imported:
    """Add the tokenizer to a model, and how prompts go on.

    Raises:
        InputError: there is no tokenizer, or nothing in it ends texts as config.json says.
    """
    tokenizer: Tokenizer
    if isinstance(settings, GPT2Settings):
        tokenizer = _gpt2_tokenizer(directory, settings)
    else:
        tokenizer = _text_tokenizer(directory, generation.eos_token_id, model.vocab_size)
    return Imported(model, None, tokenizer, read_sampling(directory, generation, model.config))


def _gpt2_tokenizer(directory: Path, settings: GPT2Settings) -> JSONTokenizer:
    tokenizer = JSONTokenizer.load(directory)
    if {*settings.eos_token_id} != {tokenizer.eos_id} - {None}:
        raise InputError(
            f"the tokenizer's <|endoftext|> must be config.json's eos_token_id, but in {directory} "
            f"they are {tokenizer.eos_id} and {shown(settings.eos_token_id)}"
        )
    return tokenizer


def _text_tokenizer(directory: Path, ends: tuple[int, ...], vocab_size: int) -> Tokenizer:
    """The tokenizer.json, whose only special tokens are those that begin and end texts.

    A vocabulary of a family names more tokens so than one model uses: those of chats, say, which no
    text shows. Where the names do not say what begins and ends texts, the tokenizer has the ids
    beside it.

    Args:
        ends: what ends texts; of several, the one that tokenizer_config.json names, else the first.

    Raises:
        InputError: nothing ends texts, or several tokens begin them.
    """
    tokenizer = JSONTokenizer.load(directory)
    library = LibraryTokenizer.from_str(tokenizer.model.decode())
    plain = json.loads(tokenizer.model)
    begins = library.encode("").ids
    eos_token = read_optional(directory / TOKENIZER).get("eos_token")
    named = library.token_to_id(
        str(eos_token["content"] if isinstance(eos_token, dict) else eos_token)
    )
    end = named if named in ends else next(iter(ends), None)
    if tokenizer.eos_id != end:
        special = (*begins, end, tokenizer.pad_id)
        hidden = [
            token
            for token in plain["added_tokens"]
            if token["special"] and token["id"] not in special
        ]
        for token in hidden:
            token["special"] = False
        if hidden and plain["decoder"]:
            names = {"Regex": "|".join(re.escape(token["content"]) for token in hidden)}
            steps = [{"type": "Replace", "pattern": names, "content": ""}, plain["decoder"]]
            plain["decoder"] = {"type": "Sequence", "decoders": steps}
        tokenizer = JSONTokenizer(json.dumps(plain, ensure_ascii=False).encode())
    if tokenizer.eos_id == end and tokenizer.bos_id in (begins or (None, end)) and begins != [end]:
        return tokenizer
    if end is None or len(begins) > 1:
        raise InputError(
            f"texts must begin with one token at most and end with one, but in {directory} they "
            f"begin with {begins} and "
            f"end with {[*ends]}; name what ends them in {CONFIG} (eos_token_id)"
        )
    ids = {"bos": (begins or [end])[0], "eos": end, "pad": end, "unk": end}
    return ImportedTokenizer.of({"tokenizer": plain}, size=vocab_size, special=ids, opening=begins)


def export_gpt2(
    model: Transformer, directory: Path, *, tokenizer: JSONTokenizer | None = None
) -> None:
    """Write a directory that GPT2LMHeadModel.from_pretrained reads.

    In a model without biases, zeros take their places.

    Raises:
        InputError: the model is not a GPT-2; the message lists the fields that differ from a
            GPT-2's.
    """
    config = model.config
    check_decoder_alone(config, "GPT-2")
    end = tokenizer.eos_id if tokenizer else None
    theirs = their_settings(config, "gpt2", "GPT2LMHeadModel")
    theirs |= {"embd_pdrop": config.dropout, "bos_token_id": end, "eos_token_id": end}
    check_same(
        _our_config(known_fields(GPT2Settings, theirs, directory), directory),
        config,
        {"bias"},
        "GPT-2",
    )
    weights = named_weights(model, GPT2)
    if config.tie != "none":
        del weights["lm_head.weight"]
    for name in GPT2.values():
        if not name.endswith(".weight"):
            for i in range(theirs["n_layer"]):
                module = name.format(i)
                weights.setdefault(
                    f"{module}.bias", torch.zeros(weights[f"{module}.weight"].size(-1))
                )
    write_model(directory, theirs, weights)
    if tokenizer is not None:
        special = {"bos_token": end, "eos_token": end, "unk_token": end}
        write_json_tokenizer(directory, tokenizer, "GPT2Tokenizer", config.max_positions, special)


def export_llama(
    model: Transformer, directory: Path, *, tokenizer: JSONTokenizer | None = None
) -> None:
    """Write what LlamaForCausalLM reads, or Qwen2, Qwen3 or Mistral, if it has their parts.

    Embeddings that the model multiplies by sqrt(d_model) are so multiplied, and stand beside the
    output table.

    Raises:
        InputError: the model is none of them; the message lists the fields that differ.
    """
    config = model.config
    check_decoder_alone(config, "Llama")
    theirs = _llama_settings(config, tokenizer)
    kind = theirs["model_type"]
    free = {"scale_embeddings", "qkv_bias", "head_width", "n_kv_heads"}
    stored = known_fields(KINDS[kind], theirs, directory)
    check_same(_our_config(stored, directory), config, free, kind.capitalize())
    weights = named_weights(model, LLAMA)
    if config.scale_embeddings:
        weights["model.embed_tokens.weight"] = (
            weights["model.embed_tokens.weight"] * config.d_model**0.5
        )
    elif config.tie != "none":
        del weights["lm_head.weight"]
    write_model(directory, theirs, weights)
    if tokenizer is not None:
        special = {
            "bos_token": tokenizer.bos_id,
            "eos_token": tokenizer.eos_id,
            "pad_token": tokenizer.pad_id,
        }
        write_json_tokenizer(
            directory, tokenizer, "PreTrainedTokenizerFast", config.max_positions, special
        )


def _llama_settings(config: TransformerConfig, tokenizer: JSONTokenizer | None) -> dict[str, Any]:
    """Translate our fields into the settings of config.json, as far as it has them."""
    kind = "llama"
    if config.qk_norm:
        kind = "qwen3"
    elif config.attention_bias and not config.bias:
        kind = "qwen2"
    elif config.window is not None and not config.bias:
        kind = "mistral"
    theirs = their_settings(config, kind, f"{kind.capitalize()}ForCausalLM")
    theirs["tie_word_embeddings"] &= not config.scale_embeddings
    if kind == "llama":
        theirs["attention_bias"] = config.bias
    elif kind != "mistral" and config.window is not None:
        theirs |= {"use_sliding_window": True, "max_window_layers": 0}
    if config.rotary_factor != 1:
        theirs["rope_scaling"] = {"rope_type": "linear", "factor": config.rotary_factor}
    if config.rotary_bands is not None:
        bands = dict(zip(BANDS, config.rotary_bands, strict=True))
        theirs["rope_scaling"] = {"rope_type": "llama3", "factor": config.rotary_factor, **bands}
    ids = {
        f"{role}_token_id": getattr(tokenizer, f"{role}_id", None) for role in ("bos", "eos", "pad")
    }
    return theirs | ids
