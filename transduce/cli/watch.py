"""`transduce watch RUN`: report.html in a browser, as the run is now."""

import sys
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any

from transduce.cli.common import OwnRun, listening_on
from transduce.config import within
from transduce.errors import InputError

HOST = "127.0.0.1"

SECONDS = 5
"""After so many, a browser asks again."""


def watch(run: OwnRun, *, port: int = 8080) -> None:
    """Show a run's report in a browser of this machine, and anew as its training goes on, until
    Ctrl-C.

    Args:
        port: Port of 127.0.0.1 to listen at; 0: any free one.
    """
    within("[0, 65535]", port=port)
    report = Report(run)
    report.page()  # raises now where this is no run
    with (
        listening_on(HOST, port) as listening,
        Server((HOST, port), partial(Handler, report), False) as server,
    ):
        server.socket.close()
        server.socket = listening
        print(
            f"transduce: {run} at http://{HOST}:{listening.getsockname()[1]}; Ctrl-C ends",
            file=sys.stderr,
            flush=True,
        )
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            sys.exit(130)


class Report:
    """The page of a run, made anew where its files have changed."""

    def __init__(self, run: Path) -> None:
        self.run, self.lock = run, Lock()
        self.state: list[tuple[int, int]] = []
        self.last = b""

    def page(self) -> bytes:
        """The page in UTF-8.

        Raises:
            InputError: the directory is no run, or is one no more.
        """
        from transduce.report.page import page
        from transduce.run import METRICS, SAMPLES

        files = [self.run / name for name in (METRICS, SAMPLES, "test.json", "validation.json")]
        with self.lock:
            status = [path.stat() for path in files if path.exists()]
            state = [(each.st_mtime_ns, each.st_size) for each in status]
            if not self.last or state != self.state:
                self.last, self.state = page(self.run).encode("utf-8", "replace"), state
            return self.last


class Server(ThreadingHTTPServer):
    """A thread a request, and no word about browsers that go before they are answered."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing."""


class Handler(BaseHTTPRequestHandler):
    """Answers / with the page; no file is opened by a name in a request."""

    timeout = 30

    def __init__(self, report: Report, *connection: Any) -> None:
        self.report = report
        super().__init__(*connection)  # answers

    def do_GET(self) -> None:
        """Send the page, or what is wrong with the run."""
        if self.path.partition("?")[0] != "/":
            self.send_error(404, "the report is at /")
            return
        try:
            status, kind, body = 200, "html", self.report.page()
        except (InputError, OSError) as error:
            status, kind, body = 503, "plain", f"{error}\n".encode("utf-8", "replace")
        self.send_response(status)
        headers = {"Content-Type": f"text/{kind}; charset=utf-8", "Content-Length": len(body)}
        headers |= {
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Refresh": SECONDS,
        }
        for name, value in headers.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing."""
