"""004_d8368faaaad45199.txt, "Transformers From Scratch": the next-word models that lead up to attention.

They run in recipes/next_word.py. A section is named by its English title.
"""

import runpy
from pathlib import Path

import pytest
import torch

from recipes.next_word import (
    CHECK,
    FIND_OUT,
    SHOW,
    branches,
    decisive,
    features,
    first_order,
    second_order,
    second_order_with_skips,
    votes,
)
from tests.seeds.figures import attended, config
from transduce.model.layers import FeedForward

PROGRAM, BATTERY = (sentence.split()[:10] for sentence in FIND_OUT)
"""Up to "ran"."""


def test_matrix_multiplication_as_a_table_lookup():
    """Seed 004, "Matrix multiplication as a table lookup": one-hot queries take rows 1, 4 and 3 out of a matrix.

    In our attention: one-hot vectors multiply to 1 with themselves and to 0 with others; made long, softmax leaves
    nothing of the others.
    """
    table, one_hot = torch.randn(4, 4), torch.eye(4)
    assert (one_hot @ one_hot.T).tolist() == [[float(i == j) for j in range(4)] for i in range(4)]
    rows = attended(1000 * one_hot[[0, 3, 2]], one_hot, table)
    torch.testing.assert_close(rows, torch.stack([table[0], table[3], table[2]]))


def test_first_order_sequence_model():
    """Seed 004, "First order sequence model": seven words, and one branch, 0.5 / 0.3 / 0.2 after "my"."""
    model = first_order(SHOW)
    assert len({word for sentence in SHOW for word in sentence.split()}) == 7
    assert model["my"] == pytest.approx({"photos": 0.5, "files": 0.3, "directories": 0.2})
    assert branches(model) == ["my"]
    assert model["show"] == {"me": 1}
    assert model["me"] == {"my": 1}
    for word in ("directories", "files", "photos"):
        assert model[word] == {"please": 1}
    for row in model.values():
        assert sum(row.values()) == pytest.approx(1)


def test_second_order_sequence_model():
    """Seed 004, "Second order sequence model": 40 to 60; two words of context leave one branch of two."""
    first, second = first_order(CHECK), second_order(CHECK)
    assert first["ran"] == pytest.approx({"down": 0.4, "please": 0.6})
    assert first["the"] == pytest.approx({"battery": 0.4, "program": 0.6})
    assert branches(first) == ["the", "ran"]
    assert second["battery", "ran"] == {"down": 1}
    assert second["program", "ran"] == {"please": 1}
    assert branches(second) == [("whether", "the")]


def test_second_order_sequence_model_with_skips():
    """Seed 004, "Second order sequence model with skips": 4 votes against 5, for the right word each time."""
    model = second_order_with_skips(FIND_OUT)
    rows = {earlier: row for (earlier, latest), row in model.items() if latest == "ran"}
    assert rows.pop("battery") == {"down": 1}
    assert rows.pop("program") == {"please": 1}
    assert len(rows) == 8
    assert all(row == {"down": 0.5, "please": 0.5} for row in rows.values())
    assert votes(model, PROGRAM) == {"down": 4, "please": 5}
    assert votes(model, BATTERY) == {"down": 5, "please": 4}
    # The word that decides is eight words back; the last one, or the last two, cannot tell.
    assert len(PROGRAM) - PROGRAM.index("program") == len(BATTERY) - BATTERY.index("battery") == 8
    assert first_order(FIND_OUT)["ran"] == second_order(FIND_OUT)["it", "ran"] == {"down": 0.5, "please": 0.5}


def test_masking():
    """Seed 004, "Masking": 1 against 0."""
    model = second_order_with_skips(FIND_OUT)
    mask = decisive(model, "ran")
    assert mask == {("battery", "ran"), ("program", "ran")}
    assert votes(model, BATTERY, mask) == {"down": 1, "please": 0}
    assert votes(model, PROGRAM, mask) == {"down": 0, "please": 1}
    assert votes(model, PROGRAM, set(features(PROGRAM))) == votes(model, PROGRAM)
    assert set(votes(model, PROGRAM, set()).values()) == {0}


def test_second_order_sequence_model_as_matrix_multiplications():
    """Seed 004, "Second order sequence model as matrix multiplications": 1 and -1, then ReLU, then the votes.

    The section's features, made by hand, in our feed-forward layer: words (battery, program, ran) and a bias to the
    pairs (battery, ran) and (program, ran), and these to the votes for "down" and "please".
    """
    layer = FeedForward(config(d_model=5, n_heads=1, d_ff=2))
    words = ["battery", "program", "ran", "down", "please"]
    with torch.no_grad():
        layer.wide.weight.copy_(torch.tensor([[1.0, -1.0, 1.0, 0.0, 0.0], [-1.0, 1.0, 1.0, 0.0, 0.0]]))
        layer.wide.bias.fill_(-1.0)
        layer.narrow.weight.zero_()
        layer.narrow.weight[3, 0] = layer.narrow.weight[4, 1] = 1.0
        layer.narrow.bias.zero_()
    for seen, pairs, next_word in (("battery", [1.0, -1.0], "down"), ("program", [-1.0, 1.0], "please")):
        attended_words = torch.tensor([[[float(word in (seen, "ran")) for word in words]]])
        assert layer.wide(attended_words)[0, 0].tolist() == pairs
        assert layer(attended_words)[0, 0].tolist() == [float(word == next_word) for word in words]


def test_the_example_runs(capsys):
    """Seed 004, from the first order to masking: `python recipes/next_word.py` says what it does."""
    runpy.run_path(str(Path(__file__).parents[2] / "recipes" / "next_word.py"), run_name="__main__")
    said = capsys.readouterr().out
    assert "directories 0.2, files 0.3, photos 0.5" in said
    assert "'please': 5.0, 'down': 4.0" in said
    assert "'please': 1.0, 'down': 0.0" in said
