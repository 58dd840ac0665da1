"""Manifests: TSV files that name recordings and their transcripts."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Literal

import numpy as np

from transduce.config import Common, within
from transduce.data.text.lines import (
    decode_line,
    lines_fingerprint,
    raw_lines,
    read_lines,
    split_table,
)
from transduce.errors import InputError

NEEDED = ("id", "audio", "seconds", "speaker")
"""Columns of every manifest. The target column is needed as well, and there may be others."""

HoldOut = Literal["speakers", "recordings"]


@dataclass(frozen=True)
class Recording:
    """One utterance.

    audio: a sound file, or a .npy file of floats (frames, features). text: the reference. It may be
    blank: such a recording is not trained on, and every word written for it is wrong. columns: the
    cells of the other columns, by name.
    """

    id: str
    audio: Path
    seconds: float
    speaker: str
    text: str
    columns: dict[str, str] = field(default_factory=dict)


def read_manifest(path: Path | str, target_column: str = "text") -> list[Recording]:
    """The recordings of a UTF-8 TSV whose first line names the columns.

    `audio` is relative to the manifest's folder, or absolute. No file of sound is opened here.

    Args:
        target_column: the column that becomes `Recording.text`; "text" is then one of the others.

    Raises:
        InputError: a column is missing or named twice, a line has another number of cells, an id
            stands twice, seconds are no positive number, no audio is named; by file and line.
    """
    path = Path(path)
    header, rows = split_table(read_lines(path), str(path))
    _check_header(path, header, target_column)
    recordings: dict[str, Recording] = {}
    for number, cells in enumerate(rows, start=2):
        place = f"{path}, line {number},"
        row = dict(zip(header, cells, strict=True))
        name, audio, seconds, speaker, text = (
            row.pop(column) for column in (*NEEDED, target_column)
        )
        if name in recordings:
            first = 2 + [*recordings].index(name)
            raise InputError(
                f"an id must stand once, but {place} has id={name!r}, as line {first} has; rename "
                "one of them"
            )
        sound = path.parent / _named(audio, place)
        recordings[name] = Recording(name, sound, _positive(seconds, place), speaker, text, row)
    return [*recordings.values()]


def manifest_audio(path: Path) -> list[Path]:
    """The sound files that a manifest names, in its order; it may lack every other column.

    Names may be any bytes: one that no file can have concerns that recording alone.

    Raises:
        InputError: there is no column `audio`, a line has another number of cells or names no file;
            by file and line.
    """
    first, *others = [line.removesuffix(b"\n").removesuffix(b"\r") for line in raw_lines(path)] or [
        b""
    ]
    header, rows = split_table(
        [decode_line(first, str(path), 1), *map(os.fsdecode, others)], str(path)
    )
    if "audio" not in header:
        raise InputError(
            f"a manifest's first line must name the column audio, but {path} has "
            f"{', '.join(header)}; add it, or name "
            "the sound files themselves"
        )
    column = header.index("audio")
    return [
        path.parent / _named(row[column], f"{path}, line {number},")
        for number, row in enumerate(rows, start=2)
    ]


def _named(audio: str, place: str) -> str:
    if not audio:
        raise InputError(
            f"audio must name a file, but {place} names none; name one, or leave out the line"
        )
    return audio


def _check_header(path: Path, header: list[str], target_column: str) -> None:
    columns = ", ".join(header)
    needed = (*NEEDED, target_column)
    if target_column in NEEDED:
        raise InputError(
            f"the target column must hold text, but it is {target_column!r}; {path} has {columns}"
        )
    if missing := [column for column in needed if column not in header]:
        raise InputError(
            f"a manifest's first line must name the columns {', '.join(needed)}, but {path} has "
            f"{columns or 'none'} "
            f"and lacks {', '.join(missing)}; add them, or name another target column"
        )


def _positive(cell: str, place: str) -> float:
    try:
        seconds = float(cell)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise InputError(
            f"seconds must be a positive number, but {place} has {cell!r}; write the length of the "
            "sound, such as 2.5"
        )
    return seconds


def cells(recordings: Sequence[Recording], column: str) -> list[str]:
    """The cells of a column other than the target's.

    Raises:
        InputError: there is no such column.
    """
    for recording in recordings:
        if column not in recording.columns:
            raise InputError(
                f"a text must be in another column of the manifests, but it is {column!r}, and "
                "there are "
                f"{', '.join(recording.columns) or 'no others'}; name one of them"
            )
    return [recording.columns[column] for recording in recordings]


def split(
    recordings: Sequence[Recording], unit: HoldOut, share: float, seed: int
) -> tuple[list[Recording], list[Recording]]:
    """Most recordings for training, and those that are held out for validation; both keep their
    order.

    The choice is a function of `share`, `seed` and the set of speakers, or the list of recordings.

    Args:
        unit: whole speakers, or recordings of all of them.
        share: the share of speakers or recordings held out, rounded; at least one is held out, and
            at least one stays.

    Raises:
        InputError: there is one speaker or recording only, or `share` is not between 0 and 1.
    """
    within("(0, 1)", share=share)
    name_of = attrgetter("speaker" if unit == "speakers" else "id")
    names = [*map(name_of, recordings)]
    groups = sorted(set(names)) if unit == "speakers" else names
    if len(groups) < 2:
        other = (
            "hold out recordings (hold_out=recordings)"
            if unit == "speakers"
            else "look at leave_out"
        )
        raise InputError(
            f"holding out {unit} takes two, but there are {len(groups)}; name a manifest for "
            f"validation, or {other}"
        )
    n = min(max(round(share * len(groups)), 1), len(groups) - 1)
    held_out = {groups[i] for i in np.random.default_rng(seed).permutation(len(groups))[:n]}
    valid = [r for r in recordings if name_of(r) in held_out]
    return [r for r in recordings if name_of(r) not in held_out], valid


@dataclass(frozen=True, kw_only=True)
class Manifests:
    """Recordings for training, validation and test, each in a manifest."""

    data: Common[Path | None] = None
    """The folder to which the manifests' names are relative."""
    train: Common[Path] = Path("train.tsv")
    """Recordings to train on."""
    valid: Common[Path | None] = None
    """None: validation is taken out of the training recordings, see hold_out."""
    test: Common[Path | None] = Path("test.tsv")
    """Recordings for the finished model alone; None: no test."""
    target_column: str = "text"
    """The column that the model writes: any column, for example a translation."""
    hold_out: HoldOut = "speakers"
    """What validation takes out of the training recordings where it has no manifest: whole
    speakers, if there are many, or some recordings of every speaker."""
    share: float = 0.1
    """The share of speakers or recordings that validation takes."""
    leave_out: str = ""
    """Test on this speaker alone: all recordings of the speaker, from both manifests, and train on
    none of them."""

    def __post_init__(self) -> None:
        within("(0, 1)", share=self.share)

    def read(self, seed: int) -> tuple[list[Recording], list[Recording], list[Recording]]:
        """Training, validation and test recordings; `seed` decides which ones validation takes.

        Raises:
            InputError: a manifest is missing or wrong, leave_out is not a speaker, no recording is
                left for training or for validation, or the test has no texts.
        """
        train = self._read(self.train)
        test = self._read(self.test) if self.test else []
        if self.leave_out:
            everybody = [*train, *test]
            train = self._without(train)
            test = [r for r in everybody if r.speaker == self.leave_out]
            if not test:
                names = ", ".join(sorted({r.speaker for r in everybody})[:10])
                raise InputError(
                    f"leave_out must be a speaker of the manifests, but {self.leave_out!r} is not: "
                    f"{names}"
                )
        if self.valid:
            valid = self._without(self._read(self.valid))
        else:
            train, valid = split(train, self.hold_out, self.share, seed)
        if not train or not valid:
            raise InputError(
                f"training and validation need recordings, but there are {len(train)} and "
                f"{len(valid)}; "
                f"look at {self.train}, {self.valid or self.hold_out} and "
                f"leave_out={self.leave_out!r}"
            )
        if test and not any(r.text.strip() for r in test):
            raise InputError(
                f"a test needs texts to compare with, but none of its {len(test)} recordings has "
                "one"
            )
        return train, valid, test

    def _without(self, recordings: list[Recording]) -> list[Recording]:
        return [r for r in recordings if not self.leave_out or r.speaker != self.leave_out]

    def _read(self, path: Path) -> list[Recording]:
        path = self.data / path if self.data else path
        if not path.is_file():
            raise InputError(
                f"a manifest must be there, but {path} is not; use --data DIR, or name the "
                "manifests "
                "(scripts/corpora/get_data.py and make_manifest.py in a clone of transduce make "
                "some)"
            )
        return read_manifest(path, self.target_column)


def recordings_fingerprint(*splits: Sequence[Recording], column: str = "") -> str:
    """SHA-256 of ids, lengths, texts and the cells of a column, which does not depend on where the
    recordings are."""
    return lines_fingerprint(
        f"{r.id}\t{r.seconds}\t{r.text}" + (f"\t{r.columns[column]}" if column else "")
        for split in splits
        for r in split
    )
