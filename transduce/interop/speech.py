"""Read Whisper and Speech2Text models as transformers saves them. Outputs stay the same; weights
get other names and another order.

As in Marian's models (see weights.py), position vectors are all sines, then all cosines, so all
weights that read from or write to the residual stream are reordered.
"""

import json
import re

import torch

from transduce.config import Json, at_least
from transduce.data.config import FeatureConfig
from transduce.data.features import FeatureExtractor
from transduce.data.imported_tokenizer import ImportedTokenizer
from transduce.data.json_tokenizer import JSONTokenizer
from transduce.errors import InputError
from transduce.files import read_json, read_optional
from transduce.interop.generation import Generation, read_decoding
from transduce.interop.pretrained import (
    TOKENIZER,
    Parts,
    known_fields,
    our_config,
    our_fields,
)
from transduce.interop.settings import Speech2TextSettings, SpeechSettings, Stored, WhisperSettings
from transduce.interop.weights import (
    SPEECH2TEXT,
    WHISPER,
    fill_transformer,
    read_tensors,
)
from transduce.model.config import TransformerConfig
from transduce.model.inputs import ConvolvedInput
from transduce.model.transformer import Transformer

FEATURES = "preprocessor_config.json"

START, PLAIN = "<|startoftranscript|>", "<|notimestamps|>"
"""The first token of Whisper's prefix for a transcript, and its last one for a transcript without
timestamps. In between, a multilingual Whisper has the language of the speech and the task."""

KEY_BIAS = r"k_proj\.bias"
"""The parameters that Whisper lacks: a key bias adds the same to all scores of a query."""

MARK = re.compile(r"<\|.*\|>")
"""Whisper's tokens that are not text, including timestamps."""

NAMES = (
    "english en chinese zh german de spanish es russian ru korean ko french fr japanese ja "
    "portuguese pt turkish tr polish pl catalan ca dutch nl arabic ar swedish sv italian it "
    "indonesian id hindi hi finnish fi vietnamese vi hebrew he ukrainian uk greek el malay ms "
    "czech cs romanian ro danish da hungarian hu tamil ta norwegian no thai th urdu ur croatian "
    "hr bulgarian bg lithuanian lt latin la maori mi malayalam ml welsh cy slovak sk telugu te "
    "persian fa latvian lv bengali bn serbian sr azerbaijani az slovenian sl kannada kn estonian "
    "et macedonian mk breton br basque eu icelandic is armenian hy nepali ne mongolian mn bosnian "
    "bs kazakh kk albanian sq swahili sw galician gl marathi mr punjabi pa sinhala si khmer km "
    "shona sn yoruba yo somali so afrikaans af occitan oc georgian ka belarusian be tajik tg "
    "sindhi sd gujarati gu amharic am yiddish yi lao lo uzbek uz faroese fo haitian_creole ht "
    "pashto ps turkmen tk nynorsk nn maltese mt sanskrit sa luxembourgish lb myanmar my tibetan "
    "bo tagalog tl malagasy mg assamese as tatar tt hawaiian haw lingala ln hausa ha bashkir ba "
    "javanese jw sundanese su cantonese yue burmese my valencian ca flemish nl haitian ht "
    "letzeburgesch lb pushto ps panjabi pa moldavian ro moldovan ro sinhalese si castilian es "
    "mandarin zh"
)
"""The English names of Whisper's languages, each followed by its code."""


class FeatureSettings(Stored):
    """The feature settings of Whisper and Speech2Text, with the defaults of transformers."""

    feature_size: int = 80
    sampling_rate: int = 16000
    padding_value: float = 0.0
    dither: float = 0.0
    hop_length: int = 160
    chunk_length: int = 30
    n_fft: int = 400
    do_normalize: bool | None = None
    num_mel_bins: int = 80
    do_ceptral_normalize: bool = True
    normalize_means: bool = True
    normalize_vars: bool = True


