"""Recordings as training data: frames, augmented differently in every epoch, and the ids of their
texts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from transduce.data.base_tokenizer import Tokenizer
from transduce.data.batch import Batch, Epoch, Lengths, batch_of, pad, pad_frames
from transduce.data.config import Augmentation
from transduce.data.frame_reader import (
    PLAIN,
    FrameReader,
    draw_speed,
    drop_tokens,
    generator,
    longest_seconds,
)
from transduce.data.lines import lines_fingerprint
from transduce.data.manifest import Recording
from transduce.data.sound_lists import FRAME, SHORTFALL, VECTORS
from transduce.errors import InputError, logger

SHORTER, LONGER = "shorter than its manifest says", "longer than its manifest says"


@dataclass(frozen=True, kw_only=True)
class SpeechPairsConfig:
    """The choice of recordings, and how they become batches."""

    frames_per_batch: int
    """Bound on rows times the longest recording of a batch, in frames."""
    augmentation: Augmentation = PLAIN
    max_seconds: float = 30.0
    """Longer recordings are left out."""
    ctc_column: str = ""
    """The column of the targets of CTC, if it is not the target column."""
    two_views: bool = False
    """Whether batches have a `second_source`: the source with another level, noise, vocal tract and
    masks."""
    seed: int = 0
    workers: int = 0
    """Threads that fill the cache of log-mels, at least one."""


class SpeechPairs:
    """Training data for the trainer: the batches of `epoch(n)` are a function of (seed, n).

    Every recording is read once. Those that cannot be used are left out, counted in `skipped` by
    reason, and named in a warning. `recordings` and `target` are those that are left; `n_frames`
    has their numbers of frames, by speed. An epoch has each of them once; of the recordings to
    replay it has as many as their share allows, in turn.

    Args:
        out_lengths: the model's `Frames.out_lengths`: the positions of the encoder for numbers of
            frames. No text can have more tokens than positions.

    Raises:
        InputError: no recording is left, a recording lacks the column, the tokenizer lacks BOS or
            EOS, or the augmentation is for other features.
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
        """The id that replaces a dropped token."""
        self.augmentation = reader.applicable(config.augmentation)
        speeds = self.augmentation.speeds
        if config.ctc_column:
            cells(recordings, config.ctc_column)
        usable, n_frames, self.skipped, warning = _usable(recordings, reader, speeds, config)
        target = ctc_targets = tokenizer.with_eos(tokenizer.encode([r.text for r in usable]))
        if config.ctc_column:
            ctc_targets = tokenizer.with_eos(tokenizer.encode(cells(usable, config.ctc_column)))
        n_positions = out_lengths(n_frames.min(axis=0))
        fits = [
            i for i, row in enumerate(ctc_targets) if n_positions[i] >= positions_needed(row[:-1])
        ]
        self.skipped["fewer positions than tokens"] = len(usable) - len(fits)
        if all(usable[i].replay for i in fits):
            counts = ", ".join(f"{n} {reason}" for reason, n in self.skipped.items())
            raise InputError(
                f"training, validation and canary need recordings, but of {len(recordings)} none "
                f"is left: {counts}; {warning}"
            )
        self.recordings = [usable[i] for i in fits]
        self.target = [target[i] for i in fits]
        self.ctc_targets = [ctc_targets[i] for i in fits]
        self.n_frames = dict(zip(speeds, n_frames[:, fits], strict=True))
        shuffled = np.random.default_rng(config.seed).permutation(len(fits))
        self.to_replay = np.array([i for i in shuffled if self.recordings[i].replay])
        """The indices of recordings to replay, in the order of their turns."""

    def __str__(self) -> str:
        first = self.epoch(0)
        hours = sum(r.seconds for r in self.recordings) / 3600
        n_speakers = len({r.speaker for r in self.recordings})
        left_out = ", ".join(f"{n} {reason}" for reason, n in self.skipped.items() if n) or "none"
        return (
            f"{len(self.recordings):,} recordings, {hours:.2f} hours, {n_speakers} speakers, "
            f"{sum(map(len, self.target)):,} target tokens, {len(first)} batches of at most "
            f"{self.config.frames_per_batch} frames, {first.padding_share:.1%} padding; left out: "
            f"{left_out}"
        )

    def epoch(self, n: int) -> Epoch:
        """The batches of epoch n; in epoch 0 they go from short to long."""
        config = self.config
        augmentation = self.augmentation
        indices = self._indices(n)
        speeds = {i: draw_speed(augmentation.speeds, generator(config.seed, n, i)) for i in indices}
        silence = {i: self._silence(n, i) for i in indices}
        lengths = [[self.n_frames[speeds[i]][i] + sum(silence[i])] for i in indices]

        def frames(rows: list[int], seed: int) -> tuple[Float[Tensor, "B S F"], Lengths]:
            return pad_frames(
                [
                    self.reader(
                        self.recordings[i].audio,
                        augmentation,
                        generator(seed, n, i),
                        speeds[i],
                        silence[i],
                    )
                    for i in rows
                ]
            )

        def batch(places: list[int]) -> Batch:
            rows = [indices[place] for place in places]
            made = batch_of(
                *frames(rows, config.seed + 1), [self.target[i] for i in rows], bos=self.bos_id
            )
            if config.two_views:
                made = replace(made, second_source=frames(rows, config.seed + 4)[0])
            if config.ctc_column:
                ctc_targets, ctc_lengths = pad([self.ctc_targets[i] for i in rows], 0)
                made = replace(made, ctc_targets=ctc_targets, ctc_target_lengths=ctc_lengths)
            if share := augmentation.token_dropout:
                n_tokens = made.target_lengths.tolist()
                for ids, length, i in zip(made.target_in, n_tokens, rows, strict=True):
                    rng = generator(config.seed + 2, n, i)
                    ids[:length] = drop_tokens(
                        ids[:length], share=share, instead=self.dropped_id, rng=rng
                    )
            return made

        return Epoch(
            np.array(lengths),
            batch,
            tokens_per_batch=config.frames_per_batch,
            seed=config.seed,
            epoch=n,
            short_first=n == 0,
        )

    def _indices(self, epoch: int) -> list[int]:
        """The recordings of an epoch: all new ones, and those to replay whose turn it is."""
        new = [i for i, recording in enumerate(self.recordings) if not recording.replay]
        if not len(self.to_replay):
            return new
        share = self.recordings[self.to_replay[0]].replay
        n = max(1, round(share / (1 - share) * len(new)))
        turns = np.arange(epoch * n, (epoch + 1) * n) % len(self.to_replay)
        return new + self.to_replay[turns].tolist()

    def _silence(self, epoch: int, i: int) -> tuple[int, int]:
        """Frames of silence before and after utterance i."""
        if not self.augmentation.silence:
            return 0, 0
        most = int(self.augmentation.silence / self.reader.feature_extractor.config.hop + 1e-6)
        before, after = torch.randint(
            most + 1, (2,), generator=generator(self.config.seed + 3, epoch, i)
        ).tolist()
        return before, after


