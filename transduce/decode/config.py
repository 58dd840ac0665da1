"""The configuration of sampling, which is read without torch."""

from dataclasses import dataclass

from transduce.config import at_least, within


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """How logits are changed before a token is drawn; the fields apply in the order penalty, temperature, k, p.

    Source: Keskar et al. (2019), CTRL, section 4.1, for the penalty; Fan et al. (2018), Hierarchical neural story
    generation, for top-k; Holtzman et al. (2020), The curious case of neural text degeneration, for the nucleus.
    """

    temperature: float = 1.0
    """Logits are divided by it: below 1 safer, above 1 bolder; 0 always takes the likeliest token (greedy search)."""
    top_k: int = 0
    """Draw among the k likeliest tokens (more where some are equally likely); 0 = off."""
    top_p: float = 1.0
    """Draw among the fewest tokens that have this probability together; 1 = off."""
    repetition_penalty: float = 1.0
    """Logits of tokens that came before, in the prompt or after it, are divided by it, negative ones multiplied."""

    def __post_init__(self) -> None:
        at_least(0, temperature=self.temperature, top_k=self.top_k)
        within("(0, 1]", top_p=self.top_p)
        within("(0, inf)", repetition_penalty=self.repetition_penalty)
