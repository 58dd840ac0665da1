"""Who may know whom, and what may stand where: read from the source, not from running it."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "transduce"
SOURCES = sorted(PACKAGE.rglob("*.py"))
RECIPES = sorted((ROOT / "recipes").glob("*.py"))

SHARED = {
    "arguments",
    "config",
    "device",
    "errors",
    "files",
    "hub",
    "kernels",
    "plot",
    "process",
    "products",
}
"""What every room may know."""

KNOWS = {
    **{room: set() for room in ("model", "data", "train", "score")},
    "decode": {"data"},
    "engine": {"model"},
    "interop": {"model", "data"},
    "run": {"model", "data", "decode"},
    "tasks": {"engine", "model", "data", "decode", "run"},
    "report": {"data", "model", "score", "run", "tasks"},
    "experiment": {"model", "data", "train", "decode", "score", "run", "tasks", "report"},
    "serve": {"data", "tasks", "report"},
    "cli": {
        "data",
        "decode",
        "engine",
        "experiment",
        "recipes",
        "score",
        "interop",
        "run",
        "tasks",
        "report",
        "serve",
    },
    "__init__": {"model", "run", "tasks"},
    "__main__": {"cli"},
}
"""By room, which other rooms it may know."""


def own_module(path: Path) -> str:
    """model/layers.py as "model.layers"."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """All in this one, without what stands in expressions."""
    for name in ("body", "orelse", "handlers", "finalbody", "cases"):
        for inner in getattr(node, name, ()):
            if isinstance(inner, ast.stmt):
                yield inner
            yield from statements(inner)


@cache
def imports(path: Path) -> set[str]:
    """Every module that this file imports, wherever in the file; "from a import b" as a.b if b is a module."""
    got = set()
    for node in statements(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            got |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports name the whole path"
            assert node.module is not None
            folder = ROOT.joinpath(*node.module.split("."))
            got |= {f"{node.module}.{a.name}" for a in node.names if (folder / f"{a.name}.py").is_file()}
            got.add(node.module)
    return got


def may(room: str, other: str) -> bool:
    """May a module of the first room know one of the other?"""
    return other in SHARED or (room not in SHARED and (other == room or other in KNOWS[room]))


def test_packages_import_only_what_they_may():
    wrong = []
    for path in SOURCES:
        room = own_module(path).split(".")[0]
        for name in imports(path):
            ours = name.startswith("transduce.") and not may(room, name.split(".")[1])
            if ours or name == "transduce":
                wrong.append(f"{path} imports {name}")
    assert not wrong


def test_there_are_no_import_cycles():
    """Neither between rooms nor inside one is there a circle."""
    knows = {own_module(p): {name.removeprefix("transduce.") for name in imports(p)} for p in SOURCES}
    graph = {name: {other for other in others if other in knows and other != name} for name, others in knows.items()}
    assert list(TopologicalSorter(graph).static_order())
    graph["model.config"].add("model.transformer")
    with pytest.raises(CycleError):  # the check can fail
        list(TopologicalSorter(graph).static_order())


def test_the_import_checker_sees_all_imports(tmp_path):
    """The reader of imports sees them all: at the top, in a function, as a name from a package."""
    path = tmp_path / "a.py"
    path.write_text(
        "import transduce.train.losses as x\nfrom transduce.model import attention\n"
        "def f():\n    from transduce.decode.beam import beam_search\n"
        "try:\n    a()\nexcept OSError:\n    import b\nelse:\n    import c\nfinally:\n    import d\n"
        "match 1:\n    case 1:\n        import e\n"
    )
    assert imports(path) == {
        "transduce.train.losses", "transduce.model", "transduce.model.attention", "transduce.decode.beam", *"bcde",
    }  # fmt: skip
    assert not may("data", "model") and may("data", "data") and may("data", "files")
    assert not may("tasks", "train") and not may("files", "model")


def test_every_package_is_in_the_table():
    assert {own_module(path).split(".")[0] for path in SOURCES} == set(KNOWS) | SHARED


def names(path: Path) -> set[str]:
    """Every name that this file gives or uses: of variables, fields, parameters, functions, imports."""
    got = set()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
                got.add(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.alias(name=name):
                got.add(name.split(".")[-1])
    return got


ATTENTION_MASKS = {"scaled_dot_product_attention", "is_causal", "attn_mask", "attention_mask", "visible"}


def test_attention_masks_are_made_in_attention_only():
    """PyTorch contradicts itself on what True means, so lengths cross the borders, and boolean masks do not."""
    word = re.compile("|".join(ATTENTION_MASKS))
    got = {own_module(path): names(path) & ATTENTION_MASKS for path in SOURCES if word.search(path.read_text())}
    assert {module for module, masks in got.items() if masks} == {"model.attention"}, got


def test_the_attention_module_has_attention_masks():
    got = names(PACKAGE / "model" / "attention.py")
    assert {"visible", "scaled_dot_product_attention", "is_causal"} <= got


def test_no_other_toolkit_or_test_tool_is_imported():
    rivals = {"transformers", "pytest", "beartype", "fairseq", "espnet", "tests", "recipes"}
    for path in (*SOURCES, *RECIPES):
        assert {name.split(".")[0] for name in imports(path)} & rivals == set(), path


def test_files_have_at_most_400_lines():
    lines = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in (*SOURCES, *RECIPES)}
    assert {path: n for path, n in lines.items() if n > 400} == {}
