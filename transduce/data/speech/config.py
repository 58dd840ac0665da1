"""The configuration of features, of vectors and of augmentation. They are read without torch."""

import math
from dataclasses import dataclass
from typing import Literal

from transduce.config import at_least, check_choices, within

Normalize = Literal["utterance", "global", "none"]

SPEEDS = "[0.5, 2]"
"""The speeds at which speech is still speech."""

HIGHEST_SNR = 60.0
"""Decibels. Noise at this ratio is that of a quiet room and a good microphone."""


@dataclass(frozen=True, kw_only=True)
class FeatureConfig:
    """The settings of MFCC; the defaults are usual for speech at 16 kHz.

    With n_mels = n_coefficients only the phase is lost, as the DCT is orthonormal.
    """

    sample_rate: int = 16000
    """Hz; sound at another rate is resampled."""
    frame: float = 0.025
    """Seconds under one window."""
    hop: float = 0.01
    """Seconds from one window to the next."""
    n_mels: int = 80
    """Mel bands."""
    n_coefficients: int = 40
    """How many of the n_mels cosines are kept, from the 0th (loudness) on."""
    low: float = 20.0
    """Hz where the lowest mel band begins."""
    high: float | None = None
    """Hz where the highest mel band ends; None is half the sample rate."""
    deltas: Literal[0, 1, 2] = 0
    """1 appends the slopes of the coefficients over five frames, 2 also the slopes of the slopes."""
    normalize: Normalize = "utterance"
    """Each feature gets mean 0 and variance 1 over the utterance, or over the training data (see `statistics`)."""

    def __post_init__(self) -> None:
        within("(0, 1]", frame=self.frame)
        within("(0, inf)", hop=self.hop)
        if self.sample_rate < 2 or self.sample_rate % 2:  # torchaudio's filters end at sample_rate // 2
            raise ValueError(f"sample_rate must be positive and even, but sample_rate={self.sample_rate} Hz")
        within("[2, 1000000]", sample_rate=self.sample_rate)
        if not (0 < self.hop <= self.frame and self.hop_samples >= 1):
            raise ValueError(
                f"hop must lie between one sample and frame, but hop={self.hop} s and frame={self.frame} s "
                f"at sample_rate={self.sample_rate} Hz"
            )
        within("[1, 1000]", n_mels=self.n_mels)
        within(f"[1, {self.n_mels}]", n_coefficients=self.n_coefficients)
        if not 0 <= self.low < self.highest <= self.sample_rate / 2:
            raise ValueError(
                f"mel bands must lie in 0 <= low < high <= sample_rate / 2, but low={self.low} Hz, "
                f"high={self.highest} Hz and sample_rate={self.sample_rate} Hz"
            )
        check_choices(self)

    @property
    def n_features(self) -> int:
        """Numbers per frame, F."""
        return self.n_coefficients * (1 + self.deltas)

    @property
    def frame_samples(self) -> int:
        """Samples under one window."""
        return round(self.frame * self.sample_rate)

    @property
    def hop_samples(self) -> int:
        """Samples from one window to the next."""
        return round(self.hop * self.sample_rate)

    @property
    def n_fft(self) -> int:
        """Points of the DFT: the first power of two that holds a window, filled up with zeros to its right."""
        return 2 ** math.ceil(math.log2(self.frame_samples))

    @property
    def highest(self) -> float:
        """Hz where the highest mel band ends."""
        return self.sample_rate / 2 if self.high is None else self.high

    def n_frames(self, n_samples: int) -> int:
        """S of a waveform: 1 + (n_samples - frame_samples) // hop_samples.

        Windows lie inside the waveform, the first at its first sample; what does not fill a last one is left out.
        """
        return max(0, 1 + (n_samples - self.frame_samples) // self.hop_samples)

    def seconds(self, n_frames: int) -> float:
        """The time that so many windows, at least one, cover; it falls short of the waveform by less than one hop."""
        return (self.frame_samples + (n_frames - 1) * self.hop_samples) / self.sample_rate


@dataclass(frozen=True, kw_only=True)
class VectorConfig:
    """What a .npy file of shape (frames, n_features) holds, and how it is normalized."""

    n_features: int
    """Numbers in a vector."""
    hop: float = 0.01
    """Seconds from one vector to the next."""
    normalize: Literal["utterance", "none"] = "utterance"
    """Give each feature mean 0 and variance 1 over the utterance, or leave the vectors as they are."""

    def __post_init__(self) -> None:
        at_least(1, n_features=self.n_features)
        within("(0, inf)", hop=self.hop)
        check_choices(self)

    def seconds(self, n_frames: int) -> float:
        """The time that so many vectors stand for."""
        return n_frames * self.hop


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """How training changes an utterance; with speeds=(1.0,), no masks and vtlp=0 it does not."""

    speeds: tuple[float, ...] = (0.9, 1.0, 1.1)
    """One of them is drawn for each utterance (Ko et al. 2015)."""
    n_time_masks: int = 2
    """Spans of frames that are masked (SpecAugment's m_T)."""
    time_mask_width: float = 0.2
    """The most seconds in one time mask (T)."""
    time_mask_proportion: float = 0.2
    """The largest share of the utterance in one time mask (p)."""
    n_frequency_masks: int = 2
    """Spans of mel bands that are masked (m_F)."""
    frequency_mask_width: int = 15
    """The most bands in one frequency mask (F)."""
    token_dropout: float = 0.0
    """The share of target tokens that training hides from the decoder, so that it listens and does not guess."""
    vtlp: float = 0.1
    """Frequencies are stretched by a factor drawn from 1 - vtlp ... 1 + vtlp, as by another vocal tract; 0: never."""
    silence: float = 0.0
    """Up to so many seconds of silence are put before an utterance, and up to so many after it; 0: none. So it does not
    matter how closely a recording is cut."""
    lowest_snr: float | None = None
    """White noise is added, at a signal-to-noise ratio drawn from lowest_snr ... 60 dB; none if not given."""

    def __post_init__(self) -> None:
        if not self.speeds:
            raise ValueError("speeds must name at least one, but speeds=(); (1.0,) changes nothing")
        for speed in self.speeds:
            within(SPEEDS, speed=speed)
        at_least(0, n_time_masks=self.n_time_masks, time_mask_width=self.time_mask_width)
        at_least(0, n_frequency_masks=self.n_frequency_masks, frequency_mask_width=self.frequency_mask_width)
        within("[0, 1)", vtlp=self.vtlp, token_dropout=self.token_dropout)
        within("[0, 10]", silence=self.silence)
        if self.lowest_snr is not None:
            within(f"[0, {HIGHEST_SNR:g}]", lowest_snr=self.lowest_snr)
        within("[0, 1]", time_mask_proportion=self.time_mask_proportion)
