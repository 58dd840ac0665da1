"""Reads the frames of a file: MFCC of sound, augmented differently in every epoch, or vectors.

All random numbers come from a generator.
"""

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from transduce.data.config import HIGHEST_SNR, Augmentation, FeatureConfig, VectorConfig
from transduce.data.features import (
    FeatureCache,
    FeatureExtractor,
    Features,
    FrameVectors,
    Mels,
    VectorReader,
    statistics,
)
from transduce.data.manifest import Recording
from transduce.errors import InputError
from transduce.files import remove_leftovers
from transduce.process import Bar, use_one_core

PLAIN = Augmentation(speeds=(1.0,), n_time_masks=0, n_frequency_masks=0, vtlp=0.0)
"""No augmentation."""

ROUNDING = 1e-3
"""Seconds by which a manifest may be off, as it is written with three decimals."""


def longest_seconds(max_seconds: float, padded: float) -> float:
    """The length in seconds of the longest sound that is used, as more might not fit into memory.
    Shorter sound was padded to `padded` seconds, up to the end of a frame."""
    return max(max_seconds + ROUNDING, 1.01 * padded)


def generator(seed: int, epoch: int, index: int) -> Generator:
    """A generator that is a function of three non-negative numbers.

    NumPy's SeedSequence mixes the three into a seed, so that neighbouring indices draw unrelated
    numbers. What happens to an utterance depends neither on its batch nor on the worker that makes
    it, and a resumed run needs no generator's state. Torch keeps 32 bits of the seed: among n
    utterances about n² / 2³³ pairs draw the same numbers.
    """
    (mixed,) = np.random.SeedSequence((seed, epoch, index)).generate_state(1)
    return Generator().manual_seed(int(mixed))


def draw_speed(speeds: Sequence[float], rng: Generator) -> float:
    """One of the speeds, each with the same probability."""
    return speeds[int(torch.randint(len(speeds), (), generator=rng))]


def mask_time(
    frames: FrameVectors, augmentation: Augmentation, hop: float, rng: Generator
) -> FrameVectors:
    """Replace n_time_masks random spans of frames by each feature's mean over the utterance. Spans
    may overlap.

    The width of a span is uniform in 0 ... min(time_mask_width / hop, time_mask_proportion * S)
    frames, and its place is uniform among all that fit.

    Args:
        hop: seconds from one frame to the next.

    Source: Park et al. (2019), SpecAugment; normalized features get their mean in the paper.
    """
    widest = min(
        augmentation.time_mask_width / hop, augmentation.time_mask_proportion * len(frames)
    )
    # 1e-6, as rounding errors make 0.3 / 0.1 less than 3
    masked = _spans(len(frames), augmentation.n_time_masks, int(widest + 1e-6), rng)
    return torch.where(masked[:, None], frames.mean(dim=0), frames)


def mask_frequency(log_mel: Mels, augmentation: Augmentation, rng: Generator) -> Mels:
    """Replace n_frequency_masks random spans of 0 to frequency_mask_width mel bands by each band's
    mean over the utterance.

    A masked band is constant, so nothing of it is left after the DCT and the normalization by
    utterance.

    Source: Park et al. (2019), SpecAugment.
    """
    n_mels = log_mel.size(1)
    widest = min(augmentation.frequency_mask_width, n_mels)
    masked = _spans(n_mels, augmentation.n_frequency_masks, widest, rng)
    return torch.where(masked, log_mel.mean(dim=0), log_mel)


def drop_tokens(
    target_in: Int[Tensor, " T"], *, share: float, instead: int, rng: Generator
) -> Int[Tensor, " T"]:
    """Replace each token by `instead` with probability `share`, except the first, which begins the
    text.

    Source: Bowman et al. (2016), Generating sentences from a continuous space, "word dropout".
    """
    dropped = torch.rand(target_in.shape, generator=rng) < share
    dropped[0] = False
    return torch.where(dropped, instead, target_in)


def perturb_vocal_tract(log_mel: Mels, factor: float, features: FeatureConfig) -> Mels:
    """Scale frequencies: energy at f Hz moves to factor * f, with linear interpolation between
    bands.

    Outside the bands, the energy of the outermost band is taken.

    Source: Jaitly and Hinton (2013), Vocal tract length perturbation; without their bend at the
    upper end.
    """
    n_mels = features.n_mels
    centres, bottom, step = _centres(features)
    origin = ((_mel(centres / factor) - bottom) / step - 1).clamp(0, n_mels - 1)
    # each band's weight in each new one: a product of matrices is faster than picking columns
    weights = (1 - (torch.arange(n_mels)[:, None] - origin).abs()).clamp_min_(0)
    return log_mel @ weights.to(log_mel.dtype)


