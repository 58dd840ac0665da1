"""Every command that stands in a block of a page, or of a tutorial, is one that transduce understands."""

import importlib
import re
import shlex
from functools import partial, wraps
from pathlib import Path

import pytest

from transduce.cli.main import COMMANDS, main
from transduce.data.lines import read_lines
from transduce.data.manifest import Recording, write_manifest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "docs").rglob("[0-9]_*.py"))]
PROGRAM = re.compile(r"^(?:\$ |torchrun\b.*?|python )?\b(?:transduce (?!.*: )|recipes/(\w+)\.py ?)(.*)$")
"""A command, whether the first word is transduce or torchrun, or a recipe by itself."""


def commands(page: Path) -> list[list[str]]:
    """The words of every command line that is indented, or between fences."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".py":
        text = re.sub(r"^# ?", "", text, flags=re.MULTILINE)
    text = re.sub(r" *\\\n\s*", " ", text)
    fenced = "".join(re.findall(r"^```(?:bash|sh|text)?\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL))
    lines = re.findall(r"^    +(\S.*)$", text, flags=re.MULTILINE) + fenced.splitlines()
    got = []
    for line in lines:
        line = re.sub(r"\[.*\]", "", re.split(r"\s#(?=\s)|^#", line)[0])  # a comment; and what may be left out
        for part in re.split(r" \| ", line):
            if match := PROGRAM.match(part.strip()):
                recipe = [] if match[1] is None else ["train", match[1].replace("_", "-")]
                words = recipe + shlex.split(re.split(r" [<>] ", match[2] + " ")[0])
                if " ".join(words[:2]) in COMMANDS or words[0] in COMMANDS:
                    got.append(words)
    return got


def without_work(function):
    """A command that takes what this one takes, and does nothing."""
    if isinstance(function, partial):
        return partial(without_work(function.func), *function.args, **function.keywords)
    return wraps(function)(lambda *_, **__: None)


@pytest.mark.long  # half a second a line
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_line_parses(page, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("my.yaml").write_text("{}")  # which a page writes by --print-config
    for place, _ in COMMANDS.values():
        module, name = place.split(":")
        if name != "_train":  # recipes are called, with --print-config
            there = importlib.import_module(f"transduce.cli.{module}")
            monkeypatch.setattr(there, name, without_work(getattr(there, name)))
    for words in commands(page):
        more = ["--print-config"] if words[0] == "train" else []
        try:
            code = main(words + more)
        except SystemExit as end:  # of a recipe, and of --help
            code = end.code or 0
        assert code == 0, f"transduce {shlex.join(words)}: {capsys.readouterr().err}"


def test_commands_of_a_page_are_extracted_and_wrong_ones_refused(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text(
        "Say `transduce describe RUN`:\n\n    ffmpeg -i a - | transduce transcribe RUN -   # sound\n\n"
        "    torchrun --nproc-per-node 2 -- recipes/translation.py --training.accumulate 2\n\n"
        "```\ntransduce translate RUN \\\n    --beam-siz 3 < a > b\n```\n"
    )
    assert commands(page) == [
        ["transcribe", "RUN", "-"],
        ["train", "translation", "--training.accumulate", "2"],
        ["translate", "RUN", "--beam-siz", "3"],
    ]
    assert main(commands(page)[2]) == 2
    assert "--beam-siz" in capsys.readouterr().err


def test_own_recordings_cuts_the_texts_out_of_a_manifest(tmp_path):
    page = (ROOT / "docs/guides/own_recordings.md").read_text(encoding="utf-8")
    write_manifest(tmp_path / "a.tsv", [Recording("a", Path("a.wav"), 1.0, "ann", "good day", {"age": "6"})])
    (column,) = re.findall(r"cut -f (\d+) train\.tsv", page)
    assert [row.split("\t")[int(column) - 1] for row in read_lines(tmp_path / "a.tsv")] == ["text", "good day"]
