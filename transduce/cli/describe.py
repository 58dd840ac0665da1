"""`transduce describe RUN`: what a run directory holds."""

from tyro.conf import Positional

from transduce.cli.common import Run
from transduce.config import flatten, to_dict


def describe(run: Positional[Run]) -> None:
    """Tell what a run directory holds: model, tokenizers, training, scores."""
    from transduce.files import read_weights
    from transduce.run import checkpoints, load_run, validations, weights_path

    kept = load_run(run)
    weights = weights_path(run)
    tensors = read_weights(weights)
    print(f"{run}: {sum(t.numel() for t in tensors.values()):,} parameters in {weights.relative_to(run)}")
    for name, tokenizer in (("source", kept.source_tokenizer), ("target", kept.target_tokenizer)):
        if tokenizer is not None:
            print(f"{name} vocabulary: {tokenizer.vocab_size} tokens")
    if kept.feature_extractor is not None:
        print(f"input: {kept.model.flow}")
    print(f"checkpoints: {', '.join(str(int(path.name)) for path in checkpoints(run)) or 'none'}")
    if valid := validations(run):
        last = {name: value for name, value in valid[-1].items() if name not in ("kind", "skipped")}
        numbers = {name: value for name, value in last.items() if isinstance(value, int | float)}  # null: not finite
        print("last validation: " + ", ".join(f"{name} {value:g}" for name, value in numbers.items()))
    for title, plain in (("model", to_dict(kept.model)), ("experiment", kept.experiment)):
        print(f"{title}:")
        for name, value in flatten({k: v for k, v in plain.items() if title == "model" or k != "model"}).items():
            print(f"  {name} = {value}")