def draw_vtlp(vtlp: float, rng: Generator) -> float:
    """A factor, uniform in 1 - vtlp ... 1 + vtlp."""
    return 1 + vtlp * (2 * float(torch.rand((), generator=rng)) - 1)


def change_level(
    log_mel: Mels,
    augmentation: Augmentation,
    features: FeatureConfig,
    rng: Generator,
) -> Mels:
    """Change the level and the spectral tilt of an utterance, as another microphone or voice would.

    The level changes by a number of dB that is uniform in -gain ... gain. The tilt is uniform in
    -tilt ... tilt dB per octave, around 1 kHz.
    """
    louder, steeper = (2 * torch.rand(2, generator=rng, dtype=torch.float64) - 1).tolist()
    octaves = (_centres(features)[0] / 1000).log2()
    decibels = augmentation.gain * louder + augmentation.tilt * steeper * octaves
    return log_mel + (decibels * math.log(10) / 10).to(log_mel.dtype)


def add_silence(log_mel: Mels, before: int, after: int) -> Float[Tensor, "_ M"]:
    """The utterance with frames of silence before and after it, each the quietest frame of the
    utterance."""
    quietest = log_mel[log_mel.mean(dim=1).argmin()]
    return torch.cat([quietest.expand(before, -1), log_mel, quietest.expand(after, -1)])


def add_noise(
    log_mel: Mels, widths: Float[Tensor, " M"], lowest_snr: float, rng: Generator
) -> Mels:
    """Add white noise to the utterance: its energy in every band is added to that of the speech.

    The signal-to-noise ratio, of energies summed over all bands and frames, is uniform in
    lowest_snr ... 60 dB. The noise in a band of w bins varies from frame to frame by a log-normal
    factor with mean 1 and about the standard deviation of a mean over w bins.

    Args:
        widths: the sum of the filter weights over the DFT bins of every band.
    """
    snr = lowest_snr + (HIGHEST_SNR - lowest_snr) * float(torch.rand((), generator=rng))
    noise = log_mel.exp().mean(dim=0).sum() * 10 ** (-snr / 10) * widths / widths.sum()
    deviation = widths.clamp_min(1).rsqrt()
    varied = deviation * torch.randn(log_mel.shape, generator=rng) - deviation.square() / 2
    return torch.logaddexp(log_mel, noise.log() + varied)


def _mel(hertz: Tensor) -> Tensor:
    """Hertz to HTK's mels, the scale of torchaudio's filters, which has no public function for
    it."""
    return 2595 * torch.log10(1 + hertz / 700)


def _centres(features: FeatureConfig) -> tuple[Float[Tensor, " M"], Tensor, Tensor]:
    """The centre of every band in Hz; and in mel, where bands are equally wide, the beginning of
    the first band and the distance between neighbouring centres."""
    edges = features.low, features.highest
    bottom, top = (_mel(torch.tensor(edge, dtype=torch.float64)) for edge in edges)
    step = (top - bottom) / (features.n_mels + 1)
    mels = bottom + step * torch.arange(1, features.n_mels + 1, dtype=torch.float64)
    return 700 * (10 ** (mels / 2595) - 1), bottom, step


def _spans(size: int, n: int, widest: int, rng: Generator) -> Bool[Tensor, " size"]:
    """True inside n random spans of at most `widest` positions."""
    masked = torch.zeros(size, dtype=torch.bool)
    for _ in range(n):
        width = int(torch.randint(widest + 1, (), generator=rng))
        start = int(torch.randint(size - width + 1, (), generator=rng))
        masked[start : start + width] = True
    return masked


