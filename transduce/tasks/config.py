"""The configurations of search and of generation. Neither imports torch."""

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np

from transduce.config import Common, at_least, checked, within
from transduce.decode.config import BeamConfig, RulesConfig, SamplingConfig
from transduce.errors import InputError

UNCHANGED: dict[str, Any] = {each.name: each.default for each in fields(SamplingConfig)}
"""The sampling settings that leave logits unchanged."""

GREEDY = {"beam_size": 1, "n_best": 1, "sample": False} | UNCHANGED
"""Fields of SearchConfig that make it greedy."""

AUTO = "auto"
"""The target_language that means detection."""

LONGEST = 1_000_000
"""The most tokens of an output."""


def check_lengths(min_length: int, max_length: int) -> None:
    """Check that min_length is at most max_length, where 0 means no bound.

    Raises:
        InputError: it is larger.
    """
    if max_length and min_length > max_length:
        raise InputError(
            f"min_length must be at most max_length, but min_length={min_length} and "
            f"max_length={max_length}; change one"
        )


@dataclass(frozen=True, kw_only=True)
class SearchConfig(RulesConfig, SamplingConfig, BeamConfig):
    """Settings of beam search, greedy search and sampling, and of the segments and lengths of
    sources."""

    begin_with: str = ""
    """The decoder's prompt: tokens, separated by spaces, that replace BOS before every output and
    are no part of it; they tell a multilingual or multitask model what to write, such as
    "<|startoftranscript|> <|en|> <|transcribe|> <|notimestamps|>"."""
    batch_tokens: int = 2048
    """Source positions per batch, padding included. It changes speed and memory, never the
    output."""
    length_ratio: float = 2.0
    """An output has at most length_ratio * source positions + length_extra tokens."""
    length_extra: int = 20
    """Tokens that an output may have beyond length_ratio * source positions."""
    max_length: int = 0
    """The most tokens of any output, EOS included, however long the source is; 0 = off."""
    max_source_length: int = 512
    """Source texts with more tokens are cut, with a warning."""
    split_length: int = 0
    """Source texts with more tokens are translated both as a whole and sentence by sentence, and
    the more probable translation is taken; 0 = never. Training sets it to the length that 99 % of
    its texts do not exceed."""
    max_seconds: Common[float] = 20.0
    """Longer recordings are transcribed in segments: sound is cut in its pauses, vectors into equal
    parts. Training sets it to a little more than its longest recording."""
    min_seconds: float = 0.0
    """Shorter segments of a recording are merged with their neighbours. Training sets it to its
    shortest recording."""
    margin: float = 0.0
    """Seconds of silence that a segment of a long recording keeps on either side, beyond the fading
    of its sounds. Training sets it to half of augmentation.silence."""
    timestamps: bool = False
    """Write a segment, with its times, for every stretch of speech that an imported Whisper
    marks."""
    no_speech_threshold: float = 0.0
    """Segments with a higher no-speech probability get a blank text, unless they have a prefix or
    required phrases; 0 = off. The probability comes from a Whisper or a CTC head; other models have
    none. At 1 no text becomes blank, and JSON shows the probability."""
    ctc_weight: float = 0.0
    """Share of CTC in the score of a transcript; 0 = attention alone. Needs a model with a CTC
    head."""
    source_language: str = ""
    """The language of the lines, by its name in a multilingual model (eng_Latn, en, en_XX);
    default: the run's."""
    target_language: str = ""
    """The language to write, in such a model or in one that was trained on several
    (recipes/translation.py multilingual); for an imported Whisper, the language of the speech, or
    auto, which detects it in each recording."""
    alignment_heads: tuple[tuple[int, int], ...] = ()
    """Decoder layers and heads, from 0, whose cross-attention gives the times of words in a model
    without a CTC head, such as an imported Whisper."""
    words: Literal["any", "known"] = "any"
    """Words that may be written: any, or known, those of a speech run's lexicon.txt. The file has
    the words of the training texts, one in each line, and may be extended. It helps when
    out-of-vocabulary words are rare. Texts with a prefix or required phrases are not restricted."""
    glossary: tuple[tuple[str, str], ...] = ()
    """Terms and their translations, in Python a dict: if a source has a term, its translation gets
    a bonus; in transcripts, all translations do. A term in lower case is found in any case."""
    glossary_bonus: float = 4.0
    """The bonus in nats; inf = the translation is required. Raise it if terms are missed, lower it
    if they come too often."""
    lm_weight: Common[float] = 0.0
    """Weight of a language model in shallow fusion (--lm, or td.load(RUN, lm=...)); 0.1 to 0.5 if
    it was trained on much more text than the run."""

    sample: Common[bool] = False
    """Draw n_best outputs at random, by their probability, instead of searching for the most
    probable: for variety, as in back-translation."""
    seed: int = 0
    """Seed of sampling. Sample k of a source depends on the seed and the number of the source, not
    on other sources."""

    def __post_init__(self) -> None:
        within("(0, 100]", self, "temperature")
        within("[1, 1000]", self, "beam_size")
        RulesConfig.__post_init__(self)
        SamplingConfig.__post_init__(self)
        BeamConfig.__post_init__(self)
        at_least(1, self, "batch_tokens", "max_source_length")
        within("[1, 1000000]", self, "length_extra")
        within(f"[0, {LONGEST}]", self, "max_length")
        check_lengths(self.min_length, self.max_length)
        within("[0, 1000]", self, "lm_weight", "length_ratio")
        at_least(0, self, "split_length", "min_seconds", "margin")
        within("[0, inf]", self, "glossary_bonus")
        at_least(1.0, self, "max_seconds")
        object.__setattr__(self, "glossary", tuple(dict(self.glossary).items()))
        if not all(term.strip() for pair in self.glossary for term in pair):
            raise InputError(
                "terms of a glossary and their translations must have a character, but one is "
                "blank; leave it out"
            )
        if self.min_seconds > self.max_seconds:
            raise InputError(
                f"min_seconds must be at most max_seconds, but min_seconds={self.min_seconds} and "
                f"max_seconds={self.max_seconds}; change one"
            )
        within("[0, 1]", self, "ctc_weight", "no_speech_threshold")
        at_least(0, self, "seed")
        if not self.sample and not self.is_default:
            raise InputError(
                "temperature, top_k, top_p and min_p are for sampling, but "
                f"temperature={self.temperature}, top_k={self.top_k}, top_p={self.top_p}, "
                f"min_p={self.min_p} and sample=False; add sample"
            )

    def rngs(self, source: int, part: int = 0) -> list[np.random.Generator]:
        """The generators for the samples of a source, or of a part of it; none without sampling."""
        ks = range(self.n_best if self.sample else 0)
        return [np.random.default_rng((self.seed, source, part, k)) for k in ks]

    def changed(self, **settings: Any) -> "SearchConfig":
        """The same with other settings. A beam_size below n_best is raised to it, unless beam_size
        is named, too; sample=False resets the settings of sampling.

        Raises:
            InputError: there is no such setting, or its value does not fit.
        """
        settings = checked(self, settings)
        if "n_best" in settings:
            settings.setdefault("beam_size", max(self.beam_size, settings["n_best"]))
        if settings.get("sample") is False:  # the user did not ask for those of the run
            settings = UNCHANGED | settings
        if "max_seconds" in settings:  # the user did not ask for the run's min_seconds
            settings.setdefault("min_seconds", min(self.min_seconds, settings["max_seconds"]))
        return replace(self, **settings)

    def greedy(self) -> "SearchConfig":
        """The same, but searched greedily."""
        return self.changed(**GREEDY)


