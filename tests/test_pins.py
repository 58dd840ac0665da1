"""constraints.txt pins what pyproject.toml asks for, extras included."""

import re
from pathlib import Path

from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[1]


def test_every_dependency_is_pinned_within_its_range():
    """All but unbabel-comet, whose own ranges go with no pin of numpy, protobuf and transformers."""
    ranges = re.findall(r'"([\w-]+)([<>=]=?[\d.]+[^";]*)"', (ROOT / "pyproject.toml").read_text())
    wanted = dict(reversed(ranges))  # the first counts: the extra comet has its own of sentencepiece
    pins = re.findall(r"^([\w-]+)==([\w.]+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert {"torch", "tyro", "pytest", "basedpyright", "sounddevice", "unbabel-comet"} <= set(wanted)
    assert set(wanted) - {name for name, _ in pins} == {"unbabel-comet"}
    assert [pin for pin in pins if pin[1] not in SpecifierSet(wanted.get(pin[0], ""))] == []
