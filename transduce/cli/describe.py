"""`transduce describe RUN`: what a run directory holds."""

from transduce.cli.common import Flag, Run

SCREEN = 36
"""Lines that are shown without --all."""


def describe(run: Run, *, all: Flag = False) -> None:
    """Describe a run directory: scores first, then model, tokenizers and training, within a screen.

    Args:
        all: Show every field.
    """
    from transduce.checkpoints import checkpoints, weights_path
    from transduce.config import shown
    from transduce.engine.support import by_layers
    from transduce.files import read_weights
    from transduce.report.card import facts, fields_of, scores, shown_first
    from transduce.run import load_run, on_disk

    directory = on_disk(run)
    contents = load_run(directory)
    weights = weights_path(directory)
    n_parameters = sum(tensor.numel() for tensor in read_weights(weights).values())
    updates = [str(int(path.name)) for path in checkpoints(directory)]
    lines = [
        *(f"{label}: {score}" for label, score in scores(directory)),
        f"{directory}: {n_parameters:,} parameters in {weights.relative_to(directory)}",
        *facts(contents),
        f"computed on CPUs: C++, where there is a compiler{by_layers(contents.model)}",
        f"checkpoints: {', '.join(updates) or 'none'}",
    ]
    fields = fields_of(contents)
    first = fields if all else dict(list(shown_first(fields).items())[: SCREEN - len(lines) - 1])
    lines += [f"  {name} = {shown(value)}" for name, value in first.items()]
    if n_more := len(fields) - len(first):
        lines.append(f"and {n_more} more fields: transduce describe {directory} --all")
    print("\n".join(lines))
