"""The --output-dir of `transduce transcribe`: which files it has, and for which sounds."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from transduce.cli.common import to_stderr
from transduce.cli.recordings import same_name, version_of
from transduce.config import Json, differences
from transduce.errors import InputError
from transduce.tasks.formats import ENDINGS

RECORD = ".transduce.json"
"""A file in an --output-dir: the settings and the hash of the run with which the files were made,
and their sounds."""


def unfinished(
    directory: Path,
    key: Json,
    stems: Mapping[str, str],
    files: Callable[[Path], Mapping[str, Path]],
) -> list[Path]:
    """The sounds whose files are missing or outdated, because the sound has changed; outdated files
    are removed, in all formats.

    Args:
        key: the settings and the hash of the run.
        stems: by the path of each sound, the path of its files without suffix.
        files: gives the files of a sound, by format.

    Raises:
        InputError: the directory has other files, or was begun with other settings, or with other
            sounds of the same names.
    """
    from transduce.files import write_json

    known = _known(directory, key)
    left = []
    for sound, stem in stems.items():
        name, version = os.path.relpath(stem, directory), version_of(sound)
        here = os.path.realpath(sound)
        other, former = known.get(name, [here, version])
        if version and version != former:
            written = [path for end in ENDINGS.values() if (path := Path(f"{stem}{end}")).exists()]
            if written and other != here and os.path.exists(other):
                raise same_name(other, here, stem)
            for path in written:
                path.unlink()
        if version:
            known[name] = [here, version]
        if not (version and all(path.is_file() for path in files(Path(sound)).values())):
            left.append(Path(sound))
    write_json(directory / RECORD, {**key, "recordings": known})
    if n_done := len(stems) - len(left):
        to_stderr(f"{n_done} of {len(stems)} are done, in {directory}")
    return left


def _known(directory: Path, key: Json) -> dict[str, list[str]]:
    """The sounds for which the directory has files, by name in it: path and version of each sound.

    Raises:
        InputError: see `unfinished`.
    """
    from transduce.files import read_optional

    record = directory / RECORD
    before = read_optional(record)
    known = before.pop("recordings", {})
    if before and (changed := differences(before, key)):
        raise InputError(
            f"all files of an --output-dir are made with the same settings, but {directory} "
            f"was begun with others: {'; '.join(changed)}; name another --output-dir"
        )
    if not before and directory.exists() and any(directory.iterdir()):
        raise InputError(
            "an --output-dir must be new or empty, or the one of an earlier transcription, but "
            f"{directory} has other files; name another"
        )
    return known
