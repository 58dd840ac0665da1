"""`transduce serve RUN [RUN ...]`: runs over HTTP, for the clients that there are."""

import logging
import os
import re
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from transduce.cli.common import Count, Machine, OptionalFile, each_run, listening_on
from transduce.config import within
from transduce.errors import InputError, require
from transduce.serve.config import ServeConfig
from transduce.threads import keep_memory

if TYPE_CHECKING:
    from transduce.serve.models import Served

logger = logging.getLogger("transduce")

NEEDED = ("fastapi", "fastapi_offline", "uvicorn", "python_multipart", "prometheus_client")

LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""What this machine alone reaches."""

KEPT = 75
"""Seconds that an idle connection is kept: longer than clients keep theirs, so that none asks while it is being closed."""


def serve(
    runs: Positional[Annotated[tuple[Path, ...], arg(metavar="RUN [RUN ...]", help_behavior_hint="(required)")]],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    languages: Annotated[tuple[str, ...], arg(metavar="EN-DE [EN-DE ...]", help_behavior_hint="")] = (),
    beam_size: Count = None,
    token_file: OptionalFile = None,
    wyoming_port: Count = None,
    cors: Annotated[tuple[str, ...], arg(metavar="ORIGIN [ORIGIN ...]", help_behavior_hint="")] = (),
    limits: ServeConfig,
    machine: Machine,
) -> None:
    """Answer requests over HTTP, as OpenAI, LibreTranslate and whisper.cpp's server do, until Ctrl-C or SIGTERM.

    Args:
        runs: Run directories; clients ask for them by the names of these directories.
        host: Address to listen at; 0.0.0.0 lets other machines in.
        port: Port to listen at; 0: any free one.
        languages: Of each run that translates, where it does not know them.
        beam_size: Beam of all searches; the runs' own if not given.
        token_file: A file with the token that requests must show.
        wyoming_port: Port for clients of the Wyoming protocol, such as Home Assistant; it knows no token.
        cors: Origins whose pages may ask, such as http://localhost:3000; * for all.
    """
    for library in NEEDED:
        require(library, "a server", "serve")
    if not runs:
        raise InputError("a server needs a run, but none is named; say transduce serve RUN")
    within("[0, 65535]", port=port, wyoming_port=wyoming_port)
    token = read_token(token_file) if token_file else ""
    import uvicorn

    from transduce.serve.app import create_app
    from transduce.serve.connections import Connection, LogRate, connection_limit

    if wyoming_port is not None:
        require("wyoming", "--wyoming-port", "wyoming")
        if token:
            raise InputError(
                "--wyoming-port goes without --token-file, as the protocol knows no token; leave one of them out"
            )
    with ExitStack() as stack:
        listening = stack.enter_context(listening_on(host, port))
        wyoming = (
            None if wyoming_port is None else stack.enter_context(listening_on(host, wyoming_port, "--wyoming-port"))
        )
        served = load_served(runs, languages, beam_size, limits, machine)
        hosts = () if token or host not in LOOPBACK else LOOPBACK
        if not (token or hosts):
            logger.warning("whoever reaches %s may ask, for there is no --token-file", host)
        app = create_app(served, limits, token=token, cors=cors, hosts=hosts, wyoming=wyoming)
        names = ", ".join(each.name for each in served)
        address = f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"
        print(f"transduce: {names} at {address}, described at {address}/docs; Ctrl-C ends", file=sys.stderr, flush=True)
        how = uvicorn.Config(app, http=Connection, ws="none", log_config=None, log_level="warning", access_log=False)
        how.timeout_keep_alive, how.limit_concurrency = KEPT, connection_limit()
        how.timeout_graceful_shutdown = int(limits.deadline) + 5
        for handler in logging.getLogger().handlers:
            handler.addFilter(LogRate())
        if sys.platform != "win32" and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup ignores it
            signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))
        uvicorn.Server(how).run(sockets=[listening])


def read_token(file: Path) -> str:
    """The token in a file.

    Raises:
        InputError: it is none that a header can hold.
    """
    token = file.read_bytes().decode("ascii", "replace").strip()
    if not token:
        raise InputError(f"{file} must hold a token, but it is empty; write one into it")
    if not re.fullmatch(r"[!-~]+", token):
        raise InputError(
            f"{file} must hold a token of ASCII characters without spaces, but it has others; write such one"
        )
    return token


def load_served(
    runs: tuple[Path, ...], languages: tuple[str, ...], beam_size: int | None, limits: ServeConfig, machine: Machine
) -> "list[Served]":
    """The runs, ready to be served.

    Raises:
        InputError: one of them cannot be, or names or languages are wrong.
    """
    from transduce.device import dtype_of
    from transduce.run import load_run, on_disk
    from transduce.serve.models import Served, languages_of
    from transduce.tasks.load import load
    from transduce.tasks.transcribe import Transcriber
    from transduce.tasks.translate import Translator

    found: list[Served] = []
    given = list(languages)
    for run in runs:
        directories = each_run(run)
        name = ",".join(os.path.basename(os.path.realpath(each)) for each in directories)
        if name in [each.name for each in found]:
            raise InputError(f"runs are asked for by their names, but two are called {name}; rename one directory")
        task = load(directories, machine.device, dtype_of(machine.precision))
        if beam_size is not None and isinstance(task, Translator | Transcriber):
            task.decoding = task.decoding.changed(beam_size=beam_size)
        pair = None
        if isinstance(task, Translator):
            pair = languages_of(load_run(directories[0]).experiment, given.pop(0) if given else "")
        found.append(Served(name, task, limits, pair, on_disk(directories[0])))
    keep_memory()
    if given:
        raise InputError(
            f"--languages are those of runs that translate, but {', '.join(given)} are too many; leave them out"
        )
    return found
