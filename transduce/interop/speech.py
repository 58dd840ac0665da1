"""Read Whisper and Speech2Text models as transformers saves them. The numbers stay the same; names and order change.

As in Marian's models (see encoder_decoder.py), position vectors are all sines, then all cosines; so everything that reads from the
residual stream or writes to it is reordered.
"""

import json
import re
from pathlib import Path
from typing import Any

import torch

from transduce.config import at_least, from_dict
from transduce.data.config import FeatureConfig
from transduce.data.speech.features import FeatureExtractor
from transduce.data.text.imported import ImportedTokenizer
from transduce.data.text.json_tokenizer import JSONTokenizer
from transduce.errors import InputError
from transduce.files import read_json, regular
from transduce.interop.encoder_decoder import encoder_decoder_fields
from transduce.interop.generation import WHISPER_SETTINGS, one_end, read_decoding, read_generation, refusal
from transduce.interop.names import SPEECH2TEXT, WHISPER
from transduce.interop.pretrained import TOKENIZER, Imported, read_optional, read_table
from transduce.interop.settings import CONFIG, check_types, complete_settings, read_settings, require_equal
from transduce.interop.weights import fill_transformer, read_tensors
from transduce.model.config import TransformerConfig
from transduce.model.inputs import ConvolvedInput

START, PLAIN = "<|startoftranscript|>", "<|notimestamps|>"
"""What stands first before every transcript of a Whisper, and last before one without times. Between them one of many
languages has the language of the speech, and what to do."""

MARK = re.compile(r"<\|.*\|>")
"""Whisper's tokens that are no text: those of time, too."""

NAMES = (
    "english en chinese zh german de spanish es russian ru korean ko french fr japanese ja portuguese pt turkish tr polish pl "
    "catalan ca dutch nl arabic ar swedish sv italian it indonesian id hindi hi finnish fi vietnamese vi hebrew he ukrainian uk "
    "greek el malay ms czech cs romanian ro danish da hungarian hu tamil ta norwegian no thai th urdu ur croatian hr bulgarian "
    "bg lithuanian lt latin la maori mi malayalam ml welsh cy slovak sk telugu te persian fa latvian lv bengali bn serbian sr "
    "azerbaijani az slovenian sl kannada kn estonian et macedonian mk breton br basque eu icelandic is armenian hy nepali ne "
    "mongolian mn bosnian bs kazakh kk albanian sq swahili sw galician gl marathi mr punjabi pa sinhala si khmer km shona sn "
    "yoruba yo somali so afrikaans af occitan oc georgian ka belarusian be tajik tg sindhi sd gujarati gu amharic am yiddish yi "
    "lao lo uzbek uz faroese fo haitian_creole ht pashto ps turkmen tk nynorsk nn maltese mt sanskrit sa luxembourgish lb "
    "myanmar my tibetan bo tagalog tl malagasy mg assamese as tatar tt hawaiian haw lingala ln hausa ha bashkir ba javanese jw "
    "sundanese su cantonese yue burmese my valencian ca flemish nl haitian ht letzeburgesch lb pushto ps panjabi pa moldavian "
    "ro moldovan ro sinhalese si castilian es mandarin zh"
)
"""The English names of Whisper's languages, each before its code."""


def import_run(directory: Path) -> Imported:
    """Read config.json, the weights, the settings of features and the tokenizer of a Whisper or a Speech2Text.

    Raises:
        InputError: the directory lacks one of them, or holds a model with parts that a Transformer here lacks.
    Source: Radford et al. (2022), Robust speech recognition via large-scale weak supervision; Wang et al. (2020), fairseq
    S2T; file format of transformers' save_pretrained.
    """
    theirs = read_settings(directory, "whisper", "speech_to_text")
    if theirs["d_model"] % 2:
        raise InputError(f"d_model must be even, but in {directory} it is {theirs['d_model']}")
    return (_whisper if theirs["model_type"] == "whisper" else _speech2text)(directory, theirs)


