"""`transduce train TASK ...`: the recipes, in a clone and in an installation."""

import sys
from pathlib import Path
from types import ModuleType

from transduce.errors import InputError

PACKAGE = Path(__file__).parents[1]


def recipes() -> Path:
    """The folder of the recipes: inside the package where it was installed from a wheel, beside it
    in a clone.

    Raises:
        InputError: there is none.
    """
    for folder in (PACKAGE / "recipes", PACKAGE.parent / "recipes"):
        if (folder / "translation.py").is_file():
            return folder
    raise InputError(
        f"transduce train runs the recipes, which lie in {PACKAGE / 'recipes'} or "
        f"{PACKAGE.parent / 'recipes'}, but "
        "they are in neither; install transduce again"
    )


def train(task: str, arguments: list[str]) -> None:
    """Run a recipe as `python recipes/TASK.py ARGUMENTS` would, and end as it ends.

    Raises:
        SystemExit: always, with the recipe's exit code.
    """
    folder = recipes()
    path = folder / f"{task.replace('-', '_')}.py"
    main = ModuleType("__main__")
    main.__file__ = str(path)
    before = sys.argv, sys.path, sys.modules["__main__"]
    sys.argv = [f"transduce train {task}", *arguments]  # help shows it
    sys.path = [str(folder), *sys.path]  # a recipe may import the file beside it
    sys.modules["__main__"] = main
    try:
        exec(compile(path.read_bytes(), path, "exec"), vars(main))
    finally:
        sys.argv, sys.path, sys.modules["__main__"] = before
