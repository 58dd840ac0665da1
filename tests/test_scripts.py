"""Every script says what it does, and the benchmarks run."""

import argparse
import functools
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from scripts import bench_gpt2, bench_training, compare_runs, turns
from transduce.model.transformer import Transformer
from transduce.train.flops import flops_per_token

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
TRAINING = "bench_training.py", "--tiny", "--rounds", "1", "--updates", "2", "--warm-up", "1", "--threads", "1"
SPEECH = "bench_speech_training.py", *TRAINING[1:]
PROCESSES = "bench_processes.py", "--tiny"
DECODING = (
    "bench_decoding.py",
    "--tiny",
    "--repeats",
    "1",
    "--tokens",
    "4",
    "--batch-size",
    "48",
    "--threads",
    "1",
    "--static",
)
GENERATION = "bench_generation.py", "--tiny", "--repeats", "1", "--batch-size", "3", "--threads", "1", "--static"
GPT2 = (
    "bench_gpt2.py", "--device", "cpu", "--tiny", "--rounds", "1", "--warm-up", "1", "--threads", "1", "--accumulate", "2"
)  # fmt: skip
HELP = [path.name for path in sorted(SCRIPTS.glob("*.py")) if "ArgumentParser(" in path.read_text()]


@pytest.fixture(scope="module")
def peak(tmp_path_factory):
    """The benchmark of training, measuring the memory of one system, as it calls itself."""
    ids = tmp_path_factory.mktemp("peak") / "ids.json"
    ids.write_text(json.dumps([[[4, 5, 3], [6, 3]], [[7, 3], [8, 9, 3]], 16]))
    return *TRAINING, "--peak", "transduce fp32", str(ids)


