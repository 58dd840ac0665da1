"""The inputs of `transduce transcribe`: sound files, folders, manifests, lists, standard input."""

import codecs
import io
import os
import re
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from transduce.cli.common import STDIN, Columns, lines_or_errors, side_name
from transduce.data.manifest import manifest_audio
from transduce.data.sound_lists import SOUND, files_below, is_list
from transduce.errors import InputError, errors_of
from transduce.tasks.formats import ENDINGS

if TYPE_CHECKING:
    from transduce.tasks.sound import Audio

NO_NAME = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
"""Bytes that lists of file names do not contain, and that every sound file has near its start."""


class NamedSound(io.BytesIO):
    """The bytes of a sound file that has no path, with its name in messages."""

    def __init__(self, name: str, content: bytes) -> None:
        super().__init__(content)
        self.name = name


def sounds_of(files: Sequence[Path]) -> "Iterator[Audio]":
    """Yield the sounds of files: a list of recordings gives the sound files that it names, another
    folder all in it; - is standard input.

    Raises:
        InputError: a folder has no sound.
    """
    for file in files:
        for audio in _standard_input() if file == STDIN else [file]:
            if isinstance(audio, Path) and is_list(audio):
                yield from manifest_audio(audio)
            elif os.path.isdir(file):
                sounds = [p for p in files_below(file) if SOUND.fullmatch(p.suffix)]
                if not sounds:
                    raise InputError(
                        f"a folder must have sound, but {file} has none; name another, or files"
                    )
                yield from sounds
            else:
                yield audio


def stems_of(sounds: "Sequence[Audio]", files: Sequence[Path], directory: Path) -> dict[str, str]:
    """The path of each sound's output files in a directory, without suffix, by the sound's path.

    Raises:
        InputError: a sound has no name, or two have the same.
    """
    folders = list(filter(os.path.isdir, files))
    sound_of: dict[str, Path] = {}
    for sound in sounds:
        if not isinstance(sound, Path):
            raise InputError(
                "--output-dir names files as the recordings are named, but sound from standard "
                "input has no name; use --output FILE"
            )
        bases = (folder for folder in folders if sound.is_relative_to(folder))
        name = sound.relative_to(next(bases, sound.parent))
        stem = str(directory / name.with_suffix(""))
        if sound_of.setdefault(stem, sound) != sound:
            raise same_name(sound_of[stem], sound, stem)
    return {str(sound): stem for stem, sound in sound_of.items()}


def same_name(one: Path | str, other: Path | str, stem: str) -> InputError:
    """The error for two sounds whose output files would be the same."""
    return InputError(
        f"recordings must have different names, but {one} and {other} would both become "
        f"{stem}{ENDINGS['text']}; name another --output-dir for one of them"
    )


def listed(files: Sequence[Path], columns: Columns) -> Iterator[str]:
    """Yield the lines of lists of sound files with columns.

    Raises:
        InputError: a line is not UTF-8, names no sound, or has too many columns.
    """
    for file in files:
        for number, line in enumerate(lines_or_errors(file), start=1):
            if isinstance(line, InputError):
                raise InputError(
                    f"{line}; with --prefix or --require, a FILE is a list that names sound"
                )
            with errors_of(side_name(file)):
                name, _, _ = columns.split(line, number)
            if not name.strip():
                raise InputError(
                    f"{side_name(file)}: line {number} must begin with the name of a sound; add "
                    "it, or remove the line"
                )
            yield line


def _standard_input() -> "Iterator[Audio]":
    """One sound file, or names of files, one a line."""
    raw = sys.stdin.buffer.read()
    if NO_NAME.search(raw, 0, 4096):
        yield NamedSound("standard input", raw)
    else:
        for name in raw.removeprefix(codecs.BOM_UTF8).splitlines():
            yield Path(os.fsdecode(name))


def version_of(path: str) -> str:
    """The length of a sound file, and a checksum of its middle and end, so that copies on other
    machines are equal; "" if it cannot be read."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            checksum = 0
            for place in (size // 2, max(0, size - 4096)):
                file.seek(place)
                checksum = zlib.crc32(file.read(4096), checksum)
    except OSError:
        return ""
    return f"{size} {checksum}"


def recorded() -> "Audio":
    """Record from the microphone until Enter or Ctrl-C."""
    from transduce.data.audio import record

    def wait() -> None:
        print("recording; Enter ends it", file=sys.stderr, flush=True)
        with suppress(KeyboardInterrupt):
            sys.stdin.readline()

    return record(wait)
