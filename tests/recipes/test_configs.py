"""recipes/configs: each file is its setting, and what --print-config writes today."""

import os
import re

import pytest

from scripts.ops.configs import FOLDER, RECIPES, ROOT, configs
from transduce.experiment.command import with_files

CASES = [(recipe, setting) for recipe in RECIPES for setting in recipe.SETTINGS]

pytestmark = pytest.mark.skipif("TRANSDUCE_DATA" in os.environ, reason="settings then name its folders")


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.__name__)
def test_config_files_equal_print_config(recipe):
    folder = FOLDER / recipe.__name__.removeprefix("recipes.")
    files = {path: path.read_text("utf-8") for path in folder.glob("*")}
    assert files == dict(configs([recipe])), "python scripts/ops/configs.py writes them anew"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*/*")), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_comments_describe_fields_instead_of_single_values(path):
    assert not re.findall(r"(?m)^.* # (?:None|True|False|[a-z0-9_]+): .*$", path.read_text("utf-8"))


def test_config_folders_match_the_recipes():
    assert {path.name for path in FOLDER.iterdir()} == {each.__name__.removeprefix("recipes.") for each in RECIPES}


@pytest.mark.parametrize(("recipe", "setting"), CASES, ids=[f"{each.__name__}-{name}" for each, name in CASES])
def test_config_files_override_every_setting(recipe, setting, tmp_path):
    text = (FOLDER / recipe.__name__.removeprefix("recipes.") / f"{setting}.yaml").read_text("utf-8")
    path = tmp_path / "config.yaml"
    path.write_text(text.replace("recipes/", f"{ROOT}/recipes/"), "utf-8")
    for _, other in recipe.SETTINGS.values():
        assert with_files(other, [path]) == recipe.SETTINGS[setting][1]
