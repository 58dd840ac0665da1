"""The settings of the recipes as YAML, recipes/configs/RECIPE/SETTING.yaml: what --print-config prints.

    python scripts/ops/configs.py    # write them again after a recipe has changed

Folders of data are named from the root of a clone.
"""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
if __name__ == "__main__":
    os.environ.pop("TRANSDUCE_DATA", None)  # settings name its folders

from recipes import language_model, masked_language_model, speech_to_text, translation
from transduce.experiment.command import choose

RECIPES = (translation, speech_to_text, language_model, masked_language_model)
FOLDER = ROOT / "recipes" / "configs"


def configs(recipes: Iterable[ModuleType] = RECIPES) -> Iterator[tuple[Path, str]]:
    """The files of some recipes, with their texts."""
    for recipe in recipes:
        name = recipe.__name__.removeprefix("recipes.")
        for setting in recipe.SETTINGS:
            text = StringIO()
            with suppress(SystemExit), redirect_stdout(text):
                choose(
                    recipe.SETTINGS,
                    [setting, "--print-config"],
                    default=setting,
                    prog=f"transduce train {name.replace('_', '-')}",
                )
            yield FOLDER / name / f"{setting}.yaml", text.getvalue().replace(f"{ROOT}/", "")


if __name__ == "__main__":
    for path in FOLDER.glob("*/*.yaml"):
        path.unlink()
    for path, text in configs():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        print(path.relative_to(ROOT))
