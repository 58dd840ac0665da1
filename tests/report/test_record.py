"""What is told of a training: as much as its directory has, and no more than a page can show."""

import json
from itertools import pairwise

import pytest

from transduce.plot import spread
from transduce.report.record import HeldOutScore, Record, Sample, record

SCORE = {"search": "greedy", "measure": "wer", "value": 5.5, "low": None, "high": None, "score": "WER 5.5"}


def write(folder, **files: str) -> None:
    """A record as a recipe writes it, but for these files."""
    whole = {"metrics.jsonl": '{"update": 5, "kind": "valid", "loss": 2.0}\n', "samples/00000005.tsv": "a\tb\tc\n"}
    (folder / "samples").mkdir()
    for name, text in {**whole, "test.json": json.dumps([SCORE]), **files}.items():
        (folder / name).write_bytes(text.encode("utf-8", "surrogateescape"))


@pytest.mark.parametrize(
    "text", ["", "\udcff", "[1]", '{"update": 1}', "null", "[" * 5000, '{"update": 1e999}', "\0\t\t\t\t"]
)
@pytest.mark.parametrize("name", ["metrics.jsonl", "samples/00000005.tsv", "test.json"])
def test_damaged_files_are_skipped_and_the_rest_is_read(tmp_path, name, text):
    write(tmp_path, **{name: text})
    got = record(tmp_path)
    assert ([each.validation for each in got.curves] == [[(5, 2.0)]]) == (name != "metrics.jsonl")
    assert (got.samples == [Sample("a", "b", [(5, "c")])]) == (name != "samples/00000005.tsv")
    assert (got.scores.get("test") == [HeldOutScore(**SCORE)]) == (name != "test.json")


def test_non_finite_and_non_numeric_values_are_left_out(tmp_path):
    lines = '{"update": 5, "kind": "train", "loss": NaN}\n{"update": "x", "kind": "train", "loss": 1}\n'
    lines += '{"update": 7, "kind": "train", "loss": 3}\n{"update": 8, "kind": "train", "loss": "1"}\n'
    lines += f'{{"update": 9, "kind": "train", "loss": {10**400}}}\n'
    write(tmp_path, **{"metrics.jsonl": lines, "validation.json": '{"loss": 1.5, "perplexity": Infinity}'})
    got = record(tmp_path)
    assert [each.training for each in got.curves] == [[(7, 3.0)]]
    assert [(each.measure, each.value) for each in got.scores["validation"]] == [("loss", 1.5)]


def test_training_curve_is_the_cross_entropy(tmp_path):
    """Cross-entropy; CTC and divergences, of which a training minimizes the sum, are in no validation."""
    lines = '{"update": 4, "kind": "train", "loss": 20.5, "cross_entropy": 3.5, "ctc": 37.5}\n'
    write(tmp_path, **{"metrics.jsonl": lines + '{"update": 5, "kind": "valid", "loss": 3.0}\n'})
    (curve,) = record(tmp_path).curves
    assert (curve.name, curve.training, curve.validation) == ("loss", [(4, 3.5)], [(5, 3.0)])


def test_empty_directory_has_an_empty_record(tmp_path):
    assert record(tmp_path) == Record("", [], [], {})


def test_a_long_training_is_thinned(tmp_path):
    lines = "".join(f'{{"update": {u}, "kind": "train", "loss": {u}}}\n' for u in range(3000))
    write(tmp_path, **{"metrics.jsonl": lines})
    for update in range(100, 3000, 100):
        (tmp_path / "samples" / f"{update:08d}.tsv").write_text(f"a\tb\t{update}\n")
    (curve,), (sample,) = record(tmp_path).curves, record(tmp_path).samples
    assert (len(curve.training), curve.training[0], curve.training[-1]) == (500, (0, 0.0), (2999, 2999.0))
    assert (len(sample.outputs), sample.outputs[0], sample.outputs[-1]) == (12, (5, "c"), (2900, "2900"))


@pytest.mark.parametrize(("n", "most"), [(0, 3), (3, 3), (4, 3), (100, 7)])
def test_spread_has_equal_steps(n, most):
    got = spread(range(n), most)
    steps = [b - a for a, b in pairwise(got)]
    assert len(got) == min(n, most) and got[:1] + got[-1:] == [0, n - 1][: 2 * bool(n)]
    assert max(steps, default=0) - min(steps, default=0) <= 1
