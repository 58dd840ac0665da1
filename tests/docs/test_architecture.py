"""docs/architecture.md names what is there."""

import inspect
import io
import re
import sys
from importlib import import_module
from itertools import product
from pathlib import Path

import pytest

from tests.runs import LITTLE, random_run
from transduce.cli.main import main
from transduce.engine.cpu import CPUEngine
from transduce.model.transformer import Transformer

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
            got = import_module(".".join(["transduce", *parts[:n]]))
        except ModuleNotFoundError:
            continue
        for part in parts[n:]:
            got = getattr(got, part)
        assert hasattr(got, last) or import_module(f"transduce.{name}")
        return
    raise AssertionError(name)


@pytest.mark.parametrize("name", FILES)
def test_files_and_packages_exist(name):
    assert (ROOT / name).exists() or (ROOT / "transduce" / name).exists()


def test_the_page_names_every_package():
    assert len(NAMES) > 25 and len(FILES) > 15
    assert {name.rstrip("/") for name in FILES} >= ROOMS


def functions_on_the_stack() -> set[str]:
    """The functions of the package that wait for the caller, as module.function, without nested ones."""
    frame, got = sys._getframe(1), set()
    while frame := frame.f_back:
        code = frame.f_code
        if Path(code.co_filename).is_relative_to(ROOT / "transduce") and not code.co_flags & inspect.CO_NESTED:
            module = Path(code.co_filename).relative_to(ROOT / "transduce").with_suffix("")
            if code.co_name.isidentifier():  # no <listcomp>
                got.add(".".join([*module.parts, code.co_name]))
    return got


def test_the_call_path_of_a_translation_is_short_and_documented(tmp_path, monkeypatch):
    """From the command to the engine and to the written line: what the stack holds at either end."""
    run, got = random_run(tmp_path / "run", model=LITTLE), set()

    class Watched(io.StringIO):
        def write(self, text: str) -> int:
            got.update(functions_on_the_stack())
            return super().write(text)

    for engine, name in product((CPUEngine, Transformer), ("encode", "decoder_states", "project")):
        inside = getattr(engine, name)

        def look(*rest, inside=inside, **named):
            got.update(functions_on_the_stack())
            return inside(*rest, **named)

        monkeypatch.setattr(engine, name, look)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Open the letter.\n")))
    monkeypatch.setattr(sys, "stdout", out := Watched())
    assert main(["translate", str(run), "--device", "cpu", "--length-ratio", "0", "--length-extra", "4"]) == 0
    assert out.getvalue().count("\n") == 1
    path = PAGE.split("## The path of a sentence")[1].split("## ")[0]
    short = {re.sub(r"\.[A-Z]\w+\.", ".", name) for name in NAMES if f"`{name}`" in path}
    assert got <= short, got - short
    assert f"one another: {len(got)}." in path and len(got) <= TWENTY_FIVE
