"""MFCC in two steps, waveform to log-mel and log-mel to MFCC; and dense vectors in their place."""

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torchaudio.compliance import kaldi
from torchaudio.functional import compute_deltas, create_dct, melscale_fbanks

from transduce.data.config import FeatureConfig, VectorConfig
from transduce.errors import InputError

FLOOR = 1e-6
"""Added to the energy of a mel band before its logarithm: digital silence becomes log(1e-6) = -13.8."""

EPSILON = 1e-5
"""Added to a variance before the division by its root, so that a constant feature becomes 0."""

CHUNK = 512
"""How many frames are transformed at once: they fit into a CPU's caches, and an hour of sound takes no more memory."""


class FeatureExtractor:
    """Waveforms to MFCC, as a FeatureConfig describes them.

    The steps are a periodic Hann window, |DFT|², triangles that are equally wide in HTK mels and 1 high,
    log(x + FLOOR), an orthonormal DCT-II, deltas, and normalization. There is no pre-emphasis, dither or liftering, and
    no padding at the ends.

    The log-mels may be others. Kaldi's fbank scales samples to 16 bits, takes the mean of each window away, has
    pre-emphasis, and a power of a Hann window (Povey's). Whisper's triangles are of the same area and wide in Slaney's
    mels, on windows that reach over the ends, where sound is mirrored; of the decimal logarithm, what lies 8 below the
    loudest or lower is set to that, and the result x becomes (x + 4) / 4.

    Args:
        mean: mean of every feature in the training data; for normalize="global" and "mean" only.
        std: standard deviation of every feature there; likewise.

    Raises:
        InputError: a mel band is narrower than the steps of the DFT; or mean and std are missing, have another shape,
            or are given where they are not used.
    Source: Davis & Mermelstein (1980), Comparison of parametric representations; Povey et al. (2011), The Kaldi speech
    recognition toolkit; Radford et al. (2022), Whisper, section 2.2.
    """

    def __init__(
        self,
        config: FeatureConfig,
        *,
        mean: Float[Tensor, " _"] | None = None,
        std: Float[Tensor, " _"] | None = None,
    ) -> None:
        wanted = (config.n_features,) if config.has_statistics else None
        found = [None if given is None else tuple(given.shape) for given in (mean, std)]
        if found != [wanted, wanted]:
            raise InputError(
                f"normalize={config.normalize} needs mean and std of shape {wanted}, but mean has {found[0]} and std "
                f"has {found[1]}; `statistics` makes them for global and mean, and no other has any"
            )
        self.config, self.mean, self.std = config, mean, std
        self._window = torch.hann_window(config.frame_samples)
        n = config.n_coefficients
        self._cosines = create_dct(n, config.n_mels, norm="ortho") if n else torch.eye(config.n_mels)
        slaney: Any = {"norm": "slaney", "mel_scale": "slaney"} if config.log_mel == "whisper" else {}
        with warnings.catch_warnings():  # torchaudio warns of empty bands, which are refused below
            warnings.simplefilter("ignore")
            self._bands = melscale_fbanks(
                config.n_fft // 2 + 1, config.low, config.highest, config.n_mels, config.sample_rate, **slaney
            )
        self.band_widths: Float[Tensor, " M"] = self._bands.sum(dim=0)
        """How many bins of the DFT every band holds, by weight."""
        n_empty = int((self._bands.amax(dim=0) == 0).sum())
        if n_empty:
            raise InputError(
                f"every mel band must hold a frequency of the DFT, but {n_empty} of n_mels={config.n_mels} between "
                f"{config.low} and {config.highest} Hz lie between its steps of "
                f"{config.sample_rate / config.n_fft:.4g} Hz; take fewer bands or a longer frame"
            )

    def __call__(self, waveform: Float[Tensor, " n"]) -> Float[Tensor, "S F"]:
        """The MFCC of a waveform, S = n_frames(n)."""
        return self.mfcc(self.log_mel(waveform))

    def log_mel(self, waveform: Float[Tensor, " n"]) -> Float[Tensor, "S M"]:
        """log(energy + FLOOR) of every mel band, or what else config.log_mel says, S = n_frames(n).

        Raises:
            InputError: the waveform is shorter than one window.
        """
        config = self.config
        waveform = F.pad(waveform, (0, max(0, config.pad_samples - len(waveform))))
        if len(waveform) < config.frame_samples:
            raise InputError(
                f"a waveform must fill one window of {config.frame_samples} samples ({config.frame} s at "
                f"{config.sample_rate} Hz), but it has {len(waveform)}; leave it out or add silence"
            )
        if config.log_mel == "kaldi":
            return self._kaldi(waveform)
        if config.log_mel == "whisper":
            half = config.frame_samples // 2
            waveform = F.pad(waveform[None], (half, half), mode="reflect")[0]
            n_frames = (len(waveform) - 2 * half) // config.hop_samples
            windows = waveform.unfold(0, config.frame_samples, config.hop_samples)[:n_frames]
            energy = torch.cat([self._energy(chunk) for chunk in windows.split(CHUNK)]).clamp_min_(1e-10).log10_()
            return energy.clamp_min_(energy.max() - 8).add_(4).div_(4)
        windows = waveform.unfold(0, config.frame_samples, config.hop_samples)
        return torch.cat([self._energy(chunk).add_(FLOOR).log_() for chunk in windows.split(CHUNK)])

    def _kaldi(self, waveform: Float[Tensor, " n"]) -> Float[Tensor, "S M"]:
        config = self.config
        return kaldi.fbank(
            waveform[None] * 2**15,
            sample_frequency=config.sample_rate,
            frame_length=1000 * config.frame,
            frame_shift=1000 * config.hop,
            num_mel_bins=config.n_mels,
            low_freq=config.low,
            high_freq=config.highest,
        )

    def _energy(self, windows: Float[Tensor, "S w"]) -> Float[Tensor, "S M"]:
        spectrum = torch.fft.rfft(windows * self._window, n=self.config.n_fft)
        power = torch.view_as_real(spectrum).square().sum(dim=-1)
        return power @ self._bands

    def mfcc(self, log_mel: Float[Tensor, "S M"]) -> Float[Tensor, "S F"]:
        """Coefficients, then their deltas, then the deltas of the deltas; all normalized."""
        blocks = [log_mel @ self._cosines]
        for _ in range(self.config.deltas):
            blocks.append(compute_deltas(blocks[-1].T, win_length=5).T)
        frames = torch.cat(blocks, dim=1)
        if self.config.normalize == "none":
            return frames
        if self.mean is not None and self.std is not None:
            mean = self.mean if self.config.normalize == "global" else frames.mean(dim=0)
            return normalized(frames, mean, self.std.square())
        epsilon = 1e-10 if self.config.log_mel == "kaldi" else EPSILON  # as in fairseq
        return normalized(frames, frames.mean(dim=0), frames.var(dim=0, correction=0), epsilon)


