"""Manifests (TSV: id, audio, seconds, speaker, text) of recordings that lie in some other order, for get_data.py.

A recording that lacks its sound or its text, or whose sound cannot be used, is left out, counted and named.
"""

import math
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import soundfile

from transduce.data.speech.manifest import NEEDED, Recording
from transduce.data.text.lines import read_lines
from transduce.errors import InputError
from transduce.files import write_file

DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
SUFFIXES = {f".{name.lower()}" for name in soundfile.available_formats() if name != "RAW"}
SUFFIXES |= {".opus", ".oga", ".aif", ".aifc", ".sph"}
FLAC_SUBTYPES = {"PCM_S8": "PCM_S8", "PCM_24": "PCM_24", "PCM_32": "PCM_24"}  # any other becomes 16 bits
FLOATS = ("FLOAT", "DOUBLE")  # what can store NaN: such a sound is read, of any other only the header


def write_manifest(
    path: Path | str, recordings: Sequence[Recording], target_column: str = "text", *, root: Path | None = None
) -> None:
    """Write a manifest that `read_manifest` reads back. Paths inside `root` are relative, others absolute.

    Args:
        root: the folder that can be moved as a whole; None: the manifest's own folder.

    Raises:
        InputError: the recordings have different columns, one of them has the name of a column of every manifest, or a
            cell holds a tab or a line break.
    """
    path = Path(path)
    others = list(recordings[0].columns) if recordings else []
    header = [*NEEDED, target_column, *others]
    if len(set(header)) < len(header):
        raise InputError(f"a manifest must name every column once, but it is to have {', '.join(header)}; rename one")
    folder = os.path.abspath(path.parent)
    rows = [header]
    for r in recordings:
        if list(r.columns) != others:
            raise InputError(
                f"recordings of one manifest must have the same columns, but {recordings[0].id} has "
                f"{', '.join(others) or 'none'} and {r.id} has {', '.join(r.columns) or 'none'}; fill in the others"
            )
        audio = Path(os.path.abspath(r.audio))
        if audio.is_relative_to(os.path.abspath(root or folder)):
            audio = Path(os.path.relpath(audio, folder))
        seconds = str(round(r.seconds, 3) or r.seconds)  # less than half a millisecond does not become 0
        rows.append([r.id, audio.as_posix(), seconds, r.speaker, r.text, *r.columns.values()])
    for row in rows:
        if bad := [cell for cell in row if any(end in cell for end in "\t\n\r")]:
            raise InputError(
                f"a cell must not hold a tab or the end of a line, but {row[0]} has {bad[0]!r}; use spaces"
            )
    write_file(path, "".join("\t".join(row) + "\n" for row in rows))


@dataclass(frozen=True)
class Found:
    """A recording whose sound was not opened yet.

    piece: where it is a part of its sound, from when to when in seconds; an end of 0 or less is the end of the sound.
    problem: why it cannot be used, as far as is known without opening the sound.
    """

    id: str
    audio: Path | None = None
    speaker: str | None = None
    text: str | None = None
    columns: dict[str, str] = field(default_factory=dict)
    piece: tuple[float, float] | None = None
    problem: str = ""


class LeftOut(Exception):
    """Why one recording is not in the manifest, and where one should look."""

    def __init__(self, reason: str, audio: Path | None = None) -> None:
        super().__init__(reason)
        self.audio = audio


def need(directory: Path, *names: str) -> None:
    """Raise InputError unless the directory is there and holds files of these names."""
    if not directory.is_dir():
        what = "is a file" if directory.exists() else "does not exist"
        raise InputError(f"recordings are looked for in a folder, but {directory} {what}; name another")
    if missing := [name for name in names if not (directory / name).is_file()]:
        raise InputError(
            f"{directory} must hold {', '.join(names)}, but it lacks {', '.join(missing)}; name another folder, or add "
            "what is missing"
        )


def table(path: Path) -> dict[str, str]:
    """Kaldi's tables: a key, space, the rest of the line."""
    rows = [line.split(maxsplit=1) for line in read_lines(path) if line.strip()]
    return {row[0]: row[1].strip() if len(row) == 2 else "" for row in rows}


