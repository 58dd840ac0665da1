"""A process at its limits."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_files() -> Iterator[None]:
    """No file can be opened here, by root neither, whom permissions do not stop."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