def _whisper(directory: Path, theirs: dict[str, Any]) -> Imported:
    sizes = {"hop_length": 160, "chunk_length": 30, "n_fft": 400, "do_normalize": None}
    features = _features(directory, fixed={"do_normalize": [None, False]}, defaults=sizes)
    rate, n_positions = features["sampling_rate"], theirs["max_source_positions"]
    heard = FeatureConfig(
        sample_rate=rate,
        frame=features["n_fft"] / rate,
        hop=features["hop_length"] / rate,
        n_mels=features["feature_size"],
        n_coefficients=0,
        low=0.0,
        high=8000.0,
        log_mel="whisper",
        pad_to=float(features["chunk_length"]),
        normalize="none",
    )
    if (n_frames := heard.n_frames(0)) != 2 * n_positions:
        raise InputError(
            f"Whisper's sound must last for twice max_source_positions={n_positions} frames, but in {directory} it is padded "
            f"to {n_frames}"
        )
    frames = {"n_features": theirs["num_mel_bins"], "conv_strides": [1, 2]}
    own = {"positions": "learned", "max_positions": theirs["max_target_positions"], "scale_embeddings": False}
    config = _config(directory, theirs, frames, own)
    # a bias of keys would change nothing
    model = fill_transformer(config, WHISPER, read_tensors(directory), directory, optional=r"k_proj\.bias")
    said = one_end(directory, read_generation(directory, theirs, more=WHISPER_SETTINGS), theirs)
    said.setdefault("forced_decoder_ids", theirs.get("forced_decoder_ids"))
    tokenizer, timestamps = _whisper_tokenizer(directory, said, config.vocab_size), bool(said.get("return_timestamps"))
    n_given, n_positions = 1 + len(tokenizer.opening) - timestamps, theirs["max_target_positions"]
    decoding = read_decoding(directory, said, config.vocab_size, n_given=n_given, n_positions=n_positions)
    decoding |= {"max_seconds": heard.pad_to, "timestamps": timestamps}
    return Imported(model, None, tokenizer, decoding, FeatureExtractor(heard))


def _speech2text(directory: Path, theirs: dict[str, Any]) -> Imported:
    defaults = {"num_mel_bins": 80, "do_ceptral_normalize": True, "normalize_means": True, "normalize_vars": True}
    features = _features(directory, fixed={}, defaults=defaults)
    normalized = [features[name] for name in ("do_ceptral_normalize", "normalize_means", "normalize_vars")]
    if normalized[0] and not all(normalized):
        raise InputError(
            f"normalize_means and normalize_vars must be both true, but in {directory} they are {normalized[1:]}"
        )
    require_equal(features, "num_mel_bins", "feature_size", directory)
    kernels = set(theirs["conv_kernel_sizes"])
    if len(kernels) != 1 or theirs["input_channels"] != 1:
        raise InputError(
            f"conv_kernel_sizes must be one size and input_channels 1, but in {directory} they are "
            f"{theirs['conv_kernel_sizes']} and {theirs['input_channels']}"
        )
    heard = FeatureConfig(
        sample_rate=features["sampling_rate"],
        n_mels=features["num_mel_bins"],
        n_coefficients=0,
        log_mel="kaldi",
        normalize="utterance" if normalized[0] else "none",
    )
    frames = {
        "n_features": theirs["input_feat_per_channel"],
        "conv_strides": [2] * len(theirs["conv_kernel_sizes"]),
        "conv_kernel": kernels.pop(),
        "conv_channels": theirs["conv_channels"] // 2,
        "conv_activation": "glu",
    }
    own = {"max_positions": theirs["max_source_positions"], "first_position": theirs["pad_token_id"] + 1}
    config = _config(directory, theirs, frames, own)
    model = fill_transformer(config, SPEECH2TEXT, read_tensors(directory), directory)
    said = one_end(directory, read_generation(directory, theirs), theirs)
    tokenizer = _piece_table(directory, theirs | said, said.get("forced_bos_token_id"))
    if theirs["scale_embedding"]:  # of the two halves of a gated convolution, the one that is no gate
        assert isinstance(model.source_input, ConvolvedInput)
        with torch.no_grad():
            for parameter in model.source_input.convolutions[-1].parameters():
                parameter[: config.d_model] *= config.d_model**0.5
    decoding = read_decoding(directory, said, config.vocab_size, n_forced=len(tokenizer.opening))
    decoding["max_seconds"] = heard.hop * theirs["max_source_positions"]
    return Imported(model, None, tokenizer, decoding, FeatureExtractor(heard))


