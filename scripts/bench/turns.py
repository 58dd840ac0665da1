"""Systems that do the same work in turns, for the benchmarks of generation and decoding."""

import statistics
import time
from collections.abc import Callable, Mapping


def compare(
    title: str,
    systems: Mapping[str, Callable[[], list[list[int]]]],
    *,
    n_tokens: int,
    repeats: int,
    exact: Callable[[str], bool],
) -> dict[str, list[float]]:
    """Print median and range of every system's tokens/s, its ratio to the first, and how often its output is the first's.

    Args:
        title: what every row begins with.
        systems: each to be called `repeats` times, for texts of `n_tokens` tokens.
        exact: of a system's name: must its output be the first's? A hundredth of the texts may differ, as sums in another
            order tip what is all but equal, and random weights make such.

    Returns:
        Tokens/s of every system in every turn.
    """
    rates: dict[str, list[float]] = {name: [] for name in systems}
    outputs: dict[str, list[list[int]]] = {}
    for _ in range(repeats):
        for name, work in systems.items():
            start = time.perf_counter()
            outputs[name] = work()
            rates[name].append(n_tokens * len(outputs[name]) / (time.perf_counter() - start))
    first, *_ = systems
    for name, rate in rates.items():
        same = sum(map(list.__eq__, outputs[name], outputs[first])) / len(outputs[first])
        ratio = statistics.median(rate) / statistics.median(rates[first])
        print(
            f"{title}  {name:24} {statistics.median(rate):9,.1f} tokens/s ({min(rate):,.1f} to {max(rate):,.1f})  "
            f"{ratio:5.2f} x  same output {same:7.2%}",
            flush=True,
        )
        if exact(name) and same < 0.99:
            raise SystemExit(f"{name} must give the output of {first}, but {1 - same:.2%} of the texts differ")
    return rates
