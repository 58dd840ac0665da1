"""Recordings as training data: frames that are augmented anew in every epoch, and the ids of their texts."""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from transduce.data.batch import Batch, Epoch, batch_of, pad, pad_frames
from transduce.data.config import Augmentation, FeatureConfig, VectorConfig
from transduce.data.speech.augment import (
    add_noise,
    add_silence,
    change_level,
    draw_speed,
    draw_vtlp,
    drop_tokens,
    generator,
    mask_frequency,
    mask_time,
    perturb_vocal_tract,
)
from transduce.data.speech.feature_cache import FeatureCache
from transduce.data.speech.features import FeatureExtractor, VectorReader, statistics
from transduce.data.speech.manifest import Recording, cells, encode_labels
from transduce.data.text.base_tokenizer import Tokenizer
from transduce.errors import InputError

logger = logging.getLogger("transduce")

PLAIN = Augmentation(speeds=(1.0,), n_time_masks=0, n_frequency_masks=0, vtlp=0.0)
"""No augmentation."""

ROUNDING = 1e-3
"""Seconds by which a manifest may be off, as it is written with three decimals."""

SHORTFALL = 0.1
"""Seconds, or the share of a recording, that may be missing from its frames. If more is missing, the recording was cut
short, and its text may say more than its sound."""


