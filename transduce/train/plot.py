"""Pictures of a training."""

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

NAMES = {"bleu": "BLEU", "wer": "WER", "cer": "CER", "loss": "loss (nats per token)"}


def learning_curve(metrics: list[dict[str, Any]], path: Path) -> None:
    """Training and validation loss, and every other validation metric, against updates."""
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
