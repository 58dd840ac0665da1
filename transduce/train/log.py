"""The log of a training, a list of sinks: a progress bar with the model FLOPs utilization (MFU),
files of the run, TensorBoard, services (trackers.py), and others."""

import json
import math
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from transduce.device import peak_memory
from transduce.errors import require
from transduce.files import read_json_lines, write_file
from transduce.plot import learning_curve
from transduce.process import Bar
from transduce.train.config import TrainingConfig
from transduce.train.state import Progress, Validation

EVERY = 50
"""Updates between two training lines in metrics.jsonl."""


class Sink:
    """Receives what a training reports; a subclass overrides the methods that it needs."""

    def open(self, progress: Progress) -> None:
        """Start after update `progress.update`; later ones that were reported will be repeated."""

    def update(self, losses: dict[str, float], tokens_per_second: float) -> None:
        """Receive the losses of every update, in nats per token."""

    def numbers(self, progress: Progress, kind: str, values: dict[str, float]) -> None:
        """Receive the metrics of a validation ("valid"), or of every EVERYth update ("train"): the
        mean losses since the last training line or since the training was resumed, and this
        update's gradient norm and rate."""

    def validation(self, progress: Progress, validation: Validation) -> None:
        """Receive a validation, after its numbers."""

    def message(self, text: str) -> None:
        """Receive a line for the user."""

    def close(self) -> None:
        """Finish."""


class Log:
    """Passes what a training reports to sinks, in their order."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self.sinks = sinks
        self.n_tokens = 0
        self.recent: deque[tuple[float, int]] = deque(maxlen=EVERY)
        """Time of each of the last updates, and number of tokens until then."""
        self.speed = 0.0
        """Tokens a second in these updates, or, while there is only one, in those before."""
        self.losses: list[dict[str, float]] = []
        """Finite losses since the last training line."""

    def open(self, progress: Progress) -> None:
        """Open all sinks."""
        for sink in self.sinks:
            sink.open(progress)

    def update(
        self,
        progress: Progress,
        losses: dict[str, float],
        *,
        norm: float,
        rate: float,
        n_tokens: int,
        at: float,
    ) -> None:
        """Report an update; every EVERYth one also reports the means since the last line.

        Args:
            losses: the "loss" in nats per token, and its parts.
            at: when the update was made, by time.monotonic; it may be reported later.
        """
        self.n_tokens += n_tokens
        self.recent.append((at, self.n_tokens))
        if math.isfinite(losses["loss"]):
            self.losses.append(losses)
        (start, before), (now, after) = self.recent[0], self.recent[-1]
        if after > before:
            self.speed = (after - before) / max(now - start, 1e-9)
        for sink in self.sinks:
            sink.update(losses, self.speed)
        if progress.update % EVERY == 0:
            names = list(losses) if len(losses) > 2 else ["loss"]  # a single part is the loss
            finite, self.losses = self.losses, []
            means = {
                name: sum(x[name] for x in finite) / len(finite) if finite else math.nan
                for name in names
            }
            more = {"gradient_norm": norm, "rate": rate, "tokens_per_second": round(self.speed, 1)}
            for sink in self.sinks:
                sink.numbers(progress, "train", means | more)

    def validation(self, progress: Progress, validation: Validation) -> None:
        """Report a validation."""
        self.recent.clear()  # the speed of training does not include validations
        for sink in self.sinks:
            sink.numbers(progress, "valid", validation.metrics)
        for sink in self.sinks:
            sink.validation(progress, validation)

    def message(self, text: str) -> None:
        """Report a line for the user."""
        for sink in self.sinks:
            sink.message(text)

    def close(self) -> None:
        """Close all sinks."""
        for sink in self.sinks:
            sink.close()


MEASURED = 20
"""Updates after which the time and the memory of a training are estimated."""


@dataclass
class ProgressBar(Sink):
    """Shows updates in a progress bar with the time to the end, and validations in lines above it.

    After MEASURED updates a line says how long the training will take, and its memory so far.

    Args:
        full_speed: the tokens/s that would use all devices; MFU is the share of it that the
            training reaches (Chowdhery et al. 2022, PaLM). None: unknown.
        max_minutes: the limit of the training's time; see TrainingConfig.
    """

    max_updates: int
    full_speed: float | None = None
    max_minutes: float | None = None
    bar: Any = None
    shown: dict[str, str] = field(default_factory=dict)

    def open(self, progress: Progress) -> None:
        """Draw the bar."""
        if progress.update:
            self.message(f"resuming after update {progress.update}")
        self.opened = time.monotonic()
        self.seconds_before = progress.seconds
        self.first = self.n = progress.update  # a bar that is disabled does not count
        self.first_update = 0.0
        """The time of the first update, which takes longer than others."""
        self.bar = Bar(
            total=self.max_updates,
            initial=progress.update,
            unit="update",
            mininterval=0.5,
            bar_format="{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}, {rate_fmt}{postfix}]",
        )

    def update(self, losses: dict[str, float], tokens_per_second: float) -> None:
        """Move the bar."""
        self.bar.update()
        self.n += 1
        n = self.n - self.first
        now = time.monotonic()
        each = (now - self.opened) / n
        left = min(each * (self.max_updates - self.n), self._allowed(now))
        self.shown |= {
            "ETA": tqdm.format_interval(max(0.0, left)),
            "loss": f"{losses['loss']:.3f}",
            "tokens/s": f"{tokens_per_second:,.0f}",
        }
        if self.full_speed:
            self.shown["MFU"] = f"{tokens_per_second / self.full_speed:.1%}"
        self.bar.set_postfix(self.shown, refresh=False)
        if n == 1:
            self.first_update = now
        elif n == MEASURED and self.n < self.max_updates:
            self.message(self._estimate((now - self.first_update) / (n - 1), now))

    def _allowed(self, now: float) -> float:
        """The seconds that remain of max_minutes."""
        return 60 * (self.max_minutes or math.inf) - (self.seconds_before + now - self.opened)

    def _estimate(self, seconds: float, now: float) -> str:
        """Describe the time that remains, given the seconds per update, and the memory used."""
        left = self.max_updates - self.n
        ends = f"about {seconds * left / 60:,.1f} min for the remaining {left:,}"
        if (allowed := self._allowed(now)) < seconds * left:
            ends = f"about {round(allowed / seconds):,} of the remaining {left:,} in max_minutes"
        where, n_bytes = peak_memory()
        memory = f"{where} memory so far: {n_bytes / 2**30:.1f} GiB"
        return f"{seconds:.3g} s an update: {ends}, without validations; {memory}"

    def validation(self, progress: Progress, validation: Validation) -> None:
        """Print metrics and samples."""
        self.shown |= {n: f"{value:.2f}" for n, value in validation.metrics.items() if n != "loss"}
        self.bar.set_postfix(self.shown, refresh=False)
        metrics = ", ".join(f"{name} {value:.3f}" for name, value in validation.metrics.items())
        best = " (best so far)" if progress.validations_since_best == 0 else ""
        minutes = progress.seconds / 60
        place = f"update {progress.update}, epoch {progress.epoch + 1}, {minutes:.1f} min"
        self.message(f"{place}: {metrics}{best}")
        for source, reference, output in validation.samples:
            self.message(f"  {source}\n    should be  {reference}\n    is         {output}")

    def message(self, text: str) -> None:
        """Print a line without disturbing the bar."""
        tqdm.write(text, file=sys.stderr)

    def close(self) -> None:
        """Finish the bar."""
        self.bar.close()


def as_table(validation: Validation) -> str:
    """The samples, a line each: source, reference and output, separated by tabs."""
    return "".join("\t".join(sample) + "\n" for sample in validation.samples)


@dataclass
class RunFiles(Sink):
    """Writes metrics.jsonl, samples/ and learning_curve.png in a run's directory."""

    directory: Path

    @property
    def metrics(self) -> Path:
        """The file of all numbers."""
        return self.directory / "metrics.jsonl"

    def open(self, progress: Progress) -> None:
        """Remove the lines of updates and validations that will be repeated."""
        if self.metrics.exists():
            last = progress.update, progress.validated
            lines = [
                json.dumps(line) + "\n"
                for line in read_json_lines(self.metrics)
                if (line.get("update", math.inf), line.get("kind") == "valid") <= last
            ]
            write_file(self.metrics, "".join(lines))

    def numbers(self, progress: Progress, kind: str, values: dict[str, float]) -> None:
        """Append a line."""
        line = {
            "update": progress.update,
            "epoch": progress.epoch,
            "kind": kind,
            "seconds": round(progress.seconds, 1),
            "skipped": progress.skipped,
            # JSON has no NaN
            **{name: value if math.isfinite(value) else None for name, value in values.items()},
        }
        with self.metrics.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def validation(self, progress: Progress, validation: Validation) -> None:
        """Write samples, and redraw the learning curve."""
        samples = self.directory / "samples"
        samples.mkdir(exist_ok=True)
        if validation.samples:
            write_file(samples / f"{progress.update:08d}.tsv", as_table(validation))
        learning_curve(read_json_lines(self.metrics), self.directory / "learning_curve.png")


