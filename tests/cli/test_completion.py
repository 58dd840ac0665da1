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
    with pytest.raises(SystemExit):
        main(["completion", "bash"])
    (tmp_path / "completion").write_text(capsys.readouterr().out)
    return tmp_path / "completion"


def completed(script: Path, *words: str) -> list[str]:
    """What may stand for the last of these words."""
    line = " ".join(f"'{word}'" for word in ("transduce", *words))
    command = (
        f'transduce() {{ "{sys.executable}" -m transduce.cli.main "$@"; }}; source "{script}"; COMP_WORDS=({line}); '
        f'COMP_CWORD={len(words)}; _tyro_transduce transduce; printf "%s\\n" "${{COMPREPLY[@]}}"'
    )
    done = subprocess.run(["bash", "--norc", "-c", command], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not done.stderr
    return done.stdout.split()


@pytest.mark.process
def test_every_command_is_completed(script):
    assert set(completed(script, "")) == {name.split()[0] for name in COMMANDS} | {"-h", "--help"}
    for group in ("score", "train"):
        names = {name.split()[1] for name in COMMANDS if name.startswith(f"{group} ")}
        assert set(completed(script, group, "")) == names | {"-h", "--help"}
    assert set(completed(script, "tran")) == {"translate", "transcribe"}
    assert set(completed(script, "score", "c")) == {"chrf", "cer", "comet"}
    assert completed(script, "describe", "ru") == []  # a file, by bash itself


def test_zsh_and_fish_are_supported_and_other_shells_refused(capsys):
    for shell in ("zsh", "fish"):
        with pytest.raises(SystemExit) as stop:
            main(["completion", shell])
        assert not stop.value.code and "transduce" in capsys.readouterr().out
    assert main(["completion", "tcl"]) == 2
    assert "invalid choice 'tcl' for argument 'shell'" in capsys.readouterr().err


@pytest.mark.process
def test_flags_and_their_values_are_completed(script):
    assert completed(script, "score", "wer", "--re") == ["--resamples", "--report"]
    flags = completed(script, "translate", "RUN", "--")
    assert {"--length-offset", "--require"} <= set(flags) and all(flag.startswith("--") for flag in flags)
    assert set(completed(script, "translate", "RUN", "--format", "")) == {"text", "json", "html", "srt", "vtt"}


@pytest.mark.process
def test_the_tab_key_completes_a_command(script):
    ours, theirs = pty.openpty()
    words = ["bash", "--norc", "--noprofile", "-i"]
    env = {**os.environ, "TERM": "dumb", "PS1": "$ "}
    with subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True) as shell:
        os.close(theirs)
        os.write(ours, f"source {script}\ntransduce publi\t| cat; exit\n".encode())
        said = b""
        while select.select([ours], [], [], 10)[0]:
            try:
                said += os.read(ours, 4096)
            except OSError:  # it has ended
                break
        shell.kill()
    os.close(ours)
    assert b"transduce publish | cat" in said
