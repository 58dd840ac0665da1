"""Connected digits: 3 to 7 recordings of one speaker in a row, out of the Free Spoken Digit Dataset (FSDD).

    python scripts/corpora/make_digits.py FSDD OUT [--train 4000 --valid 200 --test 500 --seed 1]

FSDD is a folder with train.tsv and test.tsv, as `transduce data get fsdd FSDD` makes it. OUT gets train.tsv,
valid.tsv, test.tsv and their sound, FLAC at 8 kHz; the column `recordings` names what was joined, and `times` has the
seconds of each, start-stop. Then:

    python recipes/speech_to_text.py digits --data OUT

The official split stays: what test joins is in FSDD's test.tsv (recordings 0 to 4 of each speaker and digit), and what
train and valid join is not. Valid joins one training recording in ten of each speaker and digit, train the others.
Every recording of a speaker is used as often as any other, give or take one, and every speaker as well.

Recordings are joined sample for sample. Between them is a pause of 0.05 to 0.4 s: noise with the level and the spectrum
of the quietest place of the recordings that are joined.

FSDD, the sizes and the seed determine all of it. The same command again continues where it was stopped.
"""

import argparse
import io
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import soundfile
from jaxtyping import Float, Int16
from tqdm import tqdm

from transduce.config import differences
from transduce.data.manifest import Recording, read_manifest, write_manifest
from transduce.data.speech_batches import recordings_fingerprint
from transduce.errors import InputError, exit_code
from transduce.files import write_file

RATE = 8000  # Hz
SHORTEST, LONGEST = 3, 7  # digits of an utterance
PAUSE = (0.05, 0.4)  # seconds
QUIET = 200  # samples of the quietest place: 25 ms
BRIDGE = 40  # samples from the last one of a recording down to the noise, and up to the next one: 5 ms
VALID = 10  # one training recording in so many is for validation
SPLITS = ("train", "valid", "test")
SETUP = "digits.json"

Samples = Int16[np.ndarray, " n"]


def read_corpus(folder: Path) -> tuple[list[Recording], list[Recording]]:
    """FSDD's training and test recordings.

    Raises:
        InputError: a manifest is missing or empty, or a recording is in both.
    """
    missing = [name for name in ("train.tsv", "test.tsv") if not (folder / name).is_file()]
    if missing:
        raise InputError(
            f"FSDD must be a folder with train.tsv and test.tsv, but {folder} has no {' and no '.join(missing)}; "
            f"run `transduce data get fsdd {folder}`, or name the right folder"
        )
    train, test = (read_manifest(folder / name) for name in ("train.tsv", "test.tsv"))
    if not train or not test:
        raise InputError(
            f"both splits need recordings, but in {folder} train.tsv has {len(train)} and test.tsv has {len(test)}; "
            "make the manifests again"
        )
    tested = {r.id for r in test}
    if both := [r.id for r in train if r.id in tested]:
        raise InputError(
            f"a recording must be in one split, but {len(both)} are in train.tsv and in test.tsv of {folder}: "
            f"{', '.join(both[:5])}; make the manifests again"
        )
    return train, test


