"""What a search does in C++, compiled once for the CPU that it runs on: see kernels.cpp.

PyTorch takes microseconds to call an operator, and a step of a search has a hundred: for a few rows
longer than their work. Where no compiler is found, or TRANSDUCE_KERNELS=0 says so, PyTorch's own
operators do the same.
"""

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

logger = logging.getLogger("transduce")

SOURCE = Path(__file__).with_suffix(".cpp")
FLAGS = (
    "-O3",
    "-march=native",
    "-std=c++17",
    "-shared",
    "-fPIC",
    "-fopenmp",
    "-ffp-contract=fast",
    "-fno-math-errno",
)

OUT_OF_MEMORY = -1
"""As in kernels.cpp."""


def library() -> ctypes.CDLL | None:
    """The compiled kernels; None where they cannot be had, which is said once, or are not
    wanted."""
    return None if os.environ.get("TRANSDUCE_KERNELS") == "0" else loaded()


@cache
def loaded() -> ctypes.CDLL | None:
    """The kernels, compiled if need be.

    They are for Linux on x86-64: there they have been measured, and PyTorch has libraries of
    Apple's and Arm's elsewhere.
    """
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return None
    compiler = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("c++")
    if compiler is None:
        logger.info(
            "no C++ compiler, so PyTorch's operators decode; with g++ a search is up to several "
            "times as fast"
        )
        return None
    try:
        return _declared(ctypes.CDLL(str(_compiled(compiler))))
    except (
        OSError,
        RuntimeError,
        subprocess.SubprocessError,
    ) as error:  # RuntimeError: a user without a home
        told = getattr(error, "stderr", None) or str(error)
        logger.warning(
            "the C++ kernels cannot be compiled, so PyTorch's operators decode:\n%s", told[-2000:]
        )
        return None


def _compiled(compiler: str) -> Path:
    """The shared library for this source, compiler and CPU, from the user's cache, or made now."""
    version = subprocess.run(
        [compiler, "--version"], capture_output=True, text=True, check=True
    ).stdout
    key = "\n".join([SOURCE.read_text(), version, *FLAGS, _cpu()])
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "transduce"
    path = folder / f"kernels-{hashlib.sha256(key.encode()).hexdigest()[:16]}.so"
    if path.exists():
        return path
    logger.info("compiling %s for this CPU, once: %s", SOURCE.name, path)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        dir=folder
    ) as scratch:  # whoever compiles at the same time gets the same
        made = Path(scratch) / path.name
        command = [compiler, *FLAGS, str(SOURCE), "-o", str(made)]
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
        made.replace(path)
    return path


def _cpu() -> str:
    """What CPU this is: a home may be shared by machines, and code of one is none of another."""
    lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags"))}))


def required() -> ctypes.CDLL:
    """The compiled kernels, which are there."""
    found = loaded()
    assert found is not None
    return found


def _declared(found: ctypes.CDLL) -> ctypes.CDLL:
    size, flag, pointer = ctypes.c_int64, ctypes.c_int32, ctypes.c_void_p
    arguments = {
        "linear_map": [pointer, pointer, size, pointer, flag],
        "decoder_states": [
            pointer,
            pointer,
            pointer,
            pointer,
            pointer,
            pointer,
            pointer,
            size,
            flag,
        ],
        "encoder_states": [pointer, pointer, size, size, pointer, pointer, flag],
        "project_memory": [pointer, pointer, size, pointer, flag],
        "grow": [pointer, *[size] * 5, ctypes.c_float],
        "log_sum_exp": [pointer, size, size, pointer, flag],
        "top_k": [pointer, pointer, size, size, size, size, pointer, pointer, pointer, flag],
    }
    for name, types in arguments.items():
        function = getattr(found, name)
        function.argtypes, function.restype = types, None
        if name in (
            "linear_map",
            "decoder_states",
            "encoder_states",
            "grow",
            "project_memory",
        ):  # these take memory
            function.restype, function.errcheck = flag, _checked
    return found


def _checked(result: int, *_: object) -> int:
    if result == OUT_OF_MEMORY:
        raise MemoryError(
            "the kernels need more memory than there is; take fewer sentences or shorter ones at "
            "once"
        )
    return result
