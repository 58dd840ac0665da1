"""Run a benchmark: python scripts/bench NAME ARGUMENTS; without a name, list them."""

import ast
import inspect
import re
import sys
from importlib import import_module
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
sys.path[:1] = [str(FOLDER.parent), str(FOLDER.parent / "corpora")]

from transduce.arguments import call
from transduce.errors import exit_code


def main() -> None:
    """Call `main` of the benchmark named, or print the first line of each benchmark."""
    texts = {path.stem: path.read_text("utf-8") for path in sorted(FOLDER.glob("[a-z]*.py"))}
    names = [name for name, text in texts.items() if "\ndef main(" in text]
    if len(sys.argv) < 2:
        for name in names:
            print(f"{name:16} {(ast.get_docstring(ast.parse(texts[name])) or '').splitlines()[0]}")
        sys.exit()
    name, *words = sys.argv[1:]
    if name not in names:
        sys.exit(f"bench: a benchmark must be one of {', '.join(names)}, but it is {name!r}")
    module = import_module(f"bench.{name}")
    if not inspect.signature(module.main).parameters:  # it reads the command line itself
        return module.main()
    prog = f"python scripts/bench {name}"
    text = re.sub(r"(?<=\S)\n(?=\S)", " ", module.__doc__)  # a paragraph in a line, for tyro
    sys.exit(
        exit_code(
            lambda: call(module.main, words, prog=prog, description=text), interrupted="stopped"
        )
    )


main()
