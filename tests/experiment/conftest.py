"""What experiments begin with."""

from pathlib import Path

import pytest

from tests.runs import random_run


@pytest.fixture(scope="session")
def translator(once) -> Path:
    """A run directory of a translator with one vocabulary for both sides; read only."""
    return once("experiment-translator", random_run)
