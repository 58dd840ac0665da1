"""How do 20 million sentence pairs compare with 29,000 in startup time, memory and speed (Linux)?

    python scripts/bench large_text FOLDER --data MULTI30K

Makes 1,048,576 pairs once, by repeating Multi30k with one word in ten replaced; the recipe reads
and tokenizes them like any text. Their ids are then repeated, with one in ten replaced, up to
`--pairs`. Runs on both texts take turns, each in its own process. Prints seconds and CPU seconds
from the start of the command to the end of the first update, for a new run and for one that resumes
inside the text; peak memory without files; and target tokens per second from the third update to
the last.
"""

import gzip
import json
import os
import runpy
import shlex
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from bench.memory import status_kib
from bench.turns import timed
from tyro.conf import Positional

from transduce.arguments import Group

RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "translation.py"
SHARD = 1 << 20
SEED = 1


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of this benchmark."""

    folder: Positional[Path]
    """Where text, ids and runs go, about 3 GB."""
    data: Path
    """Multi30k."""
    pairs: int = 20 * SHARD
    """Sentence pairs of the large text."""
    updates: int = 20
    """Of each process."""
    rounds: int = 3
    """Turns of every text."""
    prepare: bool = False
    """Only make the ids."""
    recipe: tuple[float, str] | None = None
    """Be a process that was started at this time and runs these words (used by itself)."""


def repeated(lines: list[str], n: int, rng: np.random.Generator) -> list[str]:
    """n lines: the given ones in turn, with one word in ten replaced by another of the text."""
    words = np.array([line.split() for line in lines], dtype=object)
    vocabulary = np.array([word for line in words for word in line], dtype=object)
    result = []
    for i in range(n):
        line = list(words[i % len(words)])
        for position in np.flatnonzero(rng.random(len(line)) < 0.1):
            line[position] = vocabulary[rng.integers(len(vocabulary))]
        result.append(" ".join(line))
    return result


def make_text(data: Path, folder: Path) -> None:
    """large.en and large.de, and the small text as it is."""
    for language in ("en", "de"):
        lines = gzip.decompress((data / f"train.{language}.gz").read_bytes()).decode().splitlines()
        (folder / f"small.{language}").write_text("\n".join(lines) + "\n")
        rng = np.random.default_rng((SEED, len(language), ord(language[0])))
        large = repeated(lines, SHARD, rng)
        (folder / f"large.{language}").write_text("\n".join(large) + "\n")


def repeat_ids(cache: Path, n_pairs: int) -> None:
    """Append the ids of the text again, with one in ten replaced, up to this number of pairs."""
    (path,) = cache.glob("*/*.ids")
    offsets = np.fromfile(path.with_suffix(".offsets"), "<i8")[: 2 * SHARD + 1]
    ids = np.fromfile(path, "<u2", count=offsets[-1])
    times = -(-n_pairs * 2 // (len(offsets) - 1))
    rng = np.random.default_rng(SEED)
    with path.open("r+b") as file:
        file.seek(ids.nbytes)
        for _ in range(1, times):
            other = np.where(rng.random(len(ids)) < 0.1, rng.permutation(ids), ids)
            other[offsets[1:] - 1] = ids[offsets[1:] - 1]  # each side ends as it did
            file.write(other.tobytes())
        file.truncate()
    ends = [offsets[1:] + i * len(ids) for i in range(times)]
    np.concatenate([[0], *ends]).tofile(path.with_suffix(".offsets"))


def train(size: str, run: str, x: Options, updates: int) -> dict[str, float]:
    """Train in a process, which then saves a checkpoint inside the text; return its
    measurements."""
    folder = x.folder
    words = ["files", "--train-source", f"{folder}/{size}.en"]
    words += ["--train-target", f"{folder}/{size}.de", "--hold-out", "500"]
    words += ["--run", f"{folder}/{run}", "--cache", f"{folder}/cache", "--training.patience", "99"]
    command = [sys.executable, *sys.argv, "--updates", str(updates)]
    command += ["--recipe", str(time.time()), shlex.join(words)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    return json.loads(result.stdout.splitlines()[-1])


def run_recipe(start: float, words: str, updates: int) -> None:
    """Run the recipe; after this many updates, save, print the measurements and exit."""
    from transduce.train.trainer import Trainer

    first: dict[str, float] = {}
    times: list[float] = []
    tokens: list[int] = []
    kib: list[int] = []
    update = Trainer._update

    def measured_update(self: Any, group: Any, *args: Any, **options: Any) -> None:
        if len(times) == updates:
            self._read()
            self.progress.epoch += 40  # inside the text, if it has so many pools
            self._save()
            rate = sum(tokens[2:]) / (times[-1] - times[1])
            results = {**first, "MiB": max(kib) / 1024, "tokens_per_s": rate}
            print(json.dumps(results), file=sys.__stdout__, flush=True)
            os._exit(0)
        update(self, group, *args, **options)
        times.append(time.time())
        tokens.append(sum(batch.n_tokens for batch in group))
        kib.append(status_kib("RssAnon"))
        first.setdefault("seconds", times[0] - start)
        first.setdefault("cpu_seconds", time.process_time())

    Trainer._update = measured_update  # type: ignore[method-assign, assignment]
    sys.path.insert(0, str(RECIPE.parent))
    sys.argv = [RECIPE.name, *shlex.split(words)]
    runpy.run_path(str(RECIPE), run_name="__main__")


def main(x: Group[Options]) -> None:
    if x.recipe:
        return run_recipe(*x.recipe, x.updates)
    x.folder.mkdir(parents=True, exist_ok=True)
    if not (x.folder / "large.de").is_file():
        make_text(x.data, x.folder)
    if not list(x.folder.glob("cache/*/*.ids")):
        seconds = timed(lambda: train("large", "prepared", x, 3)).seconds
        print(
            f"{SHARD:,} pairs read and tokenized, to the first update: {seconds:.0f} s", flush=True
        )
    repeat_ids(x.folder / "cache", x.pairs)
    if x.prepare:
        return
    turns: dict[tuple[str, str], list[dict[str, float]]] = defaultdict(list)
    for i, size, kind in product(range(x.rounds), ("small", "large"), ("new", "resumed")):
        result = train(size, f"{size}{i}", x, x.updates)
        turns[size, kind].append(result)
        print(size, kind, {name: round(value, 1) for name, value in result.items()}, flush=True)
    print(
        "| | seconds to the first update | CPU seconds | MiB without files | target tokens/s |\n"
        "|---|---|---|---|---|"
    )
    for (size, kind), results in turns.items():
        columns = zip(*(result.values() for result in results), strict=True)
        medians = " | ".join(f"{statistics.median(column):,.1f}" for column in columns)
        print(f"| {size}, {kind} | {medians} |")
