"""Help and typos are answered before anything heavy is imported."""

import json
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from transduce.cli.main import COMMANDS, main

ROOT = Path(__file__).parents[2]
HEAVY = {"torch", "torchaudio", "transformers", "matplotlib", "tensorboard"}
RECIPES = ("translation", "speech_to_text", "language_model", "masked_language_model")

ANSWERS = """
import json, sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

def answer(main, words):
    said = StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        try:
            code = main(words)
        except SystemExit as stop:
            code = stop.code
    return code, said.getvalue(), sorted({heavy} & set(sys.modules))

{main}
print(json.dumps([answer(main, words) for words in {calls}]))
"""

RECIPE = """
from importlib import import_module
from transduce import experiment as ex

def main(words):
    sys.argv = ["recipe.py", *words[1:]]
    recipe = import_module("recipes." + words[0])
    return ex.main(recipe.run, recipe.SETTINGS, default="commands", description=recipe.__doc__)
"""


def answers(main: str, calls: list[list[str]]) -> list[tuple[int, str, list[str]]]:
    """Exit code, what was said, and the heavy modules there by then, of calls in a process of their own."""
    script = ANSWERS.format(main=main, calls=json.dumps(calls), heavy=HEAVY)
    path = {"PYTHONPATH": f"{ROOT}:{ROOT / 'recipes'}"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=path)
    assert done.returncode == 0, done.stderr
    return [tuple(got) for got in json.loads(done.stdout)]


@pytest.mark.process
def test_help_and_typos_of_commands_do_not_import_torch():
    calls = [["--help"]]
    few = {"data get": ["fsdd", "b"], "completion": ["bash"]}
    for name in COMMANDS:
        calls += [
            [*name.split(), "--help"],
            [
                *name.split(),
                *([] if "train" in name else few.get(name, "ab")),
                "--wrong-flag",
            ],
        ]
    for words, (code, said, heavy) in zip(calls, answers("from transduce.cli.main import main", calls), strict=True):
        assert not heavy, words
        assert code == (0 if words[-1] == "--help" else 2), words
        assert "usage: transduce" in said if words[-1] == "--help" else "wrong-flag" in said, words


@pytest.mark.process
def test_help_and_typos_of_recipes_do_not_import_torch():
    calls = []
    for name in RECIPES:
        setting = "text" if "language" in name else "commands"
        calls += [[name, "--help"], [name, setting, "--help"], [name, "--wrong-flag", "1"]]
    got = answers(RECIPE, calls)
    assert [(code, heavy) for code, _, heavy in got] == [(0, []), (0, []), (2, [])] * len(RECIPES)
    for general, setting, typo in (got[i : i + 3] for i in range(0, len(got), 3)):
        assert general[1] and "--training.max-updates" in setting[1] and "wrong-flag" in typo[1]


COMMON = ("translate", "transcribe", "generate", "serve", "score likelihood")
"""Commands whose --help leaves flags out."""


def test_help_is_short_and_has_the_common_options(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.argv", ["transduce"])
    pages = {}
    for name in COMMANDS:
        with suppress(SystemExit):
            main([*name.split(), "--help"])
        pages[name] = capsys.readouterr().out
        assert 8 < len(pages[name].splitlines()) <= 40, name
        assert all(len(line) <= 80 for line in pages[name].splitlines()) or name.startswith("train "), name
        assert len(re.findall(r"(?m)^│ (?:-h, )?--", pages[name])) <= 24, name
    common = {
        "--alpha",
        "--beam-size",
        "--lm-weight",
        "--sample",
        "--n-best",
        "--greedy",
        "--lm",
        "--workers",
        "--part",
        "--device",
        "--precision",
        "--output",
    }
    for name, others in {
        "translate": {"--scores", "--alignments", "--interactive"},
        "transcribe": {"--word-times", "--stream", "--max-seconds"},
    }.items():
        shown = set(re.findall(r"(?m)^│ (--[a-z-]+)", pages[name]))
        assert common | others <= shown and "--length-offset" not in shown and "--help-all" in pages[name]


def test_help_lists_every_command_in_order(capsys):
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    listed = [line for line in lines if line.startswith("  ")]
    assert [line.split("  ")[1] for line in listed] == list(COMMANDS)
    assert all(line.rstrip().endswith(".") and len(line) <= 110 for line in listed)
    assert main(["score", "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: transduce score COMMAND ...\n")
    assert all((name in out) == name.startswith("score ") for name in COMMANDS)


@pytest.mark.parametrize(
    ("words", "nearest"),
    [
        (["translte", "runs/a"], "did you mean translate?"),
        (["score", "blue", "a", "b"], "did you mean score bleu?"),
        (["scores"], "did you mean score?"),
        (["xyz"], "transduce --help "),
        (["score", "xyzzy"], "transduce score --help "),
    ],
)
def test_a_wrong_command_suggests_the_nearest_one(capsys, words, nearest):
    assert main(words) == 2
    assert nearest in capsys.readouterr().err


def test_a_missing_command_prints_the_list_of_commands(capsys):
    for words in ([], ["score"], ["train"]):
        assert main(words) == 2
        assert "but none is\n\nusage: transduce " in capsys.readouterr().err
