"""Progress bars: on a terminal as they are everywhere, in a log file a line now and then."""

import sys
import time
from typing import Any

from tqdm import tqdm

EVERY = 30
"""Seconds from one line to the next, where stderr is no terminal."""


class Bar(tqdm):
    """tqdm's bar on stderr; where that is no terminal, it is a line every so often, and one at its end."""

    def __init__(self, **how: Any) -> None:
        self.terminal = sys.stderr.isatty()
        self.told = time.monotonic()
        super().__init__(**{"dynamic_ncols": True, **how})

    def display(self, msg: str | None = None, pos: int | None = None) -> bool:
        """Draw it, as tqdm asks for many times a second, and around every line that others write."""
        if self.terminal:
            return bool(super().display(msg, pos))
        closing = self.disable
        if closing or time.monotonic() - self.told >= EVERY:
            self.told = time.monotonic()
            self.fp.write(f"{self}{'' if closing else chr(10)}")  # at its end, tqdm itself ends the line
            self.fp.flush()
        return True

    def clear(self, *args: Any, **how: Any) -> None:
        """Take it from the terminal, for a line of somebody else."""
        if self.terminal:
            super().clear(*args, **how)
