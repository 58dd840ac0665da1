"""All benchmarks, by their names: python scripts/bench NAME ARGUMENTS; without a name, their list."""

import ast
import runpy
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def main() -> None:
    """Run the benchmark that is named, or print the first line of each."""
    texts = {path.stem: path.read_text("utf-8") for path in sorted(FOLDER.glob("[a-z]*.py"))}
    names = [name for name, text in texts.items() if "ArgumentParser(" in text]
    if len(sys.argv) < 2:
        for name in names:
            print(f"{name:16} {(ast.get_docstring(ast.parse(texts[name])) or '').splitlines()[0]}")
        sys.exit()
    name = sys.argv.pop(1)
    if name not in names:
        sys.exit(f"bench: a benchmark must be one of {', '.join(names)}, but it is {name!r}")
    sys.path[:1] = [str(FOLDER.parent), str(FOLDER.parent / "corpora")]
    runpy.run_module(f"bench.{name}", run_name="__main__", alter_sys=True)


main()
