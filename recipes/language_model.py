"""Language modelling: a decoder-only model predicts the next token; scored by its loss.

    python recipes/language_model.py
    python recipes/language_model.py shakespeare_cpu --data DIR
    python recipes/language_model.py text --train FILES --valid FILES

Every field can be set from the command line (see NAME --help). The same command again resumes.
"""

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import tyro

import transduce as td
from transduce import experiment as ex
from transduce.recipes import DATA
from transduce.recipes.baselines import bigram_cross_entropy


@dataclass(frozen=True, kw_only=True)
class Experiment(ex.TextExperiment):
    """Every number of a language-model experiment."""

    NEXT = "transduce generate {run} --interactive"

    corpus: ex.Common[Annotated[ex.TextFiles | ex.OneText | ex.Shards, tyro.conf.arg(name="")]]
    batches_per_epoch: int | None = None
    """Batches per epoch; None: as many as the tokens give."""
    valid_windows: int | None = None
    """Number of windows of the validation text to use, evenly spread; None: all of it."""
    bigram_tokens: int = 100_000_000
    """Maximum number of training tokens for the bigram baseline."""
    generation: td.GenerationConfig = field(
        default_factory=lambda: td.GenerationConfig(max_length=100, temperature=0.8)
    )
    """How samples are generated."""

    def __post_init__(self) -> None:
        super().__post_init__()
        ex.at_least(1, batches_per_epoch=self.batches_per_epoch, valid_windows=self.valid_windows)
        ex.at_least(1, bigram_tokens=self.bigram_tokens)


def decoder(*, n_layers: int, d_model: int, n_heads: int, context: int, dropout: float) -> td.TransformerConfig:
    """GPT-2 of another size, without biases and with the exact GELU, like nanoGPT's small models."""
    config = replace(ex.gpt2(1), d_model=d_model, n_heads=n_heads, d_ff=4 * d_model, activation="gelu", bias=False)
    config = replace(config, max_positions=context, dropout=dropout, attention_dropout=dropout)
    return ex.with_fields(config, decoder={"n_layers": n_layers})


def rotary_swiglu(config: td.TransformerConfig) -> td.TransformerConfig:
    """The same with rotary positions and a SwiGLU of as many parameters, as in Llama."""
    width = round(config.d_ff * 2 / 3 / 8) * 8
    return replace(config, positions="rotary", activation="silu", gated=True, d_ff=width)


