"""A server of `transduce` commands: it has torch, and every command is a child of it, which begins at once.

    python command_server.py FOLDER     listens at FOLDER/socket, and writes FOLDER/bin/transduce, a program that asks it

Blocks of the manual run as they stand, in bash, with FOLDER/bin first in PATH. Trainings end after two updates.
"""

import importlib
import json
import os
import re
import signal
import socket
import sys
import traceback
from pathlib import Path

CLIENT = """#!{python} -SE
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({socket!r})
    message = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(server, [len(message).to_bytes(4, "big")], [0, 1, 2])
    server.sendall(message)
    sys.exit(int(server.recv(16) or 1))
"""
"""Hands its arguments, folder, environment and files to the server, and has the exit code of the command."""

PYTHON = """#!/bin/sh
case "$1" in
  recipes/*.py) name=$(basename "$1" .py | tr _ -); shift; exec transduce train "$name" "$@" ;;
esac
exec {python} "$@"
"""
"""A recipe is the command that it is installed as."""

SHORT = "--training.max-updates 2 --training.validate-every 1 --device cpu"
FEW = f"{SHORT} --decoding.length-ratio 0 --decoding.length-extra 5 --workers 0"
SMALL = "--model.d-model 32 --model.n-heads 2 --model.d-ff 64 --model.decoder.n-layers 1 --model.max-positions 16"
SMALLER = {
    "translation": FEW.replace(" --workers 0", ""),
    "speech-to-text": FEW,
    "language-model": f"{SHORT} --batch-size 2 --generation.max-length 5",
    "masked-language-model": f"{SHORT} --batch-size 2",
}
"""What every training gets, so that it takes seconds."""
SIZES = {
    "translation": "--vocab-size 340",
    "speech-to-text": "--vocab-size 320",
    "language-model": f"--vocab-size 320 {SMALL}",
}
"""And what one gets that begins from nothing."""


RUNS = {"transcribe": "SPEECH", "generate": "LANGUAGE"}
"""Where RUN stands for another run than a translator."""


def words_of(words: list[str]) -> list[str]:
    """The words of a command, of which a training is a short one, and RUN a run that fits it."""
    if words[:1] in (["transcribe"], ["generate"]):
        return [{"RUN": RUNS[words[0]]}.get(word, word) for word in words]
    if words[:1] == ["train"] and len(words) > 2 and not words[-1].startswith(("--help", "--print-config")):
        more = "" if {"--start-from", "--tokenizer", "--pronunciations"} & {*words} else SIZES.get(words[1], "")
        hold_out = "--hold-out 12" if re.search(r"--hold-out \d", " ".join(words)) else ""
        return [*words, *f"{hold_out} {SMALLER[words[1]]} {more}".split()]
    return words


def answer(client: socket.socket) -> int:
    """Run the command that a client sends, as its own process would."""
    size, files, *_ = socket.recv_fds(client, 4, 3)
    message = b""
    while len(message) < int.from_bytes(size, "big"):
        message += client.recv(65536)
    words, folder, environment = json.loads(message)
    for to, file in enumerate(files):
        os.dup2(file, to)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[:] = ["transduce", *words]
    from transduce.cli.main import main

    return main(words_of(words))


def serve(folder: Path) -> None:
    """Answer until the process is ended."""
    for name in (
        "transduce.cli.score",
        "transduce.experiment",
        "transduce.recipes.translation",
        "torchaudio",
        "matplotlib.pyplot",
    ):
        importlib.import_module(name)
    (folder / "bin").mkdir()
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(folder / "socket"))
    listening.listen(64)
    for name, text in (("transduce", CLIENT), ("python", PYTHON)):
        program = folder / "bin" / name
        program.write_text(text.format(python=sys.executable, socket=str(folder / "socket")))
        program.chmod(0o755)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    while True:
        client, _ = listening.accept()
        if os.fork():
            client.close()
            continue
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        code: object = 1
        try:
            code = answer(client)
        except SystemExit as end:
            code = end.code
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            client.sendall(str(code if isinstance(code, int) else int(code is not None)).encode())
            os._exit(0)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
