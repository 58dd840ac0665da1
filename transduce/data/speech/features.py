"""MFCC in two steps, waveform to log-mel and log-mel to MFCC: the cache and the frequency masks come in between."""

import warnings
from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor
from torchaudio.functional import compute_deltas, create_dct, melscale_fbanks

from transduce.data.speech.config import FeatureConfig

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

    Args:
        mean: mean of every feature; for normalize="global" only.
        std: standard deviation of every feature; for normalize="global" only.

    Raises:
        ValueError: a mel band is narrower than the steps of the DFT; or mean and std are missing, have another shape,
            or are given where they are not used.
    Source: Davis & Mermelstein (1980), Comparison of parametric representations.
    """

    def __init__(
        self,
        config: FeatureConfig,
        *,
        mean: Float[Tensor, " F"] | None = None,
        std: Float[Tensor, " F"] | None = None,
    ) -> None:
        wanted = (config.n_features,) if config.normalize == "global" else None
        found = [None if given is None else tuple(given.shape) for given in (mean, std)]
        if found != [wanted, wanted]:
            raise ValueError(
                f"normalize={config.normalize} needs mean and std of shape {wanted}, but mean has {found[0]} and std "
                f"has {found[1]}; `statistics` makes them for global, and no other has any"
            )
        self.config, self.mean, self.std = config, mean, std
        self._window = torch.hann_window(config.frame_samples)
        self._cosines = create_dct(config.n_coefficients, config.n_mels, norm="ortho")
        with warnings.catch_warnings():  # torchaudio warns of empty bands, which are refused below
            warnings.simplefilter("ignore")
            self._bands = melscale_fbanks(
                config.n_fft // 2 + 1, config.low, config.highest, config.n_mels, config.sample_rate
            )
        self.band_widths: Float[Tensor, " M"] = self._bands.sum(dim=0)
        """How many bins of the DFT every band holds, by weight."""
        n_empty = int((self._bands.amax(dim=0) == 0).sum())
        if n_empty:
            raise ValueError(
                f"every mel band must hold a frequency of the DFT, but {n_empty} of n_mels={config.n_mels} between "
                f"{config.low} and {config.highest} Hz lie between its steps of "
                f"{config.sample_rate / config.n_fft:.4g} Hz; take fewer bands or a longer frame"
            )

    def __call__(self, waveform: Float[Tensor, " n"]) -> Float[Tensor, "S F"]:
        """The MFCC of a waveform, S = n_frames(n)."""
        return self.mfcc(self.log_mel(waveform))

    def log_mel(self, waveform: Float[Tensor, " n"]) -> Float[Tensor, "S M"]:
        """log(energy + FLOOR) of every mel band, S = n_frames(n).

        Raises:
            ValueError: the waveform is shorter than one window.
        """
        config = self.config
        if len(waveform) < config.frame_samples:
            raise ValueError(
                f"a waveform must fill one window of {config.frame_samples} samples ({config.frame} s at "
                f"{config.sample_rate} Hz), but it has {len(waveform)}; leave it out or add silence"
            )
        windows = waveform.unfold(0, config.frame_samples, config.hop_samples)
        return torch.cat([self._log_energy(chunk) for chunk in windows.split(CHUNK)])

    def _log_energy(self, windows: Float[Tensor, "S w"]) -> Float[Tensor, "S M"]:
        spectrum = torch.fft.rfft(windows * self._window, n=self.config.n_fft)
        power = torch.view_as_real(spectrum).square().sum(dim=-1)
        return (power @ self._bands).add_(FLOOR).log_()

    def mfcc(self, log_mel: Float[Tensor, "S M"]) -> Float[Tensor, "S F"]:
        """Coefficients, then their deltas, then the deltas of the deltas; all normalized."""
        blocks = [log_mel @ self._cosines]
        for _ in range(self.config.deltas):
            blocks.append(compute_deltas(blocks[-1].T, win_length=5).T)
        frames = torch.cat(blocks, dim=1)
        if self.config.normalize == "none":
            return frames
        if self.mean is not None and self.std is not None:
            return normalized(frames, self.mean, self.std.square())
        return normalized(frames, frames.mean(dim=0), frames.var(dim=0, correction=0))


def statistics(utterances: Iterable[Float[Tensor, "_ F"]]) -> tuple[Float[Tensor, " F"], Float[Tensor, " F"]]:
    """Mean and standard deviation of every feature over all frames, for normalize="global"; summed in float64.

    The frames must not be normalized: make them with normalize="none".

    Raises:
        ValueError: there are no frames.
    """
    n, total, squares = 0, torch.zeros(()), torch.zeros(())
    for frames in utterances:
        wide = frames.double()
        n, total, squares = n + len(wide), total + wide.sum(dim=0), squares + wide.square().sum(dim=0)
    if n == 0:
        raise ValueError("statistics need at least one frame, but there is none; look at what was left out, and why")
    mean = total / n
    return mean.float(), (squares / n - mean.square()).clamp_min(0).sqrt().float()


def normalized(
    frames: Float[Tensor, "S F"], mean: Float[Tensor, " F"], variance: Float[Tensor, " F"]
) -> Float[Tensor, "S F"]:
    """(frames - mean) / sqrt(variance + EPSILON)."""
    return (frames - mean) / (variance + EPSILON).sqrt()
