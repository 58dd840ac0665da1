"""BLEU, chrF and TER by sacrebleu: how they are counted is written in the signature that each score carries."""

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from jaxtyping import Float
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.metrics.base import Metric
from sacrebleu.significance import estimate_ci

from transduce.score.bootstrap import SEED, p_value, resampled_sums
from transduce.score.score import Comparison, Lines, Measure, Score, check_lines, check_resamples
from transduce.score.tokenization import Tokenization, check_tokenization, tokenization

logger = logging.getLogger(__name__)

CHUNK = 200
"""Lines whose n-grams are in memory at a time: as many as fit into a CPU's caches."""


@dataclass(frozen=True, kw_only=True)
class TranslationMeasure(Measure):
    """A corpus measure of sacrebleu for plain, untokenized text; case counts unless `lowercase`.

    Every further list of references is another whole translation, line by line. The interval is sacrebleu's: from the
    2.5th to the 97.5th percentile of the bootstrap draws, centred on their mean; the seed is its own (12345, or the
    environment's SACREBLEU_SEED).

    Source: Post (2018), A call for clarity in reporting BLEU scores; Koehn (2004) for the interval.
    """

    metric: Callable[..., Metric]
    """Makes sacrebleu's metric; called with `lowercase`."""
    lowercase: bool = False

    def counter(self, references: Sequence[Lines]) -> Metric:
        """The metric of sacrebleu that counts against these references."""
        return self.metric(lowercase=self.lowercase)

    def __call__(self, hypotheses: Lines, references: Lines, *more: Lines, resamples: int = 1000) -> Score:
        """The score of all lines together, with its 95 % interval."""
        check_lines({"hypotheses": hypotheses} | _numbered(references, *more))
        check_resamples(resamples, compared=False)
        if resamples:
            ((score, _),) = self._bootstrap([hypotheses], [references, *more], resamples)
            return score
        metric = self.counter([references, *more])
        got = metric._compute_score_from_stats(_statistics(metric, hypotheses, [references, *more]).sum(axis=0))
        return Score(got.name, got.score, str(metric.get_signature()), len(hypotheses))

    def compare(
        self, hypotheses: Lines, other: Lines, references: Lines, *more: Lines, resamples: int = 1000
    ) -> Comparison:
        """Tell whether two systems differ by more than the choice of lines explains: paired bootstrap."""
        check_lines({"hypotheses": hypotheses, "other": other} | _numbered(references, *more))
        check_resamples(resamples, compared=True)
        (system, ours), (rival, theirs) = self._bootstrap([hypotheses, other], [references, *more], resamples)
        return Comparison(system, rival, p_value(system.value - rival.value, ours - theirs))

    def _bootstrap(
        self, systems: Sequence[Lines], references: Sequence[Lines], resamples: int
    ) -> list[tuple[Score, Float[np.ndarray, " R"]]]:
        """Each system's score with its interval, and its score on every draw of the lines.

        The draws are those of sacrebleu's PairedTest, whose memory grows with lines * resamples.
        """
        metric = self.counter(references)
        statistics = [_statistics(metric, system, references) for system in systems]
        setting = os.environ.get("SACREBLEU_SEED", str(SEED)).lower()
        signature = metric.get_signature()
        signature.update("seed", setting)
        signature.update("bs", resamples)
        sums = resampled_sums(np.hstack(statistics), resamples, None if setting == "none" else int(setting))
        found = []
        for one, drawn in zip(statistics, np.split(sums, len(systems), axis=1), strict=True):
            score = metric._compute_score_from_stats(one.sum(axis=0))
            scores = np.array([metric._compute_score_from_stats(each).score for each in drawn])
            mean, half = estimate_ci(scores)
            with_interval = Score(
                score.name, score.score, str(signature), len(one), float(mean - half), float(mean + half)
            )
            found.append((with_interval, scores))
        return found


def _statistics(metric: Metric, hypotheses: Lines, references: Sequence[Lines]) -> Float[np.ndarray, "U K"]:
    """What the metric sums up over the lines, such as matching n-grams, for every line."""
    found = []
    for start in range(0, len(hypotheses), CHUNK):
        chunk = slice(start, start + CHUNK)
        parts = metric._extract_corpus_statistics(hypotheses[chunk], [lines[chunk] for lines in references])
        found.append(np.array(parts, dtype=np.float64))
        metric._force = True  # of tokenized text, BLEU has warned by now
    return np.concatenate(found)


def _numbered(*references: Lines) -> dict[str, Lines]:
    return {f"reference {i}": lines for i, lines in enumerate(references, start=1)}


def _ter(*, lowercase: bool) -> TER:
    """TER in which case counts as it does in BLEU; the sacrebleu command ignores case here unless told otherwise."""
    return TER(case_sensitive=not lowercase)


@dataclass(frozen=True, kw_only=True)
class BleuMeasure(TranslationMeasure):
    """Corpus BLEU with exponential smoothing.

    Source: Papineni et al. (2002), BLEU.
    """

    metric: Callable[..., Metric] = BLEU
    tokenize: Tokenization | None = None
    """How words are separated; None: as the script of the references asks for (`tokenization`)."""

    def counter(self, references: Sequence[Lines]) -> Metric:
        """BLEU of sacrebleu; it warns where no reference is long enough.

        Raises:
            InputError: this tokenization needs a library that is not installed.
        """
        named = self.tokenize or tokenization(line for lines in references for line in lines)
        check_tokenization(named)
        metric = BLEU(lowercase=self.lowercase, tokenize=named)
        longest = metric.max_ngram_order
        if all(len(metric.tokenizer(line.rstrip()).split()) < longest for lines in references for line in lines):
            logger.warning(
                "BLEU is 0 unless %d tokens in a row match, but no reference has so many (tok:%s); "
                "score by chrF, or name another --tokenize",
                longest,
                named,
            )
        return metric


bleu = BleuMeasure(name="bleu", title="BLEU", description="matching word n-grams, 0 to 100")
"""BLEU in which case counts."""

bleu_lowercase = replace(bleu, name="bleu.lowercase", title="BLEU, lowercase", lowercase=True)
"""BLEU of texts in lower case."""

chrf = TranslationMeasure(
    name="chrf", title="chrF2", description="F-score of character 1- to 6-grams, 0 to 100", metric=CHRF
)
"""Source: Popović (2015), chrF."""

chrf_words = replace(chrf, name="chrf++", title="chrF2++", metric=partial(CHRF, word_order=2))
"""chrF with word 1- and 2-grams beside the characters.

Source: Popović (2017), chrF++: words helping character n-grams.
"""

ter = TranslationMeasure(
    name="ter", title="TER", description="edits per 100 reference words", higher_is_better=False, metric=_ter
)
"""Source: Snover et al. (2006), A study of translation edit rate."""