def _config(directory: Path, theirs: dict[str, Any], frames: dict[str, Any], own: dict[str, Any]) -> TransformerConfig:
    """Translate what both kinds of models have in common, beside the fields in which they differ."""
    ours = encoder_decoder_fields(theirs, frames) | {"norm_position": "pre", "sinusoids": "tensor2tensor"} | own
    ours["encoder"] |= {"positions": "sinusoidal", "max_positions": theirs["max_source_positions"]}
    return from_dict(TransformerConfig, ours, str(directory / CONFIG))


def _features(directory: Path, *, fixed: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """The settings of features, from preprocessor_config.json, or from processor_config.json, which also holds others."""
    found = read_optional(directory / "processor_config.json").get("feature_extractor")
    if not isinstance(found, dict):
        found = read_json(directory / "preprocessor_config.json")
    off = {"padding_value": 0.0, "dither": 0.0}
    defaults = {"feature_size": 80, "sampling_rate": 16000, **off, **defaults}
    found = complete_settings(found, directory, fixed=off | fixed, defaults=defaults)
    at_least(1, sampling_rate=found["sampling_rate"])
    return found


def _whisper_tokenizer(directory: Path, generation: dict[str, Any], vocab_size: int) -> ImportedTokenizer:
    """Byte-level BPE, in which tokens of time are no text; English is transcribed where nothing else is said."""
    plain = json.loads(JSONTokenizer.load(directory).model)
    for token in plain["added_tokens"]:
        token["special"] = token["special"] or MARK.fullmatch(token["content"]) is not None
    ids = {token["content"]: token["id"] for token in plain["added_tokens"]}
    names, languages = [PLAIN], dict[str, int]()
    if generation.get("is_multilingual", vocab_size >= 51865):
        language, task = generation.get("language"), generation.get("task")
        if language is None and task is None:
            language, task = _forced(
                directory, generation.get("forced_decoder_ids"), {i: name for name, i in ids.items()}
            )
        language = str(language or "en").strip("<|>").lower()
        words = NAMES.split()
        language = dict(zip(words[::2], words[1::2], strict=True)).get(language.replace(" ", "_"), language)
        names = [f"<|{str(name).strip('<|>')}|>" for name in (language, task or "transcribe")] + [PLAIN]
        tags = generation.get("lang_to_id", {})
        check_types({"lang_to_id": tags}, {"lang_to_id": dict}, directory)
        languages = {name.strip("<|>"): i for name, i in tags.items()}
        if languages and names[0].strip("<|>") not in languages:
            raise refusal(directory, "language", f"one of {', '.join(languages)}", names[0].strip("<|>"))
    if lacking := [name for name in (START, *names) if name not in ids]:
        raise InputError(f"{directory} must have the tokens {' '.join((START, *names))}, but it has no {lacking[0]}")
    end = JSONTokenizer(json.dumps(plain).encode()).required("eos_id")[0]
    special, opening = {"bos": ids[START], "eos": end, "pad": end, "unk": end}, [ids[name] for name in names]
    parts: Any = {"special": special, "opening": opening, "languages": languages, "place": "first"}
    return ImportedTokenizer.of({"tokenizer": plain}, size=vocab_size, **parts)


def _forced(directory: Path, pairs: Any, names: dict[int, str]) -> tuple[str | None, str | None]:
    """The tokens of language and task, as older directories say them: pairs of a place in the output and an id, or null.

    Raises:
        InputError: they are something else.
    """
    try:
        found = {place: names[i] for place, i in pairs or [] if i is not None}
    except (KeyError, TypeError, ValueError) as error:
        raise refusal(
            directory, "forced_decoder_ids", "pairs of a place and an id of this vocabulary", pairs
        ) from error
    return found.get(1), found.get(2)


def _piece_table(directory: Path, theirs: dict[str, Any], forced: int | None) -> ImportedTokenizer:
    """The pieces of vocab.json, into which sentencepiece.bpe.model cuts a text that begins with the forced one."""
    if read_optional(directory / TOKENIZER).get("do_upper_case"):
        raise InputError(f"do_upper_case must be False, but in {directory} it is True")
    path, pieces = directory / "sentencepiece.bpe.model", read_table(directory / "vocab.json", theirs["vocab_size"])
    ids = {"bos": theirs["decoder_start_token_id"], "eos": theirs["eos_token_id"], "pad": theirs["pad_token_id"]}
    opening = [] if forced is None else [forced]
    return ImportedTokenizer.of_pieces(
        regular(path).read_bytes(), pieces, special=ids | {"unk": pieces.index("<unk>")}, opening=opening
    )
