"""The seeds draw from the global generator; it is as before after each of their tests."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _global_generator() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        yield
