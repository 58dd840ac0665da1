"""Lists of recordings as other tools have them: tables, Kaldi directories, folders of sound."""

import math
import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from transduce.data.config import BY_FFMPEG
from transduce.data.lines import read_lines
from transduce.data.tables import each_record
from transduce.errors import InputError

Row = dict[str, str]

NAMES = {
    "audio": ("audio_filepath", "file_name", "path"),
    "seconds": ("duration",),
    "speaker": ("speaker_id", "client_id"),
    "text": ("transcription", "transcript", "sentence"),
}
"""The names of other tools for columns of a manifest: NeMo's, Hugging Face's and Common Voice's."""

TABLES = ("metadata.csv", "metadata.tsv", "metadata.jsonl")
"""Files that say which text belongs to which sound of their folder."""

SOUND = re.compile(
    r"\.(wav|flac|og[ga]|opus|mp3|aif[fc]?|au|caf|sph|w64)|" + "|".join(map(re.escape, BY_FFMPEG)),
    re.IGNORECASE,
)
"""Endings of sound files."""

LIST = re.compile(r".+\.(tsv|csv|jsonl?)(\.gz)?", re.IGNORECASE | re.DOTALL)
"""Names of files that list sound."""

SAMPLES = re.compile(r"^0 \d{4,} (?=\D)")
"""The first and the last sample, which stand before each text of TIMIT."""

SPAN = "start end"
"""The key of a row for the part of its sound that it covers, in seconds; no table has such a
column."""

VECTORS = ".npy"
"""The ending of files of vectors, in place of sound."""

SHORTFALL = 0.1
"""How much the duration of a sound may differ from its list: this share of it, or this many seconds
if the list says less than one second."""

FRAME = 0.01
"""Seconds from one vector of a .npy file to the next, where its manifest does not have seconds."""


def is_list(path: Path) -> bool:
    """Whether a path lists recordings: a table, or a folder with one of TABLES or with wav.scp."""
    return bool(LIST.fullmatch(path.name)) or any(
        os.path.isfile(path / name) for name in (*TABLES, "wav.scp")
    )


def files_below(folder: Path) -> list[Path]:
    """The files in a folder, at any depth, without hidden ones, such as macOS's ._x.wav; links to
    folders are followed, but no folder is read twice."""
    files, seen = [], set[str]()
    for root, folders, names in os.walk(folder, followlinks=True):
        if (real := os.path.realpath(root)) in seen:
            folders.clear()
            continue
        seen.add(real)
        folders.sort()
        files += [Path(root, name) for name in names if not name.startswith(".")]
    return sorted(files)


def each_row(path: Path, *, parts: bool = False) -> Iterator[tuple[str, Row]]:
    """The cells of every recording by column, and its place for messages.

    `path` is a table that `each_record` reads; or a folder with one of TABLES, with Kaldi's wav.scp
    and text, or with x.txt next to x.wav at any depth. In a table, sound is relative to its folder,
    or to `clips` in it, as in Common Voice.

    Args:
        parts: whether a NeMo row whose duration is less than that of its sound is the beginning of
            it.

    Raises:
        InputError: there is no such file, or it has another format; the message names file and
            line.
    """
    if not path.is_dir():
        return _table_rows(path, parts)
    if table := next((path / name for name in TABLES if (path / name).is_file()), None):
        return _table_rows(table, parts)
    return (_kaldi_rows if (path / "wav.scp").is_file() else _sounds_and_texts)(path)


def _table_rows(path: Path, parts: bool) -> Iterator[tuple[str, Row]]:
    folder, clips = path.parent, path.parent / "clips"
    has_clips = clips.is_dir()
    for place, row in each_record(path):
        has_parts = row.get("offset") or (parts and "audio_filepath" in row)
        for name, others in NAMES.items():
            other = next(filter(row.__contains__, others), None)
            if name not in row and other:
                row[name] = row.pop(other)
        if "audio" not in row:
            raise InputError(
                f"a list of recordings must have a column audio (or {', '.join(NAMES['audio'])}), "
                f"but {place} has {', '.join(row)!r}; name the columns of a table in its first "
                "line, with tabs between them, or commas where its name ends in .csv"
            )
        if audio := row["audio"]:
            in_clips = has_clips and (clips / audio).exists()
            row["audio"] = str((clips if in_clips else folder) / audio)
            if span := _span(row, place) if has_parts else "":
                row[SPAN] = span
                audio = f"{audio}-{row.pop('offset', 0)}-{row.pop('seconds', '')}"
            row["id"] = row.get("id") or audio
        yield place, row


