"""Plots of learning curves and attention by matplotlib, which is imported when needed."""

import io
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard, TypeVar

import numpy as np
from jaxtyping import Float
from torch import Tensor

from transduce.config import Json
from transduce.errors import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAMES = {"bleu": "BLEU", "wer": "WER (%)", "cer": "CER (%)", "loss": "loss (nats per token)"}

Points = list[tuple[int | float, int | float]]
"""Updates, and what was measured after each."""

KINDS = ("train", "valid")
"""The kinds of lines in metrics.jsonl that are plotted."""

LABELS = ("training", "validation")

NO_METRICS = {"update", "epoch", "kind", "seconds", "skipped", "perplexity"}
"""Fields of a validation's line that are not plotted."""

MAX_POINTS = 500
"""Maximum number of points of a curve; a longer one is thinned evenly."""

MAX_LABELS = 100
"""Maximum number of tokens beside an attention map; more take seconds to lay out."""

ItemT = TypeVar("ItemT")


def curves(metrics: list[Json]) -> dict[str, tuple[Points, Points]]:
    """Training and validation points by metric, the loss first; values that are not numbers are
    left out."""
    points: dict[str, tuple[Points, Points]] = {"loss": ([], [])}
    for line in metrics:
        kind = line.get("kind")
        if kind not in KINDS:
            continue
        measured = {name: value for name, value in line.items() if name not in NO_METRICS}
        if kind == "train":  # the training loss may have terms that validation lacks
            measured = {"loss": line.get("cross_entropy", line.get("loss"))}
        update = line.get("update")
        for name, value in measured.items():
            if _is_finite(update) and _is_finite(value):
                points.setdefault(name, ([], []))[KINDS.index(kind)].append((update, value))
    return {
        name: (spread(training, MAX_POINTS), spread(validation, MAX_POINTS))
        for name, (training, validation) in points.items()
    }


def _is_finite(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and abs(value) < 1e300


def spread(items: Sequence[ItemT], most: int) -> list[ItemT]:
    """Choose at most `most` evenly spaced items, including the first and the last."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def _plot_curves(axes: "Axes", name: str, lines: tuple[Points, Points]) -> None:
    for kind, label, points in zip(KINDS, LABELS, lines, strict=True):
        if points:
            marker = "." if kind == "valid" or len(points) == 1 else ""
            axes.plot(*np.array(points).T, marker=marker, label=label, gid=kind)
    axes.set(xlabel="update", ylabel=NAMES.get(name, name))
    axes.grid(alpha=0.3)
    if any(lines):
        axes.legend(frameon=False)


def learning_curve(metrics: list[Json], path: Path) -> None:
    """Plot training and validation loss, and every other validation metric, against updates."""
    from matplotlib.figure import Figure

    plots = curves(metrics)
    figure = Figure(figsize=(5 * len(plots), 3.6), layout="constrained")
    all_axes = figure.subplots(1, len(plots), squeeze=False)[0]
    for (name, lines), axes in zip(plots.items(), all_axes, strict=True):
        _plot_curves(axes, name, lines)
    figure.savefig(path, dpi=120)


def curve_svg(name: str, lines: tuple[Points, Points]) -> bytes:
    """Plot the curves of one metric as SVG. Equal points give equal bytes."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    file = io.BytesIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure = Figure(figsize=(5, 3.2), layout="constrained")
        _plot_curves(figure.subplots(), name, lines)
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def attention_map(
    weights: Float[Tensor, "T S"],
    tokens: Sequence[str],
    source: Sequence[str] | float,
    title: str,
    path: Path | str | io.BytesIO,
) -> None:
    """Plot cross-attention: a column per source position, a row per output token.

    Args:
        tokens: the T output tokens.
        source: the S source tokens; or, for sound, the seconds between two positions.
    """
    require("matplotlib", "a picture", "train")
    from matplotlib.figure import Figure

    n_steps, n_positions = weights.shape
    seconds = source if isinstance(source, float) else None
    width = 3 + n_positions / (20 if seconds else 4)
    height = (1.5 if seconds else 2.5) + n_steps / 5
    figure = Figure(figsize=(min(width, 14), min(height, 22)), layout="constrained")
    axes = figure.subplots()
    extent = (0, n_positions * (seconds or 1.0), n_steps, 0)
    image = axes.imshow(weights.cpu().numpy(), aspect="auto", cmap="Greys", extent=extent, vmin=0)
    _label(axes.set_yticks, tokens)
    if isinstance(source, float):
        axes.set_xlabel("seconds")
    else:
        _label(axes.set_xticks, source, rotation=90)
    axes.set_title(title, parse_math=False)
    figure.colorbar(image, label="attention")
    with warnings.catch_warnings():
        # a missing glyph is an empty box; before matplotlib 3.11, Hindi gives both warnings
        warnings.filterwarnings("ignore", message="Glyph .* missing|.*does not support .* natively")
        figure.savefig(path, dpi=120)


def _label(set_ticks: Callable[..., object], tokens: Sequence[str], rotation: int = 0) -> None:
    """Put tokens beside the middles of their rows or columns."""
    shown = range(0, len(tokens), -(-len(tokens) // MAX_LABELS))
    labels = [tokens[i] for i in shown]
    # $ does not begin a formula
    set_ticks([i + 0.5 for i in shown], labels=labels, parse_math=False, rotation=rotation)
