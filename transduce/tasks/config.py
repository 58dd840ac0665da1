"""The configuration of a search and of a generation. Both are read without torch."""

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np

from transduce.config import Common, at_least, checked, within
from transduce.decode.config import BeamConfig, RulesConfig, SamplingConfig
from transduce.errors import InputError

UNCHANGED: dict[str, Any] = {each.name: each.default for each in fields(SamplingConfig)}
"""Fields of sampling that leave logits as they are."""

GREEDY = {"beam_size": 1, "n_best": 1, "sample": False} | UNCHANGED
"""Fields of SearchConfig that make it greedy."""

AUTO = "auto"
"""The target_language that is to be detected."""

LONGEST = 1_000_000
"""Tokens of an output."""


def check_lengths(min_length: int, max_length: int) -> None:
    """Check that a length can be neither below one bound nor above the other; 0 is no bound.

    Raises:
        InputError: the lower one is the higher one.
    """
    if max_length and min_length > max_length:
        raise InputError(
            f"min_length must be at most max_length, but min_length={min_length} and "
            f"max_length={max_length}; change one"
        )


@dataclass(frozen=True, kw_only=True)
class SearchConfig(RulesConfig, SamplingConfig, BeamConfig):
    """How to search, in beam search, greedy search and sampling; and the segments and lengths of
    sources."""

    begin_with: str = ""
    """Tokens, separated by spaces, that stand before every output and are no part of it, in the
    place of the one that usually does; they tell a model of several languages or tasks what to
    write, such as "<|startoftranscript|> <|en|> <|transcribe|> <|notimestamps|>"."""
    batch_tokens: int = 2048
    """Source positions per batch, padding included. It changes speed and memory, never the
    output."""
    length_ratio: float = 2.0
    """At most length_ratio * source positions + length_extra tokens come out."""
    length_extra: int = 20
    """Tokens that may come out beyond length_ratio * source positions."""
    max_length: int = 0
    """Never more tokens than this come out, the end included, however long the source is; 0 =
    off."""
    max_source_length: int = 512
    """Longer texts, in tokens, are cut, with a warning."""
    split_length: int = 0
    """Longer texts, in tokens, are translated both as a whole and sentence by sentence, and the
    likelier of the two is taken; 0 = never. A training sets it to the length that 99 % of its texts
    do not exceed."""
    max_seconds: Common[float] = 20.0
    """Longer recordings are transcribed in segments: sound is cut in its pauses, vectors into equal
    parts. A training sets it to a little more than the longest recording that it had."""
    min_seconds: float = 0.0
    """Shorter segments of a recording join their neighbours. A training sets it to the shortest
    recording it had."""
    margin: float = 0.0
    """Seconds of silence that a segment of a long recording keeps on either side, beyond the fading
    of its sounds. A training sets it to half of the silence that it put around its recordings."""
    timestamps: bool = False
    """Write a segment for every stretch of speech that an imported Whisper finds, with its
    times."""
    no_speech_threshold: float = 0.0
    """Sound where the probability that nobody speaks is higher has a blank text, but for one with a
    prefix or required phrases; 0 = off. A Whisper, or a CTC head, tells it; elsewhere this is off.
    At 1 no text is blank, and JSON shows the probability."""
    ctc_weight: float = 0.0
    """Share of CTC in the score of a transcript; 0 = attention alone. Needs a model with a CTC
    head."""
    source_language: str = ""
    """The language of the lines, as a model of many languages calls it (eng_Latn, en, en_XX); where
    none is named, the run's."""
    target_language: str = ""
    """The language to write in such a model, or in one that was trained on several
    (recipes/translation.py multilingual); of an imported Whisper, the language of the speech, or
    auto, which detects that of each recording."""
    alignment_heads: tuple[tuple[int, int], ...] = ()
    """Layers and heads, from 0, whose cross-attention follows the sound, for the times of words in
    a model without a CTC head, such as an imported Whisper."""
    words: Literal["any", "known"] = "any"
    """Words that may be written: any, or known, those of a speech run's lexicon.txt. It has those
    of the training, one in each line, and what one adds: better where few others are said, wrong
    where many are. Texts with a prefix or required phrases are free of it."""
    glossary: tuple[tuple[str, str], ...] = ()
    """Terms and their translations, in Python a dict: where a term stands in a source, its
    translation is likelier; in transcripts, all translations are. A term in small letters stands
    for itself in any case."""
    glossary_bonus: float = 4.0
    """How much likelier, in nats; inf = a translation must come. Raise it where terms are missed,
    lower it where they come too often."""
    lm_weight: Common[float] = 0.0
    """Weight of a language model beside the run, as --lm and td.load(RUN, lm=...) name one; 0.1 to
    0.5 where there is much more text than the run was trained on."""

    sample: Common[bool] = False
    """Draw n_best outputs at random, by their probability, instead of searching for the likeliest:
    for variety, as in back-translation."""
    seed: int = 0
    """Seed of what is drawn. Sample k of a source depends on it and on the number of the source,
    not on its neighbours."""

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
                "temperature, top_k, top_p and min_p are of sampling, but "
                f"temperature={self.temperature}, top_k={self.top_k}, top_p={self.top_p}, "
                f"min_p={self.min_p} and sample=False; add sample"
            )

    def rngs(self, source: int, part: int = 0) -> list[np.random.Generator]:
        """What the samples of a source, or of a part of it, are drawn with; none where nothing
        is."""
        ks = range(self.n_best if self.sample else 0)
        return [np.random.default_rng((self.seed, source, part, k)) for k in ks]

    def changed(self, **settings: Any) -> "SearchConfig":
        """The same with other settings. A beam too narrow for n_best becomes as wide, unless
        beam_size is named too; without sample, its settings are gone, too.

        Raises:
            InputError: there is no such setting, or its value does not fit.
        """
        settings = checked(self, settings)
        if "n_best" in settings:
            settings.setdefault("beam_size", max(self.beam_size, settings["n_best"]))
        if settings.get("sample") is False:  # those of a run are no wish of the user's
            settings = UNCHANGED | settings
        if "max_seconds" in settings:  # the run's shortest segment is no wish of the user's
            settings.setdefault("min_seconds", min(self.min_seconds, settings["max_seconds"]))
        return replace(self, **settings)

    def greedy(self) -> "SearchConfig":
        """The same, but searched greedily."""
        return self.changed(**GREEDY)


