"""The frames of a file: of sound by way of the cache, augmented, or vectors in their place."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from jaxtyping import Float
from torch import Generator, Tensor

from transduce.data.config import Augmentation, FeatureConfig, VectorConfig
from transduce.data.speech.augment import (
    add_noise,
    add_silence,
    change_level,
    draw_vtlp,
    generator,
    mask_frequency,
    mask_time,
    perturb_vocal_tract,
)
from transduce.data.speech.feature_cache import FeatureCache
from transduce.data.speech.features import FeatureExtractor, VectorReader, statistics
from transduce.data.speech.manifest import Recording
from transduce.errors import InputError

PLAIN = Augmentation(speeds=(1.0,), n_time_masks=0, n_frequency_masks=0, vtlp=0.0)
"""No augmentation."""

ROUNDING = 1e-3
"""Seconds by which a manifest may be off, as it is written with three decimals."""


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
            frames = add_silence(frames, *silence)
            low, high = self.feature_extractor.config.low, self.feature_extractor.config.highest
            if augmentation.gain or augmentation.tilt:
                gain, tilt = augmentation.gain, augmentation.tilt
                frames = change_level(frames, gain=gain, tilt=tilt, low=low, high=high, rng=rng)
            if augmentation.lowest_snr is not None:
                widths = self.feature_extractor.band_widths
                frames = add_noise(frames, widths, lowest_snr=augmentation.lowest_snr, rng=rng)
            if augmentation.vtlp:
                frames = perturb_vocal_tract(
                    frames, draw_vtlp(augmentation.vtlp, rng), low=low, high=high
                )
            frames = mask_frequency(
                frames,
                spans=augmentation.n_frequency_masks,
                widest=augmentation.frequency_mask_width,
                rng=rng,
            )
            frames = self.feature_extractor.mfcc(frames)
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

    def fill(self, paths: Sequence[Path], speeds: Sequence[float], workers: int) -> dict[Path, str]:
        """Compute what the cache lacks, and return the files that cannot be used, each with the
        reason."""
        if isinstance(self.feature_extractor, FeatureExtractor):
            return self.cache.fill(paths, self.feature_extractor, speeds, workers)
        errors = {}
        for path in paths:
            try:
                self.feature_extractor(path)
            except InputError as error:
                errors[path] = str(error)
        return errors

    def n_frames(self, path: Path, speed: float) -> int:
        """S, the number of frames of a file that can be used."""
        return len(self._unmasked(path, speed))

    def _unmasked(self, path: Path, speed: float) -> Float[Tensor, "S _"]:
        """The vectors of a file, or the log-mels of its sound."""
        if isinstance(self.feature_extractor, VectorReader):
            return self.feature_extractor(path)
        return self.cache.get(path, self.feature_extractor, speed)


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
    errors = cache.fill(paths, plain, workers=workers)
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
