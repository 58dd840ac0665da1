"""What experiments begin with. The kernels are found before a test begins, since finding them starts a process."""

from pathlib import Path

import pytest

from tests.runs import random_run
from transduce import kernels

kernels.library()


@pytest.fixture(scope="session")
def translator(once) -> Path:
    """A run directory of a translator with one vocabulary for both sides; read only."""
    return once("experiment-translator", random_run)
