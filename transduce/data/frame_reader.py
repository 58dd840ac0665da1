"""The frames of a file: log-mels of sound, kept on disk and augmented, or vectors in their place.

From the second epoch on, no sound is decoded and no DFT is computed.
"""

import hashlib
import io
import json
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Generator, Tensor

from transduce.data.audio import read_audio, sound_status
from transduce.data.augment import (
    add_noise,
    add_silence,
    change_level,
    change_speed,
    draw_vtlp,
    generator,
    mask_frequency,
    mask_time,
    perturb_vocal_tract,
)
from transduce.data.config import Augmentation, FeatureConfig, VectorConfig
from transduce.data.features import FeatureExtractor, VectorReader, statistics
from transduce.data.manifest import Recording
from transduce.errors import InputError
from transduce.files import remove_leftovers, write_file
from transduce.process import Bar, use_one_core

FORMULA = 2
"""A part of every key; increase it whenever `log_mel`, `read_audio` or `change_speed` give other
numbers."""

PLAIN = Augmentation(speeds=(1.0,), n_time_masks=0, n_frequency_masks=0, vtlp=0.0)
"""No augmentation."""

ROUNDING = 1e-3
"""Seconds by which a manifest may be off, as it is written with three decimals."""


@dataclass(frozen=True)
class FeatureCache:
    """A directory of .npy files, each the log-mel of one sound file at one speed, float32.

    (float16 would halve the size, but its steps of 1/128 around -13 move MFCC by more than 1e-3.) A
    file's name is a hash of the sound file's path, size and time of change, of the settings that
    its log-mel depends on, and of the speed. Files are written whole or not at all, so any number
    of processes may use one directory. It may be deleted at any time.
    """

    directory: Path

    def file(self, path: Path, config: FeatureConfig, speed: float) -> Path:
        """The file of the log-mel of `path`, whether it is there or not.

        Raises:
            InputError: `path` is not a file, or is empty.
        """
        status = sound_status(path)
        plain = replace(config, n_coefficients=0, deltas=0, high=config.highest, normalize="none")
        sound = (str(path.resolve()), status.st_size, status.st_mtime_ns)
        key = json.dumps([FORMULA, sound, astuple(plain), float(speed)])
        return self.directory / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.npy"

    def get(
        self, path: Path, features: FeatureExtractor, speed: float = 1.0
    ) -> Float[Tensor, "S M"]:
        """The log-mel of a sound file. If the directory lacks it or holds a damaged one, it is
        computed and written.

        Raises:
            InputError: the sound cannot be read or is shorter than one window; the message names
                the file.
        """
        log_mel = _load(self.file(path, features.config, speed), features.config.n_mels)
        return self._compute(path, features, (speed,))[speed] if log_mel is None else log_mel

    def add(self, path: Path, features: FeatureExtractor, speeds: Sequence[float]) -> None:
        """Compute and write those log-mels of a sound file that the directory lacks.

        Raises:
            InputError: as for `get`.
            OSError: the directory cannot be written.
        """
        files = {speed: self.file(path, features.config, speed) for speed in speeds}
        if missing := [speed for speed, file in files.items() if not file.exists()]:
            self._compute(path, features, missing)

    def _compute(
        self, path: Path, features: FeatureExtractor, speeds: Sequence[float]
    ) -> dict[float, Float[Tensor, "S M"]]:
        """Compute and write the log-mels of a sound file, which is read once, and return them by
        speed."""
        waveform = read_audio(path, features.config.sample_rate)
        log_mels = {}
        for speed in speeds:
            try:
                log_mels[speed] = features.log_mel(change_speed(waveform, speed))
            except InputError as error:
                raise InputError(f"{path} cannot be used at speed {speed}: {error}") from error
            content = io.BytesIO()
            np.save(content, log_mels[speed].numpy(), allow_pickle=False)
            self.directory.mkdir(parents=True, exist_ok=True)
            # not durable: a torn one is computed anew
            write_file(self.file(path, features.config, speed), content.getvalue(), durable=False)
        return log_mels


def _load(file: Path, n_mels: int) -> Float[Tensor, "S M"] | None:
    """The log-mel in a file, mapped into memory; None where the file is missing or damaged.

    Its length alone takes reading the header alone. Writing to it would change a copy.
    """
    try:
        log_mel = np.load(file, mmap_mode="c", allow_pickle=False)
    except (
        Exception
    ):  # NumPy raises errors of many kinds on a damaged header, from EOFError to TokenError
        return None
    if not (
        isinstance(log_mel, np.ndarray)
        and log_mel.dtype == np.float32
        and log_mel.shape[1:] == (n_mels,)
    ):
        return None
    return torch.from_numpy(log_mel)


