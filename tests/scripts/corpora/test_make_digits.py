"""scripts/corpora/make_digits.py on tones in FSDD's layout: what comes out is taken apart again, sample by sample."""

import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import soundfile

from scripts.corpora import make_digits
from transduce.data.manifest import Recording, read_manifest, write_manifest

WORDS = ("zero", "one", "two")
SIZES = "--train", "30", "--valid", "6", "--test", "12"


def tone(digit: int, speaker: str, index: int) -> np.ndarray:
    """0.1 to 0.2 s that begin and end far from zero, with a quiet place inside; no two alike."""
    rng = np.random.default_rng((digit, ord(speaker[0]), index))
    n = int(rng.integers(800, 1600))
    loud = 9000 * np.cos(2 * np.pi * (200 + 100 * digit) * np.arange(n) / 8000) + 300 * rng.standard_normal(n)
    loud[300:550] = 20 * rng.standard_normal(250)
    return np.rint(loud).astype(np.int16)


@pytest.fixture(scope="module")
def fsdd(tmp_path_factory) -> Path:
    """Two speakers, three digits, twelve recordings of each: 0 to 4 are test."""
    home = tmp_path_factory.mktemp("fsdd")
    splits = {"train": [], "test": []}
    for digit, word in enumerate(WORDS):
        for speaker in ("ann", "bob"):
            for index in range(12):
                path, samples = home / f"{digit}_{speaker}_{index}.flac", tone(digit, speaker, index)
                soundfile.write(path, samples, 8000)
                recording = Recording(path.stem, path, len(samples) / 8000, speaker, word)
                splits["test" if index < 5 else "train"].append(recording)
    for split, recordings in splits.items():
        write_manifest(home / f"{split}.tsv", recordings)
    return home


@pytest.fixture
def make(capsys):
    """The command; returns its exit code, what it printed and the last line on stderr."""

    def run(*arguments):
        code = make_digits.main([str(each) for each in arguments])
        said = capsys.readouterr()
        return code, said.out.splitlines(), (said.err.splitlines() or [""])[-1]

    return run


@pytest.fixture(scope="module")
def made(fsdd, tmp_path_factory) -> Path:
    """A corpus."""
    folder = tmp_path_factory.mktemp("made") / "digits"
    assert make_digits.main([str(fsdd), str(folder), *SIZES]) == 0
    return folder


@pytest.fixture
def copy(made, tmp_path) -> Path:
    """The corpus, to be written into."""
    return shutil.copytree(made, tmp_path / "digits")


def utterances(folder: Path, split: str) -> list[tuple[Recording, list[str]]]:
    """Each with the names of what it joins."""
    return [(r, r.columns["recordings"].split()) for r in read_manifest(folder / f"{split}.tsv")]


def index(name: str) -> int:
    return int(name.split("_")[2])


def test_splits_are_disjoint(made):
    folder = made
    joined = {
        split: {n for _, names in utterances(folder, split) for n in names} for split in ("train", "valid", "test")
    }
    every = {f"{digit}_{speaker}_{i}" for digit in range(3) for speaker in ("ann", "bob") for i in range(12)}
    assert joined["test"] == {name for name in every if index(name) < 5}
    assert joined["train"] | joined["valid"] == every - joined["test"]
    assert not joined["train"] & joined["valid"]
    assert Counter(name.rsplit("_", 1)[0] for name in joined["valid"]) == {
        f"{digit}_{speaker}": 1 for digit in range(3) for speaker in ("ann", "bob")
    }


