"""Fixtures of all trainings in these tests: no learning curve, and slow libraries loaded beforehand."""

import importlib
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def lean() -> Iterator[None]:
    """No learning curve is drawn after a validation, which takes longer than the training; tests/train/test_log.py draws.

    And libraries that a training loads when it begins are loaded outside the tests' time.
    """
    for name in ("torch._dynamo", "torch.utils.tensorboard"):
        importlib.import_module(name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transduce.train.log.learning_curve", lambda metrics, path: None)
        yield
