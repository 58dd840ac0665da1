"""BLEU, chrF and TER by sacrebleu; the signature of each score says how it was computed."""

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.metrics.base import Metric
from sacrebleu.significance import estimate_ci

from transduce.score.bootstrap import SEED
from transduce.score.score import Lines, Measure, Statistics, Values
from transduce.score.tokenization import Tokenization, check_tokenization, tokenization

logger = logging.getLogger(__name__)

CHUNK = 200
"""Lines whose n-grams are in memory at a time: as many as fit into a CPU's caches."""


@dataclass(frozen=True, kw_only=True)
class TranslationMeasure(Measure):
    """A corpus measure of sacrebleu for plain, untokenized text; case counts unless `lowercase`.

    Further lists of references are further translations, line by line. The bootstrap is
    sacrebleu's, with its seed: 12345, or the environment's SACREBLEU_SEED.

    Source: Post (2018), A call for clarity in reporting BLEU scores; Koehn (2004) for the interval.
    """

    make: Callable[..., Metric]
    """Makes sacrebleu's metric; called with `lowercase`."""
    lowercase: bool = False

    @cached_property
    def metric(self) -> Metric:
        return self.make(lowercase=self.lowercase)

    @property
    def seed(self) -> int | None:
        seed = os.environ.get("SACREBLEU_SEED", str(SEED)).lower()
        return None if seed == "none" else int(seed)

    def statistics(self, hypotheses: Lines, references: Sequence[Lines]) -> Statistics:
        chunks = []
        for start in range(0, len(hypotheses), CHUNK):
            chunk = slice(start, start + CHUNK)
            self.metric._force = start > 0  # BLEU warns of tokenized text once
            rows = self.metric._extract_corpus_statistics(
                hypotheses[chunk], [lines[chunk] for lines in references]
            )
            chunks.append(np.array(rows, dtype=np.float64))
        return np.concatenate(chunks)

    def value(self, sums: Values) -> float:
        return float(self.metric._compute_score_from_stats(sums.tolist()).score)

    def signature(self, resamples: int) -> str:
        signature = self.metric.get_signature()
        if resamples:
            signature.update("seed", str(self.seed).lower())
            signature.update("bs", resamples)
        return str(signature)

    def interval(self, values: Values) -> tuple[float, float]:
        """The interval of sacrebleu, as wide as that of percentiles, but around the mean."""
        mean, half = estimate_ci(values)
        return float(mean - half), float(mean + half)


@dataclass(frozen=True, kw_only=True)
class BleuMeasure(TranslationMeasure):
    """Corpus BLEU with exponential smoothing.

    Source: Papineni et al. (2002), BLEU.
    """

    make: Callable[..., Metric] = BLEU
    tokenize: Tokenization | None = None
    """How words are separated; None: as the script of the references demands (`tokenization`)."""

    @cached_property
    def metric(self) -> BLEU:
        return BLEU(lowercase=self.lowercase, tokenize=self.tokenize or "13a")

    def with_references(self, references: Sequence[Lines]) -> "BleuMeasure":
        """BLEU with the tokenization of these references; warn if none is long enough.

        Raises:
            InputError: this tokenization needs a library that is not installed.
        """
        lines = [line for each in references for line in each]
        name = self.tokenize or tokenization(lines)
        check_tokenization(name)
        measure = replace(self, tokenize=name)
        order = measure.metric.max_ngram_order
        if all(len(measure.metric.tokenizer(line.rstrip()).split()) < order for line in lines):
            logger.warning(
                "BLEU is 0 unless %d tokens in a row match, but no reference has so many (tok:%s); "
                "score by chrF, or name another --tokenize",
                order,
                name,
            )
        return measure


def _ter(*, lowercase: bool) -> TER:
    """TER in which case counts as in BLEU; the sacrebleu command ignores it by default."""
    return TER(case_sensitive=not lowercase)


bleu = BleuMeasure(name="bleu", title="BLEU", description="matching word n-grams, 0 to 100")
"""BLEU in which case counts."""

bleu_lowercase = replace(bleu, name="bleu.lowercase", title="BLEU, lowercase", lowercase=True)
"""BLEU of texts in lower case."""

chrf = TranslationMeasure(
    name="chrf",
    title="chrF2",
    description="F-score of character 1- to 6-grams, 0 to 100",
    make=CHRF,
)
"""Source: Popović (2015), chrF."""

chrf_words = replace(chrf, name="chrf++", title="chrF2++", make=partial(CHRF, word_order=2))
"""chrF with word 1- and 2-grams beside the characters.

Source: Popović (2017), chrF++: words helping character n-grams.
"""

ter = TranslationMeasure(
    name="ter",
    title="TER",
    description="edits per 100 reference words",
    higher_is_better=False,
    make=_ter,
)
"""Source: Snover et al. (2006), A study of translation edit rate."""
