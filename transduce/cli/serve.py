"""`transduce serve RUN [RUN ...]`: serve runs over HTTP, with the APIs of existing clients.

`transduce watch RUN`: show the training of one run on the server's page.
"""

import errno
import logging
import os
import re
import resource
import signal
import socket
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from transduce.arguments import Group
from transduce.cli.common import Count, Machine, OptionalFile, OwnRun, each_run, to_stderr
from transduce.config import Common, within
from transduce.errors import InputError, logger, require
from transduce.serve import ServeConfig

if TYPE_CHECKING:
    from transduce.serve.http import Languages, Served

LIBRARIES = ("fastapi", "fastapi_offline", "uvicorn", "python_multipart", "prometheus_client")

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
"""Host names that only this machine can reach."""

SPARE_DESCRIPTORS = 64
"""File descriptors that are reserved for other uses than connections."""

MAX_CONNECTIONS = 1000
"""Maximum number of connections, even if more descriptors are allowed."""

LOG_PERIOD = 60.0
"""Seconds in which at most MAX_RECORDS log records are written."""

MAX_RECORDS = 50

KEEP_ALIVE = 75
"""Seconds before an idle connection is closed; clients close theirs earlier, so that no request
meets a connection that is being closed."""


@dataclass(frozen=True, kw_only=True)
class Access:
    """Where the server listens, and who may use it."""

    host: Common[str] = "127.0.0.1"
    """Address to listen at; 0.0.0.0 lets other machines in."""
    port: Common[int] = 8000
    """Port to listen at; 0: any free one."""
    token_file: Common[OptionalFile] = None
    """A file with the token that requests must have."""
    wyoming_port: Count = None
    """Port for clients of the Wyoming protocol, such as Home Assistant; it has no tokens."""
    cors: Annotated[tuple[str, ...], arg(metavar="ORIGIN [ORIGIN ...]")] = ()
    """Origins whose pages may send requests, such as http://localhost:3000; * for all."""

    def token(self) -> str:
        """The token in the file, or "".

        Raises:
            InputError: the token is invalid in a header, or --wyoming-port is given, too.
        """
        if self.token_file is None:
            return ""
        if self.wyoming_port is not None:
            raise InputError(
                "--wyoming-port excludes --token-file, as the protocol has no tokens; leave one "
                "of them out"
            )
        token = self.token_file.read_bytes().decode("ascii", "replace").strip()
        if not re.fullmatch("[!-~]+", token):
            raise InputError(
                f"{self.token_file} must hold a token of ASCII characters without spaces, but it "
                f"{'has other characters' if token else 'is empty'}; write one into it"
            )
        return token


def serve(
    runs: Positional[
        Annotated[tuple[Path, ...], arg(metavar="RUN [RUN ...]", help_behavior_hint="(required)")]
    ],
    *,
    languages: Annotated[
        tuple[str, ...], arg(metavar="EN-DE [EN-DE ...]", help_behavior_hint="")
    ] = (),
    beam_size: Count = None,
    access: Group[Access],
    limits: Group[ServeConfig],
    machine: Group[Machine],
) -> None:
    """Serve runs over HTTP, as OpenAI, LibreTranslate and whisper.cpp do, until Ctrl-C.

    Args:
        runs: Run directories; clients choose a run by the name of its directory.
        languages: Language pairs, one for each translation run in order, needed if a configuration
            does not name them; for a multilingual model, pairs separated by commas.
        beam_size: Beam size of all searches; by default each run's own.
    """
    require_server("a server")
    if not runs:
        raise InputError("a server needs a run, but none is named; say transduce serve RUN")
    host, wyoming_port = access.host, access.wyoming_port
    within("[0, 65535]", port=access.port, wyoming_port=wyoming_port)
    token = access.token()
    if wyoming_port is not None:
        require("wyoming", "--wyoming-port", "wyoming")
    from transduce.serve.app import create_app

    with ExitStack() as stack:
        listening = stack.enter_context(listening_on(host, access.port))
        wyoming = None
        if wyoming_port is not None:
            wyoming = stack.enter_context(listening_on(host, wyoming_port, "--wyoming-port"))
        served = load_served(runs, languages, beam_size, limits, machine)
        hosts = () if token or host not in (*LOOPBACK, "::1") else LOOPBACK
        if not (token or hosts):
            logger.warning(
                "anyone who can reach %s may send requests, as there is no --token-file", host
            )
        app = create_app(
            served, limits, token=token, cors=access.cors, hosts=hosts, wyoming=wyoming
        )
        run_server(app, listening, limits, ", ".join(each.name for each in served))


def require_server(feature: str) -> None:
    """Raise InputError unless the libraries of a server are installed, which a feature needs."""
    for library in LIBRARIES:
        require(library, feature, "serve")


