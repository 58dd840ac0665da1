"""Plots of a training. Matplotlib is slow to load, so it is loaded when the first plot is drawn."""

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

NAMES = {"bleu": "BLEU", "wer": "WER (%)", "cer": "CER (%)", "loss": "loss (nats per token)"}


def learning_curve(metrics: list[dict[str, Any]], path: Path) -> None:
    """Plot training and validation loss, and every other validation metric, against updates."""
    from matplotlib.figure import Figure

    train = [line for line in metrics if line["kind"] == "train"]
    valid = [line for line in metrics if line["kind"] == "valid"]
    standard = {"update", "epoch", "kind", "seconds", "skipped", "perplexity"}  # perplexity is the loss again
    names = ["loss", *(name for name in (valid[-1] if valid else {}) if name not in standard | {"loss"})]
    figure = Figure(figsize=(5 * len(names), 3.6), layout="constrained")
    for name, axes in zip(names, figure.subplots(1, len(names), squeeze=False)[0], strict=True):
        if name == "loss":
            axes.plot([x["update"] for x in train], [x["loss"] for x in train], label="training, smoothed targets")
        axes.plot([x["update"] for x in valid], [x[name] for x in valid], marker=".", label="validation")
        axes.set(xlabel="update", ylabel=NAMES.get(name, name))
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
    figure.savefig(path, dpi=120)


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
