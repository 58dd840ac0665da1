"""Read and write language models as transformers saves them: GPT-2, Llama and others, OPT, XGLM.

Outputs stay the same. GPT-2's linear maps (class "Conv1D" in transformers) store their matrices
transposed. OPT and XGLM come from fairseq, and have the layers of its BART.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Literal

from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers.processors import TemplateProcessing

from transduce.config import Json
from transduce.data.base_tokenizer import Tokenizer
from transduce.data.imported_tokenizer import ImportedTokenizer
from transduce.data.json_tokenizer import JSONTokenizer
from transduce.errors import InputError, logger
from transduce.files import Weights, read_optional, write_file, write_json
from transduce.interop.generation import (
    GENERATION,
    Generation,
    read_sampling,
    sampling_settings,
)
from transduce.interop.pretrained import (
    CONFIG,
    TOKENIZER,
    Parts,
    check_same,
    our_config,
    our_fields,
    their_settings,
    write_model,
    write_tokenizer_settings,
)
from transduce.interop.settings import (
    GPT2Settings,
    LlamaLikeSettings,
    OPTSettings,
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
from transduce.model.meta import blank_transformer
from transduce.model.transformer import Transformer

FREE = {"gpt2": {"bias"}, "llama": {"scale_embeddings", "qkv_bias", "head_width", "n_kv_heads"}}
"""The fields that may differ from those that config.json implies."""

BANDS = ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
"""The settings that rotary_bands holds."""


def read_model(settings: Settings) -> Transformer:
    """Read the weights, in one file or in shards, as a model in evaluation mode.

    Raises:
        InputError: the model has parts that Transformer does not support, or there are no weights.
    Source: Radford et al. (2019), GPT-2; Touvron et al. (2023), LLaMA; Yang et al. (2024), Qwen2;
    Yang et al. (2025), Qwen3; Jiang et al. (2023), Mistral 7B; Gemma team (2024), Gemma; Abdin et
    al. (2024), Phi-3; Groeneveld et al. (2024), OLMo; Zhang et al. (2022), OPT; Lin et al. (2022),
    XGLM; file format of transformers' save_pretrained.
    """
    kind = settings.model_type
    directory = settings.directory
    config = _our_config(settings)
    names = {"gpt2": GPT2, "phi3": PHI3, "xglm": XGLM, "opt": OPT}.get(kind, LLAMA)
    prefix = "transformer." if kind == "gpt2" else "model."
    weights = read_tensors(directory, prefix, without_position=2 if kind == "opt" else 0)
    optional = r"norm\.weight" if kind == "olmo" else "$^"  # its norms have no weights
    model = fill_transformer(config, names, weights, directory, optional=optional)
    if kind == "gemma":  # which stores weights minus 1
        for name, weight in named_weights(model, names).items():
            if name.endswith("norm.weight"):
                weight.add_(1)
    return model


def _our_config(settings: Settings) -> TransformerConfig:
    """Translate the settings of config.json."""
    ours = our_fields(settings)
    if isinstance(settings, GPT2Settings):
        ours["d_ff"] = settings.n_inner or 4 * settings.n_embd
    if isinstance(settings, XGLMSettings):  # any other would make a position zero
        settings.require("pad_token_id", 0, 1)
    if isinstance(settings, OPTSettings):
        settings.require("word_embed_proj_dim", None, settings.hidden_size)
    if isinstance(settings, LlamaLikeSettings):
        ours |= _rotation(settings)
        if settings.model_type != "llama":
            settings.require("attention_bias", False)
    if settings.model_type == "gemma" and ours["activation"] == "gelu":
        ours["activation"] = "gelu_tanh"  # its files say gelu, but mean the approximation
    return our_config(settings, ours)


def _rotation(settings: LlamaLikeSettings) -> Json:
    """The rotary settings: older files have rope_scaling, newer ones rope_parameters; transformers
    prefers the first."""
    rope = settings.rope_scaling or settings.rope_parameters or {}
    ours = {"rotary_theta": rope["rope_theta"]} if "rope_theta" in rope else {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", "linear", "llama3") or rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise InputError(
            "rope_type must be 'default', 'linear' or 'llama3', and rotate whole heads, but in "
            f"{settings.directory} it is {rope}"
        )
    if kind != "default":
        ours["rotary_factor"] = rope.get("factor")
    if kind == "llama3":
        ours["rotary_bands"] = [rope.get(name) for name in BANDS]
    return ours


def read_run(settings: Settings, model: Transformer, generation: Generation) -> Parts:
    """Add the tokenizer and the generation settings to a model.

    Raises:
        InputError: there is no tokenizer, or it does not begin and end texts in a supported way, or
            only its vocabulary is there, but not how it splits texts.
    """
    directory = settings.directory
    kind = read_optional(directory / TOKENIZER).get("tokenizer_class") or settings.model_type
    if str(kind).lower().startswith("qwen") and not (directory / "tokenizer.json").is_file():
        raise InputError(
            f"a tokenizer of {kind} must be tokenizer.json, as it splits texts in another way than "
            f"GPT-2's, but {directory} has none; write it with transformers: "
            "AutoTokenizer.from_pretrained(DIRECTORY).save_pretrained(DIRECTORY)"
        )
    tokenizer = _text_tokenizer(directory, generation.eos_token_id, model.vocab_size)
    return Parts(model, None, tokenizer, read_sampling(generation, model.config))


def _text_tokenizer(directory: Path, ends: tuple[int, ...], vocab_size: int) -> Tokenizer:
    """Read tokenizer.json. If the names of its special tokens do not tell which ones begin and end
    texts, as in vocabularies for chats, the ids are stored separately.

    Args:
        ends: the EOS ids; of several, the one that tokenizer_config.json names is used, else the
            first.

    Raises:
        InputError: there is no EOS id, or texts begin with several tokens.
    """
    tokenizer = JSONTokenizer.load(directory)
    if tokenizer.vocab_size > vocab_size:
        raise InputError(
            f"a tokenizer must have at most as many tokens as its model, but in {directory} it "
            f"has {tokenizer.vocab_size} and the model {vocab_size}; remove tokens that the model "
            "lacks"
        )
    library = LibraryTokenizer.from_str(tokenizer.model.decode())
    begins = library.encode("").ids
    eos_token = read_optional(directory / TOKENIZER).get("eos_token")
    named = library.token_to_id(
        str(eos_token.get("content") if isinstance(eos_token, dict) else eos_token)
    )
    end = named if named in ends else next(iter(ends), None)
    if len({*ends}) > 1:
        names = [str(library.id_to_token(i) or i) for i in ends]
        logger.warning(
            "only %s ends texts here, but in transformers each of %s does (eos_token_id)",
            names[ends.index(end)],
            ", ".join(names),
        )
    if tokenizer.eos_id == end and tokenizer.bos_id in (begins or (None, end)) and begins != [end]:
        return tokenizer
    if end is None or len(begins) > 1:
        raise InputError(
            f"texts must begin with one token at most and end with one, but in {directory} they "
            f"begin with {begins} and end with {[*ends]}; name what ends them in {CONFIG} "
            "(eos_token_id)"
        )
    ids = {"bos": (begins or [end])[0], "eos": end, "pad": end, "unk": end}
    plain = {"tokenizer": json.loads(tokenizer.model)}
    return ImportedTokenizer.of(plain, size=vocab_size, special=ids, opening=begins)


def export_language_model(parts: Parts, directory: Path, to: Literal["gpt2", "llama"]) -> bool:
    """Write a directory for GPT2LMHeadModel or LlamaForCausalLM, or for the class of Qwen2, Qwen3
    or Mistral if the model has their parts.

    Biases that the model lacks are written as zeros. For a Llama, embeddings that the model scales
    by sqrt(d_model) are stored scaled, apart from the output table. generation_config.json has the
    run's generation settings, as far as it supports them.

    Returns:
        Whether the tokenizer was written, too.

    Raises:
        InputError: the model fits none of them; the message lists the fields that differ.
    """
    model, _, tokenizer, decoding, _ = parts
    config = model.config
    if config.encoder is not None or config.decoder is None:
        raise InputError(
            f"a {to} has only a decoder, but this model has an encoder; it cannot be exported as "
            "one"
        )
    content = _tokenizer_json(tokenizer, to)
    ids = {} if content is None else _special_ids(tokenizer, to)
    if to == "llama":
        theirs = _llama_settings(config)
    else:
        theirs = their_settings(config, "gpt2", "GPT2LMHeadModel")
    special = {f"{role}_token_id": ids.get(role) for role in ("bos", "eos", "pad")}
    theirs |= special
    check_same(theirs, _our_config, config, *FREE[to])
    write_model(directory, theirs, _their_weights(model, to))
    no_tokens = range(tokenizer.vocab_size, config.vocab_size)  # padding rows of the table
    sampling = sampling_settings(decoding, {*tokenizer.suppressed, *no_tokens})
    write_json(directory / GENERATION, special | sampling)
    if content is not None:
        write_file(directory / "tokenizer.json", content)
        tokens = {f"{role}_token": tokenizer.tokens([i])[0] for role, i in ids.items()}
        name = "PreTrainedTokenizerFast"  # GPT2Tokenizer would ignore parts of the file
        write_tokenizer_settings(directory, name, config.max_positions, tokens)
    return content is not None


def _tokenizer_json(tokenizer: Tokenizer, to: str) -> bytes | None:
    """The tokenizer.json of a tokenizer, including the token before prompts; None if there is none,
    or if it is not byte-level BPE as GPT-2 needs."""
    if isinstance(tokenizer, ImportedTokenizer) and to == "llama":
        return tokenizer.tokenizer_json()
    if not isinstance(tokenizer, JSONTokenizer) or not (to == "llama" or tokenizer.is_byte_bpe):
        return None
    library, start = LibraryTokenizer.from_str(tokenizer.model.decode()), tokenizer.bos_id
    if start in (None, tokenizer.eos_id) or library.encode("").ids:
        return tokenizer.model
    (bos,) = tokenizer.tokens([start])
    library.post_processor = TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, start)])
    return library.to_str().encode()


def _special_ids(tokenizer: Tokenizer, to: str) -> dict[str, int]:
    """The ids of special tokens by role; in GPT-2, one token has all roles."""
    end = tokenizer.eos_id
    of_llama = {"bos": tokenizer.bos_id, "eos": end, "pad": tokenizer.pad_id}
    ids = of_llama if to == "llama" else {"bos": end, "eos": end}
    return {role: i for role, i in ids.items() if i is not None}


def _their_weights(model: Transformer, to: str) -> Weights:
    """The weights by their names in transformers."""
    config = model.config
    names = LLAMA if to == "llama" else GPT2
    weights = named_weights(model, names)
    if to == "gpt2" or config.bias:  # these formats have biases; missing ones become zeros
        biased = replace(config, bias=True, qkv_bias=None)
        weights = named_weights(blank_transformer(biased), names) | weights
    if config.scale_embeddings:
        table = "model.embed_tokens.weight"
        weights[table] = weights[table] * config.d_model**0.5
    elif config.tie != "none":
        del weights["lm_head.weight"]
    return weights


def _llama_settings(config: TransformerConfig) -> Json:
    """Translate our fields into the settings that config.json has."""
    kind = "llama"
    if config.qk_norm and not config.attention_bias:
        kind = "qwen3"
    elif config.attention_bias and not config.bias:
        kind = "qwen2"
    elif config.window is not None or config.d_model % config.n_heads:
        kind = "mistral"  # its heads may have any width
    theirs = their_settings(config, kind, f"{kind.capitalize()}ForCausalLM")
    theirs["tie_word_embeddings"] &= not config.scale_embeddings
    if kind == "llama":
        theirs["attention_bias"] = config.bias
    if config.rotary_factor != 1:
        theirs["rope_scaling"] = {"rope_type": "linear", "factor": config.rotary_factor}
    if config.rotary_bands is not None:
        bands = dict(zip(BANDS, config.rotary_bands, strict=True))
        theirs["rope_scaling"] = {"rope_type": "llama3", "factor": config.rotary_factor, **bands}
    return theirs
