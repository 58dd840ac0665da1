"""What does a start from another run bring? New command words, learned from few sentences, against from scratch.

    python scripts/bench start_from runs/start_from

The spoken commands that ship are split: a first run never hears the words below. Then 200 sentences that have them train
one run that starts from the first, one that starts from it with low-rank changes alone, and one from scratch. Prints
updates, minutes, and the WER of test sentences that have the words, in voices that no run has heard; that of the first
run beside them. The same command again goes on where it stopped, and then the minutes are those of what was left.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from transduce.data.manifest import Recording, read_manifest, write_manifest

ROOT = Path(__file__).resolve().parents[2]
SOUND = ROOT / "recipes" / "data" / "commands" / "sound"
WORDS = ("rename", "delete", "copy", "photo", "photos")


def has_new(recording: Recording) -> bool:
    """Whether one of the new words is said."""
    return not set(WORDS).isdisjoint(recording.text.split())


def split(folder: Path, n: int, least: int | None) -> None:
    """Write the manifests: with the new words train.tsv, valid.tsv and test.tsv, without them first_*.tsv.

    Args:
        least: keep so many recordings of the others only; None: all.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("train", "valid", "test"):
        recordings = read_manifest(SOUND / f"{name}.tsv")
        new = [each for each in recordings if has_new(each)]
        known = [each for each in recordings if not has_new(each)]
        write_manifest(folder / f"{name}.tsv", new[: n if name == "train" else least])
        write_manifest(folder / f"first_{name}.tsv", known[:least])


def train(
    folder: Path, name: str, updates: int, more: list[str], *, first: bool = False
) -> tuple[float, dict[str, float]]:
    """Run the recipe; returns its minutes and, by search, the WER in percent."""
    prefix = "first_" if first else ""
    words = [sys.executable, str(ROOT / "recipes" / "speech_to_text.py"), "commands", "--data", str(folder)]
    words += ["--train", f"{prefix}train.tsv", "--valid", f"{prefix}valid.tsv", "--test", "test.tsv"]
    words += ["--run", str(folder / name), "--cache", str(folder / "features"), "--training.max-updates", str(updates)]
    words += ["--training.validate-every", str(max(1, updates // 5)), *more]
    started = time.monotonic()
    subprocess.run(words, check=True, stdout=sys.stderr)
    minutes = (time.monotonic() - started) / 60
    scores = json.loads((folder / name / "test.json").read_text())
    return minutes, {score["search"]: score["value"] for score in scores if score["measure"] == "wer"}


def main() -> None:
    """Read the command line, split, train and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where manifests and runs go")
    parser.add_argument("--n", type=int, default=200, help="sentences with the new words")
    parser.add_argument("--first-updates", type=int, default=800, help="of the run that never hears them")
    parser.add_argument("--updates", type=int, default=200, help="of the runs that start from it")
    parser.add_argument("--scratch-updates", type=int, default=800, help="of the run from scratch")
    parser.add_argument("--rate", default="1e-3", help="peak rate of the runs that start from it")
    parser.add_argument("--lora-rate", default="5e-3", help="the same with low-rank changes")
    parser.add_argument("--tiny", action="store_true", help="few recordings and updates, to see that it runs")
    asked = parser.parse_args()
    n, first, updates, scratch = asked.n, asked.first_updates, asked.updates, asked.scratch_updates
    small: list[str] = []
    if asked.tiny:
        n, first, updates, scratch = 12, 4, 2, 3
        small = ["--model.encoder.n-layers", "2", "--model.ctc-layers", "1", "--decoding.beam-size", "2"]
        small += ["--device", "cpu", "--workers", "0"]
    split(asked.folder, n, 12 if asked.tiny else None)
    start = ["--start-from", str(asked.folder / "first"), "--training.optim.peak-rate"]
    lora = ["--training.lora.rank", "8", "--training.lora.maps", "q", "v", "wide", "narrow"]
    runs = {
        "first": (first, [], True),
        "started": (updates, [*start, asked.rate], False),
        "started, LoRA": (updates, [*start, asked.lora_rate, *lora], False),
        "scratch": (scratch, [], False),
    }
    for name, (n_updates, more, is_first) in runs.items():
        minutes, scores = train(asked.folder, name.replace(", ", "_"), n_updates, more + small, first=is_first)
        told = ", ".join(f"{search} {wer:.1f}" for search, wer in scores.items())
        print(f"{name:14} {n_updates:5} updates {minutes:6.1f} min   WER {told}", flush=True)


if __name__ == "__main__":
    main()