@dataclass(frozen=True)
class FrameReader:
    """Reads the frames of a file: MFCC of sound, by way of the cache, or the vectors of a .npy
    file."""

    feature_extractor: FeatureExtractor | VectorReader
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
    ) -> Float[Tensor, "S F"]:
        """Frames at one speed. Mel bands are masked before the DCT, spans of time after
        normalization.

        Vectors have neither speed nor mel bands, so of the augmentation they get the time masks
        alone.

        Args:
            rng: draws the level, the noise, the vocal tract and the masks, none of which moves a
                position.
            silence: frames of silence before and after the utterance.

        Raises:
            InputError: the file cannot be used; the message names it.
        """
        rng = rng or generator(0, 0, 0)
        frames = self._unmasked(path, speed)
        if isinstance(self.feature_extractor, FeatureExtractor):
            log_mel = _augmented(
                add_silence(frames, *silence), self.feature_extractor, augmentation, rng
            )
            frames = self.feature_extractor.mfcc(log_mel)
        return mask_time(
            frames,
            spans=augmentation.n_time_masks,
            widest=augmentation.time_mask_width,
            hop=self.feature_extractor.config.hop,
            share=augmentation.time_mask_proportion,
            rng=rng,
        )

    def speeds(self, augmentation: Augmentation) -> tuple[float, ...]:
        """The speeds at which a file is needed; vectors have one speed only."""
        return (1.0,) if isinstance(self.feature_extractor, VectorReader) else augmentation.speeds

    def fill(
        self, paths: Sequence[Path], speeds: Sequence[float] = (1.0,), workers: int = 0
    ) -> dict[Path, str]:
        """Compute what the cache lacks, in `workers` threads, at least one; vectors are read once.
        Progress goes to stderr.

        Reading sound, resampling and the DFT leave Python's lock to others, so threads share the
        work. After an interruption, the files that are written stay.

        Returns:
            The files that cannot be used at one of the speeds, each with the reason, which names
            the file.

        Raises:
            OSError: the directory cannot be written.
        """
        remove_leftovers(self.cache.directory)
        errors: dict[Path, str] = {}

        def check(path: Path) -> None:
            try:
                if isinstance(self.feature_extractor, VectorReader):
                    self.feature_extractor(path)
                else:
                    self.cache.add(path, self.feature_extractor, speeds)
            except InputError as error:
                errors[path] = str(error)

        every = dict.fromkeys(paths)
        bar = Bar(total=len(every), desc="features", unit="file")
        with bar, ThreadPoolExecutor(max(1, workers), initializer=use_one_core) as pool:
            for _ in pool.map(check, every):
                bar.update()
        return errors

    def n_frames(self, path: Path, speed: float) -> int:
        """S, the number of frames of a file that can be used."""
        return len(self._unmasked(path, speed))

    def _unmasked(self, path: Path, speed: float) -> Float[Tensor, "S _"]:
        """The vectors of a file, or the log-mels of its sound."""
        if isinstance(self.feature_extractor, VectorReader):
            return self.feature_extractor(path)
        return self.cache.get(path, self.feature_extractor, speed)


def _augmented(
    log_mel: Float[Tensor, "S M"],
    features: FeatureExtractor,
    augmentation: Augmentation,
    rng: Generator,
) -> Float[Tensor, "S M"]:
    """The log-mel with another level, noise, another vocal tract and masked bands."""
    low, high = features.config.low, features.config.highest
    if augmentation.gain or augmentation.tilt:
        gain, tilt = augmentation.gain, augmentation.tilt
        log_mel = change_level(log_mel, gain=gain, tilt=tilt, low=low, high=high, rng=rng)
    if augmentation.lowest_snr is not None:
        snr = augmentation.lowest_snr
        log_mel = add_noise(log_mel, features.band_widths, lowest_snr=snr, rng=rng)
    if augmentation.vtlp:
        factor = draw_vtlp(augmentation.vtlp, rng)
        log_mel = perturb_vocal_tract(log_mel, factor, low=low, high=high)
    return mask_frequency(
        log_mel,
        spans=augmentation.n_frequency_masks,
        widest=augmentation.frequency_mask_width,
        rng=rng,
    )


def make_feature_extractor(
    config: FeatureConfig | VectorConfig,
    recordings: Sequence[Recording],
    cache: FeatureCache,
    workers: int,
    *,
    max_seconds: float = math.inf,
) -> FeatureExtractor | VectorReader:
    """The feature extractor of a config. Where it needs statistics, they are those of the
    recordings.

    Args:
        max_seconds: longer recordings are left out of the statistics, as they are left out of
            training.

    Raises:
        InputError: statistics are needed, and no recording can be used.
    """
    if isinstance(config, VectorConfig):
        return VectorReader(config)
    if not config.has_statistics:
        return FeatureExtractor(config)
    plain = FeatureExtractor(replace(config, normalize="none"))
    paths = [r.audio for r in recordings if r.seconds <= max_seconds]
    errors = FrameReader(plain, cache).fill(paths, workers=workers)
    if len(errors) == len(set(paths)):
        none = f"of {len(recordings)} recordings none lasts {max_seconds:g} s or less"
        reason = next(iter(errors.values()), none if recordings else "there are none")
        raise InputError(
            f"normalize={config.normalize} needs training data that can be used, but none can: "
            f"{reason}"
        )
    log_mels = (cache.get(path, plain) for path in paths if path not in errors)
    usable = (
        log_mel for log_mel in log_mels if config.seconds(len(log_mel)) <= max_seconds + ROUNDING
    )
    mean, std = statistics(plain.mfcc(log_mel) for log_mel in usable)
    return FeatureExtractor(config, mean=mean, std=std)