def watch(run: OwnRun, *, port: int = 8080) -> None:
    """Show the training of a run, as it goes on, in a browser on this machine, until Ctrl-C.

    Args:
        port: Port of 127.0.0.1 to listen at; 0: any free one.
    """
    require_server("this page")
    within("[0, 65535]", port=port)
    from transduce.run import load_run
    from transduce.serve.app import create_app

    load_run(run)
    with listening_on(LOOPBACK[1], port) as listening:
        app = create_app((), records={run.resolve().name: run}, hosts=LOOPBACK)
        run_server(app, listening, ServeConfig(), str(run))


def listening_on(host: str, port: int, option: str = "--port") -> socket.socket:
    """Open a socket that listens at an address and port.

    Args:
        option: the flag that names the port.

    Raises:
        InputError: that is not possible.
    """
    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
        )
    except OSError as error:
        elsewhere = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
        way_out = (
            "name an address of this machine" if elsewhere else f"{option} 0 takes a free port"
        )
        reason = str(error.strerror).split(" (while")[0]
        raise InputError(f"cannot listen on {host}, port {port} ({reason}); {way_out}") from error


def run_server(app: Any, listening: socket.socket, limits: ServeConfig, names: str) -> None:
    """Serve an application until Ctrl-C, SIGTERM or SIGHUP; accepted requests are answered, unless
    Ctrl-C comes twice.

    Args:
        names: names of the runs, for a line on standard error.
    """
    import uvicorn

    from transduce.serve.connection import Connection

    host, port = listening.getsockname()[:2]
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    to_stderr(f"{names} at {address}, described at {address}/docs; Ctrl-C ends")
    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE,
        limit_concurrency=connection_limit(),
        timeout_graceful_shutdown=int(limits.deadline) + 5,
    )
    with ExitStack() as stack:
        for handler in logging.getLogger().handlers:
            rate = LogRate()
            handler.addFilter(rate)
            stack.callback(handler.removeFilter, rate)
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup ignores it
            signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))
        server = uvicorn.Server(config)
        try:
            server.run(sockets=[listening])
        finally:
            if server.force_exit:  # Ctrl-C twice; Python would abort while a model computes
                to_stderr("stopped")
                os._exit(130)


def connection_limit() -> int:
    """Raise the limit of file descriptors as far as needed; return how many connections it
    allows."""
    # without a limit, macOS gives a large number; Linux always has a limit, fs.nr_open
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS + SPARE_DESCRIPTORS
    if soft < wanted:
        soft = min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(SPARE_DESCRIPTORS, min(MAX_CONNECTIONS, soft - SPARE_DESCRIPTORS))


class LogRate(logging.Filter):
    """Lets at most MAX_RECORDS pass in a period, and counts those that are left out."""

    def __init__(self) -> None:
        super().__init__()
        self.began = monotonic()
        self.n_records = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is written."""
        if monotonic() > self.began + LOG_PERIOD:
            n_held = self.n_records - MAX_RECORDS
            self.began = monotonic()
            self.n_records = 0
            if n_held > 0:
                record.msg = f"{record.getMessage()} ({n_held} messages before it were left out)"
                record.args = ()
        self.n_records += 1
        return self.n_records <= MAX_RECORDS


def load_served(
    runs: tuple[Path, ...],
    languages: tuple[str, ...],
    beam_size: int | None,
    limits: ServeConfig,
    machine: Machine,
) -> "list[Served]":
    """Load the runs for serving.

    Raises:
        InputError: a run cannot be served, or names or languages are wrong.
    """
    from transduce.run import load_run
    from transduce.serve.app import serve_run
    from transduce.serve.translation import languages_of
    from transduce.tasks.transcribe import Transcriber
    from transduce.tasks.translate import Translator

    served: list[Served] = []
    codes = list(languages)
    for run in runs:
        directories = each_run(run)
        name = ",".join(os.path.basename(os.path.realpath(each)) for each in directories)
        if name in [each.name for each in served]:
            raise InputError(
                f"clients choose runs by their names, but two are called {name}; rename one "
                "directory"
            )
        task = machine.load(object, run)
        contents = load_run(directories[0])
        if weight := getattr(getattr(task, "decoding", None), "lm_weight", 0.0):
            raise InputError(
                f"a server cannot add a language model to a run, but {run} has "
                f"lm_weight={weight}; set it to 0 in {directories[0]}/config.json"
            )
        if beam_size is not None and isinstance(task, Translator | Transcriber):
            task.decoding = task.decoding.changed(beam_size=beam_size)
        pairs: tuple[Languages, ...] = ()
        if isinstance(task, Translator):
            pairs = languages_of(contents.experiment, codes.pop(0) if codes else "")
        served.append(serve_run(name, task, limits, pairs, contents.directory))
    if codes:
        raise InputError(
            f"--languages are for translation runs, one for each, but {', '.join(codes)} are too "
            "many; leave them out"
        )
    return served
