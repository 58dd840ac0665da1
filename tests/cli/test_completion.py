"""The Tab key in a bash of its own: commands, flags, files."""

import os
import pty
import select
import subprocess
import sys
from pathlib import Path

import pytest

from transduce.cli.main import COMMANDS, main

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script(tmp_path, capsys):
    assert main(["completion", "bash"]) == 0
    (tmp_path / "completion").write_text(capsys.readouterr().out)
    return tmp_path / "completion"


def completed(script: Path, *words: str) -> list[str]:
    """What may stand for the last of these words."""
    line = " ".join(f"'{word}'" for word in ("transduce", *words))
    told = (
        f'transduce() {{ "{sys.executable}" -m transduce.cli.main "$@"; }}; source "{script}"; COMP_WORDS=({line}); '
        f'COMP_CWORD={len(words)}; _transduce transduce; printf "%s\\n" "${{COMPREPLY[@]}}"'
    )
    done = subprocess.run(["bash", "--norc", "-c", told], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not done.stderr
    return done.stdout.split()


@pytest.mark.process
def test_every_command_is_completed(script):
    assert completed(script, "") == list(dict.fromkeys(name.split()[0] for name in COMMANDS))
    for group in ("score", "train"):
        assert completed(script, group, "") == [name.split()[1] for name in COMMANDS if name.startswith(f"{group} ")]
    assert completed(script, "tran") == ["translate", "transcribe"]
    assert completed(script, "score", "c") == ["chrf", "cer", "comet"]
    assert completed(script, "describe", "ru") == []  # a file, by bash itself


def test_it_is_for_bash_and_zsh(capsys):
    assert main(["completion", "zsh"]) == 0
    loaded, _, rest = capsys.readouterr().out.partition("\n")
    assert main(["completion", "bash"]) == 0
    assert "bashcompinit" in loaded and rest == capsys.readouterr().out
    assert main(["completion", "fish"]) == 2
    assert "'fish'" in capsys.readouterr().err


@pytest.mark.process
def test_flags_are_those_that_help_shows(script):
    """--help-all of translate, and --help of score wer, which has no other."""
    assert completed(script, "score", "wer", "--re") == ["--resamples", "--report"]
    assert {"--coverage-penalty", "--require"} <= set(completed(script, "translate", "RUN", "--"))


@pytest.mark.process
def test_the_tab_key_writes_the_rest_of_a_command(script):
    ours, theirs = pty.openpty()
    words = ["bash", "--norc", "--noprofile", "-i"]
    env = {**os.environ, "TERM": "dumb", "PS1": "$ "}
    with subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True) as shell:
        os.close(theirs)
        os.write(ours, f"source {script}\ntransduce shor\t| cat; exit\n".encode())
        said = b""
        while select.select([ours], [], [], 10)[0]:
            try:
                said += os.read(ours, 4096)
            except OSError:  # it has ended
                break
        shell.kill()
    os.close(ours)
    assert b"transduce shortlist | cat" in said