def test_utterances_are_their_recordings_joined_by_pauses(made):
    """Found by looking for the recordings' samples, in order, with nothing taken from the script."""
    folder = made
    for split, n in (("train", 30), ("valid", 6), ("test", 12)):
        got = utterances(folder, split)
        assert len(got) == n
        for r, names in got:
            samples, rate = soundfile.read(r.audio, dtype="int16")
            assert (rate, samples.ndim, soundfile.info(r.audio).subtype) == (8000, 1, "PCM_16")
            assert 3 <= len(names) <= 7
            assert {name.split("_")[1] for name in names} == {r.speaker}
            assert r.text == " ".join(WORDS[int(name[0])] for name in names)
            assert abs(r.seconds - len(samples) / 8000) < 1e-3
            place, times = 0, []
            for i, name in enumerate(names):
                digit, speaker, number = name.split("_")
                part = tone(int(digit), speaker, int(number))
                if i:  # the pause may last 400 to 3200 samples; the first place that fits is where the next begins
                    begins = place + 400 + np.flatnonzero(samples[place + 400 : place + 3201] == part[0])
                    fits = [p for p in begins if np.array_equal(samples[p : p + len(part)], part)]
                    assert fits
                    quiet = samples[place + 40 : fits[0] - 40].astype(float)
                    assert 10 < np.sqrt(np.mean(quiet**2)) < 40  # as the quiet place inside the recordings, about 20
                    steps = np.abs(np.diff(samples[place - 1 : fits[0] + 1].astype(float)))
                    assert steps.max() < 9000 / 40 + 200  # from the height of the tone to nothing in 40 samples
                    place = fits[0]
                assert np.array_equal(samples[place : place + len(part)], part)
                times += [place / 8000, (place + len(part)) / 8000]
                place += len(part)
            column = [float(each) for span in r.columns["times"].split() for each in span.split("-")]
            assert column == pytest.approx(times, abs=1e-4)
            assert place == len(samples)


def test_recordings_and_speakers_are_used_equally_often(made):
    folder = made
    for split in ("train", "valid", "test"):
        got = utterances(folder, split)
        assert Counter(r.speaker for r, _ in got) == {"ann": len(got) / 2, "bob": len(got) / 2}
        for speaker in ("ann", "bob"):
            used = Counter(name for r, names in got for name in names if r.speaker == speaker)
            assert max(used.values()) - min(used.values()) <= 1
    assert {len(names) for _, names in utterances(folder, "train")} == {3, 4, 5, 6, 7}


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_output_is_deterministic_and_depends_on_the_seed(made, fsdd, make, tmp_path):
    folder = made
    assert make(fsdd, tmp_path / "again", *SIZES)[0] == 0
    assert content(tmp_path / "again") == content(folder)
    assert make(fsdd, tmp_path / "other", *SIZES, "--seed", 2)[0] == 0
    other = content(tmp_path / "other")
    assert other.keys() == content(folder).keys() and other["train.tsv"] != content(folder)["train.tsv"]


def test_interrupted_corpus_is_completed_without_rewriting_files(copy, fsdd, make):
    """The cache of features goes by the time of change."""
    folder = copy
    want = content(folder)
    torn, gone, whole = (folder / "test" / f"0000{i}.flac" for i in range(3))
    torn.write_bytes(torn.read_bytes()[:100])
    gone.unlink()
    (folder / "test.tsv").unlink()
    before = whole.stat().st_mtime_ns
    assert make(fsdd, folder, *SIZES)[0] == 0
    assert content(folder) == want and whole.stat().st_mtime_ns == before


def test_other_corpora_and_files_are_not_overwritten(copy, fsdd, make, tmp_path):
    folder = copy
    before = content(folder)
    assert make(fsdd, folder, *SIZES, "--seed", "2", "--valid", "7")[::2] == (
        2,
        f"transduce: a folder holds what one command makes, but in {folder} this differs: valid: 6 -> 7, seed: 1 -> 2; "
        "name another folder, or remove this one",
    )
    assert content(folder) == before
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").touch()
    assert make(fsdd, tmp_path / "notes", *SIZES)[::2] == (
        2,
        f"transduce: OUT must be a new or an empty folder, or one of the same command, but {tmp_path / 'notes'} has files "
        "and no digits.json; name another folder",
    )
    assert json.loads((folder / "digits.json").read_text())["seed"] == 1


def test_wrong_folders_and_sizes_are_refused(make, fsdd, tmp_path):
    assert make(tmp_path, tmp_path / "out")[::2] == (
        2,
        f"transduce: FSDD must be a folder with train.tsv and test.tsv, but {tmp_path} has no train.tsv and no test.tsv; "
        f"run `transduce data get fsdd {tmp_path}`, or name the right folder",
    )
    assert make(fsdd, tmp_path / "out", "--valid", "0")[::2] == (
        2,
        "transduce: sizes must be at least 1 and the seed 0, but they are --train 4000, --valid 0, --test 500 and --seed 1",
    )
    assert not (tmp_path / "out").exists()


