"""scripts/reproduce.sh lists figures that are stated, with commands that the recipes understand."""

import shlex
import subprocess
from pathlib import Path

import pytest

from recipes import language_model, masked_language_model, speech_to_text, translation
from transduce.experiment.command import choose

pytestmark = pytest.mark.process
ROOT = Path(__file__).resolve().parents[2]
RECIPES = {
    f"{Path(recipe.__file__).name}": recipe
    for recipe in (language_model, masked_language_model, speech_to_text, translation)
}


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


def test_recipes_understand_the_commands(figures, monkeypatch, tmp_path):
    for name, _, _, _, recipe, *options in figures:
        if recipe.startswith("scripts/"):  # it has no options of a recipe
            assert (ROOT / recipe).exists()
            continue
        x = choose(RECIPES[recipe].SETTINGS, [*options, "--run", str(tmp_path / name)], default="commands")
        assert x.run == tmp_path / name


def test_another_name_is_refused():
    done = reproduce("commandz")
    assert done.returncode == 2 and "'commandz'" in done.stderr
