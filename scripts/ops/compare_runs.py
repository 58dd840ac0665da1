"""Validation losses of two runs of one recipe, say in bf16 and fp32, or compiled and not: how far are they apart?

python scripts/ops/compare_runs.py RUN OTHER --within 0.005
"""

import argparse
import sys
from pathlib import Path

from transduce.errors import InputError
from transduce.files import read_json_lines


def losses(run: Path) -> dict[int, float]:
    """By update.

    Raises:
        InputError: the run has not been validated.
    """
    path = run / "metrics.jsonl"
    losses_by_update = {line["update"]: line["loss"] for line in read_json_lines(path) if line["kind"] == "valid"}
    if not losses_by_update:
        raise InputError(f"a run to compare must have been validated, but {path} has no such line; train it first")
    return losses_by_update


def main() -> int:
    """Return 0 if the last losses of both are close, else 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("other", type=Path)
    parser.add_argument("--within", type=float, default=0.005, help="share of the loss (default: 0.005)")
    x = parser.parse_args()
    one, other = losses(x.run), losses(x.other)
    both = sorted(one.keys() & other.keys())
    if not both:
        raise InputError(f"both runs must have been validated at one update, but they were at {[*one]} and {[*other]}")
    for update in both:
        apart = abs(one[update] - other[update]) / other[update]
        print(
            f"compared  update {update}: {x.run.name} {one[update]:.4f}, {x.other.name} {other[update]:.4f}, {apart:.3%}"
        )
    return int(apart > x.within)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (InputError, OSError) as error:
        sys.exit(f"transduce: {error}")
