"""`transduce average RUN`: the mean of checkpoints as the finished model."""

from transduce.cli.common import Count, OptionalFile, OwnRun
from transduce.errors import InputError

BEFORE = "model.before.safetensors"


def average_checkpoints(
    run: OwnRun, *, last: Count = None, best: Count = None, output: OptionalFile = None
) -> None:
    """Make the mean of checkpoints the run's finished model; the one before becomes
    model.before.safetensors.

    Args:
        last: Average this many newest checkpoints.
        best: Average this many checkpoints with the best validation score.
        output: Write the weights there, and leave the run's finished model alone.
    """
    from transduce.checkpoints import average, validated_checkpoints
    from transduce.files import write_file
    from transduce.run import WEIGHTS, load_run, serialize

    if (last is None) == (best is None):
        raise InputError(
            f"name --last N or --best N, one of them, but {'neither' if last is None else 'both'} "
            "is given"
        )
    count = last or best or 0
    load_run(run)
    there = validated_checkpoints(run)
    chosen = (
        there[-count:] if last is not None else sorted(there, key=lambda each: -each[1])[:count]
    )
    if not 1 <= count <= len(there):
        raise InputError(
            f"an average takes 1 to all checkpoints, but --last or --best is {count}, and {run} "
            f"has {len(there)}"
        )
    target = output or run / WEIGHTS
    replaced = target == run / WEIGHTS and target.is_file()
    if replaced:
        write_file(run / BEFORE, target.read_bytes())
    write_file(target, serialize(average([path / WEIGHTS for path, _ in chosen])))
    print(f"{target}: mean of the updates {', '.join(str(int(path.name)) for path, _ in chosen)}")
    if replaced:
        print(f"the model before is in {run / BEFORE}")
