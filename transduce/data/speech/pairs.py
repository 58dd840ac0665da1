"""Recordings as training data: frames that are augmented anew in every epoch, and the ids of what is said."""

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
"""Seconds, or the share of a recording, that may be missing from its frames. Where more is missing, the recording was
cut short, and its text may say more than can be heard."""


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
            frames, config = add_silence(frames, *silence), self.feature_extractor.config
            if augmentation.gain or augmentation.tilt:
                how = {"gain": augmentation.gain, "tilt": augmentation.tilt}
                frames = change_level(frames, **how, low=config.low, high=config.highest, rng=rng)
            if augmentation.lowest_snr is not None:
                widths = self.feature_extractor.band_widths
                frames = add_noise(frames, widths, lowest_snr=augmentation.lowest_snr, rng=rng)
            if augmentation.vtlp:
                factor = draw_vtlp(augmentation.vtlp, rng)
                frames = perturb_vocal_tract(frames, factor, low=config.low, high=config.highest)
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


class SpeechPairs:
    """Training data for the trainer: the batches of `epoch(n)` are a function of (seed, n).

    Every recording is read once. Those that cannot be used are left out, counted in `skipped` by reason, and named in a
    warning. `recordings` and `target` are what is left; `n_frames` has their numbers of frames, by speed.

    Args:
        frames_per_batch: a bound on rows times the longest recording of a batch.
        max_seconds: longer recordings are left out.
        out_lengths: how many positions the encoder sees of so many frames, as the model's `Frames.out_lengths` says it.
            No text can have more tokens than positions.
        workers: threads that fill the cache of log-mels; 0: this one.
        ctc_column: the column that CTC learns, or that CTC inside the encoder learns, if it is not the target's.
        labels: whether that column holds labels such as phones, one token each (see data/speech/labels.py).
        two_views: whether batches have a `second_source`, which differs from the source in all that moves no position of
            it: level, noise, vocal tract and masks.

    Raises:
        InputError: no recording is left, a recording lacks that column, the tokenizer has nothing that begins or ends a
            text, or the features are not those that the augmentation is for.
    """

    def __init__(
        self,
        recordings: Sequence[Recording],
        reader: FrameReader,
        tokenizer: Tokenizer,
        *,
        frames_per_batch: int,
        augmentation: Augmentation = PLAIN,
        max_seconds: float = 30.0,
        out_lengths: Callable[[np.ndarray], np.ndarray] = lambda n_frames: n_frames,
        workers: int = 0,
        seed: int = 0,
        ctc_column: str = "",
        labels: bool = False,
        two_views: bool = False,
    ) -> None:
        self.two_views = two_views
        self.reader, self.augmentation, self.frames_per_batch, self.seed = reader, augmentation, frames_per_batch, seed
        (self.bos_id,) = tokenizer.required("bos_id")
        self.hidden_id = self.bos_id if tokenizer.unk_id is None else tokenizer.unk_id
        """What stands for a token that is dropped."""
        if isinstance(config := reader.feature_extractor.config, FeatureConfig):
            augmentation.check_features(config)
        speeds = reader.speeds(augmentation)
        usable, n_frames, self.skipped, told = _usable(recordings, reader, speeds, max_seconds, workers)
        target = tokenizer.with_eos(tokenizer.encode([r.text for r in usable]))
        ctc_targets = target
        if ctc_column:
            column = cells(usable, ctc_column)
            ctc_targets = tokenizer.with_eos(encode_labels(tokenizer, column) if labels else tokenizer.encode(column))
        n_positions = out_lengths(n_frames.min(axis=0))
        kept = [i for i, row in enumerate(ctc_targets) if n_positions[i] >= positions_needed(row)]
        self.skipped["fewer positions than tokens"] = len(usable) - len(kept)
        if not kept:
            counts = ", ".join(f"{n} {reason}" for reason, n in self.skipped.items())
            raise InputError(f"training needs recordings, but of {len(recordings)} none is left: {counts}; {told}")
        self.recordings, self.target = [usable[i] for i in kept], [target[i] for i in kept]
        self.ctc_targets = [ctc_targets[i] for i in kept] if ctc_column else None
        self.n_frames = dict(zip(speeds, n_frames[:, kept], strict=True))

    def __str__(self) -> str:
        first = self.epoch(0)
        hours = sum(r.seconds for r in self.recordings) / 3600
        left_out = ", ".join(f"{n} {reason}" for reason, n in self.skipped.items() if n) or "none"
        return (
            f"{len(self.recordings):,} recordings, {hours:.2f} hours, {len({r.speaker for r in self.recordings})} "
            f"speakers, {sum(map(len, self.target)):,} target tokens, {len(first)} batches of at most "
            f"{self.frames_per_batch} frames, {first.padding_share:.1%} padding; left out: {left_out}"
        )

    def epoch(self, n: int) -> Epoch:
        """The batches of epoch n; in epoch 0 they go from short to long."""
        speeds = list(self.n_frames)
        drawn = [draw_speed(speeds, generator(self.seed, n, i)) for i in range(len(self.recordings))]
        silence = [self._silence(n, i) for i in range(len(self.recordings))]
        lengths = np.array([self.n_frames[speed][i] + sum(silence[i]) for i, speed in enumerate(drawn)])
        share = self.augmentation.token_dropout

        def make(rows: list[int]) -> Batch:
            def read(i: int, seed: int) -> Float[Tensor, "S F"]:
                rng = generator(seed, n, i)
                return self.reader(self.recordings[i].audio, self.augmentation, rng, drawn[i], silence[i])

            source, source_lengths = pad_frames([read(i, self.seed + 1) for i in rows])
            batch = batch_of(source, source_lengths, [self.target[i] for i in rows], bos=self.bos_id)
            if self.two_views:
                second, _ = pad_frames([read(i, self.seed + 4) for i in rows])
                batch = replace(batch, second_source=second)
            if self.ctc_targets is not None:
                targets, lengths = pad([self.ctc_targets[i] for i in rows], 0)
                batch = replace(batch, ctc_targets=targets, ctc_target_lengths=lengths)
            if share:
                for ids, length, i in zip(batch.target_in, batch.target_lengths.tolist(), rows, strict=True):
                    rng = generator(self.seed + 2, n, i)
                    ids[:length] = drop_tokens(ids[:length], share=share, instead=self.hidden_id, rng=rng)
            return batch

        return Epoch(
            lengths[:, None],
            make,
            tokens_per_batch=self.frames_per_batch,
            seed=self.seed,
            epoch=n,
            short_first=n == 0,
        )

    def _silence(self, epoch: int, i: int) -> tuple[int, int]:
        """How many frames of silence utterance i gets before and after it."""
        config = self.reader.feature_extractor.config
        if isinstance(config, VectorConfig) or not self.augmentation.silence:
            return 0, 0
        most = int(self.augmentation.silence / config.hop + 1e-6)
        before, after = torch.randint(most + 1, (2,), generator=generator(self.seed + 3, epoch, i)).tolist()
        return before, after


