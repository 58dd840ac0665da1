"""Speed of the front end on one core, sound to MFCC, against torchaudio.compliance.kaldi.mfcc.

    python scripts/bench features [--data DIR] [--seconds 10]

Every recording of a folder is written once as WAV (16 bits) and once as Ogg Opus, both at 16 kHz.
Then the systems take turns to compute 40 coefficients from 80 mel bands for every file, in windows
of 25 ms every 10 ms. "file to features" reads and decodes the file as well, with the same code for
both (`read_audio`); "features" begins with the samples. The real-time factor, as 1/x, is their time
divided by the duration of the sound; the last column is the speed relative to the rival. The
measure is the process's CPU time, median of `--rounds`: other work on the core has little
influence, and waiting for a disk none (the files were just written, and are in memory).

Both have the same frames, Hann window, power spectrum of 512 points, mel bands and DCT. They
differ: Kaldi's triangles are straight in mels, ours in hertz; its window is symmetric, ours
periodic; it floors a band's energy at 1.2e-7, ours adds 1e-6. Its dither, pre-emphasis, removal of
the mean and liftering are off. Ours also normalizes every coefficient to mean 0 and variance 1, and
its time includes that.
"""

import statistics
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import soundfile
import torch
from bench.turns import take_turns, timed
from torch import Tensor
from torchaudio.compliance import kaldi

from transduce.data.audio import read_audio
from transduce.data.features import FeatureConfig, FeatureExtractor
from transduce.data.sound_lists import SOUND
from transduce.errors import InputError

COMMANDS = Path(__file__).resolve().parents[2] / "recipes" / "data" / "commands" / "sound"
CONFIG = FeatureConfig()
FORMATS = {
    "WAV": {"format": "WAV", "subtype": "PCM_16"},
    "Opus": {"format": "OGG", "subtype": "OPUS"},
}
RIVAL = "torchaudio kaldi.mfcc"

FrontEnd = Callable[[Tensor], Tensor]
"""Samples (n,) to frames (S, 40)."""
Sounds = Sequence[Path] | Sequence[Tensor]


def rival(waveform: Tensor) -> Tensor:
    """torchaudio's Kaldi MFCC, with our settings."""
    return kaldi.mfcc(
        waveform[None],
        sample_frequency=CONFIG.sample_rate,
        frame_length=1000 * CONFIG.frame,
        frame_shift=1000 * CONFIG.hop,
        num_mel_bins=CONFIG.n_mels,
        num_ceps=CONFIG.n_coefficients,
        low_freq=CONFIG.low,
        window_type="hanning",
        preemphasis_coefficient=0.0,
        remove_dc_offset=False,
        cepstral_lifter=0.0,
    )


def recordings(folder: Path, n: int, seconds: float) -> list[Tensor]:
    """The samples of the folder's first n recordings; if `seconds` is not 0, in pieces that long.

    Raises:
        InputError: there is no sound, or not enough of it.
    """
    paths = sorted(path for path in folder.rglob("*") if SOUND.fullmatch(path.suffix))[:n]
    if not paths:
        raise InputError(
            f"a folder with sound files must be named, but {folder} has none; use --data DIR"
        )
    samples = [read_audio(path, CONFIG.sample_rate) for path in paths]
    if not seconds:
        return samples
    size = round(seconds * CONFIG.sample_rate)
    joined = torch.cat(samples)
    if len(joined) <= size:
        raise InputError(
            f"a piece must be shorter than all sound together, but --seconds {seconds:g} and the "
            f"sound lasts {len(joined) / CONFIG.sample_rate:.1f} s; take shorter pieces or more "
            "--files"
        )
    return list(joined[: len(joined) // size * size].split(size))


def write_files(samples: Sequence[Tensor], folder: Path, name: str) -> list[Path]:
    """The sound in one of FORMATS."""
    paths = [folder / f"{i:05}.{name.lower()}" for i in range(len(samples))]
    for path, waveform in zip(paths, samples, strict=True):
        soundfile.write(path, waveform.numpy(), CONFIG.sample_rate, **FORMATS[name])
    return paths


def extract(front_end: FrontEnd, sounds: Sounds) -> None:
    """Compute the features of every sound."""
    for sound in sounds:
        front_end(read_audio(sound, CONFIG.sample_rate) if isinstance(sound, Path) else sound)


def compare(title: str, sounds: Sounds, duration: float, rounds: int) -> None:
    """Print a row for each system."""
    front_ends: dict[str, FrontEnd] = {RIVAL: rival, "transduce": FeatureExtractor(CONFIG)}
    for front_end in front_ends.values():
        extract(front_end, sounds[:5])  # warm-up
    calls = {
        name: partial(timed, partial(extract, front_end, sounds))
        for name, front_end in front_ends.items()
    }
    seconds = {
        name: statistics.median(turn.cpu_seconds for turn in turns)
        for name, turns in take_turns(calls, rounds).items()
    }
    for name, median in seconds.items():
        print(
            f"{title:22} {name:22} {duration:7.1f} s of sound {median:9.5f} s  "
            f"1/{duration / median:<6,.0f} {seconds[RIVAL] / median:5.2f} x",
            flush=True,
        )


def main(
    *,
    data: Path = COMMANDS,
    files: int = 150,
    seconds: float = 0.0,
    rounds: int = 5,
    tiny: bool = False,
) -> None:
    """Measure both.

    Args:
        data: a folder of recordings.
        files: how many of them, the first by name.
        seconds: join them to pieces that long; 0: as they are.
        rounds: turns of every system.
        tiny: 6 files and one round, to try the script.
    """
    torch.set_num_threads(1)
    if tiny:
        files = 6
        rounds = 1
    samples = recordings(data, files, seconds)
    duration = sum(map(len, samples)) / CONFIG.sample_rate
    print(
        f"{len(samples)} files of {duration / len(samples):.1f} s on average, 1 thread, "
        f"torch {torch.__version__}; median of {rounds}"
    )
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        for name in FORMATS:
            paths = write_files(samples, Path(folder), name)
            compare(f"{name}, file to features", paths, duration, rounds)
        compare("features", samples, duration, rounds)
