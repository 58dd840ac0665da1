"""More speech out of the same recordings: other speeds, and frames with gaps. All chance comes from a generator."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from transduce.data.speech.audio import change_rate

SPEEDS = (0.5, 2.0)
"""Beyond these nothing is speech."""


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """What training may do to an utterance; `speeds=(1.0,)` and no spans leave it alone."""

    speeds: tuple[float, ...] = (0.9, 1.0, 1.1)
    """One of them is drawn for each utterance (Ko et al. 2015)."""
    n_time_masks: int = 2
    """Spans of frames to hide (SpecAugment's m_T)."""
    time_mask_width: float = 0.2
    """Seconds in one of them at most (T)."""
    time_mask_proportion: float = 0.2
    """And at most so much of the utterance (p)."""
    n_frequency_masks: int = 2
    """Spans of mel bands to hide (m_F)."""
    frequency_mask_width: int = 15
    """Bands in one of them at most (F)."""
    token_dropout: float = 0.0
    """Share of the target's past that the decoder does not see while training: it must listen, not guess."""
    vtlp: float = 0.1
    """Frequencies are stretched by a factor drawn from 1 - warp to 1 + warp, as other throats would; 0 = not."""

    def __post_init__(self) -> None:
        if not self.speeds:
            raise ValueError("speeds must name at least one, but speeds=(); (1.0,) changes nothing")
        for speed in self.speeds:
            _check_speed(speed)
        for name in ("n_time_masks", "time_mask_width", "n_frequency_masks", "frequency_mask_width"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be negative, but {name}={getattr(self, name)}")
        for name in ("vtlp", "token_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must lie in [0, 1), but {name}={getattr(self, name)}")
        if not 0 <= self.time_mask_proportion <= 1:
            raise ValueError(
                f"time_mask_proportion must lie in 0 ... 1, but time_mask_proportion={self.time_mask_proportion}"
            )


def generator(seed: int, epoch: int, index: int) -> Generator:
    """A generator that is a function of three numbers, none negative: neighbours draw unrelated numbers.

    NumPy's SeedSequence mixes them into the seed. So what happens to an utterance depends neither on its batch nor on
    the worker that makes it, and a run that resumes needs no generator's state. Torch keeps 32 bits of the seed: among
    n utterances about n² / 2³³ pairs are alike.
    """
    (mixed,) = np.random.SeedSequence((seed, epoch, index)).generate_state(1)
    return Generator().manual_seed(int(mixed))


def draw_speed(speeds: Sequence[float], rng: Generator) -> float:
    """One of them, each as likely as any."""
    return speeds[int(torch.randint(len(speeds), (), generator=rng))]


def change_speed(waveform: Float[Tensor, " n"], speed: float) -> Float[Tensor, " m"]:
    """Play it `speed` times as fast: m = ceil(n / speed) samples; tempo and pitch change together.

    Raises:
        ValueError: speed is outside 0.5 ... 2.
    Source: Ko et al. (2015), Audio augmentation for speech recognition.
    """
    _check_speed(speed)
    return change_rate(waveform, 1 / Fraction(speed).limit_denominator(100))


def mask_time(
    frames: Float[Tensor, "S F"], *, spans: int, widest: float, hop: float, share: float, rng: Generator
) -> Float[Tensor, "S F"]:
    """Hide `spans` random spans of frames behind each feature's mean over the utterance; spans may overlap.

    A span has 0 to min(widest / hop, share * S) frames, all numbers as likely, and lies anywhere inside.

    Args:
        widest: seconds, as is `hop`.
        share: of the utterance, 0 to 1.

    Source: Park et al. (2019), SpecAugment; the share is their p, the mean their value for normalized features.
    """
    # the nudge: 0.3 / 0.1 and 0.1 * 30 are a hair off whole numbers
    most = min(int(widest / hop + 1e-6), int(share * len(frames) + 1e-6))
    hidden, mean = frames.clone(), frames.mean(dim=0)
    for start, stop in _spans(len(frames), spans, most, rng):
        hidden[start:stop] = mean
    return hidden


def mask_frequency(log_mel: Float[Tensor, "S M"], *, spans: int, widest: int, rng: Generator) -> Float[Tensor, "S M"]:
    """Hide `spans` random spans of 0 to `widest` mel bands behind each band's mean over the utterance.

    A hidden band is constant, so after the DCT and the normalization by utterance nothing of it is left.

    Source: Park et al. (2019), SpecAugment.
    """
    hidden, mean = log_mel.clone(), log_mel.mean(dim=0)
    n_mels = log_mel.size(1)
    for start, stop in _spans(n_mels, spans, min(widest, n_mels), rng):
        hidden[:, start:stop] = mean[start:stop]
    return hidden


def drop_tokens(target_in: Int[Tensor, "B T"], *, share: float, instead: int, rng: Generator) -> Int[Tensor, "B T"]:
    """Put `instead` in place of each token with probability `share`, except of the first, which begins the text.

    Source: Bowman et al. (2016), Generating sentences from a continuous space, "word dropout".
    """
    hidden = torch.rand(target_in.shape, generator=rng) < share
    hidden[:, 0] = False
    return torch.where(hidden, instead, target_in)


def perturb_vocal_tract(
    log_mel: Float[Tensor, "S M"], factor: float, *, low: float, high: float
) -> Float[Tensor, "S M"]:
    """Stretch frequencies: what was at f Hz comes to factor * f, interpolated between bands; the edges are repeated.

    Args:
        low: where the lowest band begins and, with `high`, where the highest ends, in Hz; bands are equally wide in mel.

    Source: Jaitly and Hinton (2013), Vocal tract length perturbation; without their bend at the upper end.
    """
    n_mels = log_mel.size(1)
    bottom, top = (_mel(torch.tensor(f, dtype=torch.float64)) for f in (low, high))
    step = (top - bottom) / (n_mels + 1)
    centres = 700 * (10 ** ((bottom + step * torch.arange(1, n_mels + 1, dtype=torch.float64)) / 2595) - 1)
    origin = ((_mel(centres / factor) - bottom) / step - 1).clamp(0, n_mels - 1)
    left = origin.floor().long().clamp(max=max(0, n_mels - 2))
    share = (origin - left).to(log_mel.dtype)
    return torch.lerp(log_mel[:, left], log_mel[:, (left + 1).clamp(max=n_mels - 1)], share)


def draw_vtlp(vtlp: float, rng: Generator) -> float:
    """A factor from 1 - warp to 1 + warp, all as likely."""
    return 1 + vtlp * (2 * float(torch.rand((), generator=rng)) - 1)


def _mel(hertz: Tensor) -> Tensor:
    """HTK's mels, as torchaudio's filters have them."""
    return 2595 * torch.log10(1 + hertz / 700)


def _spans(size: int, n: int, widest: int, rng: Generator) -> list[tuple[int, int]]:
    """n spans inside 0 ... size; the width uniform in 0 ... widest, then the start among all that fit."""
    found = []
    for _ in range(n):
        width = int(torch.randint(widest + 1, (), generator=rng))
        start = int(torch.randint(size - width + 1, (), generator=rng))
        found.append((start, start + width))
    return found


def _check_speed(speed: float) -> None:
    slowest, fastest = SPEEDS
    if not slowest <= speed <= fastest:
        raise ValueError(f"a speed must lie in {slowest} ... {fastest}, but speed={speed}; 1.0 changes nothing")
