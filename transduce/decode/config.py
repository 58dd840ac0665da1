"""The configuration of rules, beam search and sampling; this module does not import torch."""

from dataclasses import dataclass
from typing import Literal

from transduce.config import Common, at_least, check_choices, within
from transduce.errors import InputError

MAX_ALPHA = 10.0
"""The largest alpha: a length to a higher power might overflow."""


@dataclass(frozen=True, kw_only=True)
class RulesConfig:
    """Rules for the tokens of an output, in beam search, greedy search and sampling alike.

    Source: Paulus et al. (2018), A deep reinforced model for abstractive summarization, section
    2.5, for n-grams; Keskar et al. (2019), CTRL, section 4.1, for the penalty.
    """

    min_length: int = 0
    """Minimum number of tokens before EOS, for models whose outputs are too short; 0 = off."""
    no_repeat_ngram: int = 0
    """No n-gram of this many new tokens occurs twice, for models that repeat themselves; 0 =
    off."""
    repetition_penalty: float = 1.0
    """Divides the logits of tokens that occurred in the prompt or the output, and multiplies
    negative ones: a softer remedy for repetition, with 1.2 for example; 1 = off."""
    renormalize: bool = False
    """In beam search, the probability of forbidden tokens is distributed among the others."""
    suppress: tuple[int, ...] = ()
    """Ids of tokens that are never produced, in addition to special ones."""
    suppress_first: tuple[int, ...] = ()
    """Ids of tokens that are not produced first; EOS may be among them."""
    forbid: tuple[str, ...] = ()
    """Phrases that no output contains, not even inside a word. A space at either end also matches
    the beginning or end of the text."""

    logit_bias: tuple[tuple[str, float], ...] = ()
    """Nats that are added to the scores of tokens, given by their ids, and of phrases. A number is
    an id. A positive bias of a phrase counts once per output. A space at either end of a phrase
    also matches the beginning or end of the text. -100 practically forbids. In Python, a dict:
    {"Katze": 2.0, "17": -100}."""

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
        """The bias of each token id."""
        return {int(name): bias for name, bias in self.logit_bias if _is_id(name)}

    @property
    def biased_phrases(self) -> tuple[tuple[str, float], ...]:
        """The phrases with a bias, and their bias."""
        return tuple(pair for pair in self.logit_bias if not _is_id(pair[0]))


def _is_id(name: str) -> bool:
    """Whether a key of logit_bias is a token id; digits of other scripts are a text."""
    return name.isascii() and name.isdecimal()


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
    """End a beam search when beam_size hypotheses have ended, even if a better one might come, as
    in transformers."""
    at_max_length: Literal["finished_first", "by_score"] = "finished_first"
    """When beam search may return hypotheses that the length limit cut off: if fewer than beam_size
    are finished (finished_first), or also if their score is higher (by_score), as in
    transformers."""
    n_best: Common[int] = 1
    """Outputs per source, best first; samples in the order in which they are drawn."""

    def __post_init__(self) -> None:
        check_choices(self)
        at_least(0, self, "length_offset")
        within(f"[0, {MAX_ALPHA}]", self, "alpha")
        if not 1 <= self.n_best <= self.beam_size:
            raise InputError(
                f"n_best must lie between 1 and beam_size={self.beam_size}, which may be raised, "
                f"but n_best={self.n_best}"
            )

    def length_penalty(self, length: int) -> float:
        """The divisor of the log-probability of so many tokens, including EOS; 1 if alpha is 0.

        Source: Wu et al. (2016), Google's neural machine translation system, section 7.
        """
        return ((self.length_offset + length) / (self.length_offset + 1)) ** self.alpha


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """Changes of logits before a token is drawn, in the order temperature, top-k, top-p, min-p.

    Source: Fan et al. (2018), Hierarchical neural story generation, for top-k; Holtzman et al.
    (2020), The curious case of neural text degeneration, for the nucleus; Nguyen et al. (2025),
    Turning up the heat: min-p sampling for creative and coherent LLM outputs.
    """

    temperature: float = 1.0
    """In sampling, divides the logits, a number above 0: below 1 is safer, above 1 more random."""
    top_k: int = 0
    """In sampling, draw from the k most probable tokens (more if some are equally probable); 0 =
    off."""
    top_p: float = 1.0
    """In sampling, draw from the smallest set of tokens with this total probability; 1 = off."""
    min_p: float = 0.0
    """In sampling, leave out tokens with less than this fraction of the most probable token's
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
