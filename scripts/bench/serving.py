"""A server beside the command: throughput, times until an answer, and whether every answer is right.

    python scripts/bench serving RUN lines.en --lines 1 4 16 --times 4 0.5

The command translates the lines file to file, which is the capacity; then the run is served, and requests of so many lines come
at random moments (Poisson) at so many times that capacity, whether answers do or not. Command and server have the same cores and
as many threads, and take turns. Prints statuses, wrong and lost answers, times, memory, and the throughput of both: by the clock,
and in lines per second that the process computed, which other work on the machine changes less.
"""

import argparse
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
from collections import Counter
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np


class Answer(NamedTuple):
    """Of a request: status 0 if it was lost."""

    seconds: float
    status: int
    texts: list[str]


class Speed(NamedTuple):
    """Of a command or a server, without its start."""

    clock: float
    """Lines a second."""
    computing: float
    """Lines per second that its processes computed."""


class Client:
    """Connections that stay open, as many as requests are under way; far less work than a general client's."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self, lines: list[str]) -> Answer:
        """One request."""
        body = json.dumps({"q": lines, "source": "en", "target": "de"}).encode()
        head = f"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        began = time.monotonic()
        try:
            reader, writer = self.idle.pop() if self.idle else await asyncio.open_connection("127.0.0.1", self.port)
            writer.write(head.encode() + b"\r\n\r\n" + body)
            answered = (await reader.readuntil(b"\r\n\r\n")).decode()
            size = re.search(r"content-length: (\d+)", answered, re.IGNORECASE)
            assert size
            answer = json.loads(await reader.readexactly(int(size[1])))
        except (OSError, asyncio.IncompleteReadError) as error:
            print(f"lost: {error!r}", file=sys.stderr)
            return Answer(time.monotonic() - began, 0, [])
        if "connection: close" in answered.lower():
            writer.close()
        else:
            self.idle.append((reader, writer))
        return Answer(time.monotonic() - began, int(answered.split()[1]), answer.get("translatedText", []))


async def load(port: int, requests: Sequence[list[str]], rate: float) -> tuple[list[Answer], float]:
    """All requests, so many a second on average: their answers, and the seconds from the first to the last."""
    draw = random.Random(1)
    client = Client(port)
    began = due = time.monotonic()
    tasks = []
    for lines in requests:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        tasks.append(asyncio.create_task(client.ask(lines)))
        due += draw.expovariate(rate)
    answers = await asyncio.gather(*tasks)
    return answers, time.monotonic() - began


def resident(pid: int) -> int:
    """MiB of a process at most (Linux)."""
    peak = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert peak
    return int(peak[1]) // 1024


def computing(pid: int) -> float:
    """Seconds that a process has computed (Linux), however many others wanted to."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def command(run: str, lines: Sequence[str], flags: Sequence[str]) -> tuple[list[str], float, float]:
    """The translations of a file by the command, its seconds by the clock, and those that it computed."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "in"), Path(folder, "out")
        source.write_text("".join(f"{line}\n" for line in lines))
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.monotonic()
        words = ["translate", run, str(source), "--output", str(target), *flags]
        subprocess.run([sys.executable, "-m", "transduce.cli.main", *words], check=True, stderr=subprocess.DEVNULL)
        seconds = time.monotonic() - began
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        computed = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return target.read_text().splitlines(), seconds, computed


def served(
    run: str, flags: Sequence[str], requests: Sequence[list[str]], rate: float
) -> tuple[list[Answer], Speed, int]:
    """The answers of a server of its own, its speed, and its MiB."""
    words = ["serve", run, "--languages", "en-de", "--port", "0", *flags]
    with subprocess.Popen(
        [sys.executable, "-m", "transduce.cli.main", *words], stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stderr
        place = re.search(r"http://\S+:(\d+)", server.stderr.readline())
        assert place, "the server did not start"
        asyncio.run(load(int(place[1]), requests[:8], rate))
        computed = computing(server.pid)
        answers, seconds = asyncio.run(load(int(place[1]), requests, rate))
        computed = computing(server.pid) - computed
        memory = resident(server.pid)
        server.terminate()
        server.stderr.read()
    n_lines = sum(len(answer.texts) for answer in answers)
    return answers, Speed(n_lines / seconds, n_lines / computed), memory


def report(requests: Sequence[list[str]], answers: Sequence[Answer], right: dict[str, str]) -> str:
    """Statuses, wrong answers, and times of those that were accepted."""
    statuses = dict(Counter(answer.status for answer in answers))
    pairs = [
        pair
        for lines, (*_, texts) in zip(requests, answers, strict=True)
        if texts
        for pair in zip(lines, texts, strict=True)
    ]
    wrong = sum(right[line] != text for line, text in pairs)
    times = [1000 * answer.seconds for answer in answers if answer.status == 200] or [np.nan]
    middle, late, latest = np.percentile(times, [50, 95, 99])
    return f"{statuses}, wrong {wrong} of {len(pairs)}; ms until an answer {middle:.0f}, 95 % {late:.0f}, 99 % {latest:.0f}"


def main() -> None:
    """Read the command line, take turns and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="a run that translates")
    parser.add_argument("file", type=Path, help="lines to translate")
    parser.add_argument("--lines", type=int, nargs="+", default=[1, 4, 16], help="of each request")
    parser.add_argument(
        "--times", type=float, nargs="+", default=[4.0, 0.5], help="what comes, by what the command can do"
    )
    parser.add_argument("--total", type=int, default=8000, help="lines of a turn, repeated as often as needed")
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--serve", nargs="+", default=[], help="further flags of the server, without their dashes")
    parser.add_argument("--workers", type=int, default=1, help="of the command")
    x = parser.parse_args()
    lines = list(dict.fromkeys(filter(None, x.file.read_text("utf-8").splitlines())))
    flags = [f"--{word}" if word[0].isalpha() else word for word in x.serve]
    alone: list[Speed] = []
    rates: dict[tuple[int, float], list[Speed]] = {}
    for _ in range(x.turns):
        many = list(islice(cycle(lines), x.total))
        workers = ["--workers", str(x.workers)]
        _, start, start_computed = command(x.run, lines[:1], workers)
        texts, seconds, computed = command(x.run, many, workers)
        right = dict(zip(many, texts, strict=True))
        alone.append(Speed(len(many) / (seconds - start), len(many) / (computed - start_computed)))
        print(f"command: {alone[-1].clock:.0f} lines/s, {alone[-1].computing:.0f} per second of computing", flush=True)
        for n in x.lines:
            for times in x.times:
                endless = cycle(lines)
                requests = [list(islice(endless, n)) for _ in range(x.total // n)]
                answers, speed, memory = served(x.run, flags, requests, times * alone[-1].clock / n)
                rates.setdefault((n, times), []).append(speed)
                print(f"{n} lines a request, {times:g} x: {report(requests, answers, right)}; {memory} MiB", flush=True)
    for (n, times), speeds in rates.items():
        clock, computed = (statistics.median(speed[i] for speed in speeds) for i in range(2))
        shares = [value / statistics.median(each[i] for each in alone) for i, value in enumerate((clock, computed))]
        print(f"{n} lines a request, {times:g} x: {clock:.0f} lines/s, {shares[0]:.0%} of the command's; ", end="")
        print(f"{computed:.0f} per second of computing, {shares[1]:.0%}")


if __name__ == "__main__":
    main()
