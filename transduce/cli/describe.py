"""`transduce describe RUN`: what a run directory holds."""

from typing import Annotated

from tyro.conf import arg

from transduce.cli.common import Run

SCREEN = 36
"""Lines that are shown unless all are asked for."""


def describe(run: Run, *, all: Annotated[bool, arg(help_behavior_hint="")] = False) -> None:
    """Tell what a run directory holds: scores first, then model, tokenizers and training, within a screen.

    Args:
        all: Show every field.
    """
    from transduce.checkpoints import checkpoints, weights_path
    from transduce.config import shown
    from transduce.engine.support import by_layers
    from transduce.files import read_weights
    from transduce.report.card import facts, fields_of, scores, shown_first
    from transduce.run import load_run, on_disk

    run = on_disk(run)
    kept = load_run(run)
    weights = weights_path(run)
    tensors = read_weights(weights)
    told = [
        *(f"{label}: {score}" for label, score in scores(run)),
        f"{run}: {sum(t.numel() for t in tensors.values()):,} parameters in {weights.relative_to(run)}",
        *facts(kept),
        f"computed on CPUs: C++, where there is a compiler{by_layers(kept.model)}",
        f"checkpoints: {', '.join(str(int(path.name)) for path in checkpoints(run)) or 'none'}",
    ]
    fields = fields_of(kept)
    first = fields if all else dict(list(shown_first(fields).items())[: SCREEN - len(told) - 1])
    for line in told:
        print(line)
    for name, value in first.items():
        print(f"  {name} = {shown(value)}")
    if left := len(fields) - len(first):
        print(f"and {left} more fields: transduce describe {run} --all")