def kaldi(directory: Path, root: Path) -> Iterator[Found]:
    """What a Kaldi data directory lists; its paths are relative to `root`, or to where commands are run, as in Kaldi.

    Raises:
        InputError: a table is missing, or wav.scp has a command in place of a file.
    """
    need(directory, "wav.scp", "text", "utt2spk")
    scp = directory / "wav.scp"
    for number, line in enumerate(read_lines(scp), start=1):
        if line.rstrip().endswith("|"):
            raise InputError(
                f"wav.scp must name files, but {scp}, line {number}, has a command: {line.strip()!r}; "
                "run the commands, write their sound to files, and name those"
            )
    sounds = {name: root / path if (root / path).exists() else Path(path) for name, path in table(scp).items()}
    texts, speakers = table(directory / "text"), table(directory / "utt2spk")
    if not (directory / "segments").exists():
        for name, audio in sounds.items():
            yield Found(name, audio, speakers.get(name), texts.get(name))
        return
    for name, line in table(directory / "segments").items():
        try:
            sound, start, end = line.split()
            piece = float(start), float(end)
            if not all(map(math.isfinite, piece)):
                raise InputError
        except ValueError:
            yield Found(name, problem="a line of segments that is not ID SOUND START END")
        else:
            yield Found(name, sounds.get(sound), speakers.get(name), texts.get(name), piece=piece)


def fsdd(directory: Path) -> Iterator[Found]:
    """Every file of recordings/; the column `index` tells the splits apart."""
    for path in sorted((directory / "recordings").glob("*.wav")):
        if match := re.fullmatch(r"([0-9])_(.+)_([0-9]+)", path.stem):
            digit, speaker, index = match.groups()
            yield Found(path.stem, path, speaker, DIGITS[int(digit)], {"index": index})
        else:
            yield Found(path.stem, problem="a name that is not DIGIT_SPEAKER_INDEX")


def speechocean762(directory: Path, split: str) -> Iterator[Found]:
    """One split, with age and gender of the speaker."""
    need(directory / split, "spk2age", "spk2gender")
    about = {column: table(directory / split / f"spk2{column}") for column in ("age", "gender")}
    for found in kaldi(directory / split, directory):
        columns = {column: of.get(found.speaker or "", "") for column, of in about.items()}
        yield replace(found, columns=columns)


