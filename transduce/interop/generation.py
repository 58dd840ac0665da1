"""What generation_config.json tells transformers' generate, as fields of SearchConfig or of GenerationConfig.

A setting that would change what comes out, and has no equal here, is refused by its name.
"""

import logging
from collections.abc import Collection
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from transduce.config import from_dict
from transduce.errors import InputError
from transduce.files import read_json
from transduce.interop.settings import check_types
from transduce.model.config import TransformerConfig

GENERATION = "generation_config.json"

logger = logging.getLogger("transduce")


@dataclass(frozen=True, kw_only=True)
class Generation:
    """The settings that have an equal here, with the values that they have in transformers where they are not said."""

    num_beams: int = 1
    length_penalty: float = 1.0
    early_stopping: bool = False
    max_length: int | None = None
    max_new_tokens: int | None = None
    min_length: int = 0
    min_new_tokens: int | None = None
    no_repeat_ngram_size: int = 0
    repetition_penalty: float = 1.0
    renormalize_logits: bool = False
    suppress_tokens: tuple[int, ...] = ()
    begin_suppress_tokens: tuple[int, ...] = ()
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    forced_bos_token_id: int | None = None
    forced_eos_token_id: int | None = None
    do_sample: bool | None = None
    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 1.0


REPRESENTED = {each.name for each in fields(Generation)}

IDS = {"bos_token_id", "decoder_start_token_id", "eos_token_id", "pad_token_id"}

NEUTRAL: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("constraints", "dola_layers", "exponential_decay_length_penalty", "force_words_ids"), ()),
    **dict.fromkeys(("forced_decoder_ids", "max_time", "sequence_bias", "stop_strings", "watermarking_config"), ()),
    **dict.fromkeys(("compression_ratio_threshold", "logprob_threshold", "no_speech_threshold", "prompt_ids"), ()),
    **dict.fromkeys(("condition_on_prev_tokens", "return_timestamps", "token_healing"), (False,)),
    **dict.fromkeys(("diversity_penalty", "encoder_no_repeat_ngram_size", "penalty_alpha"), (0,)),
    **dict.fromkeys(("encoder_repetition_penalty", "guidance_scale", "num_beam_groups", "num_return_sequences"), (1,)),
    "early_stopping": (False, True),
    "max_initial_timestamp_index": (50,),
}
"""The values, beside null, that a setting without an equal may have: they change nothing."""

DRAWN: dict[str, tuple[Any, ...]] = {
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "min_p": (0,),
    "top_h": (1,),
    "typical_p": (1,),
}
"""The same of settings that count where tokens are drawn."""

WITHOUT_EFFECT = {
    *("_commit_hash", "_from_model_config", "transformers_version"),
    *("cache_config", "cache_implementation", "max_cache_len", "use_cache", "prefill_chunk_size", "low_memory"),
    *("compile_config", "disable_compile", "continuous_batching_config", "remove_invalid_values", "use_mtp"),
    *("output_attentions", "output_hidden_states", "output_logits", "output_scores", "return_dict_in_generate"),
    *("assistant_confidence_threshold", "assistant_early_exit", "assistant_ensemble_weight", "assistant_lookbehind"),
    *("is_assistant", "max_matching_ngram_size", "num_assistant_tokens", "num_assistant_tokens_schedule"),
    *("prompt_lookup_num_tokens", "speculation_type", "target_lookbehind"),
}
"""How outputs are computed, not what they are."""

WHISPER_SETTINGS = {
    *("alignment_heads", "forced_decoder_ids", "is_multilingual", "lang_to_id", "language", "no_timestamps_token_id"),
    *("prev_sot_token_id", "return_timestamps", "task", "task_to_id"),
}
"""What a Whisper is told beside."""


