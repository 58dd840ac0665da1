"""Every script says what it does; what the benchmarks compare is the same work, and of the size that they name."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from bench import gpt2 as bench_gpt2, training as bench_training, turns

from scripts.ops import compare_runs
from transduce.model.meta import flops_per_token
from transduce.model.transformer import Transformer

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
HELP = [
    path
    for path in sorted(SCRIPTS.glob("*/[a-z]*.py"))
    if "ArgumentParser(" in path.read_text() and path.parent.name != "bench"
]
BENCHES = [path.stem for path in sorted(SCRIPTS.glob("bench/[a-z]*.py")) if "\ndef main(" in path.read_text()]
SMALLEST = [
    pytest.param("decoding --tiny --repeats 1 --batch-size 8", marks=pytest.mark.long),
    pytest.param("generation --tiny --repeats 1 --batch-size 2", marks=pytest.mark.long),
    pytest.param("processes --tiny --rounds 1 --updates 2 --warm-up 1", marks=pytest.mark.nightly),
    pytest.param("features --tiny", marks=pytest.mark.nightly),
]
"""Benchmarks at their smallest. tests/recipes/test_register.py runs those of the register only nightly, so two of them are here."""


@pytest.mark.process
@pytest.mark.parametrize("command", SMALLEST, ids=lambda command: command.split()[0])
def test_a_benchmark_runs(command, tmp_path):
    words = command.split()
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, SCRIPTS / "bench", *words], cwd=tmp_path, capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", HELP, ids=lambda path: path.name)
def test_help_of_scripts_shows_their_usage(path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [path.name, "--help"])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(path), run_name="__main__")
    assert stop.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: {path.name}")


@pytest.mark.long
@pytest.mark.parametrize("name", BENCHES)
def test_help_of_benchmarks_shows_their_usage(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", ["scripts/bench", name, "--help"])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(SCRIPTS / "bench"), run_name="__main__")
    assert stop.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: python scripts/bench {name}")


def test_benchmarks_are_listed_and_called_by_their_names(monkeypatch, capsys):
    monkeypatch.setattr(sys, "path", [*sys.path])
    for words, code, text in (
        (["attention", "--help"], 0, "usage: python scripts/bench attention"),
        ([], 0, "alignments "),
        (["atention"], "bench: a benchmark must be one of alignments, attention, ", ""),
    ):
        monkeypatch.setattr(sys, "argv", ["scripts/bench", *words])
        with pytest.raises(SystemExit) as stop:
            runpy.run_path(str(SCRIPTS / "bench"), run_name="__main__")
        assert str(stop.value.code or 0).startswith(str(code))
        assert capsys.readouterr().out.startswith(text)


def test_training_benchmark_has_the_size_it_names():
    d, ff, v = 256, 1024, 8000
    attention, feed_forward, norm = 4 * (d * d + d), 2 * d * ff + ff + d, 2 * d
    encoder, decoder = attention + feed_forward + 2 * norm, 2 * attention + feed_forward + 3 * norm
    plain = bench_training.system("plain loop", bench_training.Corpus([], [], 0), bench_training.TurnOptions())
    assert sum(p.numel() for p in plain.model.parameters()) == v * d + 3 * encoder + 3 * decoder
    assert f"{v * d + 3 * encoder + 3 * decoder:,} parameters" in " ".join(bench_training.__doc__.split())


def test_unsorted_batches_hold_every_pair_once_within_the_budget():
    source = [[4] * (i % 7) + [3] for i in range(50)]
    target = [[i + 4, *[4] * (i % 5), 3] for i in range(50)]  # the first id tells the pair
    batches = list(bench_training.Corpus(source, target, 40).unsorted(0))
    assert sorted(i for batch in batches for i in (batch.target_out[:, 0] - 4).tolist()) == list(range(50))
    assert all(side.numel() <= 40 for batch in batches for side in (batch.source, batch.target_out))
    assert [len(batch.source) for batch in batches] != [len(source)]


def test_turns_compare_each_system_with_the_first(capsys, monkeypatch):
    """On a clock by which a call of the first takes 2 s, of the second 1, 1 and 4."""
    seconds = iter([2.0, 1.0, 2.0, 1.0, 2.0, 4.0])
    now = [0.0]

    def work(texts):
        def run():
            now[0] += next(seconds)
            return texts

        return run

    monkeypatch.setattr(turns.time, "perf_counter", lambda: now[0])
    systems = {"theirs": work([[1, 2], [3, 4]]), "ours": work([[1, 2], [3, 5]])}
    got = turns.compare("batch 2", systems, n_tokens=2, repeats=3)
    assert got == {"theirs": [2.0] * 3, "ours": [4.0, 4.0, 1.0]}
    first, second = capsys.readouterr().out.splitlines()
    assert "1.00 x" in first and "100.00%" in first
    assert "2.00 x" in second and "50.00%" in second
    seconds = iter([1.0, 1.0])
    with pytest.raises(SystemExit, match="ours") as error:
        turns.compare("batch 2", systems, n_tokens=2, repeats=1, exact="ours")
    assert "50.00%" in str(error.value)


def test_gpt2_benchmark_has_the_size_and_operations_it_names():
    config = bench_gpt2.model_config(tiny=False)
    d, v, t, layers = 768, 50304, 1024, 12
    layer = 4 * (d * d + d) + 8 * d * d + 5 * d + 4 * d
    n = v * d + layers * layer + 2 * d
    with torch.device("meta"):
        models = [bench_gpt2.PlainGPT(config), Transformer(config)]
    assert flops_per_token(models[1]) == 6 * n + 12 * layers * d * t
    assert [sum(p.numel() for p in model.parameters()) for model in models] == [n + t * d] * 2


TWINS = {
    "tokens.weight": "output",
    "positions.weight": "decoder.positions.learned",
    "blocks": "decoder.layers",
    "norms.0": "attention_sublayer.norm",
    "norms.1": "feed_forward_sublayer.norm",
    "qkv": "attention.qkv",
    "merge": "attention.output",
    "up": "feed_forward.wide",
    "down": "feed_forward.narrow",
}


def test_gpt2_benchmark_models_have_equal_loss():
    """With the weights copied over, the plain model has our loss."""
    config = bench_gpt2.model_config(tiny=True)
    torch.manual_seed(0)
    ours, plain = Transformer(config).double(), bench_gpt2.PlainGPT(config).double()
    own = dict(ours.named_parameters())
    ids = torch.randint(256, (3, 17))
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            for their, our in TWINS.items():
                name = name.replace(their, our)
            parameter.copy_(own["decoder." + name if name.startswith("norm") else name])
    want = F.cross_entropy(ours(target_in=ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    torch.testing.assert_close(plain(ids[:, :-1], ids[:, 1:]), want, rtol=1e-10, atol=1e-10)


def write_metrics(run, losses):
    run.mkdir()
    lines = [json.dumps({"kind": "valid", "update": update, "loss": loss}) for update, loss in losses.items()]
    (run / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return str(run)


def test_runs_are_compared_at_their_last_common_update(tmp_path, monkeypatch):
    one = write_metrics(tmp_path / "a", {5: 3.0, 9: 2.01})
    others = {
        "b": {5: 1.0, 9: 2.0, 12: 1.0},
        "c": {4: 1.0},
        "d": {},
    }

    def compared(other, *options):
        monkeypatch.setattr(sys, "argv", ["compare_runs.py", one, str(tmp_path / other), *options])
        return compare_runs.main()

    for name, losses in others.items():
        write_metrics(tmp_path / name, losses)
    assert compared("b") == 0  # half a percent apart
    assert compared("b", "--within", "0.004") == 1
    with pytest.raises(ValueError) as error:
        compared("c")
    assert str(error.value) == "both runs must have been validated at one update, but they were at [5, 9] and [4]"
    with pytest.raises(ValueError) as error:
        compared("d")
    assert str(error.value) == (
        f"a run to compare must have been validated, but {tmp_path / 'd' / 'metrics.jsonl'} has no such line; train it first"
    )
