"""`transduce train TASK ...`: the recipes, in a clone and in an installation."""

import sys
from importlib import import_module

from transduce.experiment.command import main


def train(task: str, arguments: list[str]) -> None:
    """Run a recipe as `python recipes/TASK.py ARGUMENTS` does, and exit as it does.

    Raises:
        SystemExit: always, with the recipe's exit code.
    """
    recipe = import_module(f"transduce.recipes.{task.replace('-', '_')}")
    code = main(
        recipe.run,
        recipe.SETTINGS,
        default="commands",
        description=recipe.__doc__,
        arguments=arguments,
        prog=f"transduce train {task}",
    )
    sys.exit(code)
