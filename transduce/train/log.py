"""The log of a training: a progress bar, metrics.jsonl, TensorBoard, sample outputs and a learning curve."""

import json
import math
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

from tqdm import tqdm

from transduce.files import read_json_lines, write_file
from transduce.plot import learning_curve, read_picture
from transduce.progress import Bar
from transduce.train.state import Progress, Validation

EVERY = 50
"""Updates between two training lines in metrics.jsonl."""


class Log:
    """Writes the log into `directory`. When a training resumes, the lines of updates that it repeats are removed first.

    Args:
        full_speed: the tokens/s that would use the whole device; MFU is the share of it that the training reaches
            (Chowdhery et al. 2022, PaLM). None: unknown.
    """

    def __init__(self, directory: Path, max_updates: int, full_speed: float | None = None) -> None:
        self.full_speed = full_speed
        self.directory, self.path, self.max_updates = directory, directory / "metrics.jsonl", max_updates
        self.bar: Any = None
        self.board: Any = None
        self.recent: deque[tuple[float, int]] = deque(maxlen=EVERY)
        self.losses: list[dict[str, float]] = []
        self.shown: dict[str, str] = {}

    def open(self, progress: Progress) -> None:
        """Start the log after update `progress.update`."""
        from torch.utils.tensorboard import SummaryWriter  # slow to load, so only a training does

        if self.path.exists():
            kept = [line for line in read_json_lines(self.path) if line.get("update", math.inf) <= progress.update]
            write_file(self.path, "".join(json.dumps(line) + "\n" for line in kept))
        if progress.update:
            self.say(f"resuming after update {progress.update}")
        self.board = SummaryWriter(str(self.directory / "tensorboard"), purge_step=progress.update + 1)
        self.bar = Bar(total=self.max_updates, initial=progress.update, unit="update", mininterval=0.5)

    def close(self) -> None:
        """Finish the progress bar and write what is left for TensorBoard."""
        self.bar.close()
        self.board.close()

    def say(self, message: str) -> None:
        """Print a line to the terminal without disturbing the progress bar."""
        tqdm.write(message, file=sys.stderr)

    def update(self, progress: Progress, losses: dict[str, float], *, norm: float, rate: float, n_tokens: int) -> None:
        """Show an update; one in EVERY updates writes the means since the last line.

        Args:
            losses: the "loss" in nats per token, and its parts, which are written where there is more than one.
        """
        self.recent.append((time.monotonic(), n_tokens))
        if math.isfinite(losses["loss"]):  # a skipped update says nothing about the others
            self.losses.append(losses)
        speed = self._tokens_per_second()
        self.bar.update()
        self.shown |= {"loss": f"{losses['loss']:.3f}", "tokens/s": f"{speed:,.0f}"}
        if self.full_speed:
            self.shown["MFU"] = f"{speed / self.full_speed:.1%}"
        self.bar.set_postfix(self.shown, refresh=False)
        if progress.update % EVERY == 0:
            names = list(losses) if len(losses) > 2 else ["loss"]  # a single part is the loss again
            finite, self.losses = self.losses, []
            means = {name: sum(x[name] for x in finite) / len(finite) if finite else math.nan for name in names}
            told = means | {"gradient_norm": norm, "rate": rate, "tokens_per_second": round(speed, 1)}
            self._write(progress, "train", told)

    def validation(self, progress: Progress, validation: Validation) -> None:
        """Write the numbers, samples and pictures of a validation, and draw the learning curve anew."""
        self.recent.clear()  # validation is not training speed
        self._write(progress, "valid", validation.metrics)
        told = ", ".join(f"{name} {value:.3f}" for name, value in validation.metrics.items())
        best = " (best so far)" if progress.validations_since_best == 0 else ""
        self.say(f"update {progress.update}, epoch {progress.epoch + 1}, {progress.seconds / 60:.1f} min: {told}{best}")
        for source, reference, output in validation.samples:
            self.say(f"  {source}\n    should be  {reference}\n    is         {output}")
        self.shown |= {name: f"{value:.2f}" for name, value in validation.metrics.items() if name != "loss"}
        self.bar.set_postfix(self.shown)
        samples = self.directory / "samples"
        samples.mkdir(exist_ok=True)
        for name, draw in validation.pictures.items():
            path = samples / f"{progress.update:08d}.{name}.png"
            draw(path)
            self.board.add_image(f"valid/{name}", read_picture(path), progress.update, dataformats="HWC")
        if validation.samples:
            # indented lines are code in Markdown, which is shown as it is
            shown = [f"    {s}\n    should be  {r}\n    is         {o}" for s, r, o in validation.samples]
            self.board.add_text("valid/samples", "\n    \n".join(shown), progress.update)
            text = "".join(f"{s}\t{r}\t{o}\n" for s, r, o in validation.samples)
            write_file(samples / f"{progress.update:08d}.tsv", text)
        learning_curve(read_json_lines(self.path), self.directory / "learning_curve.png")

    def _tokens_per_second(self) -> float:
        if len(self.recent) < 2:
            return 0.0
        seconds = self.recent[-1][0] - self.recent[0][0]
        return (sum(n for _, n in self.recent) - self.recent[0][1]) / max(seconds, 1e-9)

    def _write(self, progress: Progress, kind: str, values: dict[str, float]) -> None:
        line: dict[str, Any] = {"update": progress.update, "epoch": progress.epoch, "kind": kind}
        line |= {"seconds": round(progress.seconds, 1), "skipped": progress.skipped}
        line |= {name: value if math.isfinite(value) else None for name, value in values.items()}  # JSON has no NaN
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        for name, value in values.items():
            self.board.add_scalar(f"{kind}/{name}", value, progress.update)
        self.board.flush()


class NoLog(Log):
    """The log of a process that another one speaks for."""

    def open(self, progress: Progress) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""

    def say(self, message: str) -> None:
        """Nothing."""

    def update(self, progress: Progress, losses: dict[str, float], *, norm: float, rate: float, n_tokens: int) -> None:
        """Nothing."""

    def validation(self, progress: Progress, validation: Validation) -> None:
        """Nothing."""