def statistics(utterances: Iterable[Float[Tensor, "_ F"]]) -> tuple[Float[Tensor, " F"], Float[Tensor, " F"]]:
    """Mean and standard deviation of every feature over all frames, for normalize="global" and "mean"; summed in float64.

    The frames must not be normalized: make them with normalize="none".

    Raises:
        InputError: there are no frames.
    """
    n, total, squares = 0, torch.zeros(()), torch.zeros(())
    for frames in utterances:
        wide = frames.double()
        n, total, squares = n + len(wide), total + wide.sum(dim=0), squares + wide.square().sum(dim=0)
    if n == 0:
        raise InputError("statistics need at least one frame, but there is none; look at what was left out, and why")
    mean = total / n
    return mean.float(), (squares / n - mean.square()).clamp_min(0).sqrt().float()


def normalized(
    frames: Float[Tensor, "S F"],
    mean: Float[Tensor, " F"],
    variance: Float[Tensor, " F"],
    epsilon: float = EPSILON,
) -> Float[Tensor, "S F"]:
    """(frames - mean) / sqrt(variance + epsilon)."""
    return (frames - mean) / (variance + epsilon).sqrt()


class VectorReader:
    """Reads and normalizes the vectors that a VectorConfig describes."""

    def __init__(self, config: VectorConfig) -> None:
        self.config = config

    def __call__(self, path: Path) -> Float[Tensor, "S F"]:
        """The vectors of one file, as float32.

        Raises:
            InputError: the file is missing or empty, is not an array of this width, or has NaN or infinite values; the
                message names it.
        """
        try:
            with path.open("rb") as file:
                found = np.lib.format.read_array(file, allow_pickle=False)
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}; check the path") from error
        except Exception as error:  # NumPy raises errors of many kinds where the file is not one of its own
            told = str(error).strip().rstrip(".").replace("\n", " ")
            raise InputError(f"{path} cannot be read as vectors: {told}; write it with numpy.save") from error
        if found.ndim != 2 or not len(found) or found.shape[1] != self.config.n_features:
            raise InputError(
                f"{path} cannot be used: vectors must have shape (frames, {self.config.n_features}), but they have "
                f"{found.shape}; set n_features, or leave the file out"
            )
        if found.dtype.kind != "f":
            raise InputError(f"{path} cannot be used: vectors must be floats, but it holds {found.dtype}; convert it")
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite
            frames = torch.from_numpy(found.astype(np.float32))
        if not frames.isfinite().all():
            raise InputError(f"{path} cannot be used: it has NaN or infinite values in float32; leave it out")
        if self.config.normalize == "none":
            return frames
        wide = frames.double()  # squares of large values would not fit into float32
        return normalized(wide, wide.mean(dim=0), wide.var(dim=0, correction=0)).float()