@dataclass(frozen=True, kw_only=True)
class GenerationConfig(RulesConfig, SamplingConfig):
    """Settings for the continuation of prompts."""

    temperature: Common[float] = 1.0
    """Logits are divided by it: below 1 safer, above 1 more diverse; 0 takes the most probable
    token."""
    top_k: Common[int] = 0
    """Draw among the k most probable tokens (more in case of ties); 0 = off."""
    top_p: Common[float] = 1.0
    """Draw among the fewest tokens that have this probability together; 1 = off."""
    min_p: Common[float] = 0.0
    """Leave out tokens with less than this share of the highest probability; 0 = off."""
    max_length: Common[int] = 256
    """The most new tokens, EOS included."""
    beam_size: Common[int] = 1
    """Beam size; more than 1 means beam search, which does not sample."""
    alpha: float = 0.6
    """In beam search, the exponent of the length penalty ((5 + length) / 6)^alpha, for new
    tokens."""
    seed: Common[int] = 0
    """Seed of sampling."""
    n: Common[int] = 1
    """Texts per prompt; the n best ones in beam search."""
    batch_size: Common[int] = 16
    """Texts, or beams, in a batch. It changes speed and memory, never the output."""

    def __post_init__(self) -> None:
        within(f"[1, {LONGEST}]", self, "max_length", "n")
        within("[1, 1000]", self, "beam_size")
        at_least(1, self, "batch_size")
        at_least(0, self, "seed")
        check_lengths(self.min_length, self.max_length)
        RulesConfig.__post_init__(self)
        SamplingConfig.__post_init__(self)
        if self.beam_size > 1 and (not self.is_default or self.n > self.beam_size):
            raise InputError(
                "beam search does not sample and keeps beam_size texts, so it takes temperature=1, "
                "top_k=0, top_p=1, min_p=0 and n <= beam_size, but "
                f"temperature={self.temperature}, top_k={self.top_k}, top_p={self.top_p}, "
                f"min_p={self.min_p}, n={self.n}, beam_size={self.beam_size}"
            )
        _ = self.beam  # which checks its fields
        if self.beam_size == 1 and self.temperature == 0 and self.n > 1:
            raise InputError(
                f"greedy search has one text per prompt, but n={self.n} at temperature=0; "
                "raise the temperature, or use beam_size"
            )

    def changed(self, **settings: Any) -> "GenerationConfig":
        """The same with other settings. A beam resets the settings of sampling, unless they are
        named, too.

        Raises:
            InputError: there is no such setting, or its value does not fit.
        """
        settings = checked(self, settings)
        if settings.get("beam_size", 1) > 1:
            settings = UNCHANGED | settings
        return replace(self, **settings)

    @property
    def beam(self) -> BeamConfig:
        """The part that is beam search."""
        return BeamConfig(
            beam_size=self.beam_size, alpha=self.alpha, n_best=min(self.n, self.beam_size)
        )

    def rng(self, i: int, k: int) -> np.random.Generator:
        """The generator for text k of prompt i."""
        return np.random.default_rng((self.seed, i, k))
