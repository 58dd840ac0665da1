"""An output replaces no input, no work of others, and is whole or not there."""

import fcntl
import io
import os
import sys

import pytest

from tests.language_runs import language_run
from tests.runs import ENGLISH, LITTLE, random_run
from transduce.cli import jobs
from transduce.cli.main import main

LINES = ENGLISH[:6]
TEXT = "".join(line + "\n" for line in LINES)
OPTIONS = ["--greedy", "--length-ratio", "0", "--length-extra", "3", "--device", "cpu"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return random_run(tmp_path_factory.mktemp("run"), model=LITTLE)


@pytest.fixture(scope="module")
def letters(tmp_path_factory):
    return language_run(tmp_path_factory.mktemp("letters"), "bytes")


@pytest.fixture
def standard_input(monkeypatch, tmp_path):
    """Standard input is a file, as behind <."""
    path = tmp_path / "in.en"
    path.write_text(TEXT)
    with path.open("rb") as file:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(file))
        yield path


def call(*words):
    return main([str(word) for word in words])


@pytest.fixture
def refused(capsys):
    """Give a command; what it says where it is refused."""

    def message(*words):
        capsys.readouterr()
        assert call(*words) == 2
        return capsys.readouterr().err

    return message


@pytest.fixture
def chunks_of_two(monkeypatch):
    monkeypatch.setattr("transduce.cli.translate.Translation.CHUNK", 2)


