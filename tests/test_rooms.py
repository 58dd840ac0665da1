"""Who may know whom, and what may stand where: read from the source, not from running it."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "transduce"
SOURCES = sorted(PACKAGE.rglob("*.py"))
RECIPES = sorted((ROOT / "recipes").glob("*.py"))

ROOMS = ("model", "data", "train", "decode", "score")
SHARED = {"config", "files"}
"""What every room may know."""

KNOWS = {
    "config": set(),
    "device": set(),
    "files": set(),
    "exit": set(),
    "checkpoint": {"config", "device", "files", "model", "data"},
    "decoding": {"config", "files", "model", "data", "decode"},
    "translator": {"config", "files", "model", "data", "decode", "decoding"},
    "transcriber": {"config", "files", "model", "data", "decode", "decoding"},
    "fill_in": {"config", "files", "model", "data"},
    "generator": {"config", "files", "model", "data", "decode"},
    "perplexity": {"config", "files", "model", "data"},
    "pipeline": {
        "config",
        "files",
        "model",
        "data",
        "checkpoint",
        "decoding",
        "generator",
        "fill_in",
        "transcriber",
        "translator",
    },
    "validate": {
        "config",
        "files",
        "model",
        "data",
        "decoding",
        "generator",
        "fill_in",
        "score",
        "train",
        "transcriber",
        "translator",
    },
    "report": {
        "config",
        "files",
        "data",
        "decoding",
        "generator",
        "fill_in",
        "pipeline",
        "score",
        "transcriber",
        "translator",
        "validate",
    },
    "experiment": {"checkpoint", "config", "device", "exit", "files", "model", "train"},
    "interop": {"config", "files", "model", "data", "decode"},
    "cli": {
        "config",
        "device",
        "exit",
        "files",
        "checkpoint",
        "decoding",
        "generator",
        "interop",
        "perplexity",
        "pipeline",
        "transcriber",
        "translator",
        "score",
        "data.byte_bpe",
        "data.corpus",
        "train.log",
        "train.state",
        "cli_*",
    },
    "__init__": {"checkpoint", "decoding", "generator", "fill_in", "model", "pipeline", "transcriber", "translator"},
} | {room: {room, *SHARED} for room in ROOMS}


def own_module(path: Path) -> str:
    """model/layers.py as "model.layers"."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


def imports(path: Path) -> set[str]:
    """Every module that this file imports, wherever in the file; "from a import b" as a.b if b is a module."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports name the whole path"
            assert node.module is not None
            folder = ROOT.joinpath(*node.module.split("."))
            found |= {f"{node.module}.{a.name}" for a in node.names if (folder / f"{a.name}.py").is_file()}
            found.add(node.module)
    return found


def allowed(path: Path) -> set[str]:
    module = own_module(path)
    room = module.split(".")[0]
    return KNOWS["cli" if room.startswith("cli") else room]


def may(allowed: set[str], module: str) -> bool:
    """Is `module` (without the package's name) one of these, or inside one?"""
    if module.startswith("cli_"):
        return "cli_*" in allowed
    return any(module == name or module.startswith(f"{name}.") for name in allowed)


@pytest.mark.parametrize("path", SOURCES, ids=own_module)
def test_a_room_knows_only_what_it_may(path):
    ours = {name.removeprefix("transduce.") for name in imports(path) if name.startswith("transduce.")}
    assert {name for name in ours if not may(allowed(path), name)} == set()
    assert "transduce" not in imports(path) or own_module(path) in ("__init__", "__main__")


def test_the_rule_can_be_broken(tmp_path):
    """The reader of imports sees them all: at the top, in a function, as a name from a package."""
    path = tmp_path / "a.py"
    path.write_text(
        "import transduce.train.loss as x\nfrom transduce.model import attention\n"
        "def f():\n    from transduce.decode.beam import beam_search\n"
    )
    assert imports(path) == {
        "transduce.train.loss", "transduce.model", "transduce.model.attention", "transduce.decode.beam",
    }  # fmt: skip
    assert not may(KNOWS["data"], "model.attention") and may(KNOWS["data"], "data.corpus")
    assert not may(KNOWS["cli"], "train.trainer") and may(KNOWS["cli"], "train.log")
    assert not may(KNOWS["model"], "modelling")


def test_every_room_is_known_and_there():
    rooms = {own_module(path).split(".")[0] for path in SOURCES}
    assert {room for room in rooms if not room.startswith("cli_")} <= set(KNOWS)
    assert set(ROOMS) <= rooms


def names(path: Path) -> tuple[set[str], set[str]]:
    """Names that this file gives (to variables, fields, parameters, functions), and those that it only uses."""
    given, used = set(), set()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                given.add(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                given.add(name)
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)) | ast.alias(name=name):
                used.add(name.split(".")[-1])
    return given, used


@pytest.mark.parametrize("path", [p for p in SOURCES if own_module(p) != "model.attention"], ids=own_module)
def test_masks_are_made_in_attention_only(path):
    """PyTorch contradicts itself on what True means, so lengths cross the borders, and masks do not."""
    given, used = names(path)
    assert (given | used) & {"scaled_dot_product_attention", "is_causal", "attn_mask", "visible"} == set()
    nouns = {name for name in given if "mask" in name.lower() and not name.startswith("mask_")}  # mask_time: a verb
    assert nouns == set()


def test_attention_calls_it_where_it_may():
    given, used = names(PACKAGE / "model" / "attention.py")
    assert "visible" in given and {"scaled_dot_product_attention", "is_causal"} <= used


@pytest.mark.parametrize("path", [*SOURCES, *RECIPES], ids=lambda path: path.stem)
def test_no_rival_and_no_test_tool_is_imported(path):
    rivals = {"transformers", "pytest", "beartype", "fairseq", "espnet", "tests", "recipes"}
    assert {name.split(".")[0] for name in imports(path)} & rivals == set()


@pytest.mark.parametrize("path", [*SOURCES, *RECIPES], ids=lambda path: path.stem)
def test_a_file_can_be_seen_across(path):
    assert len(path.read_text().splitlines()) <= 350
