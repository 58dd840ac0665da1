"""How much does starting from another run help to learn new command words from few sentences?

    python scripts/bench start_from runs/start_from

The bundled spoken commands are split: a first run trains without the words below. Then three runs
train on 200 sentences with these words: one that starts from the first run, one that starts from it
with LoRA, and one from scratch. Prints updates, minutes, and the WER on test sentences with the
words, by unseen speakers, also for the first run. The same command again resumes, and then the
minutes are those of what was left.
"""

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.subprocesses import transduce
from tyro.conf import Positional

from transduce.arguments import Group
from transduce.data.manifest import Recording, read_manifest, write_manifest

SOUND = Path(__file__).resolve().parents[2] / "recipes" / "data" / "commands" / "sound"
WORDS = ("rename", "delete", "copy", "photo", "photos")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of this benchmark."""

    folder: Positional[Path]
    """Where manifests and runs go."""
    n: int = 200
    """Sentences with the new words."""
    first_updates: int = 800
    """Of the run without the new words."""
    updates: int = 200
    """Of the runs that start from it."""
    scratch_updates: int = 800
    """Of the run from scratch."""
    rate: str = "1e-3"
    """Peak rate of the run that starts from the first."""
    lora_rate: str = "5e-3"
    """The same with LoRA."""
    tiny: bool = False
    """Few recordings and updates, to try the script."""


def has_new(recording: Recording) -> bool:
    """Whether the text has one of the new words."""
    return not set(WORDS).isdisjoint(recording.text.split())


def split(folder: Path, n: int, limit: int | None) -> None:
    """Write manifests: with the new words train.tsv, valid.tsv, test.tsv, others first_*.tsv.

    Args:
        n: recordings of train.tsv.
        limit: recordings of each other manifest; None: all.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("train", "valid", "test"):
        recordings = read_manifest(SOUND / f"{name}.tsv")
        new = [each for each in recordings if has_new(each)]
        known = [each for each in recordings if not has_new(each)]
        write_manifest(folder / f"{name}.tsv", new[: n if name == "train" else limit])
        write_manifest(folder / f"first_{name}.tsv", known[:limit])


def train(folder: Path, name: str, updates: int, flags: list[Any]) -> str:
    """Run the recipe; return its minutes, and the WER in percent of each search."""
    prefix = "first_" if name == "first" else ""
    run = folder / name.replace(", ", "_")
    command = ["train", "speech-to-text", "commands", "--data", folder, "--run", run]
    command += ["--train", f"{prefix}train.tsv", "--valid", f"{prefix}valid.tsv"]
    command += ["--test", "test.tsv", "--cache", folder / "features"]
    command += ["--training.max-updates", updates]
    command += ["--training.validate-every", max(1, updates // 5), *flags]
    start = time.monotonic()
    print(transduce(*command), file=sys.stderr)
    minutes = (time.monotonic() - start) / 60
    scores = json.loads((run / "test.json").read_text())
    rates = [f"{each['search']} {each['value']:.1f}" for each in scores if each["measure"] == "wer"]
    return f"{minutes:6.1f} min   WER {', '.join(rates)}"


def main(x: Group[Options]) -> None:
    flags: list[Any] = []
    n_updates = (x.first_updates, x.updates, x.updates, x.scratch_updates)
    if x.tiny:
        n_updates = (4, 2, 2, 3)
        flags = ["--model.encoder.n-layers", 2, "--model.ctc-layers", 1]
        flags += ["--decoding.beam-size", 2, "--device", "cpu", "--workers", 0]
    split(x.folder, 12 if x.tiny else x.n, 12 if x.tiny else None)
    start = ["--start-from", x.folder / "first", "--training.optim.peak-rate"]
    lora = ["--training.lora.rank", 8, "--training.lora.maps", "q", "v", "wide", "narrow"]
    runs: dict[str, list[Any]] = {
        "first": [],
        "started": [*start, x.rate],
        "started, LoRA": [*start, x.lora_rate, *lora],
        "scratch": [],
    }
    for (name, run_flags), updates in zip(runs.items(), n_updates, strict=True):
        result = train(x.folder, name, updates, run_flags + flags)
        print(f"{name:14} {updates:5} updates {result}", flush=True)
