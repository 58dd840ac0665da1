"""`transduce describe RUN`: what a run directory holds."""

import json
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from transduce.cli.common import Run
from transduce.config import flatten, to_dict

SCREEN = 36
"""Lines that are shown unless all are asked for."""

FIRST = ("model.d_model", "model.n_heads", "model.d_ff", "model.encoder.n_layers", "model.decoder.n_layers",
         "model.dropout", "model.positions", "training.max_updates", "training.max_minutes", "training.optim.peak_rate",
         "training.optim.warmup_steps", "training.precision", "training.seed", "tokens_per_batch", "frames_per_batch",
         "validate_by", "decoding.beam_size", "decoding.alpha", "decoding.ctc_weight")  # fmt: skip
"""Fields that are looked at most."""


def describe(run: Positional[Run], *, all: Annotated[bool, arg(help_behavior_hint="")] = False) -> None:
    """Tell what a run directory holds: scores first, then model, tokenizers and training, within a screen.

    Args:
        all: Show every field.
    """
    from transduce.files import read_weights
    from transduce.run import checkpoints, load_run, validations, weights_path

    kept = load_run(run)
    weights = weights_path(run)
    tensors = read_weights(weights)
    told = [
        *_scores(run, validations(run)),
        f"{run}: {sum(t.numel() for t in tensors.values()):,} parameters in {weights.relative_to(run)}",
        *(
            f"{name} vocabulary: {tokenizer.vocab_size} tokens"
            for name, tokenizer in (("source", kept.source_tokenizer), ("target", kept.target_tokenizer))
            if tokenizer is not None
        ),
        *([f"input: {kept.model.flow}"] if kept.feature_extractor is not None else []),
        f"checkpoints: {', '.join(str(int(path.name)) for path in checkpoints(run)) or 'none'}",
    ]
    experiment = {name: value for name, value in kept.experiment.items() if name != "model"}
    fields = flatten({**experiment, "model": to_dict(kept.model)})
    first = {name: fields[name] for name in FIRST if fields.get(name) is not None}
    shown = fields if all else dict(list({**first, **_named(fields)}.items())[: SCREEN - len(told) - 1])
    for line in told:
        print(line)
    for name, value in shown.items():
        print(f"  {name} = {value}")
    if left := len(fields) - len(shown):
        print(f"and {left} more fields: transduce describe {run} --all")


def _scores(run: Path, valid: list[dict[str, Any]]) -> list[str]:
    """The scores on test data, then the best and the last validation, as far as there are any."""
    told = []
    for path in (run / "test.json", run / "validation.json"):
        try:
            found: Any = json.loads(path.read_text()) if path.is_file() else []
            if isinstance(found, dict):
                told.append(f"{path.stem}: " + ", ".join(f"{name} {value:g}" for name, value in found.items()))
            else:
                told += [f"{path.stem}, {each['search']}: {each['score']}" for each in found]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            told.append(
                f"{path.stem}: {path} is not as a recipe writes it ({error!r:.80}); the recipe again makes it anew"
            )
    if valid:
        last = {
            name: value for name, value in valid[-1].items() if name not in ("kind", "skipped") and value is not None
        }
        told.append("last validation: " + ", ".join(f"{name} {value:g}" for name, value in last.items()))
    return told


def _named(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields that say something: not those that are off or empty."""
    return {name: value for name, value in fields.items() if value not in (None, "", 0, False, [], ())}
