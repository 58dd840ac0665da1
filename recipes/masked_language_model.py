"""Masked language modelling: an encoder-only model predicts masked tokens of a text.

    python recipes/masked_language_model.py
    python recipes/masked_language_model.py shakespeare --data DIR
    python recipes/masked_language_model.py text --train FILES --valid FILES

Every field can be set from the command line (see NAME --help). The same command again resumes.
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

import transduce as td
from transduce import experiment as ex
from transduce.recipes import DATA
from transduce.recipes.baselines import Neighbours

COMMANDS_TEXT = DATA / "commands"


@dataclass(frozen=True, kw_only=True)
class Experiment(ex.TextExperiment):
    """Every number of an experiment in masked language modelling."""

    corpus: ex.Common[Annotated[ex.TextFiles | ex.OneText, tyro.conf.arg(name="")]]
    test: tuple[Path, ...] = ()
    """Text to score the finished model on; by default, the validation text."""
    masking: ex.MaskingConfig = field(default_factory=ex.MaskingConfig)
    validate_by: Literal["loss", "accuracy"] = "loss"
    """The metric that chooses the best checkpoint."""
    neighbour_tokens: int = 100_000_000
    """Maximum number of training tokens for the baseline, which counts pairs of tokens."""

    def __post_init__(self) -> None:
        super().__post_init__()
        ex.at_least(1, neighbour_tokens=self.neighbour_tokens)


def encoder(*, n_layers: int, d_model: int, n_heads: int, context: int, dropout: float) -> td.TransformerConfig:
    """An encoder-only model, pre-norm with GELU; rotary positions, so that lines of any length can be filled later."""
    return td.TransformerConfig(
        encoder=td.StackConfig(input=td.Tokens(vocab_size=1), n_layers=n_layers),
        d_model=d_model,
        n_heads=n_heads,
        d_ff=4 * d_model,
        max_positions=context,
        dropout=dropout,
        activation="gelu",
        norm_position="pre",
        positions="rotary",
        scale_embeddings=False,
        init="gpt2",
    )


OPTIM = ex.OptimConfig(
    peak_rate=2e-3, final_rate=1e-4, warmup_steps=100, schedule="cosine", betas=(0.9, 0.98), eps=1e-6, weight_decay=0.01
)
COMMANDS = Experiment(
    run=Path("runs/masked_language"),
    corpus=ex.TextFiles(train=(COMMANDS_TEXT / "train.en",), valid=(COMMANDS_TEXT / "valid.en",)),
    test=(COMMANDS_TEXT / "test.en",),
    tokenizer="sentencepiece",
    vocab_size=1000,
    batch_size=32,
    model=encoder(n_layers=4, d_model=128, n_heads=4, context=64, dropout=0.1),
    training=ex.TrainingConfig(
        optim=OPTIM,
        max_updates=1500,
        label_smoothing=0.0,
        precision="auto",
        static_shapes=True,
        validate_every=250,
        keep_last=1,
        keep_best=1,
    ),
)
SHAKESPEARE = ex.with_fields(
    COMMANDS,
    run=Path("runs/masked_shakespeare"),
    corpus=ex.OneText(),
    test=(),
    tokenizer="characters",
    model={"max_positions": 128},
    training={"max_updates": 5000, "validate_every": 500},
)
TEXT = ex.with_fields(
    SHAKESPEARE,
    run=Path("runs/masked_text"),
    corpus=ex.TextFiles(),
    tokenizer="byte_bpe",
    batch_size=64,
    model=encoder(n_layers=6, d_model=384, n_heads=6, context=256, dropout=0.1),
    training={
        "optim": {"peak_rate": 1e-3, "schedule": "inverse_sqrt", "final_rate": 0.0, "warmup_steps": 500},
        "max_updates": 100_000,
        "patience": 10,
    },
)
SETTINGS = {
    "commands": ("English of the bundled spoken commands; minutes on two cores.", COMMANDS),
    "shakespeare": ("Characters, for a CPU.", SHAKESPEARE),
    "text": ("Any text, byte-level BPE; until ten validations bring no improvement; needs a GPU.", TEXT),
}


def run(x: Experiment) -> dict[str, float]:
    """Train, then predict masked tokens of held-out text; returns the scores."""
    # Data
    _, tokenizer = ex.saved_tokenizers(x.run, x.start_from, x.tokenizer, x.symbols) or (None, None)
    language = x.corpus.read(x.tokenizer, x.vocab_size, tokenizer, x.symbols.split())
    tokenizer, context = language.tokenizer, x.model.for_stack(x.model.encoder).max_positions
    windows = ex.TokenWindows(stream=language.train, context=context, batch_size=x.batch_size, seed=x.training.seed)
    tested = ex.Stream([ex.encode_text(tokenizer, ex.read_text(path)) for path in x.test]) if x.test else language.valid
    valid, test = (
        ex.MaskedBatches(ex.HeldOutWindows(stream, context=context, batch_size=x.batch_size), x.masking, tokenizer)
        for stream in (language.valid, tested)
    )
    print(
        f"train: {windows}\nvalid: {len(language.valid):,} tokens, {sum(b.n_tokens for b in valid):,} of them to predict"
    )
    full = ex.resolved(x, vocab_sizes=[ex.mask_id(tokenizer) + 1])

    # Model
    processor = ex.Processor(source=tokenizer, target=tokenizer)
    model = ex.new_model(full, processor)

    # Training
    objective = ex.CrossEntropy(model, ex.token_losses(full, model, processor))
    masked = ex.MaskedWindows(windows=windows, masking=x.masking, tokenizer=tokenizer)
    validate = ex.masked_language_validator(td.FillMask(model, tokenizer), valid, by=x.validate_by)
    key = language.fingerprints()
    if not ex.train(full, objective, processor, data=masked, validate=validate, fingerprint=key, specified=x):
        return {}  # of several processes, only the first one continues

    # Score
    neighbours = Neighbours(language.train, tokenizer.vocab_size, limit=x.neighbour_tokens)
    name = "test" if x.test else "validation"
    return ex.held_out_report(x.run, name, test, x.device, baselines={"neighbours": neighbours.scores(test)})


if __name__ == "__main__":
    sys.exit(ex.main(run, SETTINGS, default="commands", description=__doc__))
