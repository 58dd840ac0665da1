"""The register of results: its rows, the README that is made of it, and a figure that is measured again."""

import json
import re
import shlex
from itertools import groupby

import pytest

from recipes import language_model, masked_language_model, speech_to_text, translation
from scripts.ops.results import (
    MARKER,
    README,
    SUBJECTS,
    Figure,
    comparison,
    full_command,
    read_register,
    readme,
    run_directory,
)
from transduce.experiment.command import choose

FIGURES = read_register()
RECIPES = {
    f"recipes/{recipe.__name__.split('.')[-1]}.py": recipe
    for recipe in (language_model, masked_language_model, speech_to_text, translation)
}
TRAINED = [each for each in FIGURES if "python recipes/" in each.command]


def example(**cells: str) -> Figure:
    """A row with these cells."""
    return Figure(*[""] * len(Figure._fields))._replace(name="one", **cells)


def test_rows_are_complete():
    assert len({each.name for each in FIGURES}) == len(FIGURES) > 50
    for each in FIGURES:
        assert re.fullmatch(r"[a-z0-9_]+", each.name)
        assert all((each.what, each.measure, each.command, each.device)), each.name
        assert re.fullmatch(r"[0-9a-f]{7}", each.commit), each.name
        float(each.value), float(each.minutes or 0)
        if each.interval:
            low, high = json.loads(each.interval)
            assert low <= float(each.value) <= high, each.name
        assert bool(each.smoke) != bool(each.prepared), each.name
        assert each.seed or each.measure == "ratio", each.name
        flags = shlex.split(each.command)
        if "--training.seed" in flags:
            assert flags[flags.index("--training.seed") + 1] == each.seed


def test_tables_list_papers_first():
    tables = [(subject, list(rows)) for subject, rows in groupby(FIGURES, key=lambda each: each.subject)]
    assert [subject for subject, _ in tables] == list(SUBJECTS)
    for _, rows in tables:
        papers = [each.what.startswith("paper:") for each in rows]
        assert papers == sorted(papers, reverse=True)


def test_readme_tables_equal_the_register():
    text = README.read_text("utf-8")
    assert readme(FIGURES, text) == text and text.count(MARKER) == 1
    assert len(text.splitlines()) <= 150


def test_a_table_has_the_cells_of_its_rows():
    subject = "Language models"
    row = example(
        subject=subject,
        what="Text",
        value="1.5",
        interval="[1.4, 1.6]",
        device="H100",
        minutes="2",
        seed="1",
        commit="abc",
    )
    made = readme([row], f"By hand.\n\n{MARKER}old")
    assert made.startswith(f"By hand.\n\n{MARKER}\n## {subject}\n")
    assert made.endswith("| `one` | Text | **1.5** [1.4, 1.6] |  | 2 min, H100 | 1, abc |\n")


@pytest.mark.parametrize("figure", TRAINED, ids=lambda figure: figure.name)
def test_recipes_accept_the_commands(figure, tmp_path):
    words = shlex.split(re.sub(r"^\w+=\S+ ", "", figure.command))
    assert words[0] == "python"
    for more in ([], shlex.split(figure.smoke)):
        options = [*words[2:], *more, "--run", str(tmp_path)]
        assert choose(RECIPES[words[1]].SETTINGS, options, default="commands").run == tmp_path


def test_a_command_gets_its_run_directory_and_options():
    recipe = example(command="A=1 python recipes/r.py x --y 2")
    again = recipe._replace(name="two")
    script = example(command="B=2 bash scripts/s.sh part")
    bench = example(command="python scripts/bench b")
    figures = [recipe, again, script, bench]
    options = ["--z", "a b"]
    assert run_directory(figures, again) == "runs/reproduced/one"
    assert (
        full_command(figures, again, options) == "A=1 python recipes/r.py x --y 2 --run runs/reproduced/one --z 'a b'"
    )
    assert full_command(figures, script, ["--tiny"]) == "B=2 bash scripts/s.sh part --tiny runs/reproduced/one"
    assert full_command(figures, bench, []) == "python scripts/bench b"


def test_a_command_that_needs_other_runs_is_refused(capsys):
    figure = example(command='A_B=1 transduce translate ONE,TWO_2 "$DATA/test" --seed 1')
    with pytest.raises(SystemExit) as stop:
        full_command([figure], figure, [])
    assert stop.value.code == 2
    assert capsys.readouterr().err == (
        "reproduce.sh: one needs ONE, TWO_2, which other commands make; the pages of docs/results say how\n"
    )


def test_comparison_shows_stated_and_measured_values(tmp_path):
    scores = [
        {"search": "greedy", "measure": "bleu", "value": 1, "low": 0, "high": 2},
        {"search": "beam5", "measure": "bleu", "value": 3.14159, "low": 2.5, "high": 4.004},
        {"search": "beam5", "measure": "bleu", "group": "en-de", "value": 5, "low": 4, "high": 6},
    ]
    (tmp_path / "test.json").write_text(json.dumps(scores))
    (tmp_path / "validation.json").write_text('{"loss": 0.59951, "tokens": 3}')
    beam = example(measure="bleu", search="beam5", file="test.json", value="3.20", interval="[3.00, 3.40]")
    assert comparison(beam, tmp_path) == "one, bleu beam5: stated 3.20 [3.00, 3.40], measured 3.14 [2.50, 4.00]"
    one_direction = beam._replace(search="beam5.en-de", interval="")
    assert comparison(one_direction, tmp_path) == "one, bleu beam5.en-de: stated 3.20, measured 5.00 [4.00, 6.00]"
    loss = example(measure="loss", file="validation.json", value="0.600")
    assert comparison(loss, tmp_path) == "one, loss: stated 0.600, measured 0.600"
    ratio = example(measure="ratio", value="1.46")
    assert comparison(ratio, tmp_path) == "one, ratio: stated 1.46, measured as printed above"