def _usable(
    recordings: Sequence[Recording],
    reader: FrameReader,
    speeds: Sequence[float],
    config: SpeechPairsConfig,
) -> tuple[list[Recording], Int[np.ndarray, "speeds n"], dict[str, int], str]:
    """Recordings with text and with sound of the right length, and their numbers of frames.

    Also the number of others, by reason, and the first warning about them.
    """
    column, features = config.ctc_column, reader.feature_extractor.config
    padded = getattr(features, "pad_to", 0.0)
    too_long = f"longer than {config.max_seconds:g} s"
    blank, blank_ctc = "blank text", f"blank column {column}"
    reasons = (blank, *[blank_ctc] * bool(column), too_long, SHORTER, LONGER, "unusable sound")
    skipped = dict.fromkeys(reasons, 0)
    short = [r.audio for r in recordings if r.text.strip() and _stated(r) <= config.max_seconds]
    measured, errors = reader.fill(short, speeds, config.workers)
    warnings = [*errors.values()]
    usable, n_frames = list[Recording](), list[list[int]]()
    for r in recordings:
        reason = ""
        if not r.text.strip():
            reason = blank
        elif column and not r.columns[column].strip():  # CTC would learn to write nothing
            reason = blank_ctc
        elif _stated(r) > config.max_seconds:
            reason = too_long
        elif r.audio in errors:
            reason = "unusable sound"
        else:
            counts = measured[r.audio]
            seconds = min(s * features.seconds(n) for s, n in zip(speeds, counts, strict=True))
            if r.audio.suffix == VECTORS and abs(r.seconds - counts[0] * FRAME) < FRAME / 2:
                r = replace(r, seconds=seconds)  # the manifest only assumed FRAME
            is_long = seconds > longest_seconds(config.max_seconds, padded)
            reason = too_long if is_long else _mismatch(r.seconds, seconds, padded)
            if reason:
                warnings.append(_wrong_length(r, seconds, reason))
        if reason:
            skipped[reason] += 1
        else:
            usable.append(r)
            n_frames.append(counts)
    for warning in warnings:
        logger.warning("%s", warning)
    by_speed = np.array(n_frames, dtype=np.int64).reshape(-1, len(speeds)).T
    return usable, by_speed, skipped, next(iter(warnings), "look at the manifest")