@dataclass(frozen=True, kw_only=True)
class GenerationConfig(RulesConfig, SamplingConfig):
    """How to go on from a prompt."""

    temperature: Common[float] = 1.0
    """Logits are divided by it: below 1 safer, above 1 bolder; 0 takes the likeliest token."""
    top_k: Common[int] = 0
    """Draw among the k likeliest tokens (more where some are equally likely); 0 = off."""
    top_p: Common[float] = 1.0
    """Draw among the fewest of this probability; 1 = off."""
    min_p: Common[float] = 0.0
    """Leave out what has less than this share of the likeliest token's probability; 0 = off."""
    max_length: Common[int] = 256
    """New tokens at most, an end included."""
    beam_size: Common[int] = 1
    """More than 1: beam search, which draws nothing."""
    alpha: float = 0.6
    """In beam search, the exponent of the length penalty ((5 + length) / 6)^alpha, over new
    tokens."""
    seed: Common[int] = 0
    """Seed of all that is drawn."""
    n: Common[int] = 1
    """Texts per prompt; the n best ones in beam search."""
    batch_size: Common[int] = 16
    """Texts at a time, or beams. It changes speed and memory, never the output."""

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
                "beam search draws nothing and keeps beam_size texts, so it takes temperature=1, "
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
        """The same with other settings. A beam leaves out how to draw, unless that is named too.

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
        """What text k of prompt i is drawn with."""
        return np.random.default_rng((self.seed, i, k))
