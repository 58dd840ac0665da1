"""Write manifests (TSV: id, audio, seconds, speaker, text) for recordings that lie in some other order.

    python scripts/make_manifest.py kaldi DIR OUT.tsv [--audio-out DIR]
    python scripts/make_manifest.py fsdd DIR
    python scripts/make_manifest.py speechocean762 DIR
    python scripts/make_manifest.py folder DIR OUT.tsv

kaldi: a Kaldi data directory: wav.scp, text, utt2spk. Where it has segments, the pieces go as FLAC to --audio-out.
fsdd: the Free Spoken Digit Dataset, recordings/DIGIT_SPEAKER_INDEX.wav. Writes DIR/train.tsv and DIR/test.tsv, its own
    split: index 0 to 4 is test.
speechocean762: its own layout: WAVE, train, test. Writes DIR/train.tsv and DIR/test.tsv, with age and gender.
folder: x.wav beside x.txt, in any depth and any format that libsndfile reads; the speaker is the folder's name.

A recording that lacks its sound or its text is left out, counted and named.
"""

import argparse
import math
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import soundfile

from transduce.data.corpus import read_lines
from transduce.data.manifest import Recording, write_manifest

DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
SUFFIXES = {f".{name.lower()}" for name in soundfile.available_formats() if name != "RAW"}
SUFFIXES |= {".opus", ".oga", ".aif", ".aifc", ".sph"}
FLAC_SUBTYPES = {"PCM_S8": "PCM_S8", "PCM_24": "PCM_24", "PCM_32": "PCM_24"}  # any other becomes 16 bits


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
    """Why one recording is not in the manifest."""


def table(path: Path) -> dict[str, str]:
    """Kaldi's tables: a key, space, the rest of the line."""
    rows = [line.split(maxsplit=1) for line in read_lines(path) if line.strip()]
    return {row[0]: row[1].strip() if len(row) == 2 else "" for row in rows}


def kaldi(directory: Path, root: Path) -> Iterator[Found]:
    """What a Kaldi data directory lists; its paths are relative to `root`, or to where commands are run, as in Kaldi.

    Raises:
        ValueError: wav.scp has a command in place of a file.
    """
    scp = directory / "wav.scp"
    for number, line in enumerate(read_lines(scp), start=1):
        if line.rstrip().endswith("|"):
            raise ValueError(
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
                raise ValueError
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
    about = {column: table(directory / split / f"spk2{column}") for column in ("age", "gender")}
    for found in kaldi(directory / split, directory):
        columns = {column: of.get(found.speaker or "", "") for column, of in about.items()}
        yield replace(found, columns=columns)


def folder(directory: Path) -> Iterator[Found]:
    """Sounds and texts of the same name."""
    files = [path for path in sorted(directory.rglob("*")) if path.is_file()]
    sounds = [path for path in files if path.suffix.lower() in SUFFIXES]
    with_sound = {path.with_suffix(".txt") for path in sounds}
    for path in sounds:
        name, text = path.relative_to(directory).with_suffix("").as_posix(), path.with_suffix(".txt")
        try:
            said = " ".join(read_lines(text)) if text.exists() else None
        except ValueError:
            yield Found(name, problem="a text that is not UTF-8")
        else:
            yield Found(name, path, path.absolute().parent.name, said)
    for path in files:
        if path.suffix == ".txt" and path not in with_sound:
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
        raise LeftOut("no sound")
    try:
        f"{found.id}{found.audio}{found.speaker}".encode()
        info = soundfile.info(found.audio)
        if not info.frames:
            raise LeftOut("a sound of 0 samples")
        audio, seconds = found.audio, info.frames / info.samplerate
        if found.piece and audio_out:
            audio, seconds = cut(found, info, audio_out)
    except soundfile.LibsndfileError:
        raise LeftOut("a sound that cannot be read") from None
    except UnicodeEncodeError:
        raise LeftOut("a name that is not UTF-8") from None
    if set(f"{found.id}{found.audio}{found.speaker}") & set("\t\n\r"):
        raise LeftOut("a name with a tab or the end of a line")
    return Recording(found.id, audio, seconds, found.speaker, text, found.columns)


def cut(found: Found, info: soundfile._SoundFileInfo, audio_out: Path) -> tuple[Path, float]:
    """Write the piece as FLAC, sample for sample where the sound has whole numbers; its file and seconds.

    Raises:
        LeftOut: the piece lies outside the sound, or its id cannot name a file.
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
            left_out[str(reason)].append(found.id)
    for reason, names in left_out.items():
        some = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        print(f"left out {len(names):,}: {reason}: {some}".encode(errors="replace").decode())
    return list(recordings.values())


def write(path: Path, recordings: list[Recording]) -> None:
    """Write a manifest, and tell what is in it.

    Raises:
        ValueError: there is no recording.
    """
    if not recordings:
        raise ValueError(f"a manifest needs a recording, but none was found for {path}; see --help for the layouts")
    write_manifest(path, recordings)
    hours, speakers = sum(r.seconds for r in recordings) / 3600, {r.speaker for r in recordings}
    print(f"{path}: {len(recordings):,} recordings, {hours:.2f} hours, {len(speakers)} speakers", flush=True)


def make(x: argparse.Namespace) -> None:
    """The manifests that the command line asks for.

    Raises:
        ValueError: nothing is found, a layout is another one, or pieces are to be cut and no folder is named for them.
    """
    if x.layout == "folder":
        write(x.out, collect(folder(x.directory)))
    elif x.layout == "kaldi":
        if (x.directory / "segments").exists():
            if x.audio_out is None:
                raise ValueError(
                    f"{x.directory} has segments, whose pieces must be cut, but no folder is named for them; "
                    "use --audio-out DIR"
                )
            x.audio_out.mkdir(parents=True, exist_ok=True)
        write(x.out, collect(kaldi(x.directory, x.directory), x.audio_out))
    elif x.layout == "speechocean762":
        for split in ("train", "test"):
            write(x.directory / f"{split}.tsv", collect(speechocean762(x.directory, split)))
    else:
        recordings = collect(fsdd(x.directory))
        for split in ("train", "test"):
            mine = [r for r in recordings if (int(r.columns["index"]) < 5) == (split == "test")]
            write(x.directory / f"{split}.tsv", [replace(r, columns={}) for r in mine])


def main() -> int:
    """The command line: 0 if the manifests are written, 2 if not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    layouts = parser.add_subparsers(dest="layout", required=True, metavar="LAYOUT")
    for name in ("kaldi", "fsdd", "speechocean762", "folder"):
        layout = layouts.add_parser(name)
        layout.add_argument("directory", type=Path, metavar="DIR")
        if name in ("kaldi", "folder"):
            layout.add_argument("out", type=Path, metavar="OUT.tsv")
        if name == "kaldi":
            layout.add_argument("--audio-out", type=Path, metavar="DIR", help="folder for the pieces of segments")
    try:
        make(parser.parse_args())
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
