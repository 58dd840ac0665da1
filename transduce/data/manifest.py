"""Recordings and their texts: manifests, and how they are split."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np

from transduce.config import Common, within
from transduce.data.sound_lists import SPAN, each_row, positive_seconds, seconds_of
from transduce.errors import InputError

NO_CELL = re.compile("[\t\n\r\ud800-\udfff]")
"""Characters that a cell cannot hold; the last range stands for bytes of a name that are not
UTF-8."""

NEEDED = ("id", "audio", "seconds", "speaker")
"""Columns of every manifest that is written, before the target column and others."""

HoldOut = Literal["speakers", "recordings"]


@dataclass(frozen=True)
class Recording:
    """One utterance.

    audio: a sound file, or a .npy file of floats (frames, features). text: the reference. It may be
    blank: such a recording is left out of training, and every word written for it is an error.
    columns: the cells of the other columns, by name. replay: for recordings that a model has
    learned before, the share of an epoch that they take; otherwise 0.
    """

    id: str
    audio: Path
    seconds: float
    speaker: str
    text: str
    columns: dict[str, str] = field(default_factory=dict)
    replay: float = 0.0


def read_manifest(path: Path | str, target_column: str = "text") -> list[Recording]:
    """The recordings of a manifest, or of another file or folder that `each_row` reads.

    Audio and text are required. Without `seconds` the sound is opened and measured; without `id` it
    is the path of the sound as written in the file; without `speaker` every recording has a speaker
    of its own.

    Args:
        target_column: the column that becomes `Recording.text`; "text" is then one of the others.

    Raises:
        InputError: a column is missing or named twice, a line has another number of cells, an id is
            not unique, seconds are not a positive number, or no audio is named; the message names
            file and line.
    """
    recordings: dict[str, Recording] = {}
    for place, row in each_row(Path(path)):
        if "audio" not in row:  # a folder may have texts without sound
            continue
        recording = to_recording(row, place, target_column)
        if recording.id in recordings:
            raise InputError(
                f"an id must be unique, but {place} has id={recording.id!r} again; rename one of "
                "them"
            )
        recordings[recording.id] = recording
    return [*recordings.values()]


def to_recording(row: dict[str, str], place: str, target_column: str = "text") -> Recording:
    """The recording of a row.

    Raises:
        InputError: see `read_manifest`; the message has the place.
    """
    audio = _audio(row, place)
    if target_column not in row:
        raise InputError(
            f"a manifest must have the columns audio and {target_column}, but {place} has "
            f"{', '.join(row)}; add {target_column}, or name another target column"
        )
    name = row["id"]
    seconds = row.get("seconds")
    length = positive_seconds(seconds, place) if seconds else seconds_of(audio)
    others = {key: cell for key, cell in row.items() if key not in (*NEEDED, target_column)}
    return Recording(name, audio, length, row.get("speaker") or name, row[target_column], others)


def _audio(row: dict[str, str], place: str) -> Path:
    if not row.get("audio"):
        raise InputError(
            f"audio must name a file, but {place} names none; name one in the column audio, or "
            "leave out the line"
        )
    if SPAN in row:
        raise InputError(
            f"segments must be cut out of their sound, but {place} has one; transduce data "
            "manifest SOURCE OUT.tsv --audio-out PIECES does that"
        )
    return Path(row["audio"])


def write_manifest(
    path: Path | str,
    recordings: Sequence[Recording],
    target_column: str = "text",
    *,
    root: Path | None = None,
) -> None:
    """Write a manifest that `read_manifest` reads back. Paths inside `root` are relative, others
    absolute.

    Args:
        root: the folder that can be moved as a whole; None: the manifest's own folder.

    Raises:
        InputError: a cell holds a tab or a line break, or is not UTF-8.
    """
    from transduce.files import write_file  # it loads torch, which would slow down --help

    path = Path(path)
    others = [*dict.fromkeys(name for r in recordings for name in r.columns)]
    folder = os.path.abspath(path.parent)
    rows = [[*NEEDED, target_column, *others]]
    for r in recordings:
        audio = Path(os.path.abspath(r.audio))
        if os.path.realpath(audio) != (file := os.path.realpath(r.audio)):  # .. after a link
            audio = Path(file)
        if audio.is_relative_to(os.path.abspath(root or folder)):
            audio = Path(os.path.relpath(audio, folder))
        seconds = str(round(r.seconds, 3) or r.seconds)  # 0.4 ms must not become 0
        cells = [r.columns.get(name, "") for name in others]
        rows.append([r.id, audio.as_posix(), seconds, r.speaker, r.text, *cells])
    for row in rows:
        if bad := [cell for cell in row if NO_CELL.search(cell)]:
            raise InputError(
                "a cell must be UTF-8 without a tab or the end of a line, but "
                f"{row[0]!a} has {bad[0]!a}; change it, or rename the file"
            )
    write_file(path, "".join("\t".join(row) + "\n" for row in rows))


def manifest_audio(path: Path) -> list[Path]:
    """The sound files that a manifest names, in its order; no other column is needed.

    Raises:
        InputError: a line names no file, or a part of one; the message names file and line.
    """
    return [_audio(row, place) for place, row in each_row(path)]


def split(
    recordings: Sequence[Recording], unit: HoldOut, share: float, seed: int
) -> tuple[list[Recording], list[Recording]]:
    """Split recordings into those for training and those held out for validation; both keep their
    order.

    The choice is a function of `share`, `seed` and the set of speakers, or the list of recordings.

    Args:
        unit: hold out whole speakers, or recordings of any speaker.
        share: the share of speakers or recordings held out, rounded; at least one is held out, and
            at least one stays.

    Raises:
        InputError: there is only one speaker or recording.
    """
    by_speaker = unit == "speakers"
    names = [r.speaker if by_speaker else r.id for r in recordings]
    groups = sorted(set(names)) if by_speaker else names
    if len(groups) < 2:
        other = "hold out recordings (hold_out=recordings)" if by_speaker else "see leave_out"
        raise InputError(
            f"holding out {unit} takes at least two, but there are {len(groups)}; name a manifest "
            f"for validation, or {other}"
        )
    n = min(max(round(share * len(groups)), 1), len(groups) - 1)
    held_out = {groups[i] for i in np.random.default_rng(seed).permutation(len(groups))[:n]}
    named = [*zip(recordings, names, strict=True)]
    rest = [recording for recording, name in named if name not in held_out]
    return rest, [recording for recording, name in named if name in held_out]


@dataclass(frozen=True, kw_only=True)
class Manifests:
    """Recordings for training, validation and test, each in a manifest."""

    data: Common[Path | None] = None
    """The folder to which the manifests' names are relative."""
    train: Common[Path] = Path("train.tsv")
    """Recordings to train on."""
    valid: Common[Path | None] = None
    """Recordings to validate on; None: some of the training recordings, see hold_out."""
    test: Common[Path | None] = Path("test.tsv")
    """Recordings that only the finished model is scored on; None: no test."""
    target_column: str = "text"
    """The column of the target texts: any column, for example a translation."""
    hold_out: HoldOut = "speakers"
    """What validation takes out of the training recordings where it has no manifest: whole
    speakers, if there are many, or some recordings of every speaker."""
    share: float = 0.1
    """The share of speakers or recordings that validation takes."""
    leave_out: str = ""
    """The only speaker to test on, with all recordings of the speaker from both manifests; training
    gets none of them."""
    canary: Path | None = None
    """Recordings of a task that the model of start_from has learned: they are scored in every
    validation and in the test, beside the others, to show forgetting."""
    replay: Path | None = None
    """Recordings that the model of start_from was trained on, or similar ones, which are mixed into
    the training to reduce forgetting."""
    replay_share: float = 0.5
    """The share of the recordings of an epoch that are taken from replay, in turn."""

    def __post_init__(self) -> None:
        within("(0, 1)", self, "share", "replay_share")

    def read(self, seed: int) -> tuple[list[Recording], list[Recording], list[Recording]]:
        """Training, validation and test recordings; `seed` decides which ones validation takes.

        Raises:
            InputError: a manifest is missing or wrong, leave_out is not a speaker, no recording is
                left for training or for validation, or the test has no texts.
        """
        paths = self.train, self.test, self.valid, self.replay
        train, test, valid, replay = map(self.part, paths)
        if who := self.leave_out:
            everybody = [*train, *test]
            test = [r for r in everybody if r.speaker == who]
            if not test:
                names = ", ".join(sorted({r.speaker for r in everybody})[:10])
                raise InputError(
                    f"leave_out must be a speaker of the manifests, but {who!r} is not: {names}"
                )
            train, valid, replay = (
                [r for r in part if r.speaker != who] for part in (train, valid, replay)
            )
        if train and not self.valid:
            # one without text or sound would only add errors to every score
            usable = [r for r in train if r.text.strip() and r.seconds]
            _, valid = split(usable or train, self.hold_out, self.share, seed)
            held_out = {r.id for r in valid}
            train = [r for r in train if r.id not in held_out]
        if not train or not valid:
            raise InputError(
                f"training and validation need recordings, but there are {len(train)} and "
                f"{len(valid)}; look at {self.train}, {self.valid or self.hold_out} and "
                f"leave_out={self.leave_out!r}"
            )
        for part, path, recordings in (("training", self.train, train), ("test", self.test, test)):
            if recordings and not any(r.text.strip() for r in recordings):
                raise InputError(
                    f"a {part} needs texts, but none of its {len(recordings)} recordings has one; "
                    f"look at {path}, and at what transduce data manifest says of it"
                )
            if recordings and not any(r.seconds for r in recordings):
                raise InputError(
                    f"a {part} needs sound, but none of its {len(recordings)} recordings can be "
                    f"read; look at {path}"
                )
        return [*train, *(replace(r, replay=self.replay_share) for r in replay)], valid, test

    def part(self, path: Path | None) -> list[Recording]:
        """The recordings of one of the manifests; none where it is None.

        Raises:
            InputError: it is missing, wrong or empty.
        """
        if path is None:
            return []
        path = self.data / path if self.data else path
        if not path.exists():
            raise InputError(
                f"a manifest must exist, but {path} does not; use --data DIR, or name the "
                "manifests (transduce data manifest makes some)"
            )
        if recordings := read_manifest(path, self.target_column):
            return recordings
        raise InputError(f"a manifest must have recordings, but {path} has none")
