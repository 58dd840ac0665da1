"""Plots of a training, and of attention. Matplotlib is slow to load, so it is loaded when the first plot is drawn."""

import math
import warnings
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float
from torch import Tensor

NAMES = {"bleu": "BLEU", "wer": "WER (%)", "cer": "CER (%)", "loss": "loss (nats per token)"}

Points = list[tuple[float, float]]
"""Updates, and what was measured after each."""

VALIDATION = "validation"

KINDS = {"training, smoothed targets": "train", VALIDATION: "valid"}
"""By what a line of a picture is called, the lines of metrics.jsonl that it is made of."""

MOST_POINTS = 500
"""Of a line of a picture in a page; of more, as many in equal steps are drawn."""

ItemT = TypeVar("ItemT")


def curves(metrics: list[dict[str, Any]]) -> dict[str, dict[str, Points]]:
    """What to draw of the lines of metrics.jsonl: by what was measured, its lines, the loss first; None is left out."""
    lines = {label: [line for line in metrics if line.get("kind") == kind] for label, kind in KINDS.items()}
    standard = {"update", "epoch", "kind", "seconds", "skipped", "perplexity"}  # perplexity is the loss again
    names = ["loss", *(name for name in (lines[VALIDATION] or [{}])[-1] if name not in standard | {"loss"})]
    return {
        name: {
            label: [
                (float(x["update"]), float(x[name]))
                for x in found
                if _is_number(x.get("update")) and _is_number(x.get(name))
            ]
            for label, found in lines.items()
            if name == "loss" or label == VALIDATION
        }
        for name in names
    }


def spread(items: Sequence[ItemT], most: int) -> list[ItemT]:
    """So many of the items at most, in equal steps, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) < 1e300


def learning_curve(metrics: list[dict[str, Any]], path: Path) -> None:
    """Plot training and validation loss, and every other validation metric, against updates."""
    from matplotlib.figure import Figure

    found = curves(metrics)
    figure = Figure(figsize=(5 * len(found), 3.6), layout="constrained")
    for (name, lines), axes in zip(found.items(), figure.subplots(1, len(found), squeeze=False)[0], strict=True):
        for label, points in lines.items():
            axes.plot(*np.array(points).reshape(-1, 2).T, marker="." if label == VALIDATION else "", label=label)
        axes.set(xlabel="update", ylabel=NAMES.get(name, name))
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
    figure.savefig(path, dpi=120)


WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 480, 300, 62, 14, 12, 44
"""Of a picture in a page, in its own units, and of the margins in which its numbers stand."""


def curve_svg(name: str, lines: dict[str, Points]) -> str:
    """The curves of one measurement as an SVG element, to stand in a page whose style gives the colours.

    A line is a polyline of class "train" or "valid"; points of validations are circles that tell their values. What is
    drawn depends on the points alone. Without points, it is an empty string.
    """
    thin = {label: spread(found, MOST_POINTS) for label, found in lines.items() if found}
    if not thin:
        return ""
    xs, ys = zip(*(point for found in thin.values() for point in found), strict=True)
    (x0, x1), (y0, y1) = _range(xs), _range(ys)

    def at(x: float, y: float) -> tuple[str, str]:
        across, up = (x - x0) / (x1 - x0), (y - y0) / (y1 - y0)
        right, down = LEFT + across * (WIDTH - LEFT - RIGHT), TOP + (1 - up) * (HEIGHT - TOP - BOTTOM)
        return f"{right:.2f}", f"{down:.2f}"

    title = escape(NAMES.get(name, name))
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title} by update">']
    for x in _ticks(x0, x1):
        place, _ = at(x, y0)
        parts.append(f'<path class="grid" d="M{place} {TOP}V{HEIGHT - BOTTOM}"/>')
        parts.append(f'<text class="x" x="{place}" y="{HEIGHT - BOTTOM + 18}">{x:g}</text>')
    for y in _ticks(y0, y1):
        _, place = at(x0, y)
        parts.append(f'<path class="grid" d="M{LEFT} {place}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text class="y" x="{LEFT - 6}" y="{place}" dy="0.35em">{y:g}</text>')
    for label, found in thin.items():
        parts.append(f'<polyline class="{KINDS[label]}" points="{" ".join(",".join(at(*point)) for point in found)}"/>')
        for update, value in found if label == VALIDATION or len(found) == 1 else []:
            right, down = at(update, value)
            told = f"<title>update {update:.0f}: {value:.4g}</title>"
            parts.append(f'<circle class="{KINDS[label]}" cx="{right}" cy="{down}" r="2.5">{told}</circle>')
    parts.append(f'<text class="x" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}">update</text></svg>')
    legend = "".join(f'<span class="{KINDS[label]}">{label}</span> ' for label in thin)
    return f"<figure><figcaption><b>{title}</b> {legend}</figcaption>{''.join(parts)}</figure>"


def _range(values: Sequence[float]) -> tuple[float, float]:
    """The least and the greatest, a little apart where they are one."""
    low, high = min(values), max(values)
    return (low, high) if low < high else (low - (abs(low) or 1) / 10, high + (abs(high) or 1) / 10)


def _ticks(low: float, high: float, most: int = 6) -> list[float]:
    """At most so many round numbers from one number to another: multiples of 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    step = next(power * by for by in (1, 2, 5, 10, 20) if (high - low) / (power * by) <= most - 1)
    return [i * step for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def attention_map(
    weights: Float[Tensor, "T S"], tokens: Sequence[str], source: Sequence[str] | float, title: str, path: Path
) -> None:
    """Plot cross-attention: the source runs to the right, and every output token has a row.

    Args:
        tokens: what each of the T steps produced.
        source: what stands at each of the S source positions; or, of sound, the seconds from one to the next.
    """
    from matplotlib.figure import Figure

    n_steps, n_places = weights.shape
    seconds = source if isinstance(source, float) else None
    width, height = (3 + n_places / 20, 1.5 + n_steps / 5) if seconds else (3 + n_places / 4, 2.5 + n_steps / 5)
    figure = Figure(figsize=(min(width, 14), min(height, 22)), layout="constrained")
    axes = figure.subplots()
    extent = (0, n_places * (seconds or 1.0), n_steps, 0)
    image = axes.imshow(weights.cpu().numpy(), aspect="auto", cmap="Greys", extent=extent, vmin=0)
    _name(axes.set_yticks, tokens)
    if isinstance(source, float):
        axes.set_xlabel("seconds")
    else:
        _name(axes.set_xticks, source, rotation=90)
    axes.set_title(title, parse_math=False)
    figure.colorbar(image, label="attention")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # an empty box does for scripts without a font
        figure.savefig(path, dpi=120)


def _name(ticks: Callable[..., object], tokens: Sequence[str], **style: Any) -> None:
    """Put tokens beside the middles of their rows or columns."""
    shown = range(0, len(tokens), -(-len(tokens) // 100))  # more labels take seconds to lay out
    labels = [tokens[i] for i in shown]
    ticks([i + 0.5 for i in shown], labels=labels, parse_math=False, **style)  # a "$" begins no formula


def read_picture(path: Path) -> Float[np.ndarray, "h w 3"]:
    """The pixels of a PNG, 0 to 1."""
    from matplotlib.image import imread

    return imread(path)[..., :3]
