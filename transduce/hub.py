"""Runs on the Hugging Face hub: download of hub:USER/NAME[@REVISION], and publication of a run."""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tqdm import tqdm

from transduce.errors import InputError, require

PREFIX = "hub:"

CARD = "README.md"
"""The file that the hub shows as a repository's page."""


def repository(name: Path | str) -> tuple[str, str | None]:
    """Split hub:USER/NAME@REVISION into USER/NAME and the revision, None if there is none.

    Raises:
        InputError: the name has another form.
    """
    match = re.fullmatch(r"(?:hub:)?([\w.-]+/[\w.-]+)(?:@([^@,\s]+))?", str(name))
    if match is None:
        raise InputError(
            "a run on the hub is named hub:USER/NAME, or hub:USER/NAME@REVISION, but this is "
            f"{str(name)!r}"
        )
    return match[1], match[2]


def download(name: Path | str, files: Sequence[str]) -> Path:
    """Download those of `files` that a run has, or find them in huggingface_hub's cache.

    Nothing else is downloaded, and no downloaded code is run.

    Args:
        name: hub:USER/NAME, or hub:USER/NAME@REVISION, where the revision is a branch, a tag or a
            commit.
        files: the first is the configuration; it is checked before the weights are downloaded.

    Returns:
        Their folder, whose name is the commit.

    Raises:
        InputError: huggingface_hub is not installed, there is no such repository or revision, it is
            no run, or the hub cannot be reached and the cache has nothing.
    """
    identifier, revision = repository(name)
    with _errors(str(name)):
        from huggingface_hub import snapshot_download

        def fetch(revision: str | None, names: Sequence[str]) -> Path:
            return Path(
                snapshot_download(
                    identifier, revision=revision, allow_patterns=[*names], tqdm_class=_TerminalBar
                )
            )

        folder = fetch(revision, files[:1])
        try:
            is_run = "experiment" in json.loads((folder / files[0]).read_bytes())
        except (FileNotFoundError, TypeError, ValueError, RecursionError):
            is_run = False
        if not is_run:
            raise InputError(
                f"{name} must be a run that transduce publish wrote, but it is not; models of "
                "transformers are downloaded and imported: transduce import HF_DIRECTORY RUN"
            )
        return fetch(folder.name, files)


class _TerminalBar(tqdm):
    """tqdm's progress bar, shown on terminals only."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options | {"disable": None})


def upload(
    identifier: str,
    files: Mapping[str, Path],
    *,
    known: Collection[str],
    keeps: Callable[[str], bool],
    private: bool = False,
    revision: str | None = None,
) -> str:
    """Upload files to a repository as one commit; return its URL. A missing one is created.

    Args:
        identifier: USER/NAME.
        files: paths by their names in the repository.
        known: names that files of a run can have; those that are not in `files` are deleted there.
        keeps: given the text of the repository's README.md, whether it is kept.
        private: only its owner sees the repository.
        revision: a branch, created if it does not exist; None: main.

    Raises:
        InputError: huggingface_hub is not installed, there is no token, the hub refuses it or
            cannot be reached, or a repository that should be private is public.
    """
    with _errors(f"{PREFIX}{identifier}"):
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

        api = HfApi()
        url = _make_repository(api, identifier, private)
        if revision is not None:
            api.create_branch(identifier, branch=revision, exist_ok=True)
        present = set(api.list_repo_files(identifier, revision=revision))
        added = dict(files)
        if CARD in present:
            card = Path(api.hf_hub_download(identifier, CARD, revision=revision))
            if keeps(card.read_text("utf-8", errors="replace")):
                added.pop(CARD, None)
        changes: list[Any] = [CommitOperationAdd(each, path) for each, path in added.items()]
        changes += [CommitOperationDelete(each) for each in sorted((present & {*known}) - {*files})]
        api.create_commit(
            identifier, changes, commit_message="A run of transduce", revision=revision
        )
        return url


def _make_repository(api: Any, identifier: str, private: bool) -> str:
    """Create a repository unless it exists; return its URL."""
    from huggingface_hub import get_token

    if get_token() is None:
        raise InputError(
            "publishing needs a token with write access, but there is none; run hf auth login, "
            "or set HF_TOKEN"
        )
    url = str(api.create_repo(identifier, private=private or None, exist_ok=True))
    if private and not api.repo_info(identifier).private:
        raise InputError(
            f"{url} is public already, so --private has no effect; make it private in its "
            "settings, or name another repository"
        )
    return url


@contextmanager
def _errors(name: str) -> Iterator[None]:
    """Turn errors of the hub into InputErrors about this repository."""
    require("huggingface_hub", name, "hub")
    from huggingface_hub import constants, errors

    try:
        yield
    except errors.RevisionNotFoundError as error:
        raise InputError(
            f"{name} has no such revision at {constants.ENDPOINT}; name a branch, a tag or a commit"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise InputError(
            f"{name} must be a repository that you may read, but {constants.ENDPOINT} shows you "
            "none of this name; check the name, or log in by hf auth login"
        ) from error
    except (errors.LocalEntryNotFoundError, errors.IncompleteSnapshotError) as error:
        raise InputError(
            f"{name} is not completely in the cache, and {constants.ENDPOINT} cannot be reached; "
            "try again with a network, and without HF_HUB_OFFLINE"
        ) from error
    except (
        errors.HfHubHTTPError,
        errors.HTTPError,
        errors.OfflineModeIsEnabled,
        RuntimeError,
    ) as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"{name}: {constants.ENDPOINT} refused the request, or cannot be reached: {reason:.300}"
        ) from error