def read_generation(directory: Path, theirs: dict[str, Any], *, more: Collection[str] = ()) -> dict[str, Any]:
    """What generate is told: all in generation_config.json, or, in older directories without one, in config.json.

    Args:
        theirs: the settings of config.json, which say the special ids that generation_config.json leaves out.
        more: settings that this model knows beside those of every model.

    Raises:
        InputError: a setting has no equal here.
    """
    known = {*REPRESENTED, *IDS, *NEUTRAL, *DRAWN, *WITHOUT_EFFECT, *more}
    path = directory / GENERATION
    found = read_json(path) if path.is_file() else {name: theirs[name] for name in known if name in theirs}
    ids = {name: theirs.get(name) for name in IDS}
    said = {name: value for name, value in (ids | found).items() if value is not None or name in IDS}
    said |= {name: ids[name] for name in IDS if said[name] is None}
    check_types(said, dict.fromkeys(IDS, int | list[int] | None), directory)
    for name, allowed in (NEUTRAL | (DRAWN if said.get("do_sample") else {})).items():
        if name not in more and said.get(name) is not None and said[name] not in allowed:
            raise refusal(directory, name, " or ".join(map(str, allowed)) or "null", said[name])
    if unknown := [name for name in said if name not in known]:
        logger.warning("%s has %s, which nothing here knows: not read", path, ", ".join(sorted(unknown)))
    return said


def refusal(directory: Path, name: str, rule: str, value: object) -> InputError:
    """The error that says which value a setting must have."""
    return InputError(f"{name} must be {rule}, but in {directory} it is {value!r:.200}; change it in {GENERATION}")


