"""Run systems that do the same work in turns; measure and print their speed."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Timed(NamedTuple, Generic[T]):
    """The result of a call, and how long it took."""

    result: T
    seconds: float
    cpu_seconds: float
    """Of this process, which other work on the machine changes less."""


def timed(work: Callable[[], T]) -> Timed[T]:
    """Call `work` and measure it."""
    start = time.perf_counter()
    cpu_start = time.process_time()
    result = work()
    return Timed(result, time.perf_counter() - start, time.process_time() - cpu_start)


def take_turns(systems: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """Call every system once in each round; return the results of each by name."""
    results: dict[str, list[T]] = {name: [] for name in systems}
    for _ in range(rounds):
        for name, system in systems.items():
            results[name].append(system())
    return results


def speed(rates: Sequence[float], baseline: Sequence[float], unit: str, decimals: int = 1) -> str:
    """Median and range of some rates, and the ratio of their median to that of the baseline."""
    median, least, most = (
        f"{value:,.{decimals}f}" for value in (statistics.median(rates), min(rates), max(rates))
    )
    ratio = statistics.median(rates) / statistics.median(baseline)
    return f"{median:>9} {unit} ({least} to {most})  {ratio:5.2f} x"


def compare(
    title: str,
    systems: Mapping[str, Callable[[], list[list[int]]]],
    *,
    n_tokens: int,
    repeats: int,
    exact: str | None = None,
) -> dict[str, list[float]]:
    """Print the tokens/s of every system, and how often its output is that of the first one.

    Args:
        title: what every row begins with.
        systems: by name; each gives texts of `n_tokens` tokens and is called `repeats` times.
        exact: the name of the system whose output must be that of the first one. A hundredth of
            the texts may differ, because rounding decides between tokens of nearly equal
            probability, which random weights have.

    Returns:
        Tokens/s of every system in every turn.
    """
    turns = take_turns({name: partial(timed, work) for name, work in systems.items()}, repeats)
    rates = {
        name: [n_tokens * len(turn.result) / turn.seconds for turn in runs]
        for name, runs in turns.items()
    }
    first, *_ = systems
    expected = turns[first][-1].result
    for name, runs in turns.items():
        same = sum(map(list.__eq__, runs[-1].result, expected)) / len(expected)
        row = speed(rates[name], rates[first], "tokens/s")
        print(f"{title}  {name:24} {row}  same output {same:7.2%}", flush=True)
        if name == exact and same < 0.99:
            raise SystemExit(
                f"{name} must give the output of {first}, but {1 - same:.2%} of the texts differ"
            )
    return rates