@dataclass(frozen=True)
class FrameReader:
    """Reads the frames of a file: MFCC of sound, from cached log-mels, or the vectors of a .npy
    file."""

    feature_extractor: Features
    cache: FeatureCache

    @property
    def n_features(self) -> int:
        """F, numbers per frame."""
        return self.feature_extractor.config.n_features

    def __call__(
        self,
        path: Path,
        augmentation: Augmentation = PLAIN,
        rng: Generator | None = None,
        speed: float = 1.0,
        silence: tuple[int, int] = (0, 0),
    ) -> FrameVectors:
        """Frames at one speed. Mel bands are masked before the DCT, spans of time after
        normalization.

        Vectors have neither speed nor mel bands, so they only get the time masks.

        Args:
            rng: draws the level, the noise, the vocal tract and the masks, none of which shifts a
                frame.
            silence: frames of silence before and after the utterance.

        Raises:
            InputError: the file cannot be used; the message names it.
        """
        rng = rng or generator(0, 0, 0)
        # a validation in bf16 may be the caller
        with torch.autocast("cpu", enabled=False):
            (frames,) = self._plain(path, (speed,))
            if isinstance(self.feature_extractor, FeatureExtractor):
                log_mel = _augmented(
                    add_silence(frames, *silence), self.feature_extractor, augmentation, rng
                )
                frames = self.feature_extractor.mfcc(log_mel)
            return mask_time(frames, augmentation, self.feature_extractor.config.hop, rng)

    def applicable(self, augmentation: Augmentation) -> Augmentation:
        """The part of an augmentation that applies to these frames; vectors have one speed and no
        silence.

        Raises:
            InputError: the augmentation is for log-mels of another kind.
        """
        features = self.feature_extractor.config
        if isinstance(features, VectorConfig):
            return replace(augmentation, speeds=(1.0,), silence=0.0)
        augmentation.check_features(features)
        return augmentation

    def fill(
        self, paths: Sequence[Path], speeds: Sequence[float] = (1.0,), workers: int = 0
    ) -> tuple[dict[Path, list[int]], dict[Path, str]]:
        """Read all files, and compute what the cache lacks, in `workers` threads, at least one.
        Progress goes to stderr.

        Reading sound, resampling and the DFT release Python's GIL, so threads run in parallel.
        After an interruption, the files that are already written are kept.

        Returns:
            The numbers of frames of each file, by speed; and the files that cannot be used at one
            of the speeds, each with the reason, which names the file.

        Raises:
            OSError: the directory cannot be written.
        """
        remove_leftovers(self.cache.directory)
        n_frames: dict[Path, list[int]] = {}
        errors: dict[Path, str] = {}

        def measure(path: Path) -> None:
            try:
                n_frames[path] = [*map(len, self._plain(path, speeds))]
            except InputError as error:
                errors[path] = str(error)

        every = dict.fromkeys(paths)
        bar = Bar(total=len(every), desc="features", unit="file")
        with bar, ThreadPoolExecutor(max(1, workers), initializer=use_one_core) as pool:
            for _ in pool.map(measure, every):
                bar.update()
        return n_frames, errors

    def _plain(self, path: Path, speeds: Sequence[float]) -> list[Float[Tensor, "_ _"]]:
        """The log-mels of a sound at these speeds, or the vectors of a file, which have one
        speed."""
        if isinstance(self.feature_extractor, VectorReader):
            return [self.feature_extractor(path)]
        return self.cache.get(path, self.feature_extractor, speeds)


def _augmented(
    log_mel: Mels,
    features: FeatureExtractor,
    augmentation: Augmentation,
    rng: Generator,
) -> Mels:
    """The log-mel with another level, noise, another vocal tract and masked bands."""
    if augmentation.gain or augmentation.tilt:
        log_mel = change_level(log_mel, augmentation, features.config, rng)
    if augmentation.lowest_snr is not None:
        log_mel = add_noise(log_mel, features.band_widths, augmentation.lowest_snr, rng)
    if augmentation.vtlp:
        factor = draw_vtlp(augmentation.vtlp, rng)
        log_mel = perturb_vocal_tract(log_mel, factor, features.config)
    return mask_frequency(log_mel, augmentation, rng)


def make_feature_extractor(
    config: FeatureConfig | VectorConfig,
    recordings: Sequence[Recording],
    cache: FeatureCache,
    workers: int,
    *,
    max_seconds: float = math.inf,
) -> Features:
    """The feature extractor of a config. If it needs statistics, they are computed from the
    recordings.

    Args:
        max_seconds: longer recordings are left out of the statistics, as they are left out of
            training.

    Raises:
        InputError: statistics are needed, but no recording can be used.
    """
    if isinstance(config, VectorConfig):
        return VectorReader(config)
    if not config.has_statistics:
        return FeatureExtractor(config)
    reader = FrameReader(FeatureExtractor(replace(config, normalize="none")), cache)
    paths = [r.audio for r in recordings if r.seconds <= max_seconds]
    n_frames, errors = reader.fill(paths, workers=workers)
    if not n_frames:
        none = f"of {len(recordings)} recordings none lasts {max_seconds:g} s or less"
        reason = next(iter(errors.values()), none if recordings else "there are none")
        raise InputError(
            f"normalize={config.normalize} needs training data that can be used, but none can: "
            f"{reason}"
        )
    longest = longest_seconds(max_seconds, config.pad_to)
    usable = [path for path in paths if path in n_frames]
    mean, std = statistics(
        reader(path) for path in usable if config.seconds(*n_frames[path]) <= longest
    )
    return FeatureExtractor(config, mean=mean, std=std)
