"""Which family reads a directory of transformers, and what is said where none does."""

import json
import re
from pathlib import Path

import pytest

from transduce.cli.main import main
from transduce.interop.settings import SETTINGS


def test_help_and_docs_name_every_model_type(capsys):
    page = (Path(__file__).parents[2] / "docs" / "models_in_and_out.md").read_text()
    with pytest.raises(SystemExit):
        main(["import", "--help"])
    words = re.findall(r"\w+", capsys.readouterr().out)
    for kind in SETTINGS:
        assert kind in words and f"`{kind}`" in page


ALL = " or ".join(map(repr, SETTINGS))


@pytest.mark.parametrize(
    ("got", "words", "message"),
    [
        ("led", ["{}", "run"], f"model_type must be {ALL}, but in {{}} it is 'led'"),
        (None, ["{}", "run"], "but in {} it is None"),
        ("gpt2", ["{}"], "Missing from transduce import: RUN"),
        ("gpt2", [], "Missing from transduce import: HF_DIRECTORY RUN"),
    ],
)
def test_unknown_model_types_and_missing_arguments_are_refused(tmp_path, capsys, got, words, message):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": got}))
    assert main(["import", *(word.format(tmp_path) for word in words)]) == 2
    assert message.format(tmp_path) in capsys.readouterr().err


@pytest.mark.parametrize("name", ["facebook/bart-base", "adapter"])
def test_folder_without_config_is_refused_with_ways_to_get_one(tmp_path, capsys, name):
    """A name of the hub, or an adapter of peft, which has none."""
    (tmp_path / "adapter").mkdir()
    assert main(["import", str(tmp_path / name), str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err.replace("\n", " ") == (
        f"transduce: a model of transformers is a folder with config.json, but {tmp_path / name} has none; fetch one "
        "with hf download NAME --local-dir DIRECTORY, or merge an adapter of peft into its model (merge_and_unload) "
        "and save that "
    )