@dataclass(frozen=True)
class FrameReader:
    """Reads the frames of a file: MFCC of sound, by way of the cache, or the vectors of a .npy file."""

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
        """Frames at one speed. Mel bands are masked before the DCT, spans of time after normalization.

        Vectors have neither speed nor mel bands, so of the augmentation they get the time masks alone.

        Args:
            rng: draws the level, the noise, the vocal tract and the masks, none of which moves a position.
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
                frames = perturb_vocal_tract(frames, draw_vtlp(augmentation.vtlp, rng), low=low, high=high)
            frames = mask_frequency(
                frames, spans=augmentation.n_frequency_masks, widest=augmentation.frequency_mask_width, rng=rng
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
        """Compute what the cache lacks, and return the files that cannot be used, each with the reason."""
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


@dataclass(frozen=True, kw_only=True)
class SpeechPairsConfig:
    """The choice of recordings, and how they become batches."""

    frames_per_batch: int
    """Bound on rows times the longest recording of a batch."""
    augmentation: Augmentation = PLAIN
    max_seconds: float = 30.0
    """Longer recordings are left out."""
    ctc_column: str = ""
    """The column of the targets of CTC, or of CTC inside the encoder, if it is not the target column."""
    labels: bool = False
    """Whether that column has labels such as phones, one token each (see `encode_labels`)."""
    two_views: bool = False
    """Whether batches have a `second_source`: the source with another level, noise, vocal tract and masks."""
    seed: int = 0
    workers: int = 0
    """Threads that fill the cache of log-mels, at least one."""


class SpeechPairs:
    """Training data for the trainer: the batches of `epoch(n)` are a function of (seed, n).

    Every recording is read once. Those that cannot be used are left out, counted in `skipped` by reason, and named in a
    warning. `recordings` and `target` are those that are left; `n_frames` has their numbers of frames, by speed.

    Args:
        out_lengths: the model's `Frames.out_lengths`: the positions of the encoder for numbers of frames. No text can
            have more tokens than positions.

    Raises:
        InputError: no recording is left, a recording lacks the column, the tokenizer has no id that begins or ends a
            text, or the augmentation is for other features.
    """

    def __init__(
        self,
        recordings: Sequence[Recording],
        reader: FrameReader,
        tokenizer: Tokenizer,
        config: SpeechPairsConfig,
        out_lengths: Callable[[np.ndarray], np.ndarray] = lambda n_frames: n_frames,
    ) -> None:
        self.reader = reader
        self.config = config
        (self.bos_id,) = tokenizer.required("bos_id")
        self.dropped_id = self.bos_id if tokenizer.unk_id is None else tokenizer.unk_id
        """The id in the place of a token that is dropped."""
        if isinstance(features := reader.feature_extractor.config, FeatureConfig):
            config.augmentation.check_features(features)
        speeds = reader.speeds(config.augmentation)
        usable, n_frames, self.skipped, warning = _usable(recordings, reader, speeds, config)
        target = ctc_targets = tokenizer.with_eos(tokenizer.encode([r.text for r in usable]))
        if config.ctc_column:
            column = cells(usable, config.ctc_column)
            ctc_targets = tokenizer.with_eos(
                encode_labels(tokenizer, column) if config.labels else tokenizer.encode(column)
            )
        n_positions = out_lengths(n_frames.min(axis=0))
        fits = [i for i, row in enumerate(ctc_targets) if n_positions[i] >= positions_needed(row)]
        self.skipped["fewer positions than tokens"] = len(usable) - len(fits)
        if not fits:
            counts = ", ".join(f"{n} {reason}" for reason, n in self.skipped.items())
            raise InputError(f"training needs recordings, but of {len(recordings)} none is left: {counts}; {warning}")
        self.recordings = [usable[i] for i in fits]
        self.target = [target[i] for i in fits]
        self.ctc_targets = [ctc_targets[i] for i in fits] if config.ctc_column else None
        self.n_frames = dict(zip(speeds, n_frames[:, fits], strict=True))

    def __str__(self) -> str:
        first = self.epoch(0)
        hours = sum(r.seconds for r in self.recordings) / 3600
        n_speakers = len({r.speaker for r in self.recordings})
        left_out = ", ".join(f"{n} {reason}" for reason, n in self.skipped.items() if n) or "none"
        return (
            f"{len(self.recordings):,} recordings, {hours:.2f} hours, {n_speakers} speakers, "
            f"{sum(map(len, self.target)):,} target tokens, {len(first)} batches of at most "
            f"{self.config.frames_per_batch} frames, {first.padding_share:.1%} padding; left out: {left_out}"
        )

    def epoch(self, n: int) -> Epoch:
        """The batches of epoch n; in epoch 0 they go from short to long."""
        config = self.config
        indices = range(len(self.recordings))
        speeds = [draw_speed([*self.n_frames], generator(config.seed, n, i)) for i in indices]
        silence = [self._silence(n, i) for i in indices]
        lengths = [self.n_frames[speed][i] + sum(silence[i]) for i, speed in enumerate(speeds)]

        def frames(rows: list[int], seed: int) -> tuple[Float[Tensor, "B S F"], Int[Tensor, " B"]]:
            return pad_frames(
                [
                    self.reader(
                        self.recordings[i].audio, config.augmentation, generator(seed, n, i), speeds[i], silence[i]
                    )
                    for i in rows
                ]
            )

        def batch(rows: list[int]) -> Batch:
            made = batch_of(*frames(rows, config.seed + 1), [self.target[i] for i in rows], bos=self.bos_id)
            if config.two_views:
                made = replace(made, second_source=frames(rows, config.seed + 4)[0])
            if self.ctc_targets is not None:
                ctc_targets, ctc_lengths = pad([self.ctc_targets[i] for i in rows], 0)
                made = replace(made, ctc_targets=ctc_targets, ctc_target_lengths=ctc_lengths)
            if share := config.augmentation.token_dropout:
                for ids, length, i in zip(made.target_in, made.target_lengths.tolist(), rows, strict=True):
                    rng = generator(config.seed + 2, n, i)
                    ids[:length] = drop_tokens(ids[:length], share=share, instead=self.dropped_id, rng=rng)
            return made

        return Epoch(
            np.array(lengths)[:, None],
            batch,
            tokens_per_batch=config.frames_per_batch,
            seed=config.seed,
            epoch=n,
            short_first=n == 0,
        )

    def _silence(self, epoch: int, i: int) -> tuple[int, int]:
        """Frames of silence before and after utterance i."""
        features = self.reader.feature_extractor.config
        if isinstance(features, VectorConfig) or not self.config.augmentation.silence:
            return 0, 0
        most = int(self.config.augmentation.silence / features.hop + 1e-6)
        before, after = torch.randint(most + 1, (2,), generator=generator(self.config.seed + 3, epoch, i)).tolist()
        return before, after


def _usable(
    recordings: Sequence[Recording], reader: FrameReader, speeds: Sequence[float], config: SpeechPairsConfig
) -> tuple[list[Recording], Int[np.ndarray, "speeds n"], dict[str, int], str]:
    """Recordings with text and with sound of the right length, and their numbers of frames.

    Also the number of others, by reason, and the first warning about them.
    """
    too_long = f"longer than {config.max_seconds:g} s"
    cut_short = "shorter than its manifest says"
    with_text = [r for r in recordings if r.text.strip()]
    short = [r for r in with_text if r.seconds <= config.max_seconds]
    errors = reader.fill([r.audio for r in short], speeds, config.workers)
    warnings = [*errors.values()]
    skipped = {"blank text": len(recordings) - len(with_text), too_long: len(with_text) - len(short), cut_short: 0}
    skipped["unusable sound"] = sum(r.audio in errors for r in short)
    usable = []
    n_frames = []
    for r in short:
        if r.audio in errors:
            continue
        counts = [reader.n_frames(r.audio, speed) for speed in speeds]
        features = reader.feature_extractor.config
        seconds = min(speed * features.seconds(n) for speed, n in zip(speeds, counts, strict=True))
        if seconds > config.max_seconds + ROUNDING:  # it might not fit into memory
            reason, advice = too_long, f"being {too_long}"
        elif r.seconds - seconds > SHORTFALL * max(1.0, r.seconds):
            reason, advice = cut_short, "for its text may say more; fetch it again or correct the manifest"
        else:
            usable.append(r)
            n_frames.append(counts)
            continue
        skipped[reason] += 1
        warnings.append(
            f"{r.audio} lasts {seconds:.2f} s, but its manifest says {r.seconds:g}; it is left out, {advice}"
        )
    for warning in warnings:
        logger.warning("%s", warning)
    by_speed = np.array(n_frames, dtype=np.int64).reshape(-1, len(speeds)).T
    return usable, by_speed, skipped, next(iter(warnings), "look at the manifest")


def positions_needed(row: Sequence[int]) -> int:
    """The fewest positions that CTC can align with these ids: one per id except EOS, and a blank between equal ids."""
    ids = row[:-1]
    return len(ids) + sum(a == b for a, b in pairwise(ids))


def make_feature_extractor(
    config: FeatureConfig | VectorConfig,
    recordings: Sequence[Recording],
    cache: FeatureCache,
    workers: int,
    *,
    max_seconds: float = math.inf,
) -> FeatureExtractor | VectorReader:
    """The feature extractor of a config. Where it needs statistics, they are those of the recordings.

    Args:
        max_seconds: longer recordings are left out of the statistics, as they are left out of training.

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
        reason = next(iter(errors.values()), "there are none")
        if recordings and not errors:
            reason = f"of {len(recordings)} recordings none lasts {max_seconds:g} s or less"
        raise InputError(f"normalize={config.normalize} needs training data that can be used, but none can: {reason}")
    log_mels = (cache.get(path, plain) for path in paths if path not in errors)
    usable = (log_mel for log_mel in log_mels if config.seconds(len(log_mel)) <= max_seconds + ROUNDING)
    mean, std = statistics(plain.mfcc(log_mel) for log_mel in usable)
    return FeatureExtractor(config, mean=mean, std=std)
