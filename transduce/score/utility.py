"""How good one text is if another one is right, for every two of several."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from sacrebleu.metrics import BLEU, CHRF

from transduce.score.wer import cer, sentence_rates, wer


def utilities(measure: str, texts: Sequence[str]) -> Float[np.ndarray, "n n"]:
    """Row i, column j: the measure of text i against text j; an error rate is negative, so more is better.

    BLEU and chrF are sacrebleu's of one sentence, BLEU with the n-grams that a short one has (effective order).
    """
    n = len(texts)
    if measure in ("bleu", "chrf"):
        metric = BLEU(effective_order=True) if measure == "bleu" else CHRF()
        found = [metric.sentence_score(text, [right]).score for text in texts for right in texts]
    else:
        rates = {"wer": wer, "cer": cer}[measure]
        found = [-rate for rate in sentence_rates([t for t in texts for _ in texts], [*texts] * n, rates.unit)]
    return np.array(found).reshape(n, n)
