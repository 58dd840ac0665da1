"""A wheel decodes by its own kernels, on a machine without a compiler."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.kernels import needs_cpp
from tests.runs import ENGLISH, random_run
from transduce.kernels import SHIPPED

pytestmark = [needs_cpp, pytest.mark.long, pytest.mark.process]

ROOT = Path(__file__).parents[2]
DECODE = """
import json, re, sys
from pathlib import Path
from transduce import kernels
if wanted := sys.argv[3:]:
    kernels.SHIPPED = {name: kernels.SHIPPED[name] for name in wanted}
import torch
import transduce as td
translator = td.load(sys.argv[1])
lines = json.loads(sys.argv[2])
maps = Path("/proc/self/maps").read_text()
print(json.dumps({
    "package": td.__file__,
    "engine": translator.engine.name,
    "kernels": sorted(set(re.findall(r"kernels-[^/]*\\\\.so", maps))),
    "openmp": sorted(set(re.findall(r"/\\\\S*(?:libgomp|libiomp|libomp)\\\\S*", maps))),
    "texts": translator(lines, beam_size=3, max_length=12),
    "int8": len(td.load(sys.argv[1], dtype=torch.int8)(lines) if translator.engine.name != "layers" else lines),
}))
""".replace("\\\\", "\\")


def unpacked_wheel(folder, **environment):
    """Where a wheel that is built there is unpacked, as pip does it."""
    shutil.copytree(
        ROOT,
        folder / "clone",
        symlinks=True,
        ignore=shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "runs", "tests", "docs", "*.egg-info"),
    )
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    environment = os.environ | environment
    subprocess.run(command, cwd=folder / "clone", env=environment, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    assert wheel.name.endswith("-py3-none-linux_x86_64.whl")
    ZipFile(wheel).extractall(folder / "site")
    return folder / "site"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return unpacked_wheel(tmp_path_factory.mktemp("wheel"))


def decode(site, run, *libraries, **environment):
    """What a process translates that has this package, and no compiler."""
    (empty := site.parent / "empty").mkdir(exist_ok=True)
    environment = os.environ | {"PYTHONPATH": str(site), "PATH": str(empty), "XDG_CACHE_HOME": str(empty)} | environment
    environment.pop("CXX", None)
    command = [sys.executable, "-c", DECODE, str(run), json.dumps(ENGLISH[:6]), *libraries]
    done = subprocess.run(command, cwd=empty, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return random_run(tmp_path_factory.mktemp("random") / "run")


@pytest.fixture(scope="module")
def layers(site, run):
    """What PyTorch's layers translate."""
    result = decode(site, run, TRANSDUCE_KERNELS="0")
    assert result["engine"] == "layers" and result["kernels"] == []
    return result


FLAGS = set(Path("/proc/cpuinfo").read_text("utf-8").split())
RUNNABLE = [name for name, (_, needs) in SHIPPED.items() if set(needs.split()) <= FLAGS]


@pytest.mark.parametrize("name", [None, *(pytest.param(name, marks=pytest.mark.nightly) for name in RUNNABLE[1:])])
def test_shipped_kernels_translate_like_pytorch(site, run, layers, name):
    done = decode(site, run, *filter(None, [name]))
    assert done["kernels"] == [f"kernels-{name or RUNNABLE[0]}.so"] and done["engine"] == "C++ in float32"
    assert Path(done["package"]).is_relative_to(site)
    assert done["texts"] == layers["texts"] and done["int8"] == 6
    assert done["openmp"] == layers["openmp"]  # PyTorch's, and SentencePiece's own: none of ours


def test_shipped_kernels_are_small(site):
    sizes = [(site / "transduce" / f"kernels-{name}.so").stat().st_size for name in SHIPPED]
    assert max(sizes) < 150_000


OLD = """#!/bin/sh
case "$*" in *-mavxvnni*) echo "unrecognized option -mavxvnni" >&2; exit 1;; esac
exec g++ "$@"
"""


def test_kernels_that_an_old_compiler_cannot_build_are_left_out(tmp_path):
    (tmp_path / "old-g++").write_text(OLD)
    (tmp_path / "old-g++").chmod(0o755)
    site = unpacked_wheel(tmp_path, CXX=str(tmp_path / "old-g++"))
    libraries = {path.name for path in (site / "transduce").glob("kernels-*.so")}
    assert libraries == {f"kernels-{name}.so" for name in SHIPPED if name != "avx2-vnni"}
