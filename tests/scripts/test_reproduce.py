"""scripts/reproduce.sh lists figures that are stated, with commands that the recipes understand."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def reproduce(*words: str) -> subprocess.CompletedProcess[str]:
    """The script's answer."""
    return subprocess.run(["bash", "scripts/reproduce.sh", *words], cwd=ROOT, capture_output=True, text=True)


@pytest.fixture(scope="module")
def figures() -> list[list[str]]:
    """A row for each: name, what is stated, measure, minutes, and the words of the command."""
    return [shlex.split(line) for line in reproduce().stdout.splitlines()[1:]]


def test_what_is_listed_is_stated(figures):
    stated = (ROOT / "recipes" / "README.md").read_text()
    assert len({name for name, *_ in figures}) == len(figures) > 10
    for _, figure, *_ in figures:
        assert figure in stated


@pytest.mark.long
def test_recipes_understand_the_commands(figures, tmp_path):
    """They read their options, and only then find that there are no data, or that an update is all that there is."""
    for _, _, _, _, recipe, *options in figures:
        if recipe.startswith("scripts/"):  # it has no options of a recipe
            assert (ROOT / recipe).exists()
            continue
        words = [
            sys.executable,
            str(ROOT / "recipes" / recipe),
            *options,
            "--run",
            str(tmp_path / "run"),
            "--no-option",
        ]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 2
        assert "--no-option" in done.stderr and not any(option in done.stderr for option in options if "--" in option)


def test_another_name_is_refused():
    done = reproduce("commandz")
    assert done.returncode == 2
    assert done.stderr.startswith("reproduce.sh: a figure must be one of those that bash scripts/reproduce.sh lists")
