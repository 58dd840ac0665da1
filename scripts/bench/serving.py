"""Does a server keep its promises at four times what it can do? Its answers are compared with those of the run without it.

    python scripts/bench serving RUN lines.en --requests 2000

The run translates the lines by itself, before and after, which is its capacity; in between it is served, and requests come
at four times that rate, whether answers do or not. The run alone, and then the server, have one core, and the requests
come from the others. Prints statuses, wrong and lost answers, times, memory and throughput.
"""

import argparse
import asyncio
import os
import re
import subprocess
import sys
import time
from collections import Counter
from itertools import cycle, islice
from pathlib import Path

import httpx
import numpy as np

import transduce as td

Answer = tuple[float, int, list[str]]
"""Seconds, status (0: lost) and texts."""


async def ask(client: httpx.AsyncClient, lines: list[str]) -> Answer:
    """One request."""
    began = time.monotonic()
    try:
        answer = await client.post("/translate", json={"q": lines, "source": "en", "target": "de"})
    except httpx.HTTPError as error:
        print(f"lost: {error!r}", file=sys.stderr)
        return time.monotonic() - began, 0, []
    texts = answer.json()["translatedText"] if answer.status_code == 200 else []
    return time.monotonic() - began, answer.status_code, texts


async def load(url: str, requests: list[list[str]], rate: float, pid: int) -> tuple[list[Answer], float, list[int]]:
    """All requests, so many a second: their answers, the seconds from the first to the last, and the server's MiB."""
    began, memory = time.monotonic(), list[int]()
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
    async with httpx.AsyncClient(base_url=url, timeout=None, limits=limits) as client:
        tasks = []
        for i, lines in enumerate(requests):
            await asyncio.sleep(max(0.0, began + i / rate - time.monotonic()))
            tasks.append(asyncio.create_task(ask(client, lines)))
            if i % max(1, len(requests) // 20) == 0:
                memory.append(resident(pid))
        answers = await asyncio.gather(*tasks)
    return answers, time.monotonic() - began, [*memory, resident(pid)]


def resident(pid: int) -> int:
    """MiB of a process (Linux)."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) // 1024


def computing(pid: int) -> float:
    """Seconds that a process has computed (Linux), however many others wanted to."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def offline(translator: td.Translator, lines: list[str]) -> tuple[dict[str, str], float]:
    """Every line with its translation, and lines a second."""
    began = time.monotonic()
    texts = translator(lines)
    return dict(zip(lines, texts, strict=True)), len(lines) / (time.monotonic() - began)


def main() -> None:
    """Read the command line, load the server and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="a run that translates")
    parser.add_argument("file", type=Path, help="lines to translate")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--lines", type=int, default=4, help="of each request")
    parser.add_argument("--times", type=float, default=4.0, help="what comes, by what can be done")
    parser.add_argument("--deadline", type=float, default=60.0, help="of the server, in seconds")
    asked = parser.parse_args()
    translator = td.load_translator(asked.run)
    cores = os.sched_getaffinity(0)
    first = {min(cores)}
    os.sched_setaffinity(0, first)
    lines = list(dict.fromkeys(filter(None, asked.file.read_text("utf-8").splitlines())))
    own = time.process_time()
    right, before = offline(translator, lines)
    own = time.process_time() - own
    command = [sys.executable, "-m", "transduce.cli.main", "serve", asked.run, "--languages", "en-de", "--port", "0"]
    command += ["--deadline", str(asked.deadline)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr
        found = re.search(r"http://\S+:\d+", server.stderr.readline())
        assert found, "the server did not start"
        endless = cycle(lines)
        requests = [list(islice(endless, asked.lines)) for _ in range(asked.requests)]
        os.sched_setaffinity(0, cores - first or cores)
        rate, computed = asked.times * before / asked.lines, computing(server.pid)
        answers, seconds, memory = asyncio.run(load(found[0], requests, rate, server.pid))
        computed = computing(server.pid) - computed
        server.terminate()
        server.stderr.read()
    os.sched_setaffinity(0, first)
    own -= time.process_time()
    _, after = offline(translator, lines)
    own += time.process_time()
    told = Counter(status for _, status, _ in answers)
    accepted = [took for took, status, _ in answers if status == 200]
    texts = [(lines, texts) for lines, (*_, texts) in zip(requests, answers, strict=True) if texts]
    pairs = [pair for lines, found in texts for pair in zip(lines, found, strict=True)]
    wrong = sum(right[line] != text for line, text in pairs)
    rate, alone = len(pairs) / seconds, (before + after) / 2
    print(f"{len(requests)} requests of {asked.lines} lines at {asked.times:g} x {before:.1f} lines/s: {dict(told)}")
    print(f"wrong {wrong} of {len(pairs)} lines, lost {told[0]}")
    print(f"seconds of accepted: median {np.median(accepted):.1f}, p99 {np.percentile(accepted, 99):.1f}")
    told_memory = ", ".join(str(memory[round(part * (len(memory) - 1))]) for part in (0.05, 0.25, 0.5, 0.75, 1.0))
    print(f"MiB of the server after 5, 25, 50, 75 and 100 % of the requests: {told_memory}")
    print(f"lines/s: served {rate:.1f}, alone {before:.1f} before and {after:.1f} after: {rate / alone:.0%}")
    served, alone = len(pairs) / computed, 2 * len(lines) / own
    print(f"lines a second of computing: served {served:.1f}, alone {alone:.1f}: {served / alone:.0%}")


if __name__ == "__main__":
    main()
