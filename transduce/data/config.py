"""The configuration of features, vectors, augmentation and masking, which is read without torch."""

from dataclasses import dataclass
from typing import Literal

from transduce.config import at_least, check_choices, within
from transduce.errors import InputError

LogMel = Literal["plain", "kaldi", "whisper"]
Normalize = Literal["utterance", "global", "none"]

BY_FFMPEG = (".aac", ".m4a", ".mkv", ".mov", ".mp4", ".webm", ".wma")
"""Endings of files whose sound FFmpeg decodes, where it is installed."""

SPEEDS = "[0.5, 2]"
"""The range of speed factors in which speech stays intelligible."""

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
    """Window length in seconds."""
    hop: float = 0.01
    """Seconds from one window to the next (hop length)."""
    n_mels: int = 80
    """Number of mel bands."""
    n_coefficients: int = 40
    """Number of cepstral coefficients, from the 0th (loudness) on; 0: the log-mels themselves,
    without a DCT."""
    low: float = 20.0
    """Lower edge of the lowest mel band in Hz."""
    high: float | None = None
    """Upper edge of the highest mel band in Hz; None: half the sample rate."""
    deltas: Literal[0, 1, 2] = 0
    """Order of the deltas that follow the coefficients: 1 appends deltas over five frames, 2 also
    the deltas of the deltas."""
    log_mel: LogMel = "plain"
    """The formula of log-mels (see FeatureExtractor): plain, kaldi (fbank, as for Speech2Text) or
    whisper."""
    pad_to: float = 0.0
    """Seconds to which shorter sound is padded with silence at its end; 0: no padding."""
    normalize: Normalize = "utterance"
    """Each feature gets mean 0 and variance 1 over the utterance, or over the training data
    (global; see `statistics`)."""

    def __post_init__(self) -> None:
        within("(0, 1]", self, "frame")
        within("[2, 1000000]", self, "sample_rate")
        if self.sample_rate % 2:  # torchaudio's filters end at sample_rate // 2
            raise InputError(f"sample_rate must be even, but sample_rate={self.sample_rate} Hz")
        if not (0 < self.hop <= self.frame and self.hop_samples >= 1):
            raise InputError(
                f"hop must lie between one sample and frame, but hop={self.hop} s and "
                f"frame={self.frame} s at sample_rate={self.sample_rate} Hz"
            )
        within("[1, 1000]", self, "n_mels")
        within(f"[0, {self.n_mels}]", self, "n_coefficients")
        within("[0, 3600]", self, "pad_to")
        if not 0 <= self.low < self.highest <= self.sample_rate / 2:
            raise InputError(
                f"mel bands must lie in 0 <= low < high <= sample_rate / 2, but low={self.low} Hz, "
                f"high={self.highest} Hz and sample_rate={self.sample_rate} Hz"
            )
        check_choices(self)

    @property
    def has_statistics(self) -> bool:
        """Whether normalization uses statistics of the training data."""
        return self.normalize == "global"

    @property
    def n_features(self) -> int:
        """Numbers per frame, F."""
        return (self.n_coefficients or self.n_mels) * (1 + self.deltas)

    @property
    def frame_samples(self) -> int:
        """Samples in one window."""
        return round(self.frame * self.sample_rate)

    @property
    def hop_samples(self) -> int:
        """Samples from one window to the next."""
        return round(self.hop * self.sample_rate)

    @property
    def pad_samples(self) -> int:
        """The least number of samples, which shorter sound is padded to."""
        return round(self.pad_to * self.sample_rate)

    @property
    def n_fft(self) -> int:
        """Points of the DFT: the smallest power of two that holds a window, which is zero-padded on
        the right; for Whisper, the window length."""
        return (
            self.frame_samples
            if self.log_mel == "whisper"
            else 2 ** (self.frame_samples - 1).bit_length()
        )

    @property
    def highest(self) -> float:
        """Upper edge of the highest mel band in Hz."""
        return self.sample_rate / 2 if self.high is None else self.high

    def n_frames(self, n_samples: int) -> int:
        """The number of frames, S, of a waveform: 1 + (n_samples - frame_samples) // hop_samples.

        Windows lie inside the waveform and begin at its first sample; samples that do not fill a
        last window are left out. Whisper's windows are centred on every hop_samples-th sample, so
        that there are n_samples // hop_samples.
        """
        n_samples = max(n_samples, self.pad_samples)
        if self.log_mel == "whisper":
            return n_samples // self.hop_samples
        return max(0, 1 + (n_samples - self.frame_samples) // self.hop_samples)

    def seconds(self, n_frames: int) -> float:
        """The duration of this many windows, at least one; the waveform is longer by less than one
        hop."""
        return (self.frame_samples + (n_frames - 1) * self.hop_samples) / self.sample_rate


@dataclass(frozen=True, kw_only=True)
class VectorConfig:
    """The content of a .npy file of shape (frames, n_features), and its normalization."""

    n_features: int
    """Dimension of a vector."""
    hop: float = 0.01
    """Seconds from one vector to the next."""
    normalize: Literal["utterance", "none"] = "utterance"
    """Give each feature mean 0 and variance 1 over the utterance, or leave the vectors as they
    are."""

    def __post_init__(self) -> None:
        at_least(1, self, "n_features")
        within("(0, inf)", self, "hop")
        check_choices(self)

    def seconds(self, n_frames: int) -> float:
        """The duration of this many vectors."""
        return n_frames * self.hop


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Augmentation of utterances in training; speeds=(1.0,), no masks and vtlp=0 switch it off."""

    speeds: tuple[float, ...] = (0.9, 1.0, 1.1)
    """Speed factors, one of which is drawn for each utterance (Ko et al. 2015)."""
    n_time_masks: int = 2
    """Number of time masks (SpecAugment's m_T)."""
    time_mask_width: float = 0.2
    """Largest width of a time mask in seconds (T)."""
    time_mask_proportion: float = 0.2
    """Largest width of a time mask as a share of the utterance (p)."""
    n_frequency_masks: int = 2
    """Number of frequency masks (m_F)."""
    frequency_mask_width: int = 15
    """Largest width of a frequency mask in mel bands (F)."""
    token_dropout: float = 0.0
    """The share of target tokens that training hides from the decoder, so that it relies on the
    sound."""
    vtlp: float = 0.1
    """Vocal tract length perturbation: frequencies are scaled by a factor drawn from 1 - vtlp ... 1
    + vtlp; 0: off."""
    silence: float = 0.0
    """Most seconds of silence that are put before an utterance, and after it; 0: none. It makes a
    model robust to how tightly recordings are cut."""
    lowest_snr: float | None = None
    """White noise is added at a signal-to-noise ratio drawn from lowest_snr ... 60 dB; None: no
    noise."""
    gain: float = 0.0
    """The level changes by -gain ... gain dB; this only matters where normalize is not
    utterance."""
    tilt: float = 0.0
    """The spectral tilt changes by -tilt ... tilt dB per octave, as with another microphone; this
    only matters where normalize is not utterance."""

    def __post_init__(self) -> None:
        if not self.speeds:
            raise InputError("speeds must name at least one, but speeds=(); (1.0,) changes nothing")
        for speed in self.speeds:
            within(SPEEDS, speed=speed)
        within("[0, 1000]", self, "n_time_masks", "n_frequency_masks")
        at_least(0, self, "time_mask_width", "frequency_mask_width")
        within("[0, 1)", self, "vtlp", "token_dropout")
        within("[0, 10]", self, "silence")
        within("[0, 100]", self, "gain", "tilt")
        within(f"[0, {HIGHEST_SNR:g}]", self, "lowest_snr")
        within("[0, 1]", self, "time_mask_proportion")

    def check_features(self, features: FeatureConfig) -> None:
        """Check that this augmentation is possible with these features.

        Raises:
            InputError: VTLP, silence, noise or another level would be computed on log-mels of
                another kind.
        """
        off = {"vtlp": 0.0, "silence": 0.0, "lowest_snr": None, "gain": 0.0, "tilt": 0.0}
        values = {name: getattr(self, name) for name in off}
        on = ", ".join(f"{name}={value}" for name, value in values.items() if value != off[name])
        if on and features.log_mel != "plain":
            raise InputError(
                f"{', '.join(off)} are for natural log-mels, but {on} and "
                f"log_mel={features.log_mel!r}; set them to 0, and lowest_snr to None"
            )


@dataclass(frozen=True, kw_only=True)
class MaskingConfig:
    """Corruption of a text for masked language modelling. The chosen tokens that are not
    replaced stay unchanged.

    Source: Devlin et al. (2019), BERT, section 3.1.
    """

    mask_probability: float = 0.15
    """The share of a row's tokens that is chosen, at least one token. BOS, EOS and other special
    tokens are chosen only where a row has nothing else."""
    mask_replace_probability: float = 0.8
    """The share of the chosen tokens that is replaced by the mask symbol."""
    random_replace_probability: float = 0.1
    """The share of the chosen tokens that is replaced by a random token; all tokens have the same
    probability."""

    def __post_init__(self) -> None:
        within("(0, 1]", self, "mask_probability")
        names = ("mask_replace_probability", "random_replace_probability")
        within("[0, 1]", self, *names)
        total = self.mask_replace_probability + self.random_replace_probability
        within("[0, 1]", **{" + ".join(names): total})
