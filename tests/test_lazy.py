"""What the packages list is there, and nothing else."""

import ast
import importlib
from pathlib import Path

import pytest

import transduce
from transduce import experiment


@pytest.mark.parametrize("package", [transduce, experiment], ids=["transduce", "experiment"])
def test_every_lazy_name_is_that_of_its_module(package):
    listed = [node for node in ast.walk(ast.parse(Path(package.__file__).read_text())) if isinstance(node, ast.alias)]
    names = {each.name for each in listed} - {"TYPE_CHECKING", "lazily"}
    assert {each.asname for each in listed} >= names  # "as" makes them public for type checkers
    assert names == set(dir(package))
    for name in names:
        got = getattr(package, name)
        home = getattr(got, "__module__", None)
        if home and home.startswith("transduce.") and hasattr(importlib.import_module(home), name):
            assert getattr(importlib.import_module(home), name) is got


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"^module 'transduce' has no attribute 'lode'$"):
        transduce.lode  # noqa: B018
