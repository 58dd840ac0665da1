"""Speak text with many voices of espeak-ng: sound to train on where there are few recordings.

    python scripts/corpora/speak.py TEXT OUT [--each 2 --voices en-us en-gb --beside train.tsv --seed 1]

TEXT is a file of sentences, one in each line, or a manifest (.tsv), whose column `text` is spoken. OUT becomes a folder with FLAC at
16 kHz and train.tsv, which also has the recordings of --beside. Every sentence is spoken --each times, by an accent of --voices
with any variant of espeak-ng, at any speed and pitch, which the seed determines.
The same command again continues where it was stopped. Then

    transduce train speech-to-text manifest --train OUT/train.tsv --valid valid.tsv

Synthetic voices are easier than people, so validate and test with people. Robots, whispers and monsters are left out.
It needs espeak-ng, which is a package of most systems (Debian, Ubuntu: apt install espeak-ng).
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random

import soundfile
from make_sound import RATE, speak
from tqdm import tqdm

from transduce.data.lines import read_lines
from transduce.data.manifest import Recording, read_manifest, write_manifest
from transduce.errors import InputError, exit_code

SPEEDS = (105, 180)  # words per minute
PITCHES = (25, 90)  # of 0 to 99; 50 is the voice's own
ODD = re.compile(r"robo|whisper|demonic|fast|serious|storm|tweaky|croak|anxious", re.IGNORECASE)
"""Variants that do not sound like a person."""


@dataclass(frozen=True)
class Said:
    """A sentence, and the voice, speed and pitch that speak it."""

    text: str
    voice: str
    speed: int
    pitch: int


def sentences(path: Path) -> list[str]:
    """The sentences to speak; a line without a letter or a digit, such as "...", would be silent and is left out.

    Raises:
        InputError: there is nothing.
    """
    lines = [r.text for r in read_manifest(path)] if path.suffix == ".tsv" else read_lines(path)
    texts = [" ".join(line.split()) for line in lines if any(map(str.isalnum, line))]
    if not texts:
        raise InputError(
            f"text to speak must have a line with a letter or a digit, but {path} has none; name another file"
        )
    return texts


def variants() -> list[str]:
    """The names of espeak-ng's variants, such as m3.

    Raises:
        InputError: there is no espeak-ng.
    """
    if shutil.which("espeak-ng") is None:
        raise InputError("espeak-ng must be installed, but is not; try: apt install espeak-ng")
    listed = subprocess.run(["espeak-ng", "--voices=variant"], capture_output=True, text=True, check=True).stdout
    return sorted(name for name in re.findall(r" !v/(\S+)", listed) if not ODD.search(name))


def plan(texts: list[str], each: int, accents: list[str], seed: int) -> list[Said]:
    """Each sentence with its voices."""
    rng, names = Random(seed), variants()
    return [
        Said(text, f"{rng.choice(accents)}+{rng.choice(names)}", rng.randint(*SPEEDS), rng.randint(*PITCHES))
        for _ in range(each)
        for text in texts
    ]


def record(folder: Path, numbered: tuple[int, Said]) -> Recording:
    """Write the sound of one of them, unless it exists."""
    number, utterance = numbered
    # the name depends on voice, speed and pitch
    name = f"{number:06}-{hashlib.sha256(repr(utterance).encode()).hexdigest()[:8]}"
    path = folder / f"{name}.flac"
    if not path.exists():
        sound = speak(utterance.text.lower(), utterance.voice, utterance.speed, utterance.pitch)
        part = path.with_suffix(".part")
        soundfile.write(part, sound, RATE, format="FLAC")
        part.replace(path)
    return Recording(f"said-{name}", path, soundfile.info(path).frames / RATE, utterance.voice, utterance.text)


def make(text: Path, out: Path, each: int, accents: list[str], beside: Path | None, seed: int) -> None:
    """Speak, and write the manifest.

    Raises:
        InputError: there is no text, no espeak-ng, no such voice, or a file is no manifest.
    """
    if each < 1:
        raise InputError(f"--each must be at least 1, but is {each}")
    planned = plan(sentences(text), each, accents, seed)
    others = [replace(r, columns={}) for r in read_manifest(beside)] if beside else []
    folder = out / "said"
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        recordings = list(
            tqdm(pool.map(partial(record, folder), enumerate(planned)), total=len(planned), unit="file", mininterval=30)
        )
    write_manifest(out / "train.tsv", [*others, *recordings])
    hours, n_voices = sum(r.seconds for r in recordings) / 3600, len({r.speaker for r in recordings})
    summary = f"{out / 'train.tsv'}: {len(recordings):,} spoken, {hours:.2f} hours, {n_voices} voices"
    print(summary + (f"; and {len(others):,} recordings" if others else ""))


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, metavar="TEXT", help="sentences, or a manifest (.tsv)")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to make")
    parser.add_argument("--each", type=int, default=2, metavar="N", help="voices per sentence (default: %(default)s)")
    accents = ["en-us", "en-gb", "en-gb-scotland", "en-029", "en-gb-x-gbclan", "en-gb-x-rp", "en-gb-x-gbcwmd"]
    parser.add_argument(
        "--voices",
        nargs="+",
        default=accents,
        metavar="NAME",
        help="accents or languages (default: accents of English)",
    )
    parser.add_argument("--beside", type=Path, metavar="TSV", help="recordings that OUT/train.tsv has as well")
    parser.add_argument("--seed", type=int, default=1)
    x = parser.parse_args(arguments)
    return exit_code(
        lambda: make(x.text, x.out, x.each, x.voices, x.beside, x.seed),
        interrupted="stopped; the same command again goes on",
    )


if __name__ == "__main__":
    sys.exit(main())
