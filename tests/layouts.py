"""Small corpora in the layouts of FSDD and speechocean762: files on disk, and what each recording should become."""

from pathlib import Path

import numpy as np
import soundfile

Expected = dict[str, tuple[str, str, Path]]
"""Of each recording the text, the speaker and the file."""


def noise(n: int, channels: int = 1) -> np.ndarray:
    return np.random.default_rng(0).integers(-30000, 30000, (n, channels), dtype=np.int16)


def sound(path: Path, n: int = 800, rate: int = 8000, channels: int = 1, **how: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, noise(n, channels), rate, **how)


def put(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def put_digits(home: Path) -> Expected:
    """Three digits of two speakers; recordings 0 and 4 are test."""
    said = {}
    for digit, word in enumerate(("zero", "one", "two")):
        for speaker in ("george", "yweweler"):
            for index in (0, 4, 5, 10, 49):
                path = home / "recordings" / f"{digit}_{speaker}_{index}.wav"
                sound(path, n=800 + 8 * index)
                said[path.stem] = word, speaker, path
    return said


def put_learners(home: Path) -> Expected:
    """One recording of each of three speakers to train on, and of speaker 0003 to test on."""
    said = {}
    for split, speakers in (("train", ("0001", "0005", "0006")), ("test", ("0003",))):
        for speaker in speakers:
            path = home / "WAVE" / f"SPEAKER{speaker}" / f"0{speaker}0011.WAV"
            sound(path, n=16000, rate=16000)
            said[path.stem] = f"WE CALL IT {speaker}", speaker, path
        names = [f"0{speaker}0011" for speaker in speakers]
        put(home / split / "wav.scp", *(f"{name}\tWAVE/SPEAKER{name[1:5]}/{name}.WAV" for name in names))
        put(home / split / "text", *(f"{name}\tWE CALL  IT {name[1:5]}" for name in names))
        put(home / split / "utt2spk", *(f"{name}\t{name[1:5]}" for name in names))
        put(home / split / "spk2age", *(f"{speaker}\t{int(speaker)}" for speaker in speakers))
        put(home / split / "spk2gender", *(f"{speaker}\tm" for speaker in speakers if speaker != "0003"))
    return said
