"""Plots of a training. Matplotlib is slow to load, so it is loaded when the first plot is drawn."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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


def attention_map(weights: Float[Tensor, "T S"], tokens: Sequence[str], seconds: float, title: str, path: Path) -> None:
    """Plot the cross-attention of one head: time runs to the right, and every output token has a row.

    Args:
        tokens: what each of the T steps produced.
        seconds: the time from one source position to the next.
    """
    from matplotlib.figure import Figure

    n_steps, n_places = weights.shape
    figure = Figure(figsize=(min(3 + n_places / 20, 14), min(1.5 + n_steps / 5, 22)), layout="constrained")
    axes = figure.subplots()
    extent = (0, n_places * seconds, n_steps, 0)
    image = axes.imshow(weights.cpu().numpy(), aspect="auto", cmap="Greys", extent=extent, vmin=0)
    named = range(0, n_steps, -(-n_steps // 100))  # more labels take seconds to lay out
    labels = [tokens[step] for step in named]
    axes.set_yticks([step + 0.5 for step in named], labels=labels, parse_math=False)  # a "$" begins no formula
    axes.set_xlabel("seconds")
    axes.set_title(title, parse_math=False)
    figure.colorbar(image, label="attention")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # an empty box does for scripts without a font
        figure.savefig(path, dpi=120)