def read_model(settings: SpeechSettings) -> Transformer:
    """Read the weights, in one file or in shards, of the model that config.json describes.

    Raises:
        InputError: the model has parts that Transformer does not support, or there are no weights.
    Source: Radford et al. (2022), Robust speech recognition via large-scale weak supervision; Wang
    et al. (2020), fairseq S2T; file format of transformers' save_pretrained.
    """
    settings.require("tie_word_embeddings", True)
    directory = settings.directory
    config = speech_config(settings)
    weights = read_tensors(directory)
    if isinstance(settings, WhisperSettings):
        optional = f"{KEY_BIAS}$"
        return fill_transformer(config, WHISPER, weights, directory, optional=optional)
    model = fill_transformer(config, SPEECH2TEXT, weights, directory)
    assert isinstance(settings, Speech2TextSettings)
    if settings.scale_embedding:  # the half of a gated convolution that is not the gate
        assert isinstance(model.source_input, ConvolvedInput)
        with torch.no_grad():
            for parameter in model.source_input.convolutions[-1].parameters():
                parameter[: settings.d_model] *= settings.d_model**0.5
    return model


def speech_config(settings: SpeechSettings) -> TransformerConfig:
    """Translate the settings of config.json."""
    ours = our_fields(settings)
    ours["max_positions"] = settings.max_target_positions
    ours["encoder"] |= {"positions": "sinusoidal", "max_positions": settings.max_source_positions}
    if isinstance(settings, Speech2TextSettings):
        ours["encoder"]["input"] = _convolutions(settings)
        ours |= {
            "max_positions": settings.max_source_positions,
            "first_position": settings.pad_token_id + 1,
        }
    if isinstance(settings, WhisperSettings):
        ours["encoder"]["input"] = {"n_features": settings.num_mel_bins, "conv_strides": [1, 2]}
    return our_config(settings, ours)


def _convolutions(settings: Speech2TextSettings) -> Json:
    """The fields of Frames for a Speech2Text."""
    kernels = settings.conv_kernel_sizes
    if len({*kernels}) != 1 or settings.input_channels != 1:
        raise InputError(
            "conv_kernel_sizes must be one size and input_channels 1, but in "
            f"{settings.directory} they are {[*kernels]} and {settings.input_channels}"
        )
    return {
        "n_features": settings.input_feat_per_channel,
        "conv_strides": [2] * len(kernels),
        "conv_kernel": kernels[0],
        "conv_channels": settings.conv_channels // 2,
        "conv_activation": "glu",
    }


def read_run(settings: SpeechSettings, model: Transformer, generation: Generation) -> Parts:
    """Add the feature extractor and the tokenizer to a Whisper or Speech2Text model.

    Raises:
        InputError: the directory lacks their files, or they are not supported.
    """
    read = _whisper if isinstance(settings, WhisperSettings) else _speech2text
    return read(settings, model, generation)


def _whisper(settings: SpeechSettings, model: Transformer, generation: Generation) -> Parts:
    plain = _read_features(settings)
    plain.require("do_normalize", None, False)
    features = whisper_features(plain)
    tokenizer = _whisper_tokenizer(generation, settings.vocab_size)
    timestamps = generation.return_timestamps
    decoding = read_decoding(
        generation,
        settings.vocab_size,
        n_prefix=1 + len(tokenizer.opening) - timestamps,
        n_positions=settings.max_target_positions,
    )
    decoding |= {
        "max_seconds": features.pad_to,
        "timestamps": timestamps,
        "alignment_heads": [*map(list, generation.alignment_heads)],
    }
    return Parts(model, None, tokenizer, decoding, FeatureExtractor(features))


def whisper_features(settings: FeatureSettings) -> FeatureConfig:
    return FeatureConfig(
        sample_rate=settings.sampling_rate,
        frame=settings.n_fft / settings.sampling_rate,
        hop=settings.hop_length / settings.sampling_rate,
        n_mels=settings.feature_size,
        n_coefficients=0,
        low=0.0,
        high=8000.0,
        log_mel="whisper",
        pad_to=float(settings.chunk_length),
        normalize="none",
    )


