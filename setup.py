"""What pyproject.toml cannot say: a wheel has the recipes, with the corpus that ships, as transduce/recipes."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithRecipes(build_py):
    """An editable installation finds them beside the package."""

    def run(self) -> None:
        """Build the package, and copy the recipes into it."""
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib) / "transduce" / "recipes"
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree("recipes", target, ignore=shutil.ignore_patterns("__pycache__", "runs"))


setup(cmdclass={"build_py": BuildWithRecipes})
