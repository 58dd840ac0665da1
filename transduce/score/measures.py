"""Every measure by its name."""

from dataclasses import replace

from transduce.errors import InputError
from transduce.score.bleu import BleuMeasure, bleu, bleu_lowercase, chrf, chrf_words, ter
from transduce.score.comet import comet
from transduce.score.score import Measure
from transduce.score.tokenization import Tokenization
from transduce.score.wer import cer, per, wer

ALL = (bleu, bleu_lowercase, chrf, chrf_words, ter, wer, cer, per, comet)
MEASURES: dict[str, Measure] = {each.name: each for each in ALL}


def get_measure(name: str, tokenize: Tokenization | None = None) -> Measure:
    """The measure of this name; BLEU counts tokens of this kind.

    Raises:
        InputError: there is none.
    """
    if name not in MEASURES:
        raise InputError(
            f"a measure must be one of {', '.join(MEASURES)}, but it is {name!r}; name one of these"
        )
    measure = MEASURES[name]
    return replace(measure, tokenize=tokenize) if isinstance(measure, BleuMeasure) else measure
