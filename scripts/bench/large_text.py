"""What do 20 million sentence pairs cost, against 29,000? To the start, to go on, in memory and in speed (Linux).

    python scripts/bench large_text FOLDER --data MULTI30K

Makes, once, 1,048,576 pairs by repeating Multi30k with one word in ten replaced, which the recipe reads and tokenizes as
it does any text. Its ids are then repeated, with one in ten replaced, until there are `--pairs`. Runs of both texts
take turns, each a process of its own: seconds and CPU seconds from the start of the command to the end of the first
update, of a new run and of one that goes on amid the text; memory of its own at most; target tokens per second from the
third update to the last.
"""

import argparse
import gzip
import json
import os
import runpy
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
SHARD = 1 << 20
SEED = 1


def repeated(lines: list[str], n: int, rng: np.random.Generator) -> list[str]:
    """n lines: these ones again and again, with one word in ten replaced by any other word of the text."""
    words = np.array([line.split() for line in lines], dtype=object)
    known = np.array([word for line in words for word in line], dtype=object)
    found = []
    for i in range(n):
        line = list(words[i % len(words)])
        for place in np.flatnonzero(rng.random(len(line)) < 0.1):
            line[place] = known[rng.integers(len(known))]
        found.append(" ".join(line))
    return found


def make_text(data: Path, folder: Path) -> None:
    """large.en and large.de, and the small text as it is."""
    for language in ("en", "de"):
        lines = gzip.decompress((data / f"train.{language}.gz").read_bytes()).decode().splitlines()
        (folder / f"small.{language}").write_text("\n".join(lines) + "\n")
        large = repeated(lines, SHARD, np.random.default_rng((SEED, len(language), ord(language[0]))))
        (folder / f"large.{language}").write_text("\n".join(large) + "\n")


def repeat_ids(cache: Path, n_pairs: int) -> None:
    """Append the ids of the text, with one in ten replaced, until there are so many pairs."""
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
    repeated = [offsets[1:] + i * len(ids) for i in range(times)]
    np.concatenate([[0], *repeated]).tofile(path.with_suffix(".offsets"))


def train(folder: Path, size: str, run: str, updates: int) -> dict[str, Any]:
    """One process that trains so many updates, and then saves a checkpoint amid the text."""
    words = ["files", "--train-source", f"{folder}/{size}.en", "--train-target", f"{folder}/{size}.de"]
    words += [
        "--hold-out",
        "500",
        "--run",
        f"{folder}/{run}",
        "--cache",
        f"{folder}/cache",
        "--training.patience",
        "99",
    ]
    command = [
        sys.executable,
        str(Path(__file__).parent),
        "large_text",
        "--inside",
        str(time.time()),
        str(updates),
        *words,
    ]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def inside(started: float, updates: int, words: list[str]) -> None:
    """The process: the recipe, whose trainer is watched."""
    from transduce.train.trainer import Trainer

    first: dict[str, float] = {}
    times, tokens, own = list[float](), list[int](), list[int]()
    update = Trainer._update

    def watched(self: Any, group: Any, *more: Any, **named: Any) -> None:
        if len(times) == updates:
            self._read()
            self.progress.epoch += 40  # amid the text, where there are so many pools
            self._save()
            rate = sum(tokens[2:]) / (times[-1] - times[1])
            print(json.dumps({**first, "tokens_per_s": rate, "MiB": max(own) / 1024}), file=sys.__stdout__, flush=True)
            os._exit(0)
        update(self, group, *more, **named)
        times.append(time.time())
        tokens.append(sum(batch.n_tokens for batch in group))
        status = Path("/proc/self/status").read_text().splitlines()
        own.append(next(int(line.split()[1]) for line in status if line.startswith("RssAnon")))
        first.setdefault("seconds", times[0] - started)
        first.setdefault("cpu_seconds", time.process_time())

    Trainer._update = watched  # type: ignore[method-assign, assignment]
    sys.path.insert(0, str(ROOT / "recipes"))
    sys.argv = ["translation.py", *words]
    runpy.run_path(str(ROOT / "recipes" / "translation.py"), run_name="__main__")


def main() -> None:
    """Make, measure, print."""
    if sys.argv[1:2] == ["--inside"]:
        return inside(float(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where text, ids and runs go, about 3 GB")
    parser.add_argument("--data", type=Path, required=True, help="Multi30k")
    parser.add_argument("--pairs", type=int, default=20 * SHARD)
    parser.add_argument("--updates", type=int, default=20, help="of each process")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prepare", action="store_true", help="only make the ids")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    if not (asked.folder / "large.de").is_file():
        make_text(asked.data, asked.folder)
    if not list(asked.folder.glob("cache/*/*.ids")):
        started = time.monotonic()
        train(asked.folder, "large", "prepared", 3)
        print(
            f"{SHARD:,} pairs read and tokenized, to the first update: {time.monotonic() - started:.0f} s", flush=True
        )
    repeat_ids(asked.folder / "cache", asked.pairs)
    if asked.prepare:
        return
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for round_ in range(asked.rounds):
        for size in ("small", "large"):
            for what in ("new", "resumed"):
                result = train(asked.folder, size, f"{size}{round_}", asked.updates)
                found.setdefault((size, what), []).append(result)
                print(size, what, {name: round(value, 1) for name, value in result.items()}, flush=True)
    print("| | seconds to the first update | CPU seconds | MiB of its own | target tokens/s |\n|---|---|---|---|---|")
    for (size, what), results in found.items():
        middle = [
            statistics.median(r[name] for r in results) for name in ("seconds", "cpu_seconds", "MiB", "tokens_per_s")
        ]
        print(f"| {size}, {what} | " + " | ".join(f"{value:,.1f}" for value in middle) + " |")


if __name__ == "__main__":
    main()
