"""Every link of docs/seeds.md leads somewhere: to a section of a tutorial, to code, to an option, to a test."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "seeds.md").read_text("utf-8")
ROWS = [
    [cell.strip() for cell in line.split("|")[1:-1]]
    for line in TEXT.splitlines()
    if line.startswith("| ") and not line.startswith(("| the text", "| where"))
]
TUTORIALS = dict(re.findall(r"^\[(t\d)\]: (\S+)$", TEXT, flags=re.MULTILINE))


def test_the_table_is_complete_and_has_four_columns():
    assert len(ROWS) >= 163
    assert {len(row) for row in ROWS} == {4}, [row for row in ROWS if len(row) != 4]


def headings(path: Path) -> list[str]:
    """The text of every heading of a tutorial."""
    return re.findall(r"^# #+ (.+)$", path.read_text("utf-8"), flags=re.MULTILINE)


def test_linked_tutorial_sections_exist():
    links = re.findall(r"\[([^\]]+)\]\[(t\d)\]", TEXT)
    assert len(links) > 100
    known = {name: headings(ROOT / "docs" / path) for name, path in TUTORIALS.items()}
    lost = {(text, name) for text, name in links if not any(each.startswith(text) for each in known[name])}
    assert not lost


def test_named_tests_exist():
    names = re.findall(r"`([\w/]+/)?(test_\w+\.py)(?:::(\w+))?`", TEXT)
    assert len(names) > 100
    for folder, file, function in names:
        path = ROOT / "tests" / folder / file
        assert path.is_file(), path
        if function:
            assert re.search(rf"^def {function}\(", path.read_text(), flags=re.MULTILINE), f"{path}::{function}"


def test_named_files_and_recipes_exist():
    paths = re.findall(r"`((?!test_)[\w/]+\.(?:py|md))", TEXT) + re.findall(r"`python (\S+\.py)", TEXT)
    for path in {path for path in paths if "test_" not in path}:
        assert any((ROOT / folder / path).is_file() for folder in ("transduce", "docs", ".")), path


@pytest.mark.parametrize("command", ["translation", "speech_to_text"])
def test_named_options_exist(command, monkeypatch):
    """Those of a model, a training and an augmentation, as the settings of a recipe have them."""
    module = __import__(f"recipes.{command}", fromlist=["SETTINGS"])
    setting = module.SETTINGS["commands"][1]
    flags = set(re.findall(r"`--((?:model|training|augmentation)\.[\w.-]+)", TEXT))
    assert len(flags) > 15
    for flag in flags:
        first, *rest = flag.rstrip(".").split(".")
        if not hasattr(setting, first):
            continue
        value = getattr(setting, first)
        for name in rest:
            name = name.replace("-", "_")
            assert hasattr(value, name) or hasattr(value, name.removeprefix("no_")), flag
            value = getattr(value, name, None)


def test_names_in_figure_1_link_to_their_definitions():
    drawing = (ROOT / "docs" / "figure_1.svg").read_text("utf-8")
    links = re.findall(r'<a href="\.\./(\S+?)">.*?<text[^>]*monospace[^>]*>([^<]+)</text></a>', drawing)
    assert len(links) > 15
    for path, names in links:
        code = (ROOT / path).read_text()
        for name in names.split(", "):
            name = name.split(".")[0]
            assert re.search(rf"^(class|def) {name}\b", code, flags=re.MULTILINE), (path, name)
