"""Read and write generation_config.json: how transformers' generate searches or samples.

Its settings become fields of SearchConfig or, for a decoder-only model, of GenerationConfig.

A setting that would change outputs, but has no equivalent here, is refused by name.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import field

from transduce.config import Json
from transduce.data.imported_tokenizer import ImportedTokenizer
from transduce.errors import InputError, logger
from transduce.files import read_json, regular
from transduce.interop.pretrained import CONFIG, known_fields, pieces_settings, read_table
from transduce.interop.settings import EncoderDecoderSettings, Settings, Stored, WhisperSettings
from transduce.model.config import TransformerConfig

GENERATION = "generation_config.json"


class Generation(Stored):
    """The settings that have an equivalent here, with the defaults of transformers."""

    eos_token_id: tuple[int, ...] = ()
    pad_token_id: int | None = None
    decoder_start_token_id: int | None = None
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
    min_p: float = 0.0
    # of Whisper
    is_multilingual: bool | None = None
    language: str | None = None
    task: str | None = None
    lang_to_id: dict[str, int] = field(default_factory=dict)
    forced_decoder_ids: tuple[tuple[int, int | None], ...] = ()
    """Language and task in older directories: pairs of a position in the output and an id."""
    return_timestamps: bool = False
    alignment_heads: tuple[tuple[int, int], ...] = ()

    @property
    def end_id(self) -> int:
        """The EOS id of an encoder-decoder model, which has only one."""
        return self.eos_token_id[0]

    def special_ids(self) -> dict[str, int | None]:
        """The special ids of such a model for an ImportedTokenizer, except unk."""
        return {
            "bos": self.decoder_start_token_id,
            "eos": self.end_id,
            "pad": self.pad_token_id,
        }

    def tokenizer(
        self, vocab_size: int, model: str, table: str = "vocab.json", *, opening: Sequence[int] = ()
    ) -> ImportedTokenizer:
        """The tokenizer of a SentencePiece model, and of a table with the ids of its pieces.

        Args:
            opening: ids before every text.
        """
        pieces = read_table(self.directory / table, vocab_size)
        spm = regular(self.directory / model).read_bytes()
        special = self.special_ids() | {"unk": pieces.index("<unk>")}
        settings = pieces_settings(self.directory)
        return ImportedTokenizer.of_pieces(spm, pieces, settings, special=special, opening=opening)

    def refusal(self, name: str, rule: str, value: object) -> InputError:
        """The error that says which value a setting must have."""
        return InputError(
            f"{name} must be {rule}, but in {self.directory} it is {json.dumps(value):.200}; "
            f"change it in {GENERATION}"
        )

    def check(self, *checks: tuple[str, str, bool]) -> None:
        """Raise InputError unless all checks hold: a setting, its rule, and whether it is met."""
        for name, rule, is_met in checks:
            if not is_met:
                raise self.refusal(name, rule, getattr(self, name))


IN_CONFIG = ("eos_token_id", "pad_token_id", "decoder_start_token_id", "forced_decoder_ids")
"""The settings that are taken from config.json if generation_config.json lacks them."""

OF_WHISPER = ("forced_decoder_ids", "return_timestamps")
"""The settings that are supported for Whisper only."""

RULES = {
    "no_repeat_ngram_size": "no_repeat_ngram",
    "begin_suppress_tokens": "suppress_first",
    "renormalize_logits": "renormalize",
    "repetition_penalty": "repetition_penalty",
}
SEARCH = {"num_beams": "beam_size", "length_penalty": "alpha", "early_stopping": "early_stopping"}
"""Our fields by the settings with the same meaning."""

UNSUPPORTED = (
    "begin_with",
    "forbid",
    "glossary",
    "length_ratio",
    "lm_weight",
    "logit_bias",
    "max_length",
    "no_speech_threshold",
    "sample",
    "split_length",
)
"""Our fields without an equivalent setting, unless they are 0, false or empty."""

NEUTRAL: Json = {
    **dict.fromkeys(
        (
            "constraints",
            "dola_layers",
            "exponential_decay_length_penalty",
            "force_words_ids",
            "forced_decoder_ids",
            "max_time",
            "sequence_bias",
            "stop_strings",
            "watermarking_config",
            "compression_ratio_threshold",
            "logprob_threshold",
            "no_speech_threshold",
            "prompt_ids",
        )
    ),
    **dict.fromkeys(("condition_on_prev_tokens", "return_timestamps", "token_healing"), False),
    "diversity_penalty": 0,
    "encoder_no_repeat_ngram_size": 0,
    "penalty_alpha": 0,
    "encoder_repetition_penalty": 1,
    "guidance_scale": 1,
    "num_beam_groups": 1,
    "num_return_sequences": 1,
    "max_initial_timestamp_index": 50,
}
"""The value, besides null, that a setting without an equivalent may have, as it has no effect."""

NEUTRAL_IN_SAMPLING: Json = {
    "epsilon_cutoff": 0,
    "eta_cutoff": 0,
    "top_h": 1,
    "typical_p": 1,
}
"""The same for settings that only affect sampling."""


def read_generation(settings: Settings) -> Generation:
    """Read generation_config.json or, in older directories, its settings in config.json.

    Args:
        settings: those of config.json.

    Raises:
        InputError: a setting has no equivalent here, or an encoder-decoder model has several EOS
            ids.
    """
    path = settings.directory / GENERATION
    config = read_json(settings.directory / CONFIG)
    stored = read_json(path) if path.is_file() else config
    plain = config | vars(settings)
    plain = {name: plain[name] for name in IN_CONFIG if name in plain}
    plain |= {name: value for name, value in stored.items() if value is not None}
    if stored.get("force_bos_token_to_be_generated") and stored is config:  # BARTs of 2020
        plain["forced_bos_token_id"] = config.get("bos_token_id", 0)
    for name, value in (NEUTRAL | (NEUTRAL_IN_SAMPLING if plain.get("do_sample") else {})).items():
        known = name in OF_WHISPER and isinstance(settings, WhisperSettings)
        if not known and plain.get(name, value) != value:
            refused = Generation(directory=settings.directory)
            raise refused.refusal(name, json.dumps(value), plain[name])
    generation = known_fields(Generation, plain, path)
    if isinstance(settings, EncoderDecoderSettings):
        ends = generation.eos_token_id
        single = len(ends) == 1 and settings.eos_token_id == ends
        generation.check(("eos_token_id", "one id, that of config.json", single))
    return generation


def read_decoding(
    g: Generation,
    vocab_size: int,
    *,
    n_prefix: int = 1,
    n_forced: int = 0,
    n_positions: int | None = None,
) -> Json:
    """The fields of SearchConfig with which an encoder-decoder model searches as in `generate`.

    Without max_length, the length bound is our default; transformers would stop after 20 tokens.
    Transformers' n-grams include the first, given tokens, and it counts an EOS that is forced at
    max_length; here neither is the case.

    Args:
        n_prefix: tokens before every output in transformers, including the first one.
        n_forced: tokens with which every output is forced to begin. Transformers counts them.
        n_positions: maximum tokens of an output including the given ones, if max_length does not
            count those.

    Raises:
        InputError: a setting has no equivalent here.
    """
    beam = g.num_beams != 1
    _check_search(g, beam)
    least = g.min_length - n_prefix if g.min_new_tokens is None else g.min_new_tokens
    decoding = _read_rules(g, vocab_size) | {
        **{ours: getattr(g, theirs) for theirs, ours in SEARCH.items()},
        "alpha": g.length_penalty if beam else 1.0,
        "length_offset": float(n_forced),
        "at_max_length": "by_score",
        "min_length": max(0, least - n_forced),
    }
    most = g.max_new_tokens
    if most is None and g.max_length is not None:
        most = g.max_length if n_positions is None else min(g.max_length + n_prefix, n_positions)
        most -= n_prefix
    if most is not None:  # the last token may be a forced EOS
        extra = most - n_forced - (g.forced_eos_token_id is not None)
        decoding |= {"length_ratio": 0.0, "length_extra": extra}
    return decoding


def _check_search(g: Generation, beam: bool) -> None:
    """Raise InputError unless the search of an encoder-decoder model has an equivalent here."""
    begins_with_end = g.decoder_start_token_id == g.end_id
    repeats = g.no_repeat_ngram_size != 1 or not begins_with_end
    g.check(
        ("do_sample", "false", not g.do_sample),
        # in beam search, transformers penalizes log-probabilities, not logits
        ("repetition_penalty", "1.0", not beam or g.repetition_penalty == 1),
        ("no_repeat_ngram_size", "0 or at least 2, for its end begins every output", repeats),
        ("forced_eos_token_id", "eos_token_id", g.forced_eos_token_id in (None, g.end_id)),
        ("length_penalty", "at least 0", not beam or g.length_penalty >= 0),
    )


def read_sampling(g: Generation, config: TransformerConfig) -> Json:
    """The fields of GenerationConfig with which a decoder-only model generates as in `generate`.

    Raises:
        InputError: a setting has no equivalent here.
    """
    n_positions = config.max_positions
    no_bound = g.max_new_tokens is not None or g.max_length is None or g.max_length >= n_positions
    g.check(
        ("num_beams", "1", g.num_beams == 1),
        ("forced_bos_token_id", "null", g.forced_bos_token_id is None),
        ("forced_eos_token_id", "null", g.forced_eos_token_id is None),
        ("min_length", "0", g.min_length <= 0),  # it and the next one count the prompt
        ("no_repeat_ngram_size", "0", g.no_repeat_ngram_size <= 0),
        ("max_length", f"at least {n_positions}, for it counts the prompt", no_bound),
    )
    ours = {**_read_rules(g, config.vocab_size), "min_length": g.min_new_tokens or 0}
    if (most := g.max_new_tokens or g.max_length) is not None:
        ours["max_length"] = most
    if g.do_sample:
        ours |= {name: getattr(g, name) for name in ("temperature", "top_k", "top_p", "min_p")}
    elif g.do_sample is not None:
        ours["temperature"] = 0.0
    return ours


def _read_rules(g: Generation, vocab_size: int) -> Json:
    """Fields of RulesConfig.

    Raises:
        InputError: phrases or unknown ids are forbidden, or EOS is suppressed.
    """
    ends = {*g.eos_token_id}
    if any(len(ids) != 1 for ids in g.bad_words_ids):
        raise InputError(
            f"bad_words_ids must be tokens, one each, but in {g.directory} they are "
            f"{json.dumps(g.bad_words_ids)}; change them in {GENERATION}, and name phrases with "
            "--forbid"
        )
    g.check(("suppress_tokens", "without eos_token_id", not ends & {*g.suppress_tokens}))
    ids = {*g.suppress_tokens, *(i for (i,) in g.bad_words_ids)} - {g.pad_token_id, *ends}
    if beyond := [i for i in (*ids, *g.begin_suppress_tokens) if not 0 <= i < vocab_size]:
        raise InputError(
            "suppress_tokens, begin_suppress_tokens and bad_words_ids must be ids of 0 to "
            f"{vocab_size - 1}, but in {g.directory} one is {beyond[0]}; change it in {GENERATION}"
        )
    return {ours: getattr(g, theirs) for theirs, ours in RULES.items()} | {
        "suppress": sorted(ids),
        "no_repeat_ngram": max(0, g.no_repeat_ngram_size),
    }


def generation_settings(decoding: Json, suppressed: Collection[int], *, n_prefix: int = 1) -> Json:
    """Translate the rules and the search of a run, and warn of fields that transformers lacks.

    Args:
        decoding: fields of SearchConfig, or of GenerationConfig.
        suppressed: ids that are never generated, besides those that the rules name.
        n_prefix: tokens before an output, which lengths include in transformers.
    """
    theirs = {"suppress_tokens": sorted({*suppressed, *decoding.get("suppress", ())})}
    theirs |= {name: decoding[ours] for name, ours in RULES.items() if decoding.get(ours)}
    if decoding.get("min_length"):
        theirs["min_length"] = decoding["min_length"] + n_prefix
    lost = [name for name in UNSUPPORTED if decoding.get(name)]
    beam = decoding.get("beam_size", 1) > 1
    if "length_offset" in decoding:
        theirs["num_beams"] = decoding["beam_size"]
        if beam:
            theirs |= {name: decoding[ours] for name, ours in SEARCH.items()}
            if decoding["alpha"] and decoding["length_offset"]:
                del theirs["length_penalty"]
                lost += ["alpha", "length_offset"]
            if theirs.pop("repetition_penalty", 1) != 1:  # transformers penalizes log-probabilities
                lost.append("repetition_penalty")
            if decoding["at_max_length"] != "by_score":
                lost.append("at_max_length")
        if decoding["length_ratio"] == 0:
            theirs["max_length"] = decoding["length_extra"] + n_prefix
    else:  # transformers includes n-grams of the prompt
        theirs.pop("no_repeat_ngram_size", None)
        lost += ["beam_size"] * beam + ["no_repeat_ngram"] * bool(decoding.get("no_repeat_ngram"))
    if lost:
        shown = ", ".join(f"{name}={decoding[name]}" for name in lost)
        logger.warning("%s cannot store %s; transformers will ignore it", GENERATION, shown)
    return theirs


def sampling_settings(decoding: Json, suppressed: Collection[int]) -> Json:
    """Translate the rules and sampling of a decoder-only model, but not its beam search and n-gram
    rule.

    Args:
        decoding: fields of GenerationConfig.
        suppressed: ids that are never generated, besides those that the rules name.
    """
    theirs = generation_settings(decoding | {"min_length": 0, "max_length": 0}, suppressed)
    theirs |= {
        "max_new_tokens": decoding["max_length"],
        "min_new_tokens": decoding["min_length"],
        "do_sample": decoding["temperature"] > 0,
    }
    if theirs["do_sample"]:
        theirs |= {name: decoding[name] for name in ("temperature", "top_k", "top_p", "min_p")}
    return theirs
