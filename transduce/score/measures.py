"""Every measure by its name, COMET, and minimum Bayes risk by any measure of sentences."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.metadata import version
from typing import Any

import numpy as np
from jaxtyping import Float
from sacrebleu.metrics import BLEU, CHRF

from transduce.errors import InputError, require
from transduce.score.bleu import (
    BleuMeasure,
    Tokenization,
    bleu,
    bleu_lowercase,
    chrf,
    chrf_words,
    ter,
)
from transduce.score.score import (
    Lines,
    Measure,
    Statistics,
    Values,
    bootstrap_signature,
    check_lines,
)
from transduce.score.wer import cer, line_errors, per, wer


@dataclass(frozen=True, kw_only=True)
class CometMeasure(Measure):
    """The mean judgement of all lines, times 100; `with_sources` names the sources.

    Source: Rei et al. (2022), COMET-22: Unbabel-IST 2022 submission for the metrics shared task.
    """

    model: str = "Unbabel/wmt22-comet-da"
    """A model that unbabel-comet downloads, or finds in its cache."""
    sources: Lines = field(default=(), repr=False)

    def with_sources(self, sources: Lines | None) -> "CometMeasure":
        """The measure for outputs of these sources.

        Raises:
            InputError: unbabel-comet is not installed, or the sources are no text.
        """
        elsewhere = (
            " in an environment of its own, without constraints.txt, as it wants numpy below 2"
        )
        require("comet", "COMET", "comet", elsewhere)
        if sources is None:
            raise InputError(
                "COMET reads source texts, but the sources are sound; name another measure, such "
                "as bleu"
            )
        return replace(self, sources=sources)

    def statistics(self, hypotheses: Lines, references: Sequence[Lines]) -> Statistics:
        """The judgement of every line, times 100, and 1."""
        (rights,) = references
        check_lines({"hypotheses": hypotheses, "sources": self.sources})
        sides = zip(self.sources, hypotheses, rights, strict=True)
        data = [
            {"src": source, "mt": output, "ref": reference} for source, output, reference in sides
        ]
        from transduce.device import (
            default_device,
        )  # torch takes seconds to import, and --help does without

        gpus = int(default_device() != "cpu")
        predicted = _model(self.model).predict(data, batch_size=8, gpus=gpus, progress_bar=False)
        return np.array([(100 * score, 1.0) for score in predicted.scores])

    def value(self, sums: Values) -> float:
        total, n = sums
        return float(total / n)

    def signature(self, resamples: int) -> str:
        model = f"model:{self.model}|scale:100|version:{version('unbabel-comet')}"
        return bootstrap_signature(resamples) + model


@lru_cache(maxsize=1)
def _model(name: str) -> Any:
    """The model that judges; loading takes longer than judging."""
    import comet

    return comet.load_from_checkpoint(comet.download_model(name))


comet = CometMeasure(
    name="comet", title="COMET", description="the judgement of a trained model, times 100"
)


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


def minimum_bayes_risk(
    texts: Sequence[str], log_probs: Sequence[float], measure: str, *, sampled: bool
) -> list[tuple[int, float]]:
    """Texts by the expected value of a measure against all; error rates are negative.

    Samples count as often as they were drawn, hypotheses of a beam by their probabilities.

    Returns:
        Of every distinct text, the place of the likeliest that is equal, and the expected value.
    Source: Eikema and Aziz (2020), Is MAP decoding all you need?, section 6, for samples; Kumar and
    Byrne (2004), Minimum Bayes-risk decoding for statistical machine translation, for lists of the
    n best.
    """
    weights = np.ones(len(texts)) if sampled else np.exp(np.array(log_probs) - max(log_probs))
    places: dict[str, list[int]] = {text: [] for text in texts}
    for i, text in enumerate(texts):
        places[text].append(i)
    mass = [sum(weights[same].tolist()) for same in places.values()]
    expected = utilities(measure, [*places]) @ (np.array(mass) / sum(mass))
    likeliest = [max(same, key=log_probs.__getitem__) for same in places.values()]
    return [(likeliest[i], float(expected[i])) for i in (-expected).argsort(kind="stable")]


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
