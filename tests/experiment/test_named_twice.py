"""A field of a file is named once: YAML and JSON would take the last of several without a word."""

import pytest

from recipes.translation import COMMANDS
from transduce.experiment.command import with_files


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", "training:\n  max_updates: 7\nseed_of: 1\ntraining:\n  validate_every: 3\n"),
        ("a.yaml", "training: {max_updates: 7, max_updates: 8}\n"),
        ("a.json", '{"training": {"max_updates": 7}, "training": {"validate_every": 3}}'),
        ("a.json", '{"training": {"max_updates": 7, "max_updates": 8}}'),
    ],
)
def test_a_field_named_twice_is_refused(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=r"named once, but '(training|max_updates)' is named 2 times"):
        with_files(COMMANDS, [tmp_path / name])


def test_the_same_name_in_two_blocks_is_two_fields(tmp_path):
    (tmp_path / "a.yaml").write_text(
        "training:\n  max_updates: 7\n  optim:\n    peak_rate: 0.1\nmodel:\n  dropout: 0.2\n"
    )
    got = with_files(COMMANDS, [tmp_path / "a.yaml"])
    assert (got.training.max_updates, got.training.optim.peak_rate, got.model.dropout) == (7, 0.1, 0.2)


def test_yaml_merges_can_be_overridden_and_list_keys_are_refused(tmp_path):
    (tmp_path / "a.yaml").write_text("training:\n  <<: {max_updates: 7, seed: 5}\n  seed: 6\n")
    got = with_files(COMMANDS, [tmp_path / "a.yaml"]).training
    assert (got.max_updates, got.seed) == (7, 6)
    (tmp_path / "a.yaml").write_text("? [training]\n: 1\n")
    with pytest.raises(ValueError, match="unhashable key"):
        with_files(COMMANDS, [tmp_path / "a.yaml"])
