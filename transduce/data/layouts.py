"""Recordings as data comes: tables, JSON lines, Kaldi's tables, folders of sound and text."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from transduce.data.lines import read_lines, split_table
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

SOUND = re.compile(r"\.(wav|flac|og[ga]|opus|mp3|aif[fc]?|au|caf|sph|w64)", re.IGNORECASE)
"""Endings of sound files."""

FRAME = 0.01
"""Seconds from one vector of a .npy file to the next, where its manifest does not have seconds."""


def each_row(path: Path) -> Iterator[tuple[str, Row]]:
    """The cells of every recording by column, and its place for messages.

    `path` is a table with tabs, or commas (.csv), whose first line names the columns; a file with a
    JSON object a line (.jsonl, .json); or a folder with one of TABLES, with Kaldi's wav.scp and
    text, or with x.txt beside x.wav in any depth. `audio` is relative to the folder of `path`.

    Raises:
        InputError: there is no such file, or it is something else; by file and line.
    """
    folder = path if path.is_dir() else path.parent
    for place, row in _rows(path):
        for name, others in NAMES.items():
            other = next(filter(row.__contains__, others), None)
            if name not in row and other:
                row[name] = row.pop(other)
        if row.get("audio"):
            row["audio"] = str(folder / row["audio"])
        yield place, row


def _rows(path: Path) -> Iterator[tuple[str, Row]]:
    if not path.is_dir():
        yield from _json_rows(path) if path.suffix in (".jsonl", ".json") else _table_rows(path)
    elif table := next((path / name for name in TABLES if (path / name).is_file()), None):
        yield from _rows(table)
    elif (path / "wav.scp").is_file():
        yield from _kaldi_rows(path)
    else:
        yield from _sounds_and_texts(path)


def _table_rows(path: Path) -> Iterator[tuple[str, Row]]:
    lines = read_lines(path)
    header, rows = split_table(lines, str(path), comma=path.suffix == ".csv")
    if len(header) == 1 and len(lines[0].split()) > 1:
        raise InputError(
            f"columns must have tabs between them, but the first line of {path} has spaces: "
            f"{lines[0]!r}; write tabs, or commas in a file that ends in .csv"
        )
    for number, row in enumerate(rows, start=2):
        yield f"{path}, line {number},", dict(zip(header, row, strict=True))


def _json_rows(path: Path) -> Iterator[tuple[str, Row]]:
    for number, line in enumerate(read_lines(path), start=1):
        try:
            cells = json.loads(line).items()
        except (ValueError, AttributeError, RecursionError) as error:
            raise InputError(
                f"a line must be a JSON object, but {path}, line {number}, is not: {error}; "
                'write {"audio_filepath": "a.wav", "text": "good day"}'
            ) from error
        yield f"{path}, line {number},", {name: str(cell) for name, cell in cells}


def kaldi_table(path: Path) -> dict[str, str]:
    """A key, spaces, the rest of the line; nothing where there is no such file."""
    lines = read_lines(path) if path.is_file() else []
    rows = [[*line.split(maxsplit=1), ""] for line in lines if line.strip()]
    return {row[0]: row[1].strip() for row in rows}


def _kaldi_rows(folder: Path) -> Iterator[tuple[str, Row]]:
    """The utterances of a Kaldi data directory; of segments, `segment` has start and end."""

    sounds, texts, speakers, segments = (
        kaldi_table(folder / name) for name in ("wav.scp", "text", "utt2spk", "segments")
    )
    for name, cut in (segments or dict.fromkeys(sounds, "")).items():
        sound, _, segment = cut.partition(" ")
        audio = sounds.get(sound or name, "")
        if audio.endswith("|"):
            raise InputError(
                f"wav.scp must name files, but in {folder} it has a command: {audio!r}; run the "
                "commands, write their sound to files, and name those"
            )
        # relative to here, to where commands are run, or to the folder of the splits
        homes = (folder, Path(), folder.parent)
        home = next((home for home in homes if (home / audio).exists()), folder)
        row = {
            "id": name,
            "audio": audio and os.path.abspath(home / audio),
            "text": texts.get(name, ""),
            "speaker": speakers.get(name, ""),
        }
        yield f"{name} in {folder}", {**row, "segment": segment} if segments else row


def _sounds_and_texts(folder: Path) -> Iterator[tuple[str, Row]]:
    """Sounds and the texts of the same name; a speaker is the folder of the sound."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    texts = {path.with_suffix(""): path for path in files if path.suffix.lower() == ".txt"}
    sounds = [path for path in files if SOUND.fullmatch(path.suffix)]
    for path in sounds:
        stem = path.with_suffix("")
        row = {"id": stem.relative_to(folder).as_posix(), "speaker": path.absolute().parent.name}
        text = " ".join(read_lines(texts[stem])) if stem in texts else ""
        yield str(path), {**row, "audio": path.relative_to(folder).as_posix(), "text": text}
    for stem in texts.keys() - {path.with_suffix("") for path in sounds}:
        yield str(texts[stem]), {"id": stem.relative_to(folder).as_posix(), "text": "alone"}


def seconds_of(path: Path) -> float:
    """The length of a sound file, or of vectors with FRAME; 0 of one that cannot be read, which is
    left out later, with the reason."""
    import soundfile

    try:
        if path.suffix == ".npy":
            return len(np.load(path, mmap_mode="r")) * FRAME
        return float(soundfile.info(os.fsencode(path)).duration)
    except (soundfile.SoundFileError, OSError, ValueError, TypeError):
        return 0.0