def _usable(
    recordings: Sequence[Recording], reader: FrameReader, speeds: Sequence[float], max_seconds: float, workers: int
) -> tuple[list[Recording], Int[np.ndarray, "speeds n"], dict[str, int], str]:
    """Recordings with text and with sound of the right length, and their numbers of frames.

    Also how many others there are, by reason, and the first warning about them.
    """
    spoken = [r for r in recordings if r.text.strip()]
    short = [r for r in spoken if r.seconds <= max_seconds]
    bad = reader.fill([r.audio for r in short], speeds, workers)
    sound = [r for r in short if r.audio not in bad]
    n_frames = np.array([[reader.n_frames(r.audio, s) for r in sound] for s in speeds], dtype=np.int64)
    config = reader.feature_extractor.config
    seconds = np.array(
        [[speed * config.seconds(n) for n in row] for speed, row in zip(speeds, n_frames.tolist(), strict=True)]
    )
    long, cut = _wrong_lengths(sound, seconds.min(axis=0), max_seconds)
    warnings = [*bad.values(), *long.values(), *cut.values()]
    for told in warnings:
        logger.warning("%s", told)
    skipped = {
        "blank text": len(recordings) - len(spoken),
        f"longer than {max_seconds:g} s": len(spoken) - len(short) + len(long),
        "shorter than its manifest says": len(cut),
        "unusable sound": len(short) - len(sound),
    }
    fits = [i for i in range(len(sound)) if i not in long and i not in cut]
    return [sound[i] for i in fits], n_frames[:, fits], skipped, next(iter(warnings), "look at the manifest")


def _wrong_lengths(
    recordings: Sequence[Recording], seconds: Float[np.ndarray, " n"], max_seconds: float
) -> tuple[dict[int, str], dict[int, str]]:
    """Warnings, by index: about recordings that are too long after all, and about those that are cut short."""
    long, cut = dict[int, str](), dict[int, str]()
    for i, (r, lasts) in enumerate(zip(recordings, seconds.tolist(), strict=True)):
        told = f"{r.audio} lasts {lasts:.2f} s, but its manifest says {r.seconds:g}; it is left out, "
        if lasts > max_seconds + ROUNDING:  # it might not fit into memory
            long[i] = f"{told}being longer than {max_seconds:g} s"
        elif r.seconds - lasts > SHORTFALL * max(1.0, r.seconds):
            cut[i] = f"{told}for its text may say more; fetch it again or correct the manifest"
    return long, cut


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
    bad = cache.fill(paths, plain, workers=workers)
    if len(bad) == len(set(paths)):
        none = (
            f"of {len(recordings)} recordings none lasts {max_seconds:g} s or less" if recordings else "there are none"
        )
        told = next(iter(bad.values()), none)
        raise InputError(f"normalize={config.normalize} needs training data that can be used, but none can: {told}")
    log_mels = (cache.get(path, plain) for path in paths if path not in bad)
    usable = (log_mel for log_mel in log_mels if config.seconds(len(log_mel)) <= max_seconds + ROUNDING)
    mean, std = statistics(plain.mfcc(log_mel) for log_mel in usable)
    return FeatureExtractor(config, mean=mean, std=std)