def _speech2text(settings: SpeechSettings, model: Transformer, generation: Generation) -> Parts:
    plain = _read_features(settings)
    if plain.do_ceptral_normalize:
        plain.require("normalize_means", True)
        plain.require("normalize_vars", True)
    plain.require_equal("num_mel_bins", "feature_size")
    features = FeatureConfig(
        sample_rate=plain.sampling_rate,
        n_mels=plain.num_mel_bins,
        n_coefficients=0,
        log_mel="kaldi",
        normalize="utterance" if plain.do_ceptral_normalize else "none",
    )
    if read_optional(settings.directory / TOKENIZER).get("do_upper_case"):
        raise InputError(f"do_upper_case must be False, but in {settings.directory} it is True")
    forced = generation.forced_bos_token_id
    opening = [] if forced is None else [forced]
    tokenizer = generation.tokenizer(
        settings.vocab_size, "sentencepiece.bpe.model", opening=opening
    )
    decoding = read_decoding(generation, settings.vocab_size, n_forced=len(opening))
    decoding["max_seconds"] = features.hop * settings.max_source_positions
    return Parts(model, None, tokenizer, decoding, FeatureExtractor(features))


def _read_features(settings: SpeechSettings) -> FeatureSettings:
    """Read preprocessor_config.json, or processor_config.json, which also holds other settings."""
    path = settings.directory / "processor_config.json"
    plain = read_optional(path).get("feature_extractor")
    if not isinstance(plain, dict):
        path = settings.directory / FEATURES
        plain = read_json(path)
    features = known_fields(FeatureSettings, plain, path)
    for name in ("padding_value", "dither"):
        features.require(name, 0.0)
    at_least(1, sampling_rate=features.sampling_rate)
    return features


def _whisper_tokenizer(generation: Generation, vocab_size: int) -> ImportedTokenizer:
    """Whisper's byte-level BPE, in which timestamps are special tokens; by default, it transcribes
    English."""
    plain = json.loads(JSONTokenizer.load(generation.directory).model)
    for token in plain.setdefault("added_tokens", []):
        token["special"] = token["special"] or MARK.fullmatch(token["content"]) is not None
    ids = {token["content"]: token["id"] for token in plain["added_tokens"]}
    names = [START, PLAIN]
    languages: dict[str, int] = {}
    if vocab_size >= 51865 if generation.is_multilingual is None else generation.is_multilingual:
        languages = {name.strip("<|>"): i for name, i in generation.lang_to_id.items()}
        language, task = _language_and_task(generation, ids)
        if languages and language not in languages:
            raise generation.refusal("language", f"one of {', '.join(languages)}", language)
        names = [START, f"<|{language}|>", f"<|{task}|>", PLAIN]
    if missing := [name for name in names if name not in ids]:
        raise InputError(
            f"{generation.directory} must have the tokens {' '.join(names)}, but it has no "
            f"{missing[0]}"
        )
    end = JSONTokenizer(json.dumps(plain).encode()).required("eos_id")[0]
    return ImportedTokenizer.of(
        {"tokenizer": plain},
        size=vocab_size,
        special={"bos": ids[START], "eos": end, "pad": end, "unk": end},
        opening=[ids[name] for name in names[1:]],
        languages=languages,
        place="first",
    )


def _language_and_task(generation: Generation, ids: dict[str, int]) -> tuple[str, str]:
    """The code of the language, and the task; older directories have pairs of a position and an
    id."""
    language, task = generation.language, generation.task
    if language is None and task is None:
        names: dict[int | None, str] = {i: name for name, i in ids.items()}
        forced = {place: names.get(i) for place, i in generation.forced_decoder_ids}
        language, task = forced.get(1), forced.get(2)
    language = (language or "en").strip("<|>").lower()
    words = NAMES.split()
    codes = dict(zip(words[::2], words[1::2], strict=True))
    return codes.get(language.replace(" ", "_"), language), (task or "transcribe").strip("<|>")
