"""Standard streams that are closed, or of another locale."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runs import LITTLE, random_run

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
OPTIONS = "--greedy --length-ratio 0 --length-extra 3 --device cpu"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return random_run(tmp_path_factory.mktemp("run"), model=LITTLE)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "in"
    path.write_text("Open the old letter.\nHat meine Schwester den Bericht gelöscht?\n")
    return path


def shell(command, tmp_path, **environment):
    """Bytes of standard output and error, and the exit code."""
    words = command.replace("transduce", f"{sys.executable} -m transduce.cli.main")
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | environment
    done = subprocess.run(["sh", "-c", words], env=env, capture_output=True, cwd=tmp_path, timeout=120)
    return done.stdout, done.stderr.decode(errors="replace"), done.returncode


def test_output_is_utf_8_whatever_the_locale(run, text, tmp_path):
    want, _, code = shell(f"transduce translate {run} {text} --format json {OPTIONS}", tmp_path)
    assert code == 0 and "gelöscht".encode() in want
    for name in ("ascii", "latin-1"):
        assert (
            shell(f"transduce translate {run} {text} --format json {OPTIONS}", tmp_path, PYTHONIOENCODING=name)[0]
            == want
        )


def test_streams_may_be_closed(run, text, tmp_path):
    want, *_ = shell(f"transduce translate {run} {text} {OPTIONS}", tmp_path)
    out, err, code = shell(f"transduce translate {run} {text} {OPTIONS} <&- 2>&-", tmp_path)
    assert (out, err, code) == (want, "", 0)
    out, err, code = shell(f"transduce translate {run} {text} {OPTIONS} --output out <&- >&-", tmp_path)
    assert (err, code) == ("", 0) and (tmp_path / "out").read_bytes() == want
    _, err, code = shell(f"transduce translate {run} {text} {OPTIONS} >&-", tmp_path)
    assert (err.count("\n"), code) == (1, 2) and "standard output is closed" in err