def hold_out(train: Sequence[Recording], rng: np.random.Generator) -> tuple[list[Recording], list[Recording]]:
    """The recordings for training, and those for validation: one in VALID of each speaker and text, one of two or more.

    Raises:
        InputError: a speaker has no text twice.
    """
    groups = defaultdict(list)
    for r in train:
        groups[r.speaker, r.text].append(r)
    held_out = set()
    for _, group in sorted(groups.items()):
        n = max(1, len(group) // VALID) if len(group) > 1 else 0
        held_out |= {group[i].id for i in rng.permutation(len(group))[:n]}
    left, valid = [r for r in train if r.id not in held_out], [r for r in train if r.id in held_out]
    if lacking := sorted({r.speaker for r in left} - {r.speaker for r in valid}):
        raise InputError(
            "every speaker must have two training recordings of some digit, one of them for validation, but "
            f"{', '.join(lacking)} has one of each; use the whole corpus"
        )
    return left, valid


def plan(recordings: Sequence[Recording], n: int, rng: np.random.Generator) -> list[list[Recording]]:
    """The recordings that each of n utterances joins: speakers take turns, each with shuffled recordings until all are used."""
    speakers = sorted({r.speaker for r in recordings})
    decks = {speaker: deal([r for r in recordings if r.speaker == speaker], rng) for speaker in speakers}
    return [
        [next(decks[speakers[i % len(speakers)]]) for _ in range(rng.integers(SHORTEST, LONGEST, endpoint=True))]
        for i in range(n)
    ]


def deal(recordings: list[Recording], rng: np.random.Generator) -> Iterator[Recording]:
    """All items in a random order, then all in another random order, and so on, without end."""
    while True:
        for i in rng.permutation(len(recordings)):
            yield recordings[i]


def read_samples(r: Recording) -> Samples:
    """The samples of a recording, as they are.

    Raises:
        InputError: it cannot be read, or is not at RATE with one channel.
    """
    try:
        samples, rate = soundfile.read(r.audio, dtype="int16", always_2d=True)
    except soundfile.LibsndfileError as error:
        raise InputError(f"{r.audio} cannot be read as sound: {error.error_string} Get the corpus again") from error
    if rate != RATE or samples.shape[1] != 1 or not len(samples):
        raise InputError(
            f"recordings must have samples at {RATE} Hz and one channel, but {r.audio} has {len(samples)} at {rate} Hz "
            f"and {samples.shape[1]} channels; get the corpus again"
        )
    return samples[:, 0]


def quietest(samples: Samples) -> Float[np.ndarray, " w"]:
    """The QUIET samples in a row that have the least mean square, or all of a shorter recording."""
    windows = np.lib.stride_tricks.sliding_window_view(samples.astype(np.float64), min(QUIET, len(samples)))
    return windows[np.square(windows).mean(axis=1).argmin()]


def pause(n: int, before: int, after: int, like: Float[np.ndarray, " w"], rng: np.random.Generator) -> Samples:
    """n samples between the sample `before` and the sample `after`: noise with the power spectrum of `like`, no step.

    White noise through a filter whose weights are `like` has that spectrum, and its mean square when divided by √w.
    """
    noise = np.convolve(rng.standard_normal(n + len(like) - 1), like, mode="valid") / np.sqrt(len(like))
    down = np.clip(1 - np.arange(1, n + 1) / BRIDGE, 0, None)
    both = noise + before * down + after * down[::-1]
    return np.clip(np.rint(both), -(2**15), 2**15 - 1).astype(np.int16)


def join(parts: Sequence[Samples], rng: np.random.Generator) -> tuple[Samples, list[int]]:
    """The parts as they are, with pauses between them, and the sample at which each begins."""
    like = min(map(quietest, parts), key=lambda window: np.square(window).mean())
    joined, starts = [parts[0]], [0]
    for part in parts[1:]:
        n = int(rng.integers(round(PAUSE[0] * RATE), round(PAUSE[1] * RATE), endpoint=True))
        joined += [pause(n, int(joined[-1][-1]), int(part[0]), like, rng), part]
        starts.append(sum(map(len, joined)) - len(part))
    return np.concatenate(joined), starts


def write_split(
    out: Path, split: str, utterances: list[list[Recording]], sounds: dict[str, Samples], rng: np.random.Generator
) -> None:
    """Write the sound of a split, then its manifest. Right files are not written again, so that cached features stay valid."""
    (out / split).mkdir(exist_ok=True)
    made = []
    for i, utterance in enumerate(tqdm(utterances, desc=split, unit="file", disable=None)):
        parts = [sounds[r.id] for r in utterance]
        samples, starts = join(parts, rng)
        path, file = out / split / f"{i:05}.flac", io.BytesIO()
        soundfile.write(file, samples, RATE, format="FLAC", subtype="PCM_16")
        if not path.is_file() or path.read_bytes() != file.getvalue():
            write_file(path, file.getvalue(), durable=False)
        text, names = (" ".join(words) for words in zip(*((r.text, r.id) for r in utterance), strict=True))
        speaker = utterance[0].speaker
        ends = (f"{a / RATE:.4f}-{(a + len(part)) / RATE:.4f}" for a, part in zip(starts, parts, strict=True))
        columns = {"recordings": names, "times": " ".join(ends)}
        made.append(Recording(f"{split}-{i:05}", path, len(samples) / RATE, speaker, text, columns))
    write_manifest(out / f"{split}.tsv", made)
    n_used, hours = len({r.id for utterance in utterances for r in utterance}), sum(r.seconds for r in made) / 3600
    n_words = sum(map(len, utterances))
    print(f"{split}: {len(made):,} utterances, {n_words:,} words, {hours:.2f} hours, of {n_used:,} recordings")


def claim(out: Path, setup: dict[str, object]) -> None:
    """Record the sources and settings of the folder.

    Raises:
        InputError: it holds something else.
    """
    setup_file = out / SETUP
    if setup_file.is_file():
        if changed := differences(json.loads(setup_file.read_text()), setup):
            raise InputError(
                f"a folder holds what one command makes, but in {out} this differs: {', '.join(changed)}; "
                "name another folder, or remove this one"
            )
    elif out.is_dir() and any(out.iterdir()):
        raise InputError(
            f"OUT must be a new or an empty folder, or one of the same command, but {out} has files and no {SETUP}; "
            "name another folder"
        )
    out.mkdir(parents=True, exist_ok=True)
    write_file(setup_file, json.dumps(setup, indent=1) + "\n")


def make(fsdd: Path, out: Path, sizes: dict[str, int], seed: int) -> None:
    """All three splits.

    Raises:
        InputError: FSDD is not what it should be, OUT holds something else, or a size or the seed cannot be.
    """
    if min(sizes.values()) < 1 or seed < 0:
        flags = ", ".join(f"--{split} {n}" for split, n in sizes.items())
        raise InputError(f"sizes must be at least 1 and the seed 0, but they are {flags} and --seed {seed}")
    train, test = read_corpus(fsdd)
    rngs = {split: np.random.default_rng((seed, number)) for number, split in enumerate(SPLITS)}
    train_left, valid = hold_out(train, rngs["valid"])
    sounds = {r.id: read_samples(r) for r in tqdm([*train, *test], desc="reading", unit="file", disable=None)}
    claim(out, {"fsdd": recordings_fingerprint(train, test), **sizes, "seed": seed})
    for split, recordings in zip(SPLITS, (train_left, valid, test), strict=True):
        rng = rngs[split]
        write_split(out, split, plan(recordings, sizes[split], rng), sounds, rng)


def main(arguments: list[str] | None = None) -> int:
    """The command line: 0 if the corpus is made, 2 if not, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fsdd", type=Path, metavar="FSDD", help="folder with train.tsv and test.tsv")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to make")
    for split, n in zip(SPLITS, (4000, 200, 500), strict=True):
        parser.add_argument(f"--{split}", type=int, default=n, metavar="N", help="utterances (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    x = parser.parse_args(arguments)
    sizes = {split: getattr(x, split) for split in SPLITS}
    return exit_code(
        lambda: make(x.fsdd, x.out, sizes, x.seed),
        interrupted="stopped; the same command again goes on",
    )


if __name__ == "__main__":
    sys.exit(main())
