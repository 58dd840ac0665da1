"""Fixtures of every test, and what a test of the default tier may do."""

import gc
import multiprocessing.util
import os
import shutil
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import jaxtyping
import pytest
from filelock import FileLock

if "SHAPES" in os.environ:  # before anything imports the package
    jaxtyping.install_import_hook("transduce", "beartype.beartype")

import torch

from transduce import kernels

kernels.library()  # now, as compiling starts a process

OTHER_TIERS = ("process", "train", "long", "nightly", "data", "gpu")
"""Marks of the tests outside the default tier."""

LIMIT = 3.0
"""CPU seconds that a test of the default tier may take."""

current: list[pytest.Item] = []
"""The test of the default tier that is running, if one is."""


def refuse_process(event: str, _: object = None) -> None:
    """Fail a test of the default tier that starts a process."""
    if current and event in ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "spawn"):
        pytest.fail(f"a test that starts a process needs the mark process, but {current[0].nodeid} has none")


def spawn(*args: object, start: Callable = multiprocessing.util.spawnv_passfds) -> int:
    """Start a process of multiprocessing, which raises no audit event."""
    refuse_process("spawn")
    return start(*args)


sys.addaudithook(refuse_process)
multiprocessing.util.spawnv_passfds = spawn


def pytest_collection_finish() -> None:
    """Spare the garbage collector what the tests' modules and imports are made of; it is a fifth of the time otherwise."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Hold a test of the default tier to its bounds: no process, and a few seconds."""
    if any(item.get_closest_marker(name) for name in OTHER_TIERS):
        return (yield)
    begun = time.process_time()
    current.append(item)
    try:
        result = yield
    finally:
        current.clear()
    seconds = time.process_time() - begun
    if seconds > LIMIT and "SHAPES" not in os.environ and sys.gettrace() is None:
        pytest.fail(
            f"a test of the default tier takes at most {LIMIT:g} s, but {item.nodeid} took {seconds:.1f} s; "
            "make it quicker, or give it one of the marks train, long and nightly"
        )
    return result


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> torch.Generator:
    """A generator seeded by the test's name: the same numbers in every run, others in every test."""
    return torch.Generator().manual_seed(zlib.crc32(request.node.name.encode()))


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], object]], Path]:
    """`once(name, make)` is a folder that `make(folder)` has filled, once for all test processes.

    It is read only; a test that writes into it takes a copy (shutil.copytree).
    """
    base = tmp_path_factory.getbasetemp()
    root = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "once"
    root.mkdir(exist_ok=True)

    def made(name: str, make: Callable[[Path], object]) -> Path:
        folder, done = root / name, root / f"{name}.done"
        with FileLock(root / f"{name}.lock"):
            if not done.exists():
                shutil.rmtree(folder, ignore_errors=True)
                make(folder)
                done.touch()
        return folder

    return made


@pytest.fixture(scope="module")
def browser():
    """A Chromium without a window, whose microphone beeps."""
    sync = pytest.importorskip("playwright.sync_api")
    flags = ["--no-sandbox", "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
    with sync.sync_playwright() as tools:
        path = shutil.which("chromium") or tools.chromium.executable_path
        if not Path(path).exists():
            pytest.skip("no Chromium")
        browser = tools.chromium.launch(executable_path=path, args=flags)
        yield browser
        browser.close()
