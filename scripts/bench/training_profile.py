"""Profile an update of a recipe: PyTorch's operators by self time.

    python scripts/bench training_profile --updates 3 recipes/translation.py multi30k --run /tmp/run

After some warm-up updates, prints the time of an update, the share outside of operators (Python and
waiting), and the share and calls of each operator.
"""

import argparse
import runpy
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from transduce.train.trainer import Trainer

update = Trainer._update


def main() -> None:
    """Run the recipe until enough updates are profiled."""
    parser = argparse.ArgumentParser(
        prog="python scripts/bench training_profile",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--updates", type=int, default=3)
    parser.add_argument("--warm-up", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, default=14)
    parser.add_argument("recipe", help="its file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="those of the recipe")
    x = parser.parse_args(sys.argv[2:])
    torch.set_num_threads(x.threads)
    profiler = profile(activities=[ProfilerActivity.CPU])
    done = 0
    seconds = 0.0

    def profiled(self: Trainer, group: Sequence[Any], stop: bool = False, *, idle: int = 0) -> None:
        nonlocal done, seconds
        if done == x.warm_up:
            profiler.start()
        start = time.perf_counter()
        update(self, group, stop, idle=idle)
        if done >= x.warm_up:
            seconds += time.perf_counter() - start
        done += 1
        if done == x.warm_up + x.updates:
            profiler.stop()
            report(profiler, seconds, x.updates, x.rows)
            sys.exit()

    Trainer._update = profiled  # type: ignore[method-assign, assignment]
    sys.argv = [x.recipe, *x.arguments]
    runpy.run_path(x.recipe, run_name="__main__")


def report(profiler: profile, seconds: float, n_updates: int, n_rows: int) -> None:
    """Print the operators with the largest self time."""
    rows = sorted(profiler.key_averages(), key=lambda row: -row.self_cpu_time_total)
    inside = sum(row.self_cpu_time_total for row in rows) / 1e6
    outside = 1 - inside / seconds
    print(f"{1000 * seconds / n_updates:.0f} ms an update, {outside:.0%} outside of operators")
    for row in rows[:n_rows]:
        share = row.self_cpu_time_total / 1e6 / seconds
        print(f"{share:6.1%}  {row.count / n_updates:6.0f} calls  {row.key}")
