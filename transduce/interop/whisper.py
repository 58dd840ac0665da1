"""Write Whisper models as transformers saves them, the inverse of speech.py."""

import json
import math
import re
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from transduce.config import Json
from transduce.data.base_tokenizer import Tokenizer
from transduce.data.config import FeatureConfig, VectorConfig
from transduce.data.imported_tokenizer import ImportedTokenizer
from transduce.errors import InputError
from transduce.files import write_file, write_json
from transduce.interop.generation import (
    GENERATION,
    generation_settings,
)
from transduce.interop.pretrained import (
    Parts,
    check_same,
    known_fields,
    their_settings,
    write_model,
    write_tokenizer_settings,
)
from transduce.interop.speech import (
    FEATURES,
    KEY_BIAS,
    PLAIN,
    FeatureSettings,
    speech_config,
    whisper_features,
)
from transduce.interop.weights import WHISPER, reordered_weights
from transduce.model.config import TransformerConfig

TIME = re.compile(r"<\|\d+\.\d\d\|>")
"""Whisper's timestamp tokens, which are not special in its files."""


def export_whisper(parts: Parts, directory: Path) -> None:
    """Write a directory for from_pretrained of WhisperForConditionalGeneration and
    WhisperProcessor.

    Raises:
        InputError: the model, its features or its tokenizer are not those of a Whisper; the message
            says why.
    """
    model, _, tokenizer, decoding, features = parts
    stored = tokenizer.tokenizer_json() if isinstance(tokenizer, ImportedTokenizer) else None
    if stored is None or tokenizer.timestamp_begin_id is None:
        raise InputError(
            "a Whisper has its own tokenizer, but this run has another one; export a run that "
            "started from an imported Whisper (--start-from)"
        )
    theirs = _their_settings(model.config, tokenizer)
    sound = _their_features(features.config if features else None)
    weights = {
        name: weight
        for name, weight in reordered_weights(model, WHISPER).items()
        if not re.search(f"{KEY_BIAS}$|^proj_out", name)
    }
    weights["model.encoder.embed_positions.weight"] = _sinusoids(
        theirs["max_source_positions"], model.config.d_model
    )
    write_model(directory, theirs, weights)
    write_json(directory / FEATURES, sound)
    language = decoding["target_language"]
    if language not in ("", "auto"):
        tokenizer = tokenizer.with_language(language)
    names = [name.strip("<|>") for name in tokenizer.tokens(tokenizer.opening)]
    # a monolingual model has only the last name, which turns timestamps off
    opening = dict(zip(("language", "task"), names[:-1], strict=False))
    if language == "auto":  # transformers detects the language then
        opening.pop("language", None)
    _write_tokenizer(directory, json.loads(stored), tokenizer, model.config.max_positions, opening)
    _write_generation(directory, theirs, tokenizer, decoding, opening)


def _write_tokenizer(
    directory: Path,
    stored: Json,
    tokenizer: Tokenizer,
    max_positions: int,
    opening: dict[str, str],
) -> None:
    """Write tokenizer.json, in which timestamps are not special tokens, and its tables."""
    for token in stored["added_tokens"]:
        token["special"] = token["special"] and TIME.fullmatch(token["content"]) is None
    for name, content in {  # the last two are for whisper.cpp's converter
        "tokenizer.json": stored,
        "vocab.json": stored["model"]["vocab"],
        "added_tokens.json": {token["content"]: token["id"] for token in stored["added_tokens"]},
    }.items():
        write_file(directory / name, json.dumps(content, ensure_ascii=False))
    (end,) = tokenizer.tokens(tokenizer.required("eos_id"))
    ends = {f"{role}_token": end for role in ("bos", "eos", "pad", "unk")}
    write_tokenizer_settings(directory, "WhisperTokenizer", max_positions, ends | opening)


def _write_generation(
    directory: Path,
    theirs: Json,
    tokenizer: Tokenizer,
    decoding: Json,
    opening: dict[str, str],
) -> None:
    """Write generation_config.json.

    Args:
        theirs: the settings of config.json.
        opening: the default language and task.
    """
    n_prefix = len(tokenizer.opening) + 1 - decoding["timestamps"]
    ids = tokenizer.token_ids
    search = generation_settings(decoding, tokenizer.suppressed, n_prefix=n_prefix)
    most = theirs["max_target_positions"]
    longest = search.get("max_length", most + n_prefix) - n_prefix  # it counts new tokens alone
    settings = {name: theirs[name] for name in theirs if name.endswith("token_id")} | {
        "is_multilingual": bool(tokenizer.languages),
        "no_timestamps_token_id": ids[PLAIN],
        "return_timestamps": decoding["timestamps"],
        **search,
        "max_length": min(most, longest),
    }
    if tokenizer.languages:
        languages = {f"<|{name}|>": i for name, i in tokenizer.languages.items()}
        tasks = {
            task: ids[name]
            for task in ("transcribe", "translate")
            if (name := f"<|{task}|>") in ids
        }
        settings |= {"lang_to_id": languages, "task_to_id": tasks} | opening
    if decoding["alignment_heads"]:
        settings["alignment_heads"] = decoding["alignment_heads"]
    write_json(directory / GENERATION, settings)


def _their_settings(config: TransformerConfig, tokenizer: Tokenizer) -> Json:
    """Translate our fields into the settings of config.json.

    Raises:
        InputError: the model has other parts than a Whisper.
    """
    frames, encoder = config.frames, config.encoder
    assert encoder is not None
    start, end = tokenizer.required("bos_id", "eos_id")
    theirs = their_settings(config, "whisper", "WhisperForConditionalGeneration") | {
        "encoder_layers": encoder.n_layers,
        "max_source_positions": config.for_stack(encoder).max_positions,
        "max_target_positions": config.max_positions,
        "num_mel_bins": frames.n_features,
        "decoder_start_token_id": start,
        **{f"{role}_token_id": end for role in ("bos", "eos", "pad")},
    }
    del theirs["max_position_embeddings"]
    check_same(theirs, speech_config, config)
    return theirs


def _their_features(features: FeatureConfig | VectorConfig | None) -> Json:
    """The settings of preprocessor_config.json.

    Raises:
        InputError: the features are not those of a Whisper.
    """
    settings: dict[str, int] = {}
    if isinstance(features, FeatureConfig):
        settings = {
            "feature_size": features.n_mels,
            "sampling_rate": features.sample_rate,
            "hop_length": features.hop_samples,
            "chunk_length": int(features.pad_to),
            "n_fft": round(features.frame * features.sample_rate),
        }
    if whisper_features(known_fields(FeatureSettings, settings, Path(FEATURES))) != features:
        raise InputError(
            "a Whisper has its own features of sound, but this run has others; export a run that "
            "started from an imported Whisper (--start-from)"
        )
    n_samples = settings["chunk_length"] * settings["sampling_rate"]
    return settings | {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "processor_class": "WhisperProcessor",
        "n_samples": n_samples,
        "nb_max_frames": n_samples // settings["hop_length"],
        "padding_side": "right",
        "padding_value": 0.0,
        "return_attention_mask": False,
    }


def _sinusoids(n_positions: int, d_model: int) -> Float[Tensor, "S D"]:
    """The position table of Whisper's encoder, computed as in its own code; ours differs in
    rounding."""
    rates = torch.exp(-math.log(10000) / (d_model // 2 - 1) * torch.arange(d_model // 2))
    angles = torch.arange(n_positions).view(-1, 1) * rates.view(1, -1)
    return torch.cat([angles.sin(), angles.cos()], dim=1)
