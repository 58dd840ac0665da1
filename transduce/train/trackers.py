"""Log sinks that send to services: Weights & Biases, MLflow."""

import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from transduce.config import Json, flatten
from transduce.errors import InputError, logger
from transduce.files import write_file
from transduce.train.log import Sink, as_table
from transduce.train.state import Progress, Validation


class Tracker(Sink):
    """Sends numbers and samples to a service; environment variables of its library configure it.

    Args:
        directory: that of the run. Its name becomes the run's name in the service, and a file in it
            keeps the run's id there, so that a resumed training continues the same run.
        config: the experiment, as `to_dict` gives it.
    """

    name = ""
    """Name of the library, and of the extra that installs it."""
    log: Callable[[Json, int], object]
    finish: Callable[[], object]
    sends = True

    def __init__(self, directory: Path, config: Json) -> None:
        self.directory = directory
        self.config = config

    def open(self, progress: Progress) -> None:
        """Begin a run in the service, or continue the run begun there; InputError if it fails."""
        self.library: Any = import_module(self.name)
        path = self.directory / f"{self.name}.id"
        try:
            write_file(path, self.begin(path.read_text() if path.is_file() else None))
        except Exception as error:  # the libraries' own classes
            raise InputError(
                f"--log {self.name} must reach its service, but: {error}; see the variables of "
                f"that library, remove {path} if the run there is gone, or leave out --log"
            ) from error

    def begin(self, run_id: str | None) -> str:
        """Begin a run, or continue the one with this id; set `log` and `finish`; return its id."""
        raise NotImplementedError

    def send(self, function: Callable[..., object], *arguments: object) -> None:
        """Call a function of the library. If it fails, after its own attempts of minutes, nothing
        more is sent, and the training goes on."""
        try:
            if self.sends:
                function(*arguments)
        except Exception as error:  # the libraries' own classes
            self.sends = False
            logger.warning(
                "--log %s sends nothing more until the training is resumed, as its service failed: "
                "%s; metrics.jsonl has all numbers",
                self.name,
                error,
            )

    def numbers(self, progress: Progress, kind: str, values: dict[str, float]) -> None:
        """Send the numbers."""
        named = {f"{kind}/{name}": value for name, value in values.items()}
        self.send(self.log, named, progress.update)

    def close(self) -> None:
        """Send what is left."""
        self.send(self.finish)


class WeightsAndBiases(Tracker):
    """Weights & Biases; WANDB_MODE=offline keeps all in the run's directory, to be sent later."""

    name = "wandb"

    def begin(self, run_id: str | None) -> str:
        """Begin or continue a run."""
        os.environ.setdefault("WANDB_PROJECT", "transduce")
        where = self.directory
        run = self.library.init(
            dir=where, name=where.name, config=self.config, id=run_id, resume="allow"
        )
        self.log, self.finish = run.log, run.finish
        return str(run.id)

    def validation(self, progress: Progress, validation: Validation) -> None:
        """Send samples as a table."""
        rows = [list(sample) for sample in validation.samples]
        table = self.library.Table(columns=["source", "reference", "output"], data=rows)
        self.send(self.log, {"valid/samples": table}, progress.update)


class MLflow(Tracker):
    """MLflow; MLFLOW_TRACKING_URI names the server."""

    name = "mlflow"

    def begin(self, run_id: str | None) -> str:
        """Begin or continue a run."""
        run = self.library.start_run(run_id=run_id, run_name=self.directory.name)
        self.log, self.finish = self.library.log_metrics, self.library.end_run
        if run_id is None:  # MLflow does not let a run's parameters change
            self.library.log_params(flatten(self.config))
        return str(run.info.run_id)

    def validation(self, progress: Progress, validation: Validation) -> None:
        """Send samples as a file."""
        path = f"samples/{progress.update:08d}.tsv"
        self.send(self.library.log_text, as_table(validation), path)


TRACKERS: dict[str, type[Tracker]] = {kind.name: kind for kind in (WeightsAndBiases, MLflow)}
"""The services that --log takes, by name."""