def one_end(directory: Path, said: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """The same settings of a model whose texts have one end, in config.json, too.

    Raises:
        InputError: they have several.
    """
    ends = said["eos_token_id"]
    if isinstance(ends, list) and len(ends) == 1:
        ends = ends[0]
    if isinstance(ends, list) or theirs.get("eos_token_id", ends) not in (ends, [ends]):
        raise refusal(directory, "eos_token_id", "one id, that of config.json", ends)
    return said | {"eos_token_id": ends}


def read_decoding(
    directory: Path,
    said: dict[str, Any],
    size: int,
    *,
    n_given: int = 1,
    n_forced: int = 0,
    n_positions: int | None = None,
) -> dict[str, Any]:
    """How an encoder-decoder model is searched, as transformers' generate does it: fields of SearchConfig.

    Where no max_length is named, lengths are bounded as always here: transformers would cut after 20 tokens. Its n-grams
    begin with the first tokens, and an end that is forced at max_length is counted; here they are not.

    Args:
        said: what `read_generation` gives.
        size: ids that the model writes.
        n_given: tokens that stand before every output there, the first one included.
        n_forced: tokens that every output is made to begin with. Transformers counts them.
        n_positions: tokens that an output may have at most, those given included, where max_length does not count those.

    Raises:
        InputError: a setting has no equal here.
    """
    told = _represented(directory, said)
    if told.do_sample:
        raise refusal(directory, "do_sample", "False", True)
    beam = told.num_beams != 1
    if beam and told.repetition_penalty != 1:  # there, transformers penalizes log-probabilities, not logits
        raise refusal(directory, "repetition_penalty", "1.0", told.repetition_penalty)
    if told.no_repeat_ngram_size == 1 and said["decoder_start_token_id"] == said["eos_token_id"]:
        raise refusal(directory, "no_repeat_ngram_size", "0 or at least 2, for its end begins every output", 1)
    if told.forced_eos_token_id not in (None, said["eos_token_id"]):
        raise refusal(directory, "forced_eos_token_id", "eos_token_id", told.forced_eos_token_id)
    if beam and told.length_penalty < 0:
        raise refusal(directory, "length_penalty", "at least 0", told.length_penalty)
    least = told.min_length - n_given if told.min_new_tokens is None else told.min_new_tokens
    decoding = {
        **_rules(directory, told, said, size),
        "beam_size": told.num_beams,
        "alpha": told.length_penalty if beam else 1.0,
        "length_offset": float(n_forced),
        "early_stopping": told.early_stopping,
        "at_max_length": "by_score",
        "no_repeat_ngram": max(0, told.no_repeat_ngram_size),
        "min_length": max(0, least - n_forced),
    }
    most = told.max_new_tokens
    if most is None and told.max_length is not None:
        most = told.max_length - n_given if n_positions is None else min(told.max_length, n_positions - n_given)
    if most is not None:  # its last token may have to be the end
        decoding |= {"length_ratio": 0.0, "length_extra": most - n_forced - (told.forced_eos_token_id is not None)}
    return decoding


def read_sampling(directory: Path, said: dict[str, Any], config: TransformerConfig) -> dict[str, Any]:
    """How a decoder alone goes on from a prompt, as transformers' generate does it: fields of GenerationConfig.

    Args:
        said: what `read_generation` gives.

    Raises:
        InputError: a setting has no equal here.
    """
    told, n_positions = _represented(directory, said), config.max_positions
    for name, value in {"num_beams": 1, "forced_bos_token_id": None, "forced_eos_token_id": None}.items():
        if getattr(told, name) != value:
            raise refusal(directory, name, str(value), getattr(told, name))
    for name in ("min_length", "no_repeat_ngram_size"):  # which count the prompt
        if getattr(told, name) > 0:
            raise refusal(directory, name, "0", getattr(told, name))
    if told.max_new_tokens is None and told.max_length is not None and told.max_length < n_positions:
        raise refusal(directory, "max_length", f"at least {n_positions}, for it counts the prompt", told.max_length)
    found = {**_rules(directory, told, said, config.vocab_size), "min_length": told.min_new_tokens or 0}
    if (most := told.max_new_tokens or told.max_length) is not None:
        found["max_length"] = most
    if told.do_sample is not None:
        drawn = {"temperature": told.temperature, "top_k": told.top_k, "top_p": told.top_p}
        found |= drawn if told.do_sample else {"temperature": 0.0}
    return found


def _represented(directory: Path, said: dict[str, Any]) -> Generation:
    """The settings that have an equal here, of the types that they must have."""
    path = directory / GENERATION
    return from_dict(Generation, {name: said[name] for name in said if name in REPRESENTED}, str(path))


def _rules(directory: Path, told: Generation, said: dict[str, Any], size: int) -> dict[str, Any]:
    """What may come out: fields of RulesConfig.

    Raises:
        InputError: it is said of phrases, or of ids that there are not, or that texts have no end.
    """
    if any(len(ids) != 1 for ids in told.bad_words_ids):
        raise InputError(
            f"bad_words_ids must be tokens, one each, but in {directory} they are {said['bad_words_ids']}; change them in "
            f"{GENERATION}, and name phrases with --forbid"
        )
    end = said["eos_token_id"]
    ends = {*end} if isinstance(end, list) else {end}
    if not isinstance(pad := said["pad_token_id"], int | None):
        raise refusal(directory, "pad_token_id", "a whole number or null", pad)
    if ends & {*told.suppress_tokens}:
        raise refusal(directory, "suppress_tokens", "without eos_token_id", [*told.suppress_tokens])
    ids = {*told.suppress_tokens, *(i for each in told.bad_words_ids for i in each)} - {pad, *ends}
    first = {*told.begin_suppress_tokens}
    if wrong := [i for i in (*ids, *first) if not 0 <= i < size]:
        raise InputError(
            f"suppress_tokens, begin_suppress_tokens and bad_words_ids must be ids of 0 to {size - 1}, but in {directory} one is "
            f"{wrong[0]}; change it in {GENERATION}"
        )
    rules = {"suppress": sorted(ids), "suppress_first": sorted(first), "renormalize": told.renormalize_logits}
    return rules | {"repetition_penalty": told.repetition_penalty}


def settings_of(decoding: dict[str, Any], suppressed: Collection[int]) -> dict[str, Any]:
    """The rules of a run, and, where it searches as transformers does, its search, as generation_config.json says them.

    Args:
        decoding: fields of SearchConfig.
        suppressed: ids that no text holds, beside those that the rules name.
    """
    found = {"suppress_tokens": sorted({*suppressed, *decoding.get("suppress", ())})}
    names = {"no_repeat_ngram": "no_repeat_ngram_size", "suppress_first": "begin_suppress_tokens"}
    names |= {"renormalize": "renormalize_logits", "repetition_penalty": "repetition_penalty"}
    found |= {name: decoding[own] for own, name in names.items() if decoding.get(own)}
    if decoding.get("min_length"):
        found["min_length"] = decoding["min_length"] + 1  # what begins an output counts there
    if decoding.get("at_max_length") == "by_score" and decoding.get("length_offset") == 0:
        names = {"beam_size": "num_beams", "alpha": "length_penalty", "early_stopping": "early_stopping"}
        found |= {name: decoding[own] for own, name in names.items() if own in decoding}
        if decoding.get("length_ratio") == 0:
            found["max_length"] = decoding["length_extra"] + 1
    return found
