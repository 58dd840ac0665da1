"""The configuration of masking, which is read without torch."""

from dataclasses import dataclass

from transduce.config import within


@dataclass(frozen=True, kw_only=True)
class MaskingConfig:
    """How a text is corrupted for masked language modelling. The chosen tokens that are not replaced stay unchanged.

    Source: Devlin et al. (2019), BERT, section 3.1.
    """

    mask_probability: float = 0.15
    """The share of a row's tokens that is chosen, at least one token. BOS and EOS are never chosen."""
    mask_replace_probability: float = 0.8
    """The share of the chosen tokens that is replaced by the mask symbol."""
    random_replace_probability: float = 0.1
    """The share of the chosen tokens that is replaced by a random token; all tokens have the same probability."""

    def __post_init__(self) -> None:
        within("(0, 1]", mask_probability=self.mask_probability)
        masked, random = self.mask_replace_probability, self.random_replace_probability
        within("[0, 1]", mask_replace_probability=masked, random_replace_probability=random)
        within("[0, 1]", **{"mask_replace_probability + random_replace_probability": masked + random})
