"""A recipe as a command: its configuration from the command line, and how it ends."""

import io
import logging
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr
from typing import TypeVar

import tyro

from transduce.exit import exit_code
from transduce.experiment.config import AnyExperiment

INTERNAL = re.compile(r"__tyro-dummy-inner__\.?(.*)(.)")
"""A name that tyro gives to the nameless, up to the border of the box that its message stands in."""


ExperimentT = TypeVar("ExperimentT", bound=AnyExperiment)


def main(
    run: Callable[[ExperimentT], object],
    settings: Mapping[str, tuple[str, ExperimentT]],
    *,
    default: str,
    description: str | None,
) -> int:
    """A recipe's command line: 0 if all went well, 2 if its input was at fault, 130 after Ctrl-C."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    experiment = choose(settings, default=default, description=description)

    def go() -> None:
        from transduce.device import torch_device

        torch_device(experiment.device)  # before an hour with the data
        run(experiment)

    return exit_code(
        go,
        prefix="error",
        interrupted="stopped; run the same command again to go on from the newest checkpoint",
    )


def choose(settings: Mapping[str, tuple[str, ExperimentT]], *, default: str, description: str | None) -> ExperimentT:
    """The named setting, with the fields that the command line overrides; `default` where it names none."""
    arguments = sys.argv[1:]
    if not arguments or (arguments[0].startswith("-") and arguments[0] not in ("-h", "--help")):
        arguments = [default, *arguments]
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            return tyro.extras.overridable_config_cli(dict(settings), args=arguments, description=description)
    finally:
        sys.stderr.write(INTERNAL.sub(lambda box: box[1].ljust(len(box[0]) - 1) + box[2], said.getvalue()))