@pytest.fixture(scope="module")
def output():
    """What a command prints; it runs once."""

    @functools.cache
    def run(command):
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        words = [sys.executable, str(SCRIPTS / command[0]), *command[1:]]
        done = subprocess.run(words, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
        return done.stdout

    return run


@pytest.mark.parametrize("name", HELP)
def test_help_says_how_to_call_a_script(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(SCRIPTS / name), run_name="__main__")
    assert stop.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: {name}")


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "size", "systems"),
    [
        ((*TRAINING, "--no-memory"), "pairs", ["plain loop, no buckets", "transduce fp32", "transduce bf16"]),
        (SPEECH, "recordings", ["transduce fp32", "transduce bf16"]),
    ],
)
def test_training_benchmarks_compare_every_system_with_the_plain_loop(output, command, size, systems):
    heading, *lines = output(command).splitlines()
    first, rows = lines[: len(lines) // 2], lines[len(lines) // 2 :]
    assert all(re.fullmatch(r"\S.*?  +\d+\.\d s for the first update, \d+\.\d s of CPU", line) for line in first)
    assert re.match(rf"\d+ {size}, [\d,]+ parameters, 1 threads, cpu, torch ", heading)
    pattern = r"(\S.*?)  +([\d,]+) target tokens/s +([\d.]+) x  \(([\d,]+) to ([\d,]+)\), [\d,]+ ms of CPU"
    cells = [re.fullmatch(pattern, row).groups() for row in rows]
    assert [name for name, *_ in cells] == ["plain loop", *systems]
    speed = {name: float(median.replace(",", "")) for name, median, *_ in cells}
    for name, _, ratio, *_ in cells:  # both figures are rounded
        assert float(ratio) == pytest.approx(speed[name] / speed["plain loop"], rel=0.01, abs=0.01)


@pytest.mark.long
def test_processes_benchmark_compares_every_system_with_one_process(output):
    heading, *rows = output((*PROCESSES, "--rounds", "1", "--updates", "2", "--warm-up", "1")).splitlines()
    assert heading.startswith("2 processes, cpu, torch ")
    cells = [re.fullmatch(r"(\S.*?)  +([\d.]+) updates/s +([\d.]+) x  \(\2 to \2\)", row).groups() for row in rows]
    assert [name for name, *_ in cells] == ["one process", "processes", "processes, shard", "processes, DDP"]
    for _, speed, ratio in cells:
        assert float(ratio) == pytest.approx(float(speed) / float(cells[0][1]), rel=0.02, abs=0.01)


@pytest.mark.long
def test_training_benchmark_measures_memory(output, peak):
    assert re.fullmatch(r"\d+\n", output(peak))


def test_training_benchmark_has_the_size_it_names():
    d, ff, v = 256, 1024, 8000
    attention, feed_forward, norm = 4 * (d * d + d), 2 * d * ff + ff + d, 2 * d
    encoder, decoder = attention + feed_forward + 2 * norm, 2 * attention + feed_forward + 3 * norm
    plain = bench_training.system(
        "plain loop", bench_training.Corpus([], [], 0), argparse.Namespace(tiny=False, device="cpu")
    )
    assert sum(p.numel() for p in plain.model.parameters()) == v * d + 3 * encoder + 3 * decoder
    assert f"{v * d + 3 * encoder + 3 * decoder:,} parameters" in " ".join(bench_training.__doc__.split())


def test_unsorted_batches_hold_every_pair_once_within_the_budget():
    source = [[4] * (i % 7) + [3] for i in range(50)]
    target = [[i + 4, *[4] * (i % 5), 3] for i in range(50)]  # the first id tells the pair
    batches = list(bench_training.Corpus(source, target, 40).unsorted(0))
    assert sorted(i for batch in batches for i in (batch.target_out[:, 0] - 4).tolist()) == list(range(50))
    assert all(side.numel() <= 40 for batch in batches for side in (batch.source, batch.target_out))
    assert [len(batch.source) for batch in batches] != [len(source)]


@pytest.mark.long
def test_decoding_benchmark_gives_speed_ratio_and_memory(output):
    rows = output(DECODING)
    assert re.search(r"transformers float32 +[\d,.]+ tokens/s \([^)]*\) +1\.00 x", rows)
    assert re.search(r"transduce float32 +[\d,.]+ tokens/s \([^)]*\) +[\d.]+ x  same output 100\.00%", rows)
    assert re.search(r"transduce static float32 +[\d,.]+ tokens/s \([^)]*\) +[\d.]+ x  same output 100\.00%", rows)
    assert re.search(r"transduce +\d+ MiB", rows)


@pytest.mark.long
def test_generation_benchmark_gives_speed_and_ratio(output):
    rows = output(GENERATION)
    assert re.search(r"batch +3  transformers float32 +[\d,.]+ tokens/s \([^)]*\) +1\.00 x", rows)
    assert re.search(r"batch +3  transduce float32 +[\d,.]+ tokens/s \([^)]*\) +[\d.]+ x  same output 100\.00%", rows)
    assert re.search(
        r"batch +3  transduce static float32 +[\d,.]+ tokens/s \([^)]*\) +[\d.]+ x  same output 100\.00%", rows
    )


@pytest.mark.long
def test_gpt2_benchmark_gives_speed_ratio_use_and_memory(output):
    heading, *rows = output(GPT2).splitlines()
    assert re.match(r"34,176 parameters, context 16, 214,272 operations a token, 1 threads, bf16, torch ", heading)
    pattern = r"batch   1  (\w+) +([\d,]+) tokens/s +([\d.]+) x  unknown MFU +[\d,]+ MiB"
    (plain, speed, one), (ours, own, ratio) = (re.fullmatch(pattern, row).groups() for row in rows)
    assert (plain, ours, one) == ("plain", "transduce", "1.00")
    speeds = [float(each.replace(",", "")) for each in (own, speed)]
    assert float(ratio) == pytest.approx(speeds[0] / speeds[1], rel=0.01, abs=0.01)


def test_gpt2_benchmark_compares_with_nothing_where_the_plain_loop_had_no_memory():
    want = "transduce      12,346 tokens/s      - x   38.1% MFU   70,123 MiB"
    assert bench_gpt2.row("transduce", 12345.6, None, 0.3812, 70123) == want
    want = "transduce      12,346 tokens/s   1.23 x  unknown MFU        7 MiB"
    assert bench_gpt2.row("transduce", 12345.6, 10000.0, None, 7) == want


def test_systems_in_turns_are_compared_with_the_first(capsys, monkeypatch):
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
    turns.compare("batch 2", systems, n_tokens=2, repeats=3, exact=lambda name: False)
    first, second = capsys.readouterr().out.splitlines()
    assert " ".join(first.split()) == "batch 2 theirs 2.0 tokens/s (2.0 to 2.0) 1.00 x same output 100.00%"
    assert " ".join(second.split()) == "batch 2 ours 4.0 tokens/s (1.0 to 4.0) 2.00 x same output 50.00%"
    seconds = iter([1.0, 1.0])
    with pytest.raises(SystemExit) as error:
        turns.compare("batch 2", systems, n_tokens=2, repeats=1, exact=lambda name: name == "ours")
    assert str(error.value) == "ours must give the output of theirs, but 50.00% of the texts differ"


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
    "places.weight": "decoder.positions.learned",
    "blocks": "decoder.layers",
    "norms.0": "attention_sublayer.norm",
    "norms.1": "feed_forward_sublayer.norm",
    "qkv": "attention.qkv",
    "merge": "attention.output",
    "widen": "feed_forward.wide",
    "narrow": "feed_forward.narrow",
}


def test_gpt2_benchmark_trains_the_same_model_twice():
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


def test_runs_are_compared_at_their_last_common_update(tmp_path, monkeypatch, capsys):
    runs = [write_metrics(tmp_path / "a", {5: 3.0, 9: 2.01}), write_metrics(tmp_path / "b", {5: 1.0, 9: 2.0, 12: 1.0})]
    monkeypatch.setattr(sys, "argv", ["compare_runs.py", *runs])
    assert compare_runs.main() == 0
    assert capsys.readouterr().out.splitlines()[-1] == "compared  update 9: a 2.0100, b 2.0000, 0.500%"
    monkeypatch.setattr(sys, "argv", ["compare_runs.py", *runs, "--within", "0.004"])
    assert compare_runs.main() == 1
    runs[1] = write_metrics(tmp_path / "c", {4: 1.0})
    monkeypatch.setattr(sys, "argv", ["compare_runs.py", *runs])
    with pytest.raises(ValueError) as error:
        compare_runs.main()
    assert str(error.value) == "both runs must have been validated at one update, but they were at [5, 9] and [4]"
    runs[1] = write_metrics(tmp_path / "d", {})
    monkeypatch.setattr(sys, "argv", ["compare_runs.py", *runs])
    with pytest.raises(ValueError) as error:
        compare_runs.main()
    assert str(error.value) == (
        f"a run to compare must have been validated, but {tmp_path / 'd' / 'metrics.jsonl'} has no such line; train it first"
    )
