"""Speed of the front end on one core, sound to MFCC, against torchaudio.compliance.kaldi.mfcc: the same files and run.

    python scripts/bench features [--data DIR] [--seconds 10]

Every recording of a folder is written once as WAV (16 bits) and once as Ogg Opus, both at 16 kHz. Then each system
makes 40 coefficients of 80 mel bands, windows of 25 ms every 10 ms, of every file, and they take turns. "file to
features" reads and decodes the file as well, with the same code for both (`read_audio`); "features" begins with the
samples. The real-time factor is what they take by what the sound lasts, as 1/x; the last column how many times as fast
as the rival. Taken is the process's CPU time, median of `--rounds`: what else runs on the core counts little, waiting
for a disk not at all (the files have just been written, and are in memory).

Both have the same frames, Hann window, power spectrum of 512 points, mel bands and DCT. They differ: Kaldi's triangles
are straight in mels, ours in hertz; its window is symmetric, ours periodic; it floors a band's energy at 1.2e-7, ours
adds 1e-6. Its dither, pre-emphasis, removal of the mean and liftering are off. Ours also gives every coefficient mean 0
and variance 1, and that counts.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import soundfile
import torch
from torch import Tensor
from torchaudio.compliance import kaldi

from transduce.data.audio import read_audio
from transduce.data.features import FeatureConfig, FeatureExtractor
from transduce.data.sound_lists import SOUND
from transduce.errors import InputError

COMMANDS = Path(__file__).resolve().parents[2] / "recipes" / "data" / "commands" / "sound"
CONFIG = FeatureConfig()
FORMATS = {"WAV": {"format": "WAV", "subtype": "PCM_16"}, "Opus": {"format": "OGG", "subtype": "OPUS"}}

FrontEnd = Callable[[Tensor], Tensor]
"""Samples (n,) to frames (S, 40)."""


def rival(waveform: Tensor) -> Tensor:
    """Kaldi's MFCC as torchaudio has them, set to what ours are."""
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
    """The samples of the folder's first n recordings; where `seconds` is not 0, joined to pieces that long.

    Raises:
        InputError: there is no sound, or not enough of it.
    """
    paths = sorted(path for path in folder.rglob("*") if SOUND.fullmatch(path.suffix))[:n]
    if not paths:
        raise InputError(f"a folder with sound files must be named, but {folder} has none; use --data DIR")
    samples = [read_audio(path, CONFIG.sample_rate) for path in paths]
    if not seconds:
        return samples
    pieces = torch.cat(samples).split(round(seconds * CONFIG.sample_rate))
    whole = [piece for piece in pieces if len(piece) == len(pieces[0]) and len(pieces) > 1]
    if not whole:
        raise InputError(
            f"a piece must be shorter than all sound together, but --seconds {seconds:g} and the sound lasts "
            f"{sum(map(len, samples)) / CONFIG.sample_rate:.1f} s; take shorter pieces or more --files"
        )
    return whole


def write(samples: Sequence[Tensor], folder: Path) -> dict[str, list[Path]]:
    """The same sound in every format."""
    files = {name: [folder / f"{i:05}.{name.lower()}" for i in range(len(samples))] for name in FORMATS}
    for name, how in FORMATS.items():
        for path, each in zip(files[name], samples, strict=True):
            soundfile.write(path, each.numpy(), CONFIG.sample_rate, **how)
    return files


def seconds_taken(feature_extractor: FrontEnd, sounds: Sequence[Path] | Sequence[Tensor]) -> float:
    """CPU time for all of them, one after the other."""
    start = time.process_time()
    for sound in sounds:
        feature_extractor(read_audio(sound, CONFIG.sample_rate) if isinstance(sound, Path) else sound)
    return time.process_time() - start


def compare(what: str, sounds: Sequence[Path] | Sequence[Tensor], duration: float, rounds: int) -> None:
    """Print a line per system."""
    systems: dict[str, FrontEnd] = {"torchaudio kaldi.mfcc": rival, "transduce": FeatureExtractor(CONFIG)}
    taken: dict[str, list[float]] = {name: [] for name in systems}
    for feature_extractor in systems.values():
        seconds_taken(feature_extractor, sounds[:5])  # warm-up
    for _ in range(rounds):
        for name, feature_extractor in systems.items():
            taken[name].append(seconds_taken(feature_extractor, sounds))
    first = statistics.median(taken["torchaudio kaldi.mfcc"])
    for name, each in taken.items():
        median = statistics.median(each)
        print(
            f"{what:22} {name:22} {duration:7.1f} s of sound {median:9.5f} s  1/{duration / median:<6,.0f}"
            f" {first / median:5.2f} x",
            flush=True,
        )


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=COMMANDS, metavar="DIR", help="default: the commands that ship")
    parser.add_argument("--files", type=int, default=150, help="recordings, the first by name (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=0.0, help="join them to pieces that long; 0: as they are")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tiny", action="store_true", help="6 files and one round, to try the script")
    return parser.parse_args()


def main() -> None:
    x = arguments()
    torch.set_num_threads(1)
    n, rounds = (6, 1) if x.tiny else (x.files, x.rounds)
    samples = recordings(x.data, n, x.seconds)
    duration = sum(map(len, samples)) / CONFIG.sample_rate
    print(
        f"{len(samples)} files of {duration / len(samples):.1f} s on average, 1 thread, torch {torch.__version__}; "
        f"median of {rounds}"
    )
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        for name, paths in write(samples, Path(folder)).items():
            compare(f"{name}, file to features", paths, duration, rounds)
        compare("features", samples, duration, rounds)


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        raise SystemExit(f"transduce: {error}") from None
