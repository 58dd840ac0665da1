"""COMET by unbabel-comet, which is loaded when it is asked for: a trained model judges source, output and reference."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.metadata import version
from typing import Any

import numpy as np
from jaxtyping import Float

from transduce.errors import InputError, require
from transduce.score.bootstrap import SEED, p_value, resampled_sums
from transduce.score.score import Comparison, Lines, Measure, Score, check_lines, check_resamples


@dataclass(frozen=True, kw_only=True)
class CometMeasure(Measure):
    """The mean judgement of all lines, times 100; `of` says what was translated.

    The interval has 95 %: percentiles of bootstrap draws of the lines.

    Source: Rei et al. (2022), COMET-22: Unbabel-IST 2022 submission for the metrics shared task.
    """

    model: str = "Unbabel/wmt22-comet-da"
    """What unbabel-comet downloads, or finds in its cache."""
    sources: Lines = field(default=(), repr=False)

    def of(self, sources: Lines | None) -> "CometMeasure":
        """The measure for outputs of these sources.

        Raises:
            InputError: unbabel-comet is not installed, or the sources are no text.
        """
        elsewhere = " in an environment of its own, without constraints.txt, as it wants numpy below 2"
        require("comet", "COMET", "comet", elsewhere)
        if sources is None:
            raise InputError("COMET reads source texts, but the sources are sound; name another measure, such as bleu")
        return replace(self, sources=sources)

    def __call__(self, hypotheses: Lines, references: Lines, *, resamples: int = 1000) -> Score:
        """The score of all lines together, with its 95 % interval."""
        check_resamples(resamples, compared=False)
        judged = self._judged(hypotheses, references)
        return self._score(judged, _means(judged, resamples))

    def compare(self, hypotheses: Lines, other: Lines, references: Lines, *, resamples: int = 1000) -> Comparison:
        """Tell whether two systems differ by more than the choice of lines explains: paired bootstrap."""
        check_resamples(resamples, compared=True)
        ours, theirs = (self._judged(lines, references) for lines in (hypotheses, other))
        draws = [_means(judged, resamples) for judged in (ours, theirs)]
        system, rival = (self._score(*both) for both in zip((ours, theirs), draws, strict=True))
        return Comparison(system, rival, p_value(system.value - rival.value, draws[0] - draws[1]))

    def _judged(self, hypotheses: Lines, references: Lines) -> Float[np.ndarray, " n"]:
        """The judgement of every line, times 100."""
        check_lines({"hypotheses": hypotheses, "references": references, "sources": self.sources})
        sides = zip(self.sources, hypotheses, references, strict=True)
        data = [{"src": source, "mt": output, "ref": reference} for source, output, reference in sides]
        from transduce.device import default_device  # torch takes seconds to import, and --help does without

        found = _model(self.model).predict(data, batch_size=8, gpus=int(default_device() != "cpu"), progress_bar=False)
        return 100 * np.array(found.scores)

    def _score(self, judged: Float[np.ndarray, " n"], draws: Float[np.ndarray, " R"]) -> Score:
        interval: Sequence[float] = np.quantile(draws, (0.025, 0.975)).tolist() if len(draws) else ()
        bootstrap = f"bs:{len(draws)}|seed:{SEED}|" if len(draws) else ""
        signature = f"{bootstrap}model:{self.model}|scale:100|version:{version('unbabel-comet')}"
        return Score(self.title, float(judged.mean()), signature, len(judged), *interval)


def _means(judged: Float[np.ndarray, " n"], resamples: int) -> Float[np.ndarray, " R"]:
    """The mean of every bootstrap draw; as many lines give the same draws, so two systems are resampled as pairs."""
    return resampled_sums(judged[:, None], resamples, SEED)[:, 0] / len(judged)


@lru_cache(maxsize=1)
def _model(name: str) -> Any:
    """The model that judges; loading takes longer than judging."""
    import comet

    return comet.load_from_checkpoint(comet.download_model(name))


comet = CometMeasure(name="comet", title="COMET", description="the judgement of a trained model, times 100")
