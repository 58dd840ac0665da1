"""A wrong use of a command or a recipe: one plain line with the rule, the value and the way out, and exit code 2."""

import re
import sys

import pytest

from recipes import language_model, masked_language_model, speech_to_text, translation
from transduce.cli.main import main
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
        ("score wer", "transduce score wer needs HYP and REF, but got none; transduce score wer --help says more"),
        ("translate a --beam 3", "there is no flag --beam; did you mean --beam-size or --beam-groups?"),
        ("describe a -x", "there is no flag -x; transduce describe --help says more"),
        ("export a b --to gpt3", "--to takes one of ctranslate2, gpt2, llama, marian, onnx, but it is 'gpt3'; transduce export --help says more"),
        (
            "describe a b c",
            "a word must be an argument or the value of a flag, but 'b' is neither; transduce describe --help says more",
        ),
        ("translate a --n-best", "--n-best takes a whole number, but nothing follows it; transduce translate --help says more"),
        ("generate a --temperature hot", "--temperature takes a number, but it is 'hot'; transduce generate --help says more"),
        ("generate a --temperature -1", "temperature must be at least 0, but temperature=-1.0"),
    ],
)  # fmt: skip
def test_a_wrong_use_of_a_command_is_one_line(capsys, words, message):
    assert main(words.split()) == 2
    assert capsys.readouterr() == ("", f"transduce: {message}\n")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("translate", ["transduce translate needs", "RUN"]),
        ("score wer a", ["transduce score wer needs REF,"]),
        ("export a b", ["transduce export needs --to,"]),
        ("export a b --too gpt2", ["--too", "--to?"]),
        ("translate a --n-best --greedy", ["--n-best takes", "nothing"]),
        ("translate a --n_best=b --greedy", ["--n-best takes", "'b'"]),
        ("translate a --beam-size 1.5", ["--beam-size", "'1.5'"]),
        ("translate a --precision fp8", ["--precision", "fp32, bf16, int8", "'fp8'"]),
        ("translate a --max-seconds 3", ["no flag --max-seconds"]),  # transcribe has it
        ("translate a --wave 3 --beam-sise 2", ["--wave, --beam-sise", "--beam-size?"]),
    ],
)
def test_other_wrong_uses_name_the_word(capsys, words, told):
    assert main(words.split()) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("transduce: ") and err.count("\n") == 1
    assert all(part in err for part in told)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("abc", ["'abc'", "python recipe.py commands --help-all says more"]),
        ("--training.max-minutes abc", ["--training.max-minutes takes a number or None", "'abc'"]),
        ("--training.optim.betas 0.9", ["--training.optim.betas takes a number, a number", "'0.9'"]),
        ("--training.lora 3", ["--training.lora;", "--training.lora.rank or --training.lora.alpha or"]),
        ("--patiense 3", ["--patiense;", "--training.patience?"]),
        ("--training.no-compil", ["--training.no-compil;", "--training.no-compile?"]),
        ("--qqq", ["--qqq;", "python recipe.py commands --help-all says more"]),
    ],
)
def test_a_wrong_use_of_a_recipe_names_the_word(wrong, words, told):
    said = wrong(translation, words)
    assert all(part in said for part in told)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.__name__)
def test_every_recipe_tells_its_wrong_uses_in_one_line(wrong, recipe):
    assert wrong(recipe, "--training.max-update 3").endswith("; did you mean --training.max-updates?")


def test_a_missing_value_of_a_recipe_is_one_line(wrong):
    assert wrong(masked_language_model, "--training.max-updates") == (
        "--training.max-updates takes a whole number, but nothing follows it; "
        "python recipe.py commands --help-all says more"
    )


@pytest.mark.parametrize("name", TAKES)
def test_every_flag_of_every_command_tells_that_its_value_is_missing(monkeypatch, capsys, name):
    """Those that take any number of values, --prompt alone, refuse none by themselves."""
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        main([*name.split(), "--help"])
    page = capsys.readouterr().out
    needed = {"score": 2, "export": 2}.get(name.split()[0], 1)
    taking = re.findall(r"^[│ ] (--[a-z-]+) (?! )", page, re.MULTILINE)
    for flag in taking:
        assert main([*name.split(), *"abc"[:needed], flag]) == 2
        told = capsys.readouterr()
        assert told.out == "" and re.fullmatch(rf"transduce: {flag} takes .+, but nothing follows it; .+\n", told.err)
    assert taking


def test_help_has_every_flag_whole_whatever_the_terminal_says_of_its_width(monkeypatch, capsys):
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