def _wrong_length(recording: Recording, seconds: float, reason: str) -> str:
    way_out = "give --features.hop" if recording.audio.suffix == VECTORS else "fetch it again"
    return (
        f"{recording.audio} lasts {seconds:.2f} s, but its manifest says {recording.seconds:g}; it "
        f"is left out, being {reason}; {way_out} or correct the manifest"
    )


def _mismatch(stated: float, seconds: float, padded: float) -> str:
    """Whether a sound of this many seconds is SHORTER or LONGER than its manifest says, so that its
    text may not match; "" if neither. `stated` is 0 if unknown. Shorter sound was padded to
    `padded` seconds."""
    slack = SHORTFALL * max(1.0, stated)
    if stated - seconds > slack:
        return SHORTER
    if stated % 1 == 0:  # it may have been rounded down to whole seconds
        slack = max(slack, 1.0)
    return LONGER if stated and seconds - max(stated, padded) > slack else ""


def _stated(recording: Recording) -> float:
    """The seconds of the manifest; 0 for vectors, whose length it need not have."""
    return 0.0 if recording.audio.suffix == VECTORS else recording.seconds


def positions_needed(ids: Sequence[int]) -> int:
    """The fewest positions that CTC can align with these ids: one for each, and a blank between
    equal ones."""
    return len(ids) + sum(a == b for a, b in pairwise(ids))


def cells(recordings: Sequence[Recording], column: str) -> list[str]:
    """The cells of a column other than the target's.

    Raises:
        InputError: there is no such column.
    """
    for recording in recordings:
        if column not in recording.columns:
            raise InputError(
                f"a text must be in another column of the manifests, but it is {column!r}, and "
                f"there are {', '.join(recording.columns) or 'no others'}; name one of them"
            )
    return [recording.columns[column] for recording in recordings]


def recordings_fingerprint(*splits: Sequence[Recording], column: str = "") -> str:
    """SHA-256 of ids, lengths, texts, shares of replay and the cells of a column, which does not
    depend on where the recordings are."""
    return lines_fingerprint(
        f"{r.id}\t{r.seconds}\t{r.text}"
        + (f"\t{r.columns[column]}" if column else "")
        + (f"\t{r.replay}" if r.replay else "")
        for split in splits
        for r in split
    )
