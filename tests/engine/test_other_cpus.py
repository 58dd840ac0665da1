"""The kernels compiled for CPUs with fewer vector instructions than this one, as far as it can run them."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernels import needs_cpp

pytestmark = [needs_cpp, pytest.mark.nightly]

CPUS = {
    "x86-64": "sse2",
    "haswell": "avx2",
    "alderlake": "avx_vnni",
    "skylake-avx512": "avx512bw",
    "cascadelake": "avx512_vnni",
}
"""What -march names, and the flag of CPUs that can run it: no vectors, AVX2 without VNNI and with it, AVX-512 likewise."""

RUN = """
import sys, pytest
from transduce import kernels
kernels.NATIVE = (f"-march={sys.argv[1]}",)
sys.exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", *sys.argv[2:]]))
"""


@pytest.mark.parametrize("cpu", CPUS)
def test_engine_tests_pass_with_fewer_vector_instructions(cpu):
    here = Path(__file__).parent
    flags = Path("/proc/cpuinfo").read_text("utf-8").split()
    if CPUS[cpu] not in flags:
        pytest.skip(f"this CPU has no {CPUS[cpu]}")
    files = [
        here / name
        for name in ("test_kernels.py", "test_cpu.py", "test_greedy.py", "test_beam.py", "test_not_finite.py")
    ]
    command = [sys.executable, "-c", RUN, cpu, "-m", "not nightly and not process and not long", *map(str, files)]
    done = subprocess.run(command, cwd=here.parents[1], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
