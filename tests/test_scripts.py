"""Every script says what it does, and the benchmarks run."""

import argparse
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from scripts import bench_training

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
TRAINING = "bench_training.py", "--tiny", "--rounds", "1", "--updates", "2", "--warm-up", "1", "--threads", "1"
DECODING = "bench_decoding.py", "--tiny", "--repeats", "1", "--tokens", "4", "--batch-size", "48", "--threads", "1"
HELP = [(path.name, "--help") for path in sorted(SCRIPTS.glob("*.py")) if "argparse" in path.read_text()]


@pytest.fixture(scope="module")
def peak(tmp_path_factory):
    """The benchmark of training, measuring the memory of one system, as it calls itself."""
    ids = tmp_path_factory.mktemp("peak") / "ids.json"
    ids.write_text(json.dumps([[[4, 5, 3], [6, 3]], [[7, 3], [8, 9, 3]], 16]))
    return *TRAINING, "--peak", "transduce fp32", str(ids)


@pytest.fixture(scope="module")
def output(peak):
    """What each command printed; they run side by side, for most of the time goes into imports."""

    def run(command):
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        words = [sys.executable, str(SCRIPTS / command[0]), *command[1:]]
        done = subprocess.run(words, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
        return done.stdout

    with ThreadPoolExecutor(max_workers=2) as pool:
        commands = [DECODING, (*TRAINING, "--no-memory"), peak, *HELP]
        running = {command: pool.submit(run, command) for command in commands}
        yield lambda command: running[command].result()


@pytest.mark.parametrize("command", HELP, ids=lambda command: command[0])
def test_help_says_how_to_call_a_script(output, command):
    assert output(command).startswith(f"usage: {command[0]}")


def test_training_benchmark_compares_every_system_with_the_plain_loop(output):
    heading, *rows = output((*TRAINING, "--no-memory")).splitlines()
    assert re.match(r"\d+ pairs, [\d,]+ parameters, 1 threads, cpu, torch ", heading)
    pattern = r"(\S.*?)  +([\d,]+) target tokens/s +([\d.]+) x  \(([\d,]+) to ([\d,]+)\)"
    cells = [re.fullmatch(pattern, row).groups() for row in rows]
    assert [name for name, *_ in cells] == ["plain loop", "plain loop, no buckets", "transduce fp32", "transduce bf16"]
    speed = {name: float(median.replace(",", "")) for name, median, *_ in cells}
    for name, _, ratio, *_ in cells:  # both figures are rounded
        assert float(ratio) == pytest.approx(speed[name] / speed["plain loop"], rel=0.01, abs=0.01)


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


def test_decoding_benchmark_gives_speed_ratio_and_memory(output):
    rows = output(DECODING)
    assert re.search(r"transformers float32 +[\d,]+ tokens/s +1\.00 x", rows)
    assert re.search(r"transduce float32 +[\d,]+ tokens/s +[\d.]+ x  same output 100\.00%", rows)
    assert re.search(r"transduce +\d+ MiB", rows)