def folder(directory: Path) -> Iterator[Found]:
    """Sounds and texts of the same name, in any depth; the speaker is the name of the folder they lie in."""
    need(directory)
    files, waiting = [], [directory]
    while waiting:  # pathlib and os.walk call themselves for every folder in a folder, which Python allows 1,000 times
        inside = waiting.pop()
        try:
            entries = list(os.scandir(inside))
        except OSError as error:
            yield Found(str(inside), problem=f"a folder that cannot be read ({error.strerror})")
            continue
        waiting += [inside / entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        files += [inside / entry.name for entry in entries if entry.is_file()]
    files.sort()
    texts = {path.with_suffix(""): path for path in files if path.suffix.lower() == ".txt"}
    sounds = [path for path in files if path.suffix.lower() in SUFFIXES]
    for path in sounds:
        stem = path.with_suffix("")
        name = stem.relative_to(directory).as_posix()
        try:
            said = " ".join(read_lines(texts[stem])) if stem in texts else None
        except ValueError:
            yield Found(name, problem="a text that is not UTF-8")
        else:
            yield Found(name, path, path.absolute().parent.name, said)
    with_sound = {path.with_suffix("") for path in sounds}
    for stem, path in texts.items():
        if stem not in with_sound:
            yield Found(path.relative_to(directory).as_posix(), problem="no sound")


def open_sound(found: Found, audio_out: Path | None) -> Recording:
    """The recording with its length; a piece is cut out of its sound.

    Raises:
        LeftOut: it cannot be used.
    """
    if found.problem:
        raise LeftOut(found.problem)
    text = " ".join((found.text or "").split())
    if not text:
        raise LeftOut("no text")
    if not found.speaker:
        raise LeftOut("no speaker")
    if not (found.audio and found.audio.is_file()):
        raise LeftOut("no sound", found.audio)
    try:
        f"{found.id}{found.audio}{found.speaker}".encode()
        info = soundfile.info(found.audio)
        if not info.frames:
            raise LeftOut("a sound of 0 samples", found.audio)
        audio, seconds = found.audio, info.frames / info.samplerate
        if found.piece and audio_out:
            audio, seconds = cut(found, info, audio_out)
        elif info.subtype in FLOATS:
            for block in soundfile.blocks(found.audio, 2**20, dtype="float32"):
                check_finite(block, found.audio)
    except (soundfile.SoundFileError, TypeError):  # TypeError: headerless, by the ending of its name
        raise LeftOut("a sound that cannot be read", found.audio) from None
    except UnicodeEncodeError:
        raise LeftOut("a name that is not UTF-8") from None
    if set(f"{found.id}{found.audio}{found.speaker}") & set("\t\n\r"):
        raise LeftOut("a name with a tab or the end of a line")
    return Recording(found.id, audio, seconds, found.speaker, text, found.columns)


def check_finite(samples: np.ndarray, audio: Path) -> None:
    """Raise LeftOut where training would refuse the sound."""
    if not np.isfinite(samples).all():
        raise LeftOut("a sound with NaN or infinite samples", audio)


def cut(found: Found, info: soundfile._SoundFileInfo, audio_out: Path) -> tuple[Path, float]:
    """Write the piece as FLAC, sample for sample where the sound has whole numbers; its file and seconds.

    Raises:
        LeftOut: the piece lies outside the sound or has NaN samples, or its id cannot name a file.
    """
    start, end = (round(time * info.samplerate) for time in found.piece)
    end = min(end, info.frames) if end > 0 else info.frames
    if not 0 <= start < end:
        raise LeftOut("a piece that lies outside its sound")
    if Path(found.id).name != found.id:
        raise LeftOut("an id that cannot name a file")
    path = audio_out / f"{found.id}.flac"
    whole = "int32" if info.subtype.startswith("PCM") else "float64"
    samples, rate = soundfile.read(found.audio, start=start, stop=end, dtype=whole)
    check_finite(samples, found.audio)
    soundfile.write(path, samples, rate, format="FLAC", subtype=FLAC_SUBTYPES.get(info.subtype, "PCM_16"))
    return path, len(samples) / rate


def collect(every: Iterable[Found], audio_out: Path | None = None) -> list[Recording]:
    """The recordings that can be used, telling which cannot and why."""
    recordings: dict[str, Recording] = {}
    left_out = defaultdict(list)
    for found in every:
        try:
            if found.id in recordings:
                raise LeftOut("an id that another recording has")
            recordings[found.id] = open_sound(found, audio_out)
        except LeftOut as reason:
            left_out[str(reason)].append(f"{found.id} ({reason.audio})" if reason.audio else found.id)
    for reason, names in left_out.items():
        some = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        print(f"left out {len(names):,}: {reason}: {some}".encode(errors="replace").decode())
    return list(recordings.values())


def write(path: Path, recordings: list[Recording], root: Path | None = None) -> None:
    """Write a manifest, and tell what is in it.

    Args:
        root: a folder that is moved as a whole, if it is not the manifest's own.

    Raises:
        InputError: there is no recording, or a folder in place of the file.
    """
    if not recordings:
        raise InputError(
            f"a manifest needs a recording, but none was found for {path}; what was left out is told above, and "
            "--help tells the layouts"
        )
    if path.is_dir():
        raise InputError(f"a manifest is a file, but {path} is a folder; name {path / 'train.tsv'}, for example")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_manifest(path, recordings, root=root)
    hours, speakers = sum(r.seconds for r in recordings) / 3600, {r.speaker for r in recordings}
    print(f"{path}: {len(recordings):,} recordings, {hours:.2f} hours, {len(speakers)} speakers", flush=True)


def make_folder(source: Path, out: Path) -> None:
    """The manifest of a folder of x.wav and x.txt."""
    write(out, collect(folder(source)))


def make_kaldi(source: Path, out: Path, audio_out: Path | None) -> None:
    """The manifest of a Kaldi data directory.

    Raises:
        InputError: it has segments, and no folder is named for the pieces.
    """
    if (source / "segments").exists():
        if audio_out is None:
            raise InputError(
                f"{source} has segments, whose pieces must be cut, but no folder is named for them; use --audio-out DIR"
            )
        audio_out.mkdir(parents=True, exist_ok=True)
    write(out, collect(kaldi(source, source), audio_out))


def make_fsdd(directory: Path) -> None:
    """train.tsv and test.tsv of the digits, as their authors split them: index 0 to 4 is test."""
    recordings = collect(fsdd(directory))
    for split in ("train", "test"):
        mine = [r for r in recordings if (int(r.columns["index"]) < 5) == (split == "test")]
        write(directory / f"{split}.tsv", [replace(r, columns={}) for r in mine])


def make_speechocean762(directory: Path) -> None:
    """train/manifest.tsv and test/manifest.tsv of the learners, with age and gender."""
    for split in ("train", "test"):
        write(directory / split / "manifest.tsv", collect(speechocean762(directory, split)), root=directory)
