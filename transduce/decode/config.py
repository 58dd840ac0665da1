"""The configuration of what may come out and of sampling, which is read without torch."""

from dataclasses import dataclass

from transduce.config import at_least, within
from transduce.errors import InputError


@dataclass(frozen=True, kw_only=True)
class RulesConfig:
    """What may come out, in beam search, greedy search and sampling alike.

    Source: Paulus et al. (2018), A deep reinforced model for abstractive summarization, section 2.5, for n-grams;
    Keskar et al. (2019), CTRL, section 4.1, for the penalty.
    """

    min_length: int = 0
    """At least this many tokens come out before the end, where outputs are too short; 0 = off."""
    no_repeat_ngram: int = 0
    """No n-gram of this many new tokens comes out twice, where outputs go in circles; 0 = off."""
    repetition_penalty: float = 1.0
    """Logits of tokens that came before, in a prompt or after it, are divided by it, negative ones multiplied: a softer
    way out of circles, 1.2 say; 1 = off."""
    renormalize: bool = False
    """In beam search, what may not come out leaves its probability to all that may."""
    suppress: tuple[int, ...] = ()
    """Ids of tokens that never come out, beside special ones."""
    suppress_first: tuple[int, ...] = ()
    """Ids of tokens that do not come first; that of the end may be among them."""
    forbid: tuple[str, ...] = ()
    """Phrases that no output holds, not even inside of a word; a space at either end is the end of a word."""

    def __post_init__(self) -> None:
        at_least(0, min_length=self.min_length, no_repeat_ngram=self.no_repeat_ngram)
        within("[0.001, 1000]", repetition_penalty=self.repetition_penalty)
        if not all(self.forbid):
            raise InputError("a forbidden phrase must have a character, but one is empty; leave it out")
        at_least(0, suppress=min(self.suppress, default=None))
        at_least(0, suppress_first=min(self.suppress_first, default=None))


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """How logits are changed before a token is drawn; the fields apply in the order temperature, k, p.

    Source: Fan et al. (2018), Hierarchical neural story generation, for top-k; Holtzman et al. (2020), The curious case
    of neural text degeneration, for the nucleus.
    """

    temperature: float = 1.0
    """Logits are divided by it: below 1 safer, above 1 bolder; 0 always takes the likeliest token (greedy search)."""
    top_k: int = 0
    """Draw among the k likeliest tokens (more where some are equally likely); 0 = off."""
    top_p: float = 1.0
    """Draw among the fewest tokens that have this probability together; 1 = off."""

    def __post_init__(self) -> None:
        at_least(0, temperature=self.temperature, top_k=self.top_k)
        within("(0, 1]", top_p=self.top_p)
