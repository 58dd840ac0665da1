"""The configuration of rules, beam search and sampling, which is read without torch."""

from dataclasses import dataclass
from typing import Literal

from transduce.config import Common, at_least, check_choices, within
from transduce.errors import InputError

STEEPEST = 10.0
"""The largest alpha: lengths to a higher power are beyond floats."""


@dataclass(frozen=True, kw_only=True)
class RulesConfig:
    """Rules for the tokens of an output, in beam search, greedy search and sampling alike.

    Source: Paulus et al. (2018), A deep reinforced model for abstractive summarization, section
    2.5, for n-grams; Keskar et al. (2019), CTRL, section 4.1, for the penalty.
    """

    min_length: int = 0
    """At least this many tokens come out before the end, where outputs are too short; 0 = off."""
    no_repeat_ngram: int = 0
    """No n-gram of this many new tokens comes twice, where outputs go in circles; 0 = off."""
    repetition_penalty: float = 1.0
    """Logits of tokens that came before, in a prompt or after it, are divided by it, negative ones
    multiplied: a softer way out of circles, 1.2 say; 1 = off."""
    renormalize: bool = False
    """In beam search, the probability of forbidden tokens is shared among the others."""
    suppress: tuple[int, ...] = ()
    """Ids of tokens that never come out, beside special ones."""
    suppress_first: tuple[int, ...] = ()
    """Ids of tokens that do not come first; that of the end may be among them."""
    forbid: tuple[str, ...] = ()
    """Phrases that no output holds, not even inside of a word; a space at either end is also the
    beginning or end of the text."""

    logit_bias: tuple[tuple[str, float], ...] = ()
    """Nats that are added to the scores of tokens, named by their ids, and of phrases. A number is
    an id. More than 0 counts for a phrase once in an output. A space at either end of a phrase is
    the end of a word. -100 all but forbids. In Python, a dict: {"Katze": 2.0, "17": -100}."""

    def __post_init__(self) -> None:
        pairs = tuple((str(name), bias) for name, bias in dict(self.logit_bias).items())
        object.__setattr__(self, "logit_bias", pairs)
        for _, bias in pairs:
            within("[-1000, 1000]", logit_bias=bias)
        at_least(0, self, "min_length", "no_repeat_ngram")
        within("[0.001, 1000]", self, "repetition_penalty")
        if isinstance(self.forbid, str):
            raise InputError(
                f"forbid takes a list of phrases, but got one string; use [{self.forbid[:20]!r}]"
            )
        if not all((*self.forbid, *dict(pairs))):
            raise InputError(
                "a phrase that is forbidden or biased must have a character, but one is empty; "
                "leave it out"
            )
        at_least(0, suppress=min(self.suppress, default=None))
        at_least(0, suppress_first=min(self.suppress_first, default=None))

    @property
    def biased_ids(self) -> dict[int, float]:
        """The bias of tokens."""
        return {int(name): bias for name, bias in self.logit_bias if name.isdecimal()}

    @property
    def biased_phrases(self) -> tuple[tuple[str, float], ...]:
        """The bias of phrases."""
        return tuple(pair for pair in self.logit_bias if not pair[0].isdecimal())


@dataclass(frozen=True, kw_only=True)
class BeamConfig:
    """Beam search.

    Source: Wu et al. (2016), Google's neural machine translation system, section 7, for the length
    penalty.
    """

    beam_size: Common[int] = 5
    """Hypotheses that a search keeps; 1 is greedy search."""
    alpha: Common[float] = 0.6
    """Exponent of the GNMT length penalty ((5 + length) / 6)^alpha; 0 ranks by log-probability."""
    length_offset: float = 5.0
    """k in the length penalty ((k + length) / (k + 1))^alpha: 5 is GNMT's, and 0 with alpha = 1
    ranks by the mean log-probability of a token, as transformers and fairseq do."""
    early_stopping: bool = False
    """A beam search is over when beam_size hypotheses have ended, though a better one might come,
    as in transformers."""
    at_max_length: Literal["finished_first", "by_score"] = "finished_first"
    """Hypotheses of beam search that the bound on the length cut come out where fewer than
    beam_size are finished, or where their score is higher, as in transformers, for outputs that
    shall be the same as there."""
    n_best: Common[int] = 1
    """Outputs per source, best first; samples in the order in which they are drawn."""

    def __post_init__(self) -> None:
        check_choices(self)
        at_least(0, self, "length_offset")
        within(f"[0, {STEEPEST}]", self, "alpha")
        within(f"[1, {self.beam_size}]", self, "n_best")

    def length_penalty(self, length: int) -> float:
        """What the log-probability of so many tokens, EOS included, is divided by; alpha = 0 is
        off.

        Source: Wu et al. (2016), Google's neural machine translation system, section 7.
        """
        return ((self.length_offset + length) / (self.length_offset + 1)) ** self.alpha


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """Changes of logits before a token is drawn, in the order temperature, k, p, min-p.

    Source: Fan et al. (2018), Hierarchical neural story generation, for top-k; Holtzman et al.
    (2020), The curious case of neural text degeneration, for the nucleus; Nguyen et al. (2025),
    Turning up the heat: min-p sampling for creative and coherent LLM outputs.
    """

    temperature: float = 1.0
    """In sampling, logits are divided by it, a number above 0: below 1 safer, above 1 bolder."""
    top_k: int = 0
    """In sampling, draw among the k likeliest tokens (more where some are equally likely); 0 =
    off."""
    top_p: float = 1.0
    """In sampling, draw among the fewest tokens that have this probability together; 1 = off."""
    min_p: float = 0.0
    """In sampling, leave out tokens that have less than this share of the likeliest one's
    probability; 0 = off."""

    def __post_init__(self) -> None:
        within("[0, 100]", self, "temperature")
        at_least(0, self, "top_k")
        within("(0, 1]", self, "top_p")
        within("[0, 1]", self, "min_p")

    @property
    def is_default(self) -> bool:
        """Whether logits stay as they are."""
        return (self.temperature, self.top_k, self.top_p, self.min_p) == (1.0, 0, 1.0, 0.0)