ADAMW = ex.OptimConfig(
    peak_rate=1e-3, final_rate=1e-4, warmup_steps=100, schedule="cosine", betas=(0.9, 0.99), eps=1e-8, weight_decay=0.1
)
MUON = replace(ADAMW, optimizer="muon", peak_rate=3e-3, final_rate=0.0)
TRAINING = ex.TrainingConfig(label_smoothing=0.0, static_shapes=True, validate_every=250, keep_last=1, keep_best=1)
SHAKESPEARE_CPU = Experiment(
    run=Path("runs/shakespeare_cpu"),
    corpus=ex.OneText(data=ex.corpus_folder("tinyshakespeare")),
    batch_size=12,
    model=replace(rotary_swiglu(decoder(n_layers=4, d_model=128, n_heads=4, context=64, dropout=0.0)), tie="none"),
    training=replace(TRAINING, optim=MUON, max_updates=2000),
)
SHAKESPEARE = ex.with_fields(
    SHAKESPEARE_CPU,
    run=Path("runs/shakespeare"),
    batch_size=64,
    model=rotary_swiglu(decoder(n_layers=6, d_model=384, n_heads=6, context=256, dropout=0.25)),
    training={"optim": {"peak_rate": 1e-3}, "max_updates": 1500, "consistency": 1.0, "precision": "auto"},
)
COMMANDS = ex.with_fields(
    SHAKESPEARE_CPU,
    run=Path("runs/language"),
    corpus=ex.TextFiles(train=(DATA / "commands" / "train.en",), valid=(DATA / "commands" / "valid.en",)),
    batch_size=24,
    model=decoder(n_layers=4, d_model=128, n_heads=4, context=64, dropout=0.0),
    training={"optim": replace(ADAMW, peak_rate=2e-3), "max_updates": 1500, "precision": "auto"},
)
SLOWLY = replace(ADAMW, schedule="inverse_sqrt", final_rate=0.0, warmup_steps=500, betas=(0.9, 0.98))
TEXT = ex.with_fields(
    SHAKESPEARE,
    run=Path("runs/text"),
    corpus=ex.TextFiles(),
    tokenizer="byte_bpe",
    model=decoder(n_layers=6, d_model=384, n_heads=6, context=256, dropout=0.2),
    training={"optim": SLOWLY, "max_updates": 100_000, "consistency": 0.0, "validate_every": 500, "patience": 10},
)
GPT2_OPTIM = replace(ADAMW, peak_rate=6e-4, final_rate=6e-5, warmup_steps=700, betas=(0.9, 0.95))
GPT2 = ex.with_fields(
    COMMANDS,
    run=Path("runs/gpt2"),
    corpus=ex.Shards(),
    tokenizer="byte_bpe",
    batch_size=32,
    batches_per_epoch=15_000,
    valid_windows=512,
    model=replace(ex.gpt2(multiple=128), dropout=0.0, attention_dropout=0.0),
    training={"optim": GPT2_OPTIM, "max_updates": 19_000, "accumulate": 15, "compile": True, "validate_every": 500},
)
SETTINGS = {
    "commands": ("English of the bundled spoken commands; minutes on two cores.", COMMANDS),
    "shakespeare": ("Characters, nanoGPT's size of 10.7M parameters; needs a GPU.", SHAKESPEARE),
    "shakespeare_cpu": ("Characters, nanoGPT's size for a CPU.", SHAKESPEARE_CPU),
    "text": ("Any text, byte-level BPE; until ten validations bring no improvement.", TEXT),
    "gpt2": ("GPT-2 124M on shards, ten billion tokens; needs a GPU.", GPT2),
}


def run(x: Experiment) -> dict[str, float]:
    """Train, then score the validation text; returns the scores."""
    # Data
    _, tokenizer = ex.saved_tokenizers(x.run, x.start_from, x.tokenizer, x.symbols) or (None, None)
    language = x.corpus.read(x.tokenizer, x.vocab_size, tokenizer, x.symbols.split())
    tokenizer, context = language.tokenizer, x.model.for_stack(x.model.decoder).max_positions
    windows = ex.TokenWindows(
        stream=language.train,
        context=context,
        batch_size=x.batch_size,
        seed=x.training.seed,
        batches_per_epoch=x.batches_per_epoch,
    )
    held_out = ex.HeldOutWindows(language.valid, context=context, batch_size=x.batch_size, n_windows=x.valid_windows)
    print(f"train: {windows}\nvalid: {len(language.valid):,} tokens, {sum(b.n_tokens for b in held_out):,} used")
    full = ex.resolved(x, vocab_sizes=[tokenizer.vocab_size])

    # Model
    processor = ex.Processor(target=tokenizer)
    model = ex.new_model(full, processor)

    # Training
    objective = ex.CrossEntropy(model, ex.token_losses(full, model, processor))
    validate = ex.language_validator(td.Generator(model, tokenizer), language.valid, held_out, x.generation)
    key = language.fingerprints()
    if not ex.train(full, objective, processor, data=windows, validate=validate, fingerprint=key, specified=x):
        return {}  # of several processes, only the first one continues

    # Score
    bigram = bigram_cross_entropy(language.train, language.valid, tokenizer.vocab_size, limit=x.bigram_tokens)
    return ex.held_out_report(x.run, "validation", held_out, x.device, baselines={"bigram": (bigram, None)})


if __name__ == "__main__":
    sys.exit(ex.main(run, SETTINGS, default="commands", description=__doc__))
