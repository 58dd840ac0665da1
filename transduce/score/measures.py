"""Every measure by its name."""

from transduce.score.bleu import bleu, bleu_lowercase, chrf, ter
from transduce.score.comet import comet
from transduce.score.score import Measure
from transduce.score.wer import cer, per, wer

MEASURES: dict[str, Measure] = {each.name: each for each in (bleu, bleu_lowercase, chrf, ter, wer, cer, per, comet)}


def get_measure(name: str) -> Measure:
    """The measure of this name.

    Raises:
        ValueError: there is none.
    """
    if name not in MEASURES:
        raise ValueError(f"a measure must be one of {', '.join(MEASURES)}, but it is {name!r}; name one of these")
    return MEASURES[name]
