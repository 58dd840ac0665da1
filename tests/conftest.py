"""Fixtures of every test."""

import zlib

import pytest
import torch


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> torch.Generator:
    """A generator seeded by the test's name: the same numbers in every run, others in every test."""
    return torch.Generator().manual_seed(zlib.crc32(request.node.name.encode()))