def small(folder: Path, samples: np.ndarray, rate: int = 8000) -> list[Recording]:
    """Four recordings of the same samples in train, and two in test."""
    made = []
    for i in range(6):
        soundfile.write(folder / f"{i}.wav", samples, rate)
        made.append(Recording(f"{i}", folder / f"{i}.wav", 0.1, "ann", "one"))
    write_manifest(folder / "train.tsv", made[:4])
    write_manifest(folder / "test.tsv", made[4:])
    return made


def test_invalid_splits_are_refused(make, tmp_path):
    made, out = small(tmp_path, tone(1, "ann", 1)), tmp_path / "out"
    write_manifest(tmp_path / "test.tsv", made[2:])
    assert make(tmp_path, out)[::2] == (
        2,
        f"transduce: a recording must be in one split, but 2 are in train.tsv and in test.tsv of {tmp_path}: 2, 3; "
        "make the manifests again",
    )
    write_manifest(tmp_path / "test.tsv", [])
    assert make(tmp_path, out)[::2] == (
        2,
        f"transduce: both splits need recordings, but in {tmp_path} train.tsv has 4 and test.tsv has 0; "
        "make the manifests again",
    )
    write_manifest(tmp_path / "test.tsv", made[4:])
    write_manifest(tmp_path / "train.tsv", made[:1])
    assert make(tmp_path, out)[::2] == (
        2,
        "transduce: every speaker must have two training recordings of some digit, one of them for validation, but ann has "
        "one of each; use the whole corpus",
    )


def test_invalid_audio_is_refused(make, tmp_path):
    out, first = tmp_path / "out", tmp_path / "0.wav"
    for samples, rate, reason in (
        (np.zeros((500, 2), np.int16), 8000, "500 at 8000 Hz and 2 channels"),
        (np.zeros(500, np.int16), 16000, "500 at 16000 Hz and 1 channels"),
        (np.zeros(0, np.int16), 8000, "0 at 8000 Hz and 1 channels"),
    ):
        small(tmp_path, samples, rate)
        assert make(tmp_path, out)[::2] == (
            2,
            f"transduce: recordings must have samples at 8000 Hz and one channel, but {first} has {reason}; "
            "get the corpus again",
        )
    first.write_text("no sound")
    code, _, said = make(tmp_path, out)
    assert code == 2
    assert said == f"transduce: {first} cannot be read as sound: Format not recognised. Get the corpus again"
    assert not out.exists()


def test_silent_and_very_short_recordings_can_be_joined(make, tmp_path):
    small(tmp_path, np.array([32767, -32768, 32767], np.int16))
    assert make(tmp_path, tmp_path / "out", "--train", "1", "--valid", "1", "--test", "1")[0] == 0
    ((r, names),) = utterances(tmp_path / "out", "test")
    samples, _ = soundfile.read(r.audio, dtype="int16")
    assert samples[:3].tolist() == [32767, -32768, 32767]
    assert 400 * (len(names) - 1) <= len(samples) - 3 * len(names) <= 3200 * (len(names) - 1)
    silent = tmp_path / "silent"
    silent.mkdir()
    small(silent, np.zeros(500, np.int16))
    assert make(silent, silent / "out", "--train", "1", "--valid", "1", "--test", "1")[0] == 0


def test_pauses_have_the_spectrum_of_their_template():
    """Its power spectrum is the window's, by a DFT of each: half of the window's energy lies at 1 kHz, half at 3."""
    rng = np.random.default_rng(5)
    time = np.arange(200) / 8000
    like = 30 * (np.sin(2 * np.pi * 1000 * time) + np.sin(2 * np.pi * 3000 * time))
    samples = make_digits.pause(40_000, 0, 0, like, rng).astype(float)
    power = np.abs(np.fft.rfft(samples)) ** 2
    hertz = np.fft.rfftfreq(len(samples), 1 / 8000)
    shares = [power[np.abs(hertz - f) < 80].sum() / power.sum() for f in (1000, 3000)]
    assert shares == pytest.approx([0.5, 0.5], abs=0.06)
    assert np.mean(samples**2) == pytest.approx(np.mean(like**2), rel=0.1)


def test_quietest_place_equals_brute_force():
    samples = np.random.default_rng(3).integers(-3000, 3000, 700).astype(np.int16)
    samples[411:660] //= 3
    energy = [sum(int(s) ** 2 for s in samples[i : i + 200]) for i in range(501)]
    best = energy.index(min(energy))
    assert make_digits.quietest(samples).tolist() == samples[best : best + 200].tolist()
