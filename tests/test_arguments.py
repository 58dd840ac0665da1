"""A wrong use of a command or a recipe: one plain line with the rule, the value and the way out, and exit code 2."""

import re
import sys
from io import BytesIO, TextIOWrapper
from typing import get_args, get_type_hints

import pytest

from recipes import language_model, masked_language_model, speech_to_text, translation
from transduce.cli.main import main
from transduce.cli.runs import export
from transduce.experiment.command import main as recipe_main

RECIPES = (translation, speech_to_text, language_model, masked_language_model)
TAKES = (
    "generate",
    "score wer",
    *(
        pytest.param(name, marks=pytest.mark.long)
        for name in ("translate", "transcribe", "score bleu", "score comet", "score perplexity", "average", "export")
    ),
)
"""Commands with flags that take a value."""


@pytest.fixture
def wrong(monkeypatch, capsys):
    """What a recipe says to these words, which must be wrong."""

    def call(recipe, words):
        monkeypatch.setattr(sys, "argv", ["recipe.py", "commands", *words.split()])
        assert recipe_main(lambda x: None, recipe.SETTINGS, default="commands", description=None) == 2
        out, err = capsys.readouterr()
        (line,) = err.splitlines()
        assert out == "" and line.startswith("transduce: ")
        return line.removeprefix("transduce: ")

    return call


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("score wer", "Missing from transduce score wer: HYP REF; transduce score wer --help says more"),
        (
            "translate a --beam 3",
            "there is no flag --beam; here it is --beam-size",
        ),
        (
            "generate a --n-best 2 --max_new_tokens 9",
            "there is no flag --n-best; here it is --n; there is no flag --max-new-tokens; here it is --max-length",
        ),
        (
            "translate a --min 4 b.txt",
            "Unrecognized options: --min; Perhaps you meant: --min-length INT or --min-p FLOAT; "
            "transduce translate --help says more",
        ),
        ("describe a -x", "Unrecognized options: -x; transduce describe --help says more"),
        (
            "export a b --to gpt3",
            "invalid choice 'gpt3' for argument '--to'. Expected one of "
            f"{get_args(get_type_hints(export)['to'])}; transduce export --help says more",
        ),
        (
            "describe a b c",
            "Unrecognized options: b, c; transduce describe --help says more",
        ),
        ("translate a --n-best", "Missing value for argument '--n-best'. Expected 1 values; transduce translate --help says more"),
        (
            "generate a --temperature hot",
            "Error parsing --temperature: no type matching FLOAT could be instantiated from ['hot']; "
            "transduce generate --help says more",
        ),
        ("serve a --queue 0", "queue must be at least 1, but queue=0"),
    ],
)  # fmt: skip
def test_usage_errors_of_commands_are_one_line(capsys, words, message):
    assert main(words.split()) == 2
    assert capsys.readouterr() == ("", f"transduce: {message}\n")


class Terminal(TextIOWrapper):
    def isatty(self):
        return True


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_usage_errors_have_no_colours_on_a_terminal(monkeypatch, capsys, encoding):
    """Where tyro's own page has colours, and a frame of other characters if the terminal lacks them."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(sys, "stdout", Terminal(BytesIO(), encoding))
    assert main(["describe", "a", "--al"]) == 2
    assert capsys.readouterr().err == (
        "transduce: Unrecognized options: --al; Perhaps you meant: --all; transduce describe --help says more\n"
    )


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("translate", ["Missing from transduce translate: RUN"]),
        ("score wer a", ["Missing from transduce score wer: REF;"]),
        ("export a b", ["Missing from transduce export: --to {"]),
        ("export a b --too gpt2", ["--too", "Missing from transduce export: --to {"]),
        ("translate a --n-best --greedy", ["Missing value", "'--n-best'"]),
        ("translate a --n_best=b --greedy", ["--n-best", "'b'"]),
        ("translate a --beam-size 1.5", ["--beam-size", "'1.5'"]),
        ("translate a --precision fp8", ["--precision", "'fp32', 'bf16', 'int8'", "'fp8'"]),
        ("translate a --max-seconds 3", ["Unrecognized options: --max-seconds"]),  # transcribe has it
        ("translate a --wave 3 --beam-sise 2", ["--wave, --beam-sise;", "--beam-size INT"]),
    ],
)
def test_usage_errors_of_commands_name_the_wrong_word(capsys, words, parts):
    assert main(words.split()) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("transduce: ") and err.count("\n") == 1
    assert all(part in err for part in parts)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("abc", ["abc;", "python recipe.py commands --help-all says more"]),
        ("--training.max-minutes abc", ["--training.max-minutes", "FLOAT", "'abc'"]),
        ("--training.optim.betas 0.9", ["--training.optim.betas", "Expected 2 values"]),
        ("--training.lora 3", ["--training.lora;", "--training.lora.rank INT", "--training.lora.alpha FLOAT"]),
        ("--training.patiense 3", ["--training.patiense;", "--training.patience INT"]),
        ("--training.no-compil", ["--training.no-compil;", "--training.no-compile"]),
        ("--qqq", ["--qqq;", "python recipe.py commands --help-all says more"]),
    ],
)
def test_usage_errors_of_recipes_name_the_wrong_word(wrong, words, parts):
    said = wrong(translation, words)
    assert all(part in said for part in parts)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.__name__)
def test_usage_errors_of_every_recipe_are_one_line(wrong, recipe):
    assert wrong(recipe, "--training.max-update 3").startswith(
        "Unrecognized options: --training.max-update; Perhaps you meant: --training.max-updates INT"
    )


def test_a_missing_value_of_a_recipe_flag_is_one_line(wrong):
    assert wrong(masked_language_model, "--training.max-updates") == (
        "Missing value for argument '--training.max-updates'. Expected 1 values; "
        "python recipe.py commands --help-all says more"
    )


@pytest.mark.parametrize("name", TAKES)
def test_a_missing_value_of_any_command_flag_is_reported(monkeypatch, capsys, name):
    """Those that take any number of values, --prompt alone, refuse none by themselves."""
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        main([*name.split(), "--help"])
    page = capsys.readouterr().out
    needed = {"score": 2, "export": 2}.get(name.split()[0], 1)
    taking = re.findall(r"^[│ ] (--[a-z-]+) (?! )", page, re.MULTILINE)
    for flag in taking:
        required = ["--to", "onnx"] if name == "export" and flag != "--to" else []
        assert main([*name.split(), *"abc"[:needed], *required, flag]) == 2
        printed = capsys.readouterr()
        line = rf"transduce: (Missing value for argument '{flag}'.*|{flag} takes texts, but nothing follows it); .+\n"
        assert printed.out == "" and re.fullmatch(line, printed.err)
    assert taking


def test_help_never_breaks_flags_on_narrow_terminals(monkeypatch, capsys):
    """tyro cuts words anywhere on a page that is too narrow."""
    monkeypatch.setattr(sys, "argv", ["recipe.py", "commands", "--help-all"])

    def flags():
        with pytest.raises(SystemExit) as stop:
            recipe_main(lambda x: None, masked_language_model.SETTINGS, default="commands", description=None)
        assert stop.value.code == 0
        return set(re.findall(r"--[a-z][\w.-]*", capsys.readouterr().out))

    monkeypatch.delenv("COLUMNS", raising=False)
    want = flags()
    assert "--masking.random-replace-probability" in want  # the longest
    for columns in ("20", "0", "abc"):
        monkeypatch.setenv("COLUMNS", columns)
        assert flags() == want, columns
