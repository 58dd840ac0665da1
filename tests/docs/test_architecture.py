"""docs/architecture.md names what is there."""

import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
QUOTED = re.findall(r"`([^`\n]+)`", PAGE)
ROOMS = {path.name for path in (ROOT / "transduce").iterdir() if (path / "__init__.py").is_file()}
MODULES = {path.stem for path in (ROOT / "transduce").glob("*.py")}
NAMES = [name for name in QUOTED if re.fullmatch(r"\w+(\.\w+)+", name) and name.split(".")[0] in ROOMS | MODULES]
FILES = [name for name in QUOTED if re.fullmatch(r"[\w/]+/(\w+\.\w+)?", name) or name.endswith(".cpp")]
TWENTY_FIVE = 25
"""Functions at most from `main` to a written line."""


@pytest.mark.parametrize("name", [name for name in NAMES if not name.endswith((".py", ".cpp", ".name"))])
def test_modules_and_their_functions_exist(name):
    *parts, last = name.split(".")
    for n in range(len(parts), 0, -1):
        try:
            found = import_module(".".join(["transduce", *parts[:n]]))
        except ModuleNotFoundError:
            continue
        for part in parts[n:]:
            found = getattr(found, part)
        assert hasattr(found, last) or import_module(f"transduce.{name}")
        return
    raise AssertionError(name)


@pytest.mark.parametrize("name", FILES)
def test_files_and_rooms_exist(name):
    assert (ROOT / name).exists() or (ROOT / "transduce" / name).exists()


def test_the_page_names_much_and_every_room():
    assert len(NAMES) > 25 and len(FILES) > 15
    assert {name.rstrip("/") for name in FILES} >= ROOMS


def test_the_path_of_a_sentence_is_short():
    path = PAGE.split("## The path of a sentence")[1].split("## ")[0]
    assert 8 <= len({name for name in NAMES if f"`{name}`" in path}) <= TWENTY_FIVE
