"""Feature extraction: waveform to log-mel, which is cached on disk, and log-mel to MFCC; or vectors
from files."""

import hashlib
import io
import json
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from transduce.data.audio import Waveform, change_speed, read_audio, sound_status
from transduce.data.config import FeatureConfig, VectorConfig
from transduce.errors import InputError, errors_of
from transduce.files import write_file

Mels = Float[Tensor, "S M"]
"""The log-mels of S frames, in M bands."""
FrameVectors = Float[Tensor, "S F"]
"""The input of an encoder: F numbers per frame."""

FORMULA = 2
"""The version of the computation, a part of every cache key; increase it whenever the results of
`log_mel`, `read_audio` or `change_speed` change."""


FLOOR = 1e-6
"""Added to the energy of a mel band before its logarithm: digital silence becomes log(1e-6) =
-13.8."""

EPSILON = 1e-5
"""Added to a variance before the division by its root, so that a constant feature becomes 0."""

CHUNK = 512
"""Frames that are transformed at a time: they fit into a CPU's caches, and memory does not grow
with the sound."""


class FeatureExtractor:
    """Waveforms to MFCC, as a FeatureConfig describes them.

    The steps are a periodic Hann window, |DFT|², triangles of equal width in HTK mels and of height
    1, log(x + FLOOR), an orthonormal DCT-II, deltas, and normalization. There is no pre-emphasis,
    dither or liftering, and no padding at the ends.

    config.log_mel may select other log-mels. Kaldi's fbank scales samples to 16 bits, subtracts the
    mean of each window, applies pre-emphasis, and uses a power of a Hann window (Povey's).
    Whisper's triangles have equal areas and equal widths in Slaney's mels; its windows reach over
    the ends, where sound is mirrored; the decimal logarithm x is clipped to at least its maximum -
    8 and becomes (x + 4) / 4.

    Args:
        mean: mean of every feature in the training data; for normalize="global" only.
        std: standard deviation of every feature there; likewise.

    Raises:
        InputError: a mel band is narrower than the steps of the DFT; or mean and std are missing,
            have another shape, or are given where they are not used.
    Source: Davis & Mermelstein (1980), Comparison of parametric representations; Povey et al.
    (2011), The Kaldi speech recognition toolkit; Radford et al. (2022), Whisper, section 2.2.
    """

    def __init__(
        self,
        config: FeatureConfig,
        *,
        mean: Float[Tensor, " _"] | None = None,
        std: Float[Tensor, " _"] | None = None,
    ) -> None:
        expected = (config.n_features,) if config.has_statistics else None
        shapes = [None if each is None else tuple(each.shape) for each in (mean, std)]
        if shapes != [expected, expected]:
            raise InputError(
                f"normalize={config.normalize} needs mean and std of shape {expected}, but mean "
                f"has {shapes[0]} and std has {shapes[1]}; `statistics` computes them for global, "
                "and the other settings take none"
            )
        from torchaudio.functional import create_dct, melscale_fbanks  # text needs none

        self.config = config
        self.mean = mean
        self.std = std
        self._window = torch.hann_window(config.frame_samples)
        n = config.n_coefficients
        self._cosines = (
            create_dct(n, config.n_mels, norm="ortho") if n else torch.eye(config.n_mels)
        )
        whisper = config.log_mel == "whisper"
        with warnings.catch_warnings():  # torchaudio warns of empty bands, which are an error below
            warnings.simplefilter("ignore")
            self._bands = melscale_fbanks(
                config.n_fft // 2 + 1,
                config.low,
                config.highest,
                config.n_mels,
                config.sample_rate,
                norm="slaney" if whisper else None,
                mel_scale="slaney" if whisper else "htk",
            )
        self.band_widths: Float[Tensor, " M"] = self._bands.sum(dim=0)
        """The sum of the filter weights over the DFT bins of every band."""
        n_empty = int((self._bands.amax(dim=0) == 0).sum())
        if n_empty:
            raise InputError(
                f"every mel band must hold a frequency of the DFT, but {n_empty} of "
                f"n_mels={config.n_mels} between {config.low} and {config.highest} Hz lie between "
                f"its steps of {config.sample_rate / config.n_fft:.4g} Hz; take fewer bands or a "
                "longer frame"
            )

    def __call__(self, waveform: Waveform) -> FrameVectors:
        """The MFCC of a waveform, S = n_frames(n)."""
        return self.mfcc(self.log_mel(waveform))

    def log_mel(self, waveform: Waveform) -> Mels:
        """log(energy + FLOOR) of every mel band, or the log-mels of config.log_mel, S =
        n_frames(n).

        Raises:
            InputError: the waveform is shorter than one window.
        """
        config = self.config
        size, hop = config.frame_samples, config.hop_samples
        waveform = F.pad(waveform, (0, max(0, config.pad_samples - len(waveform))))
        n = len(waveform)
        if n < size:
            raise InputError(
                f"a waveform must fill one window of {size} samples ({config.frame} s at "
                f"{config.sample_rate} Hz), but it has {n}; leave it out or add silence"
            )
        if config.log_mel == "kaldi":
            from torchaudio.compliance import kaldi

            return kaldi.fbank(
                waveform[None] * 2**15,
                sample_frequency=config.sample_rate,
                frame_length=1000 * config.frame,
                frame_shift=1000 * config.hop,
                num_mel_bins=config.n_mels,
                low_freq=config.low,
                high_freq=config.highest,
            )
        if config.log_mel == "whisper":
            waveform = F.pad(waveform[None], (size // 2, size // 2), mode="reflect")[0]
            energy = (
                self._energy(waveform.unfold(0, size, hop)[: n // hop]).clamp_min_(1e-10).log10_()
            )
            return energy.clamp_min_(energy.max() - 8).add_(4).div_(4)
        return self._energy(waveform.unfold(0, size, hop)).add_(FLOOR).log_()

    def _energy(self, windows: Float[Tensor, "S w"]) -> Mels:
        """The energy of every mel band, some windows at a time."""
        chunks = []
        for chunk in windows.split(CHUNK):
            spectrum = torch.fft.rfft(chunk * self._window, n=self.config.n_fft)
            # sum(dim) over the two parts would be slow
            chunks.append((spectrum.real.square() + spectrum.imag.square()) @ self._bands)
        return torch.cat(chunks)

    def mfcc(self, log_mel: Mels) -> FrameVectors:
        """Coefficients, then their deltas, then the deltas of the deltas; all normalized."""
        from torchaudio.functional import compute_deltas

        blocks = [log_mel @ self._cosines]
        for _ in range(self.config.deltas):
            blocks.append(compute_deltas(blocks[-1].T, win_length=5).T)
        frames = torch.cat(blocks, dim=1)
        if self.config.normalize == "none":
            return frames
        if self.mean is not None and self.std is not None:
            return normalized(frames, self.mean, self.std.square())
        epsilon = 1e-10 if self.config.log_mel == "kaldi" else EPSILON  # as in fairseq
        return normalized(frames, frames.mean(dim=0), frames.var(dim=0, correction=0), epsilon)


def statistics(
    utterances: Iterable[Float[Tensor, "_ F"]],
) -> tuple[Float[Tensor, " F"], Float[Tensor, " F"]]:
    """Mean and standard deviation of every feature over all frames, for normalize="global";
    summed in float64.

    The frames must not be normalized: make them with normalize="none".

    Raises:
        InputError: there are no frames.
    """
    n = 0
    total = squares = torch.zeros(())
    for frames in utterances:
        frames = frames.double()
        n += len(frames)
        total = total + frames.sum(dim=0)
        squares = squares + frames.square().sum(dim=0)
    if n == 0:
        raise InputError(
            "statistics need at least one frame, but there is none; check what was left out, and "
            "why"
        )
    mean = total / n
    return mean.float(), (squares / n - mean.square()).clamp_min(0).sqrt().float()


def normalized(
    frames: FrameVectors,
    mean: Float[Tensor, " F"],
    variance: Float[Tensor, " F"],
    epsilon: float = EPSILON,
) -> FrameVectors:
    """(frames - mean) / sqrt(variance + epsilon)."""
    return (frames - mean) / (variance + epsilon).sqrt()


@dataclass(frozen=True)
class VectorReader:
    """Reads and normalizes the vectors that a VectorConfig describes."""

    config: VectorConfig
    mean = std = None
    """Vectors have no statistics of the training data."""

    def __call__(self, path: Path) -> FrameVectors:
        """The vectors of one file, as float32.

        Raises:
            InputError: the file is missing or empty, is not an array of this width, or has NaN or
                infinite values; the message names it.
        """
        try:
            with path.open("rb") as file:
                array = np.lib.format.read_array(file, allow_pickle=False)
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}; check the path") from error
        # NumPy raises errors of many kinds where the file is not one of its own
        except Exception as error:
            reason = str(error).strip().rstrip(".").replace("\n", " ")
            raise InputError(
                f"{path} cannot be read as vectors: {reason}; write it with numpy.save"
            ) from error
        width = self.config.n_features
        if array.shape[1:] != (width,) or not len(array) or array.dtype.kind != "f":
            raise InputError(
                f"{path} cannot be used: vectors must be floats of shape (frames, {width}), but "
                f"they are {array.dtype} of shape {array.shape}; set n_features, convert the file, "
                "or leave it out"
            )
        with np.errstate(over="ignore"):  # numbers beyond float32 become infinite
            frames = torch.from_numpy(array.astype(np.float32))
        if not frames.isfinite().all():
            raise InputError(
                f"{path} cannot be used: it has NaN or infinite values in float32; leave it out"
            )
        if self.config.normalize == "none":
            return frames
        double = frames.double()  # squares of large values would not fit into float32
        return normalized(double, double.mean(dim=0), double.var(dim=0, correction=0)).float()


Features = FeatureExtractor | VectorReader
"""Makes the frames of a recording."""


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
        """The file of the log-mel of `path`, whether or not it exists.

        Raises:
            InputError: `path` is not a file, or is empty.
        """
        status = sound_status(path)
        plain = replace(config, n_coefficients=0, deltas=0, high=config.highest, normalize="none")
        sound = (str(path.resolve()), status.st_size, status.st_mtime_ns)
        key = json.dumps([FORMULA, sound, astuple(plain), float(speed)])
        return self.directory / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.npy"

    def get(
        self, path: Path, features: FeatureExtractor, speeds: Sequence[float]
    ) -> list[Float[Tensor, "_ M"]]:
        """The log-mels of a sound file at these speeds. Those that are missing or damaged are
        computed and written; the sound is read once for all of them.

        Raises:
            InputError: the sound cannot be read or is shorter than one window; the message names
                the file.
            OSError: the directory cannot be written.
        """
        config = features.config
        waveform = None
        log_mels = []
        for speed in speeds:
            file = self.file(path, config, speed)
            log_mel = _load(file, config.n_mels)
            if log_mel is None:
                if waveform is None:
                    waveform = read_audio(path, config.sample_rate)
                with errors_of(f"{path} cannot be used at speed {speed}"):
                    log_mel = features.log_mel(change_speed(waveform, speed))
                content = io.BytesIO()
                np.save(content, log_mel.numpy(), allow_pickle=False)
                # not durable: a damaged file is computed again
                write_file(file, content.getvalue(), durable=False)
            log_mels.append(log_mel)
        return log_mels


def _load(file: Path, n_mels: int) -> Mels | None:
    """The log-mel in a file, mapped into memory; None where the file is missing or damaged.

    Its length is known from the header alone. Writes would only change a copy in memory.
    """
    try:
        log_mel = np.lib.format.open_memmap(file, mode="c")
    # NumPy raises errors of many kinds on a damaged header, from EOFError to TokenError
    except Exception:
        return None
    fits = log_mel.dtype == np.float32 and log_mel.shape[1:] == (n_mels,)
    return torch.from_numpy(log_mel) if fits else None
