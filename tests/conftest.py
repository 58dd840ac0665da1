"""Fixtures of every test."""

import os
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
    """Check the shapes in signatures in one test in eight, chosen by its name, or in all where SHAPES is set.

    The checks take longer than most of what they check.
    """
    checked = "SHAPES" in os.environ or zlib.crc32(request.node.nodeid.encode()) % 8 == 0
    jaxtyping.config.update("jaxtyping_disable", not checked)