def _span(row: Row, place: str) -> str:
    """Start and end of a NeMo row that is a part of its sound; otherwise "". Without an offset the
    part is the beginning, and without a duration it is the rest."""
    audio, offset, duration = Path(row["audio"]), row.get("offset"), row.get("seconds")
    try:
        start = float(offset or 0)
    except ValueError as error:
        raise InputError(
            f"an offset must be seconds, but {place} has {offset!r}; correct it"
        ) from error
    if not duration:
        return f"{start} -1" if start else ""
    try:
        seconds = positive_seconds(duration, place)
    except InputError:
        if offset:
            raise
        return ""  # as in other lists, it may not be needed
    # durations may be rounded
    slack = FRAME if offset else SHORTFALL * max(1.0, seconds)
    is_part = audio.suffix != VECTORS and seconds < seconds_of(audio) - slack
    return f"{start} {start + seconds}" if start or is_part else ""


def kaldi_table(path: Path) -> dict[str, str]:
    """The first word of each line and the rest of the line; empty if there is no such file.

    Raises:
        InputError: a key is not unique.
    """
    table: dict[str, str] = {}
    for line in filter(str.strip, read_lines(path) if path.is_file() else []):
        key, *rest = line.split(maxsplit=1)
        if key in table:
            raise InputError(
                f"a key must be unique, but {path} has {key!r} again; remove one of its lines"
            )
        table[key] = rest[0].strip() if rest else ""
    return table


def _kaldi_rows(folder: Path) -> Iterator[tuple[str, Row]]:
    """The utterances of a Kaldi data directory; segments have a SPAN."""
    sounds, texts, speakers, segments = (
        kaldi_table(folder / name) for name in ("wav.scp", "text", "utt2spk", "segments")
    )
    utterances = segments or dict.fromkeys(sounds, "")
    for name in sorted(texts.keys() - utterances.keys()):
        yield f"{name} in {folder}", {"id": name, "text": "alone"}
    for name, cut in utterances.items():
        sound, *segment = cut.split() or [""]
        audio = sounds.get(sound or name, "")
        if audio.endswith("|"):
            raise InputError(
                f"wav.scp must name files, but in {folder} it has a command: {audio!r}; run the "
                "commands, write their sound to files, and name those"
            )
        # paths are relative to this folder, the current directory, or the parent folder
        homes = (folder, Path(), folder.parent)
        home = next((home for home in homes if (home / audio).exists()), folder)
        row = {
            "id": name,
            "audio": audio and str(home / audio),
            "text": texts.get(name, ""),
            "speaker": speakers.get(name, ""),
        }
        yield f"{name} in {folder}", {**row, SPAN: " ".join(segment)} if segments else row


def _sounds_and_texts(folder: Path) -> Iterator[tuple[str, Row]]:
    """Sounds and the texts of the same name; a speaker is the folder of the sound."""
    files = [path for path in files_below(folder) if path.is_file()]
    texts = {path.with_suffix(""): path for path in files if path.suffix.lower() == ".txt"}
    sounds = [path for path in files if SOUND.fullmatch(path.suffix)]
    for path in sounds:
        stem = path.with_suffix("")
        row = {"id": stem.relative_to(folder).as_posix(), "speaker": path.absolute().parent.name}
        text = " ".join(read_lines(texts[stem])) if stem in texts else ""
        text = SAMPLES.sub("", text)
        yield str(path), {**row, "audio": str(path), "text": text}
    for stem in sorted(texts.keys() - {path.with_suffix("") for path in sounds}):
        yield str(texts[stem]), {"id": stem.relative_to(folder).as_posix(), "text": "alone"}


def seconds_of(path: Path) -> float:
    """The length of a sound file, or of vectors that are FRAME apart, in seconds; 0 if it cannot be
    read (it is left out later, with the reason)."""
    from transduce.data.audio import opened  # it loads torch, which would slow down --help

    try:
        if path.suffix == VECTORS:
            return len(np.load(path, mmap_mode="r")) * FRAME
        with opened(path, str(path)) as sound:
            return sound.frames / sound.samplerate
    except (OSError, ValueError, TypeError):
        return 0.0


def positive_seconds(cell: str, place: str) -> float:
    """Seconds of a cell.

    Raises:
        InputError: they are not a positive number; the message has the place.
    """
    try:
        seconds = float(cell)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise InputError(
            f"seconds must be a positive number, but {place} has {cell!r}; write the length of the "
            "sound, such as 2.5, or nothing"
        )
    return seconds
