"""--interactive: a line in, its output at once; what goes wrong with one line is no end."""

import io
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import transduce as td
from tests.cli.test_terminal import resize_terminal
from tests.language_runs import language_run
from tests.runs import ENGLISH, random_run
from transduce.cli.common import interact
from transduce.cli.main import main

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return random_run(tmp_path_factory.mktemp("cli") / "run")


@pytest.fixture(scope="module")
def language(tmp_path_factory):
    return language_run(tmp_path_factory.mktemp("cli") / "language")


@pytest.fixture
def stdin(monkeypatch):
    def give(raw: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))

    return give


def test_each_line_is_translated_and_bad_input_does_not_stop(run, stdin, capsys):
    stdin(f"{ENGLISH[0]}\n\n".encode() + b"b\xe4d\n" + ENGLISH[2].encode())
    assert main(["translate", str(run), "--interactive", "--greedy"]) == 0
    want = td.load(run)([ENGLISH[0], "", ENGLISH[2]], beam_size=1)
    out, err = capsys.readouterr()
    assert out == "".join(line + "\n" for line in want)
    assert err == (
        "transduce: text must be UTF-8, but standard input, line 3, byte 2 is 0xe4; "
        "convert the file from its encoding, with iconv -f ENCODING -t utf-8 (latin1, cp1250 or utf-16, for example)\n"
    )


def test_a_line_with_too_many_columns_is_reported_and_skipped(run, stdin, capsys):
    stdin(f"{ENGLISH[0]}\ta\tb\n{ENGLISH[2]}\n".encode())
    assert main(["translate", str(run), "--interactive", "--prefix", "--greedy"]) == 0
    (want,) = td.load(run)([ENGLISH[2]], beam_size=1)
    rule = "line 1 must be INPUT<TAB>PREFIX, but it has 3 columns; remove tabs"
    assert capsys.readouterr() == (f"{want}\n", f"transduce: {rule}\n")


def test_each_prompt_is_sampled_by_its_line_number(language, stdin, capsys):
    stdin("All\nROMEO§\nAll\n".encode())
    assert main(["generate", str(language), "--interactive", "--max-length", "9"]) == 0
    generator = td.load(language)
    texts = [generator.generate(["All"], td.GenerationConfig(max_length=9), first_prompt=i)[0][0].text for i in (0, 2)]
    out, err = capsys.readouterr()
    assert out == "".join(f"All{text}\n" for text in texts) and texts[0] != texts[1]
    assert "but '§' (U+00A7) is not one of them; leave it out" in err and err.count("\n") == 1


def test_ctrl_c_stops_only_the_current_line(stdin, capsys):
    def answer(line: str, number: int) -> None:
        if number == 1:
            raise KeyboardInterrupt
        print(line)

    stdin(b"a\nb\nc\n")
    interact(answer)
    assert capsys.readouterr() == ("a\nc\n", "\nstopped\n")


def test_interactive_refuses_files_outputs_and_prompts(run, language, capsys):
    assert main(["translate", str(run), "a", "--interactive", "--output", "b", "--workers", "2"]) == 2
    assert main(["translate", str(run), "--interactive", "--output", "b", "--part", "1/2"]) == 2
    assert main(["generate", str(language), "--interactive", "--prompt", "a"]) == 2
    rule = "transduce: --interactive asks for its lines and prints to the terminal, so leave out"
    assert capsys.readouterr().err == f"{rule} FILE, --output, --workers\n{rule} --output, --part\n{rule} --prompt\n"


SLOW = """
import signal, sys, time
from transduce.cli.main import main
from transduce.tasks.translate import Translator

whole = Translator.stream

def stream(self, lines, *rest, **options):
    if lines == ["wait"]:
        print("waiting", flush=True)
        time.sleep(60)
    return whole(self, lines, *rest, **options)

Translator.stream = stream
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may ignore Ctrl-C
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.process
@pytest.mark.long
def test_prompt_history_ctrl_c_and_ctrl_d_on_a_terminal(run):
    """The arrow key brings the last line back; Ctrl-C stops an output that takes a minute; Ctrl-D ends with 0.

    Meanwhile, the terminal is made narrow and wide.
    """
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", SLOW, "translate", str(run), "--interactive", "--greedy", "--device", "cpu"]
    environment = {**os.environ, "TERM": "xterm", "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
    )
    os.close(theirs)
    said = ""

    def until(words: str) -> None:
        """Read what is said up to these words."""
        nonlocal said
        stop = time.monotonic() + 60
        while words not in said:
            assert time.monotonic() < stop, said
            if select.select([ours], [], [], 1.0)[0]:
                said += os.read(ours, 4096).decode()
        said = said.split(words, 1)[1]

    def resize(columns: int) -> None:
        resize_terminal(ours, columns)
        process.send_signal(signal.SIGWINCH)

    try:
        until("> ")
        resize(7)
        (want,) = td.load(run)([ENGLISH[0]], beam_size=1)
        os.write(ours, f"{ENGLISH[0]}\r".encode())
        until(want + "\r\n")
        until("> ")
        resize(200)
        os.write(ours, b"\x1b[A\r")
        until(want + "\r\n")
        until("> ")
        os.write(ours, b"wait\r")
        until("waiting")
        resize(20)
        process.send_signal(signal.SIGINT)
        until("stopped")
        until("> ")
        os.write(ours, b"\x04")
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