def test_translation_of_standard_input_resumes_after_a_stop(
    run, tmp_path, standard_input, chunks_of_two, monkeypatch, capsys
):
    out, inside, begun = tmp_path / "out", jobs.Rows, []
    out.write_text("of before\n")

    def rows(*arguments):
        begun.append(1)
        if len(begun) == 3:
            raise KeyboardInterrupt
        return inside(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr("transduce.cli.translate.Rows", rows)
        assert call("translate", run, "--output", out, "--workers", 1, *OPTIONS) == 130
    assert out.read_text() == "of before\n"
    sys.stdin.buffer.seek(0)
    capsys.readouterr()
    assert call("translate", run, "--output", out, "--workers", 1, *OPTIONS) == 0
    assert "4 of 6 inputs are done" in capsys.readouterr().err
    assert call("translate", run, standard_input, *OPTIONS) == 0
    assert out.read_text() == capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.en", "out"]


def test_an_output_that_is_an_input_is_refused(run, letters, tmp_path, standard_input, refused):
    (tmp_path / "link").symlink_to(standard_input)
    os.link(standard_input, tmp_path / "hard")
    for output in (standard_input, tmp_path / "link", tmp_path / "hard"):
        for command in (
            ["translate", run],
            ["translate", run, standard_input],
            ["generate", letters, standard_input, "--max-length", 2],
            ["score", "likelihood", letters, standard_input],
        ):
            assert "must not replace what is read" in refused(*command, "--output", output)
    assert standard_input.read_text() == TEXT


def test_an_output_listed_in_a_table_of_inputs_is_refused(run, tmp_path, refused):
    """Before the run is read."""
    sound = tmp_path / "a.wav"
    sound.write_text("a recording")
    (tmp_path / "list").write_text(f"{sound}\tred\n")
    message = refused("transcribe", run, tmp_path / "list", "--prefix", "--output", sound)
    assert "must not replace what is read" in message and sound.read_text() == "a recording"


@pytest.mark.parametrize("option", ["--forbid", "--glossary"])
def test_an_output_that_is_a_phrase_or_glossary_file_is_refused(
    run, letters, tmp_path, standard_input, refused, option
):
    terms = tmp_path / "terms"
    terms.write_text("Brief\n")
    commands = [["translate", run, standard_input]]
    if option == "--forbid":
        commands.append(["generate", letters, standard_input, "--max-length", 2])
    for command in commands:
        read = refused(*command, option, terms, "--output", terms)
        assert "must not replace what is read" in read
    assert terms.read_text() == "Brief\n"


def test_an_output_that_is_a_file_of_the_run_is_refused(run, standard_input, refused):
    before = (run / "config.json").read_bytes()
    assert "must not replace what is read" in refused("translate", run, standard_input, "--output", run / "config.json")
    assert (run / "config.json").read_bytes() == before


def test_unknown_files_links_and_folders_are_not_overwritten(run, tmp_path, standard_input, chunks_of_two, refused):
    out, path, thesis = tmp_path / "out", tmp_path / "out.unfinished", tmp_path / "thesis.txt"
    for place in (path, thesis):
        place.write_text("years of work")
        assert "out.unfinished must be as this command left it" in refused("translate", run, "--output", out, *OPTIONS)
        assert path.read_text() == "years of work"
        path.unlink()
        path.symlink_to(thesis)
    thesis.unlink()  # a link to nothing, too
    assert "out.unfinished must be" in refused("translate", run, "--output", out, *OPTIONS)
    assert not thesis.exists()
    path.unlink()
    path.mkdir()
    assert "directory" in refused("translate", run, "--output", out, *OPTIONS)


def test_an_output_replaces_a_dangling_link(run, tmp_path, standard_input, capsys):
    out, other = tmp_path / "out", tmp_path / "other"
    out.symlink_to(other)
    other.symlink_to(out)
    assert call("translate", run, "--output", out, *OPTIONS) == 0
    written = out.read_text()
    capsys.readouterr()
    assert call("translate", run, standard_input, *OPTIONS) == 0
    assert written == capsys.readouterr().out


def test_a_second_process_for_the_same_output_is_refused(run, tmp_path, standard_input, refused):
    with (tmp_path / "out.unfinished").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert "one process at a time" in refused("translate", run, "--output", tmp_path / "out", *OPTIONS)
    assert not (tmp_path / "out").exists()


def test_generation_resumes_after_a_stop(letters, tmp_path, monkeypatch, capsys):
    out, begun, inside = tmp_path / "out", [], jobs.Rows
    (tmp_path / "in").write_text("ROMEO\nSpeak\nAy\n")
    command = ["generate", letters, tmp_path / "in", "--max-length", 3, "--n", 2, "--device", "cpu"]
    assert call(*command) == 0
    want = capsys.readouterr().out
    assert want.count("-" * 20 + "\n") == 5
    monkeypatch.setattr("transduce.cli.generate.Generation.CHUNK", 1)

    def rows(*arguments):
        begun.append(1)
        if len(begun) == 3:
            raise KeyboardInterrupt
        return inside(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr("transduce.cli.generate.Rows", rows)
        assert call(*command, "--output", out, "--workers", 1) == 130
    assert call(*command, "--output", out, "--workers", 1) == 0
    assert "2 of 3 inputs are done" in capsys.readouterr().err and out.read_text() == want


def test_an_output_without_a_folder_is_refused(run, tmp_path, standard_input, refused):
    assert "folder must exist, but " in refused("translate", run, "--output", tmp_path / "none" / "out", *OPTIONS)


def test_dev_null_may_be_input_and_output(run, monkeypatch):
    """As under cron, where standard input is the device that takes what nobody wants."""
    with open(os.devnull, "rb") as nothing:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(nothing))
        assert call("translate", run, "--output", os.devnull, *OPTIONS) == 0


def test_dev_stdout_is_appended_to_a_file_as_a_shell_does(run, tmp_path, standard_input, monkeypatch):
    (path := tmp_path / "all.txt").write_text("of before\n")
    with path.open("a") as out:
        monkeypatch.setattr(sys, "stdout", out)
        assert call("translate", run, *OPTIONS, "--output", f"/dev/fd/{out.fileno()}") == 0
    assert path.read_text().startswith("of before\n") and len(path.read_text().splitlines()) == 7
    assert {*tmp_path.iterdir()} == {path, standard_input}


def test_standard_output_must_not_be_the_input(run, tmp_path, monkeypatch, capsys):
    """A command would go on reading the lines that it writes, until the disk is full."""
    (path := tmp_path / "lines.txt").write_text(text := f"{LINES[0]}\n")
    with path.open("a") as out:
        monkeypatch.setattr(sys, "stdout", out)
        assert call("translate", run, path) == 2
    assert capsys.readouterr().err == (
        f"transduce: an output must not be added to what is read, but standard output is {path}; name another file\n"
    )
    assert path.read_text() == text
