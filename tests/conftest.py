"""Fixtures of every test."""

import zlib

import jaxtyping
import pytest
import torch


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> torch.Generator:
    """A generator seeded by the test's name: the same numbers in every run, others in every test."""
    return torch.Generator().manual_seed(zlib.crc32(request.node.name.encode()))


@pytest.fixture(autouse=True)
def shapes(request: pytest.FixtureRequest) -> None:
    """Check the shapes in signatures in every test, but of a test with many cases in one case in four.

    The checks take longer than most of what they check; which cases have them is a function of their names.
    """
    unchecked = hasattr(request.node, "callspec") and zlib.crc32(request.node.nodeid.encode()) % 4 > 0
    jaxtyping.config.update("jaxtyping_disable", unchecked)
