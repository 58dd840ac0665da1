"""Runs on the Hugging Face hub: hub:USER/NAME[@REVISION] read into huggingface_hub's cache, and a run published there."""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partialmethod
from pathlib import Path
from typing import Any

from tqdm import tqdm

from transduce.errors import InputError, require

PREFIX = "hub:"

CARD = "README.md"
"""What the hub shows of a repository."""


def repository(name: Path | str) -> tuple[str, str | None]:
    """USER/NAME and the revision, if one is named, of hub:USER/NAME@REVISION.

    Raises:
        InputError: it is something else.
    """
    found = re.fullmatch(r"(?:hub:)?([\w.-]+/[\w.-]+)(?:@([^@,\s]+))?", str(name))
    if found is None:
        raise InputError(
            f"a run on the hub is named hub:USER/NAME, or hub:USER/NAME@REVISION, but this is {str(name)!r}"
        )
    return found[1], found[2]


def download(name: Path | str, files: Sequence[str]) -> Path:
    """The folder in huggingface_hub's cache with those of `files` that a run has; without a network, as they were last.

    Nothing else is fetched, and nothing that is fetched is run. The folder's name is the commit.

    Args:
        name: hub:USER/NAME, or hub:USER/NAME@REVISION, where the revision is a branch, a tag or a commit.
        files: the first is the configuration, which is read before the weights, as those may be anybody's.

    Raises:
        InputError: huggingface_hub is not installed, there is no such repository or revision, it is no run, or the hub
            cannot be reached and the cache has nothing.
    """
    identifier, revision = repository(name)
    with _errors(str(name)):
        from huggingface_hub import snapshot_download

        first = Path(snapshot_download(identifier, revision=revision, allow_patterns=[files[0]], tqdm_class=_bar(True)))
        try:
            ours = "experiment" in json.loads((first / files[0]).read_bytes())
        except (FileNotFoundError, TypeError, ValueError, RecursionError):
            ours = False
        if not ours:
            raise InputError(
                f"{name} must be a run that transduce publish wrote, but it is not; models of transformers are "
                "downloaded and imported: transduce import HF_DIRECTORY RUN"
            )
        return Path(snapshot_download(identifier, revision=first.name, allow_patterns=[*files], tqdm_class=_bar(None)))


def _bar(disable: bool | None) -> Any:
    """tqdm's progress bar, hidden or, for None, on terminals alone, as a class."""
    return type("Bar", (tqdm,), {"__init__": partialmethod(tqdm.__init__, disable=disable)})


def upload(
    name: str,
    files: Mapping[str, Path],
    *,
    known: Collection[str],
    keeps: Callable[[str], bool],
    private: bool = False,
    revision: str | None = None,
) -> str:
    """Write files into a repository, which is made where there is none, as one commit; its address.

    Args:
        files: by name in the repository.
        known: names that belong to a run: what the repository has of them, and `files` has not, goes.
        keeps: whether the README.md that is there, of this text, stays.
        private: only its owner sees the repository.
        revision: a branch, which is made where there is none; None: main.

    Raises:
        InputError: huggingface_hub is not installed, there is no token, the hub refuses it or cannot be reached, or a
            repository that should be private is public.
    """
    identifier, _ = repository(name)
    with _errors(f"{PREFIX}{identifier}"):
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, get_token

        if get_token() is None:
            raise InputError(
                "publishing takes a token that may write, but there is none; hf auth login keeps one, or set HF_TOKEN"
            )
        api = HfApi()
        url = str(api.create_repo(identifier, private=private or None, exist_ok=True))
        if private and not api.repo_info(identifier).private:
            raise InputError(
                f"{url} is public already, so --private cannot hold; make it private in its settings, or name another"
            )
        if revision is not None:
            api.create_branch(identifier, branch=revision, exist_ok=True)
        there = set(api.list_repo_files(identifier, revision=revision))
        kept = CARD in there and keeps(
            Path(api.hf_hub_download(identifier, CARD, revision=revision)).read_text("utf-8", errors="replace")
        )
        changes: list[Any] = [
            CommitOperationAdd(path_in_repo=each, path_or_fileobj=path)
            for each, path in files.items()
            if each != CARD or not kept
        ]
        changes += [CommitOperationDelete(path_in_repo=each) for each in sorted((there & {*known}) - {*files})]
        api.create_commit(identifier, changes, commit_message="A run of transduce", revision=revision)
        return url


@contextmanager
def _errors(name: str) -> Iterator[None]:
    """Say in a line what goes wrong with this repository, and the way out."""
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
            f"{name} must be a repository that you may read, but {constants.ENDPOINT} has none of this name, or not for "
            "you; check the name, or hf auth login"
        ) from error
    except (errors.LocalEntryNotFoundError, errors.IncompleteSnapshotError) as error:
        raise InputError(
            f"{name} is not in the cache, or not whole, and {constants.ENDPOINT} cannot be reached; try again with a "
            "network, and without HF_HUB_OFFLINE"
        ) from error
    except (errors.HfHubHTTPError, errors.HTTPError, errors.OfflineModeIsEnabled, RuntimeError) as error:
        told = " ".join(str(error).split())
        raise InputError(f"{name}: {constants.ENDPOINT} refuses, or cannot be reached: {told:.300}") from error
