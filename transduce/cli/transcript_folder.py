"""The --output-dir of `transduce transcribe`: which of its files are there, and of which sounds."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from transduce.cli.common import to_stderr
from transduce.cli.recordings import same_name, version_of
from transduce.config import Json, differences
from transduce.errors import InputError
from transduce.tasks.formats import ENDINGS

RECORD = ".transduce.json"
"""In an --output-dir: the settings and the hash of the run that its files were made with, and of
which sounds they are."""


def unfinished(
    directory: Path,
    key: Json,
    stems: Mapping[str, str],
    files: Callable[[Path], Mapping[str, Path]],
) -> list[Path]:
    """The sounds whose files are missing, older than they are, or of another sound.

    Args:
        key: the settings and the hash of the run.
        stems: by path of a sound, the path of its files without their endings.
        files: gives the files of a sound, by their formats.

    Raises:
        InputError: the directory has other files, or was begun with other settings, or with other
            sounds of the same names.
    """
    _update_record(directory, key, stems)

    def is_done(sound: Path) -> bool:
        return os.path.isfile(sound) and all(
            path.is_file() and path.stat().st_mtime >= sound.stat().st_mtime
            for path in files(sound).values()
        )

    left = [sound for sound in map(Path, stems) if not is_done(sound)]
    n = len(stems)
    if n_done := n - len(left):
        to_stderr(f"{n_done} of {n} are done, in {directory}")
    return left


def _update_record(directory: Path, key: Json, stems: Mapping[str, str]) -> None:
    """Check that the directory was begun in the same way, remove what is of other sounds by now,
    and write what it has."""
    from transduce.files import read_json, write_json

    record = directory / RECORD
    sounds = {
        os.path.relpath(stem, directory): os.path.realpath(sound) for sound, stem in stems.items()
    }
    before = read_json(record) if record.exists() else {}
    versions = before.pop("versions", {})
    if before:
        known = before.pop("sounds", {})
        for stem, sound in sounds.items():
            other = known.get(stem, sound)
            written = (f"{directory / stem}{end}" for end in ENDINGS.values())
            if other != sound and os.path.exists(other) and any(map(os.path.exists, written)):
                raise same_name(other, sound, str(directory / stem))
        sounds = known | sounds
        if changed := differences(before, key):
            raise InputError(
                f"all files of an --output-dir are made with the same settings, but {directory} "
                f"was begun with others: {'; '.join(changed)}; name another --output-dir"
            )
    elif directory.exists() and any(directory.iterdir()):
        raise InputError(
            "an --output-dir must be new or empty, or the one of an earlier transcription, but "
            f"{directory} has other files; name another"
        )
    _remove_replaced(stems, directory, versions)
    write_json(record, {**key, "sounds": sounds, "versions": versions})


def _remove_replaced(stems: Mapping[str, str], directory: Path, versions: dict[str, str]) -> None:
    """Remove the files of sounds that others have replaced, which may be older than these files,
    and bring the versions of sounds up to date."""
    for sound, stem in stems.items():
        name, version = os.path.relpath(stem, directory), version_of(sound)
        if version and versions.setdefault(name, version) != version:
            versions[name] = version
            for ending in ENDINGS.values():
                Path(f"{stem}{ending}").unlink(missing_ok=True)
