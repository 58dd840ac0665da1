"""Experiments as programs: `python recipes/TASK.py`, or `transduce train TASK`."""

from pathlib import Path

DATA = Path(__file__).resolve().parent / "data"
"""The bundled corpora."""