@dataclass
class TensorBoard(Sink):
    """Writes numbers and samples for TensorBoard in a run's directory."""

    directory: Path
    board: Any = None

    def open(self, progress: Progress) -> None:
        """Hide the events of updates that will be repeated."""
        from torch.utils.tensorboard import SummaryWriter  # slow to load, so only a training does

        folder = self.directory / "tensorboard"
        self.board = SummaryWriter(str(folder), purge_step=progress.update + 1)

    def numbers(self, progress: Progress, kind: str, values: dict[str, float]) -> None:
        """Write scalars."""
        for name, value in values.items():
            self.board.add_scalar(f"{kind}/{name}", value, progress.update)
        self.board.flush()

    def validation(self, progress: Progress, validation: Validation) -> None:
        """Write samples."""
        if validation.samples:
            # indented lines are code in Markdown, which is shown verbatim
            shown = [
                f"    {source}\n    should be  {reference}\n    is         {output}"
                for source, reference, output in validation.samples
            ]
            self.board.add_text("valid/samples", "\n    \n".join(shown), progress.update)

    def close(self) -> None:
        """Write what is left."""
        self.board.close()


def require_libraries(trackers: Sequence[str] = ()) -> None:
    """Raise InputError unless the libraries of a training are installed."""
    for library in ("matplotlib", "tensorboard"):
        require(library, "training", "train")
    for library in trackers:
        require(library, f"--log {library}", library)


def standard_sinks(
    directory: Path, config: TrainingConfig, full_speed: float | None = None
) -> list[Sink]:
    """Make the sinks of every recipe; see `ProgressBar`."""
    require_libraries()
    bar = ProgressBar(config.max_updates, full_speed, config.max_minutes)
    return [bar, RunFiles(directory), TensorBoard(directory)]
