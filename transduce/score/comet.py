"""COMET by unbabel-comet: a trained model judges source, output and reference."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.metadata import version
from typing import Any

import numpy as np

from transduce.errors import InputError, require
from transduce.score.bootstrap import bootstrap_signature
from transduce.score.score import Lines, Measure, Statistics, Values, check_lines


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
