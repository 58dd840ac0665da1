"""What the program says of itself, and of errors."""

import re
import runpy
import sys
from importlib.metadata import version

import pytest

from transduce.cli.main import main


def test_version_equals_that_of_the_package(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"transduce {version('transduce')}\n"


def test_python_m_transduce_runs_the_program(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["transduce", "--version"])
    with pytest.raises(SystemExit, match=r"^0$"):
        runpy.run_module("transduce", run_name="__main__")
    assert capsys.readouterr().out == f"transduce {version('transduce')}\n"


def test_transduce_debug_shows_tracebacks(tmp_path, monkeypatch, capsys):
    words = ["score", "bleu", str(tmp_path / "none"), str(tmp_path / "none")]
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    monkeypatch.setenv("TRANSDUCE_DEBUG", "1")
    assert main(words) == 2
    err = capsys.readouterr().err
    assert err.endswith(f"{line}\n") and re.search(r"Traceback .*\n(.*\n)*.*cli/score\.py", err)
