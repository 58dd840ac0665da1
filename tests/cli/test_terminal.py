"""On a terminal whose width changes: bars fit it, lines begin at its left edge, and the output is whole."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

import transduce as td
from tests.runs import ENGLISH, random_run, random_speech_run, record

pytestmark = [pytest.mark.process, pytest.mark.long]
ROOT = Path(__file__).parents[2]
SHORT = td.SearchConfig(beam_size=1, length_ratio=0.0, length_extra=3)
OPTIONS = ["--greedy", "--length-ratio", "0", "--length-extra", "3", "--batch-tokens", "8", "--device", "cpu"]
WIDTHS = (20, 0, 200, 7, 30)


def resize_terminal(terminal: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))


def on_terminal(words: Sequence[str], output: Path | None = None) -> tuple[int, str]:
    """The exit code of a command, and what stands on its terminal, whose width changes whenever it writes.

    At last it is the last of WIDTHS.

    Args:
        output: where standard output goes instead of there.
    """
    ours, theirs = pty.openpty()
    resize_terminal(ours, 80)
    (output or Path(os.devnull)).touch()
    with (output or Path(os.devnull)).open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "transduce.cli.main", *words],
            stdin=theirs,
            stdout=file if output else theirs,
            stderr=theirs,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TQDM_MININTERVAL": "0", "COLUMNS": "20"},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # so that it gets SIGWINCH
        )
    os.close(theirs)
    screen, widths, stop = b"", iter(WIDTHS), time.monotonic() + 120
    try:
        while process.poll() is None or select.select([ours], [], [], 0)[0]:
            assert time.monotonic() < stop, screen
            if select.select([ours], [], [], 0.1)[0]:
                try:
                    screen += os.read(ours, 64)
                except OSError:  # it has gone
                    break
                if (width := next(widths, None)) is not None:
                    resize_terminal(ours, width)
        return process.wait(), screen.decode().replace("\r\n", "\n")
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def last_bar(screen: str) -> str:
    return [part for part in re.split(r"[\r\n]", screen) if "%" in part][-1]


def test_translation_is_complete_and_its_progress_bar_fits(tmp_path):
    run, lines = random_run(tmp_path / "run"), [*ENGLISH * 4, "", ENGLISH[0]]
    (tmp_path / "in").write_text("\n".join(lines))
    want = td.load(run)(lines, SHORT)
    words = ["translate", str(run), str(tmp_path / "in"), *OPTIONS]
    code, screen = on_terminal(words, tmp_path / "out")
    assert (code, (tmp_path / "out").read_text().split("\n")) == (0, [*want, ""]), screen
    assert last_bar(screen).startswith("100%") and len(last_bar(screen)) <= WIDTHS[-1]
    code, screen = on_terminal(words)
    assert code == 0 and [line.split("\r")[-1] for line in screen.split("\n")][: len(want)] == want
    assert last_bar(screen).startswith("100%") and len(last_bar(screen)) <= WIDTHS[-1]


def test_transcripts_begin_at_the_left_edge(tmp_path):
    run = random_speech_run(tmp_path / "run")
    record(tmp_path, ["red blue", "green"])
    sounds = [str(path) for path in sorted(tmp_path.glob("*.wav"))]
    want = td.load(run)(sounds, SHORT)
    code, screen = on_terminal(["transcribe", str(run), *sounds, *OPTIONS])
    lines = [line.split("\r")[-1] for line in screen.split("\n")]
    assert code == 0 and [line for line in lines if not line.startswith("transduce: ")][: len(want)] == want


def test_training_completes_and_its_progress_bar_fits(tmp_path):
    (tmp_path / "input.txt").write_text("To be, or not to be: that is the question.\n" * 20)
    words = "train language-model shakespeare_cpu --training.max-updates 40 --training.validate-every 20 --batch-size 2"
    model = "--model.d-model 16 --model.d-ff 32 --model.n-heads 2 --model.max-positions 8 --generation.max-length 3"
    code, screen = on_terminal(
        [*words.split(), *model.split(), "--data", str(tmp_path), "--run", str(tmp_path / "run")], tmp_path / "out"
    )
    assert code == 0 and "Traceback" not in screen
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) >= 2
    assert len(last_bar(screen)) <= WIDTHS[-1]
