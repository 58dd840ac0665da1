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
    """The sounds whose files are missing, or of what another sound has replaced: those go, in all
    formats.

    Args:
        key: the settings and the hash of the run.
        stems: by path of a sound, the path of its files without their endings.
        files: gives the files of a sound, by their formats.

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
    """By name in the directory, the sounds that it has files of: their path and version.

    Raises:
        InputError: see `unfinished`.
    """
    from transduce.files import read_json

    record = directory / RECORD
    before = read_json(record) if record.exists() else {}
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
