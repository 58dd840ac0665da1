"""What several commands share: how a run is named, and how it is searched."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from transduce.tasks.search import SearchConfig

Run = Annotated[Path, arg(metavar="RUN", help="A run directory, as a recipe makes it.")]


def with_options(own: SearchConfig, *, greedy: bool, **given: int | float | None) -> SearchConfig:
    """A run's own way to search, with what the command line names instead; greedy search has one hypothesis."""
    settled = ("beam_size", "n_best") if greedy else ()
    named = {name: value for name, value in given.items() if value is not None and name not in settled}
    return replace(own.greedy() if greedy else own, **named)  # type: ignore[arg-type]  # every name is a field's
