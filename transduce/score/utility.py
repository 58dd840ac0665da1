"""How good one text is if another one is right, for every two of several."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from sacrebleu.metrics import BLEU, CHRF

from transduce.score.alignment import line_errors
from transduce.score.wer import cer, wer


def utilities(measure: str, texts: Sequence[str]) -> Float[np.ndarray, "n n"]:
    """Row i, column j: the measure of text i against text j; error rates are negative.

    BLEU and chrF are sacrebleu's of one sentence, BLEU with the n-grams that a short one has
    (effective order). Errors are counted in percent of the reference, of which a blank one has one
    token.
    """
    n = len(texts)
    if measure in ("bleu", "chrf"):
        metric = BLEU(effective_order=True) if measure == "bleu" else CHRF()
        values = [metric.sentence_score(text, [right]).score for text in texts for right in texts]
    else:
        unit = {"wer": wer, "cer": cer}[measure].unit
        errors = line_errors([text for text in texts for _ in texts], [*texts] * n, unit)
        values = [-100 * each.total / max(1, each.n_reference) for each in errors]
    return np.array(values).reshape(n, n)
