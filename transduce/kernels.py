"""The compiled kernels of kernels.cpp: finding or compiling the library, and calling it.

PyTorch takes microseconds to call an operator, and a search step has a hundred calls: for a few
rows, that is longer than the computation. A wheel contains libraries for common CPUs; in a clone,
the first search compiles one for its CPU. Without a library and a compiler, or with
TRANSDUCE_KERNELS=0, PyTorch's operators compute the same.
"""

import ctypes
import hashlib
import logging
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

logger = logging.getLogger("transduce")

SOURCE = Path(__file__).with_suffix(".cpp")
FLAGS = (
    "-O3",
    "-std=c++17",
    "-shared",
    "-fPIC",
    "-fopenmp",
    "-ffp-contract=fast",
    "-fno-math-errno",
)
NATIVE = ("-march=native",)
SUPPORTED = sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")

AVX2 = "avx avx2 bmi1 bmi2 f16c fma abm movbe"
AVX512 = f"{AVX2} avx512f avx512bw avx512cd avx512dq avx512vl"
SHIPPED = {
    "avx512-vnni": (("-march=x86-64-v4", "-mavx512vnni"), f"{AVX512} avx512_vnni"),
    "avx512": (("-march=x86-64-v4",), AVX512),
    "avx2-vnni": (("-march=x86-64-v3", "-mavxvnni"), f"{AVX2} avx_vnni"),
    "avx2": (("-march=x86-64-v3",), AVX2),
}
if platform.machine() == "aarch64":
    SHIPPED = {
        "neon-dotprod": (("-march=armv8.2-a+dotprod",), "asimd asimddp"),
        "neon": (("-march=armv8-a",), "asimd"),
    }
"""The libraries of a wheel, the best first: the compiler's flags, and the features that
/proc/cpuinfo lists if a CPU can run the library."""

OUT_OF_MEMORY = -1
"""A kernel's result when it lacks memory, as in kernels.cpp."""


def library() -> ctypes.CDLL | None:
    """The compiled kernels; None if they are switched off or not available, which is logged
    once."""
    return None if os.environ.get("TRANSDUCE_KERNELS") == "0" else loaded()


@cache
def loaded() -> ctypes.CDLL | None:
    """The kernels, from the wheel or compiled here; None if neither is possible.

    They run on Linux on x86-64, where their speed was measured, and on aarch64, where they were
    tested under emulation only.
    """
    shipped, compiler = shipped_library(), find_compiler()
    if not (shipped or compiler):
        logger.info(
            "no C++ kernels: %s; decoding uses PyTorch's operators, up to several times slower",
            origin(),
        )
        return None
    try:
        path = shipped or _compiled(str(compiler))
        logger.info("C++ kernels: %s", path)
        return _declared(ctypes.CDLL(str(path)))
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        # OSError: also a C++ runtime older than the wheel's; RuntimeError: a user without a home
        reason = getattr(error, "stderr", None) or str(error)
        logger.warning(
            "the C++ kernels cannot be used; decoding uses PyTorch's operators:\n%s", reason[-2000:]
        )
        return None


def origin() -> str:
    """Where the kernels come from, or why there are none."""
    if shipped := shipped_library():
        return f"{shipped.name} of the installation"
    if not SUPPORTED:
        return "they are for Linux on x86-64 and aarch64"
    return "compiled at first use" if find_compiler() else "no C++ compiler (g++) was found"


def shipped_library() -> Path | None:
    """The best library of this installation that this CPU can run, if there is one."""
    flags = set(" ".join(re.findall(r"^(?:flags|Features)\s*: (.*)$", _cpuinfo(), re.M)).split())
    for name, (_, needs) in SHIPPED.items():
        path = SOURCE.with_name(f"kernels-{name}.so")
        if path.exists() and flags.issuperset(needs.split()):
            return path
    return None


def find_compiler() -> str | None:
    """The C++ compiler that CXX names, g++ or c++; None if there is none, or on other systems."""
    names = (os.environ.get("CXX", "g++"), "c++") if SUPPORTED else ()
    return next(filter(None, map(shutil.which, names)), None)


def compile_library(compiler: str, cpu: Sequence[str], path: Path) -> None:
    """Compile kernels.cpp with the compiler's flags `cpu`, which choose the CPU."""
    command = [compiler, *FLAGS, *cpu, str(SOURCE), "-o", str(path)]
    subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)


def cache_folder() -> Path:
    """The folder of files that can be made or downloaded again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "transduce"


def _compiled(compiler: str) -> Path:
    """The shared library for this source, compiler and CPU, from the user's cache, or made now."""
    version = subprocess.run(
        [compiler, "--version"], capture_output=True, text=True, check=True
    ).stdout
    # machines may share a home, and code for one CPU may not run on another
    cpu = re.findall(r"^(?:model name|flags|CPU part|Features).*", _cpuinfo(), re.M)
    key = "\n".join([SOURCE.read_text(), version, *FLAGS, *NATIVE, *sorted(set(cpu))])
    folder = cache_folder()
    path = folder / f"kernels-{hashlib.sha256(key.encode()).hexdigest()[:16]}.so"
    if path.exists():
        return path
    logger.info("compiling %s for this CPU, once: %s", SOURCE.name, path)
    folder.mkdir(parents=True, exist_ok=True)
    # another process that compiles at the same time makes the same file
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = Path(scratch) / path.name
        compile_library(compiler, NATIVE, made)
        made.replace(path)
    return path


def _cpuinfo() -> str:
    return Path("/proc/cpuinfo").read_text(errors="replace") if SUPPORTED else ""


def required() -> ctypes.CDLL:
    """The compiled kernels; they must be available."""
    kernels = loaded()
    assert kernels is not None
    return kernels


def compute(name: str, *arguments: Any) -> int:
    """Call a kernel, with as many threads as PyTorch uses in the calling thread."""
    import torch  # setup.py imports this module without torch

    result: int = getattr(required(), name)(*arguments, torch.get_num_threads())
    return result


class Pointer:
    """The type of an argument that is a structure, a contiguous tensor, or None."""

    @staticmethod
    def from_param(value: Any) -> Any:
        """Convert an argument to what ctypes passes."""
        if isinstance(value, ctypes.Structure):
            return ctypes.byref(value)
        return ctypes.c_void_p(None if value is None else value.data_ptr())


def _declared(kernels: ctypes.CDLL) -> ctypes.CDLL:
    size, flag, pointer = ctypes.c_int64, ctypes.c_int32, Pointer
    steps = [*[pointer] * 6, size, flag]
    arguments = {
        "use_threads": [flag],
        "linear_map": [pointer, pointer, size, pointer, flag],
        "decoder_states": steps,
        "greedy_steps": steps,
        "beam_steps": steps,
        "encoder_states": [pointer, pointer, size, size, pointer, pointer, flag],
        "project_memory": [pointer, pointer, size, pointer, flag],
        "log_sum_exp": [pointer, size, size, pointer, flag],
        "top_k": [pointer, pointer, size, size, size, size, pointer, pointer, pointer, flag],
    }
    for name, types in arguments.items():
        function = getattr(kernels, name)
        function.argtypes, function.restype, function.errcheck = types, flag, _checked
    return kernels


def _checked(result: int, *_: object) -> int:
    if result == OUT_OF_MEMORY:
        raise MemoryError(
            "the kernels need more memory than there is; decode fewer or shorter sentences at once"
        )
    return result
