"""Compare the server with the command: throughput, latency, and correctness of every answer.

    python scripts/bench serving RUN lines.en --lines 1 4 16 --times 4 0.5

The command translates the lines from file to file; its speed is the capacity. Then the run is
served, and requests of `--lines` lines arrive at random times (Poisson) at `--times` that capacity,
even while earlier ones wait. Command and server use the same cores and as many threads, and take
turns. Prints statuses, wrong and lost answers, latency, memory, and the throughput of both: in wall
time, and in lines per CPU second of the process, which other work on the machine affects less.
"""

import asyncio
import json
import os
import random
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice, product
from pathlib import Path
from typing import NamedTuple

import numpy as np
from bench.memory import status_kib
from bench.subprocesses import transduce
from tyro.conf import Positional

from transduce.arguments import Group


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of this benchmark."""

    run: Positional[str]
    """A run that translates."""
    file: Positional[Path]
    """Lines to translate."""
    lines: tuple[int, ...] = (1, 4, 16)
    """Lines of each request."""
    times: tuple[float, ...] = (4.0, 0.5)
    """The load, as a multiple of what the command can do."""
    total: int = 8000
    """Lines of a turn, repeated as often as needed."""
    turns: int = 1
    """Turns of command and server."""
    serve: tuple[str, ...] = ()
    """Further flags of the server, without their dashes."""
    workers: int = 1
    """Of the command."""


class Answer(NamedTuple):
    """The answer to a request; status 0 if it was lost."""

    seconds: float
    status: int
    texts: list[str]


class Speed(NamedTuple):
    """Lines per second of a command or a server, without its startup."""

    clock: float
    cpu: float


class Client:
    """Connections that stay open, one for each request at a time; cheaper than general clients."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def translate(self, lines: list[str]) -> Answer:
        """Send one request."""
        body = json.dumps({"q": lines, "source": "en", "target": "de"}).encode()
        head = (
            "POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        start = time.monotonic()
        try:
            if self.idle:
                reader, writer = self.idle.pop()
            else:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            writer.write(head.encode() + body)
            headers = (await reader.readuntil(b"\r\n\r\n")).decode()
            size = re.search(r"content-length: (\d+)", headers, re.IGNORECASE)
            assert size
            answer = json.loads(await reader.readexactly(int(size[1])))
        except (OSError, asyncio.IncompleteReadError) as error:
            print(f"lost: {error!r}", file=sys.stderr)
            return Answer(time.monotonic() - start, 0, [])
        if "connection: close" in headers.lower():
            writer.close()
        else:
            self.idle.append((reader, writer))
        status = int(headers.split()[1])
        return Answer(time.monotonic() - start, status, answer.get("translatedText", []))


async def load(port: int, requests: Sequence[list[str]], rate: float) -> list[Answer]:
    """The answers to all requests, of which `rate` a second are sent on average."""
    rng = random.Random(1)
    client = Client(port)
    due = time.monotonic()
    tasks = []
    for lines in requests:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        tasks.append(asyncio.create_task(client.translate(lines)))
        due += rng.expovariate(rate)
    return await asyncio.gather(*tasks)


def cpu_seconds(pid: int) -> float:
    """CPU time of a process (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run_command(lines: Sequence[str], x: Options) -> tuple[list[str], float, float]:
    """The command's translations of a file, its wall seconds, and its CPU seconds."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "in")
        target = Path(folder, "out")
        source.write_text("".join(f"{line}\n" for line in lines))
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        start = time.monotonic()
        transduce("translate", x.run, source, "--output", target, "--workers", x.workers)
        seconds = time.monotonic() - start
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return target.read_text().splitlines(), seconds, cpu


def run_server(
    requests: Sequence[list[str]], rate: float, x: Options
) -> tuple[list[Answer], Speed, int]:
    """The answers of a new server to requests, its speed, and its peak MiB."""
    command = [sys.executable, "-m", "transduce.cli.main", "serve", x.run, "--port", "0"]
    command += ["--languages", "en-de"]
    command += [f"--{word}" if word[0].isalpha() else word for word in x.serve]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr
        address = re.search(r"http://\S+:(\d+)", server.stderr.readline())
        assert address, "the server did not start"
        port = int(address[1])
        asyncio.run(load(port, requests[:8], rate))  # warm-up
        cpu = cpu_seconds(server.pid)
        start = time.monotonic()
        answers = asyncio.run(load(port, requests, rate))
        seconds = time.monotonic() - start
        cpu = cpu_seconds(server.pid) - cpu
        mebibytes = status_kib("VmHWM", server.pid) // 1024
        server.terminate()
        server.stderr.read()
    n_lines = sum(len(answer.texts) for answer in answers)
    return answers, Speed(n_lines / seconds, n_lines / cpu), mebibytes


def report(
    requests: Sequence[list[str]], answers: Sequence[Answer], expected: dict[str, str]
) -> str:
    """Print statuses, wrong answers, and the latency of accepted requests."""
    statuses = dict(Counter(answer.status for answer in answers))
    pairs = [
        pair
        for lines, answer in zip(requests, answers, strict=True)
        if answer.texts
        for pair in zip(lines, answer.texts, strict=True)
    ]
    n_false = sum(expected[line] != text for line, text in pairs)
    milliseconds = [1000 * answer.seconds for answer in answers if answer.status == 200]
    median, late, latest = np.percentile(milliseconds or [np.nan], [50, 95, 99])
    return (
        f"{statuses}, wrong {n_false} of {len(pairs)}; ms until an answer {median:.0f}, "
        f"95 % {late:.0f}, 99 % {latest:.0f}"
    )


def main(x: Group[Options]) -> None:
    lines = list(dict.fromkeys(filter(None, x.file.read_text("utf-8").splitlines())))
    command_speeds: list[Speed] = []
    server_speeds: dict[tuple[int, float], list[Speed]] = defaultdict(list)
    for _ in range(x.turns):
        many = list(islice(cycle(lines), x.total))
        _, start, start_cpu = run_command(lines[:1], x)
        texts, seconds, cpu = run_command(many, x)
        expected = dict(zip(many, texts, strict=True))
        command = Speed(len(many) / (seconds - start), len(many) / (cpu - start_cpu))
        command_speeds.append(command)
        print(f"command: {command.clock:.0f} lines/s, {command.cpu:.0f} per CPU second", flush=True)
        for n, times in product(x.lines, x.times):
            endless = cycle(lines)
            requests = [list(islice(endless, n)) for _ in range(x.total // n)]
            answers, speed, mebibytes = run_server(requests, times * command.clock / n, x)
            server_speeds[n, times].append(speed)
            row = report(requests, answers, expected)
            print(f"{n} lines a request, {times:g} x: {row}; {mebibytes} MiB", flush=True)
    command_clock, command_cpu = map(statistics.median, zip(*command_speeds, strict=True))
    for (n, times), speeds in server_speeds.items():
        clock, cpu = map(statistics.median, zip(*speeds, strict=True))
        print(
            f"{n} lines a request, {times:g} x: {clock:.0f} lines/s, {clock / command_clock:.0%} "
            f"of the command's; {cpu:.0f} per CPU second, {cpu / command_cpu:.0%}"
        )
