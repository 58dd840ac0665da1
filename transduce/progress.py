"""Progress bars: on a terminal as tqdm draws them, in a log file a line now and then."""

import sys
import time
from typing import Any

from tqdm import tqdm

EVERY = 30
"""Seconds from one line to the next, where stderr is no terminal."""


class Bar(tqdm):
    """tqdm's bar on stderr; where that is no terminal, a line every 30 seconds and at the end."""

    def __init__(self, **options: Any) -> None:
        self.terminal = sys.stderr.isatty()
        self.last_line = time.monotonic()
        super().__init__(**{"dynamic_ncols": True} | options)

    def display(self, msg: str | None = None, pos: int | None = None) -> bool:
        """Draw the bar, many times a second and around every line that others write."""
        if self.terminal:
            return bool(super().display(msg, pos))
        closing = self.disable
        if closing or time.monotonic() - self.last_line >= EVERY:
            self.last_line = time.monotonic()
            self.fp.write(f"{self}" if closing else f"{self}\n")  # tqdm itself ends the last line
            self.fp.flush()
        return True

    def clear(self, nolock: bool = False) -> None:
        """Take the bar from the terminal, so that another line can be written."""
        if self.terminal:
            super().clear(nolock)
