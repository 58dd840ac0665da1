"""What the program says of itself, and of errors."""

import re
import runpy
import sys
from importlib.metadata import version

import pytest

from transduce.cli.main import main


def test_its_version_is_that_of_the_package(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"transduce {version('transduce')}\n"


def test_the_package_is_the_program_too(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["transduce", "--version"])
    with pytest.raises(SystemExit, match=r"^0$"):
        runpy.run_module("transduce", run_name="__main__")
    assert capsys.readouterr().out == f"transduce {version('transduce')}\n"


def test_where_an_error_comes_from_is_shown_on_request(tmp_path, monkeypatch, capsys):
    words = ["score", "bleu", str(tmp_path / "none"), str(tmp_path / "none")]
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    monkeypatch.setenv("TRANSDUCE_DEBUG", "1")
    assert main(words) == 2
    err = capsys.readouterr().err
    assert err.endswith(f"{line}\n") and re.search(r"Traceback .*\n(.*\n)*.*cli/score\.py", err)
