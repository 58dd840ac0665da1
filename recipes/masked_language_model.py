"""Masked language modelling: an encoder alone finds tokens again that were taken out of a text.

    python recipes/masked_language_model.py                                   English of the spoken commands that ship
    python recipes/masked_language_model.py shakespeare --data DIR            characters of DIR/input.txt
    python recipes/masked_language_model.py text --train FILES --valid FILES  any text

Every field can be set from the command line (see NAME --help). The same command again resumes.
"""

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import tyro

import transduce as td
from transduce.config import to_dict
from transduce.data.text.language import OneText, TextFiles, encode_text, read_text
from transduce.data.text.masking import MaskedBatches, MaskedWindows, MaskingConfig, Neighbours, mask_id
from transduce.data.text.stream import HeldOut, Stream, Windows
from transduce.data.text.tokenizers import TokenizerKind
from transduce.device import default_device
from transduce.experiment.command import main
from transduce.experiment.report import masked_language_report
from transduce.experiment.run import new_model, train, with_vocabularies
from transduce.experiment.validation import MaskedLanguageValidation
from transduce.run import Run
from transduce.tasks.fill_mask import FillMask
from transduce.train.optim import OptimConfig
from transduce.train.trainer import TrainingConfig

COMMANDS_TEXT = Path(__file__).parent / "data" / "commands"


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Every number of an experiment in masked language modelling."""

    run: Path
    """The run directory: everything that comes out, and all one needs to fill gaps with it."""
    corpus: Annotated[TextFiles | OneText, tyro.conf.arg(name="")]
    test: tuple[Path, ...] = ()
    """Text to score the finished model on; none: the validation text again."""
    tokenizer: TokenizerKind = "characters"
    vocab_size: int = 8000
    """Tokens of a BPE vocabulary, all bytes included; characters are as many as there are."""
    batch_size: int
    """Windows of a batch, each of model.max_positions tokens."""
    masking: MaskingConfig = field(default_factory=MaskingConfig)
    neighbour_tokens: int = 100_000_000
    """Training tokens whose pairs are counted for the baseline beside the result, at most."""
    model: td.TransformerConfig
    training: TrainingConfig
    device: str = default_device()


def encoder(*, n_layers: int, d_model: int, n_heads: int, context: int, dropout: float) -> td.TransformerConfig:
    """An encoder alone, pre-norm with GELU; rotary positions, so that lines of any length can be filled later."""
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


COMMANDS = Experiment(
    run=Path("runs/masked_language"),
    corpus=TextFiles(train=(COMMANDS_TEXT / "train.en",), valid=(COMMANDS_TEXT / "valid.en",)),
    test=(COMMANDS_TEXT / "test.en",),
    tokenizer="sentencepiece",
    vocab_size=1000,
    batch_size=32,
    model=encoder(n_layers=4, d_model=128, n_heads=4, context=64, dropout=0.1),
    training=TrainingConfig(
        optim=OptimConfig(
            peak_rate=2e-3,
            final_rate=1e-4,
            warmup_steps=100,
            schedule="cosine",
            betas=(0.9, 0.98),
            eps=1e-6,
            weight_decay=0.01,
        ),
        max_updates=1500,
        label_smoothing=0.0,
        precision="bf16",
        static_shapes=True,
        validate_every=250,
        keep_last=1,
        keep_best=1,
        average="none",
    ),
)
SHAKESPEARE = replace(
    COMMANDS,
    run=Path("runs/masked_shakespeare"),
    corpus=OneText(),
    test=(),
    tokenizer="characters",
    model=encoder(n_layers=4, d_model=128, n_heads=4, context=128, dropout=0.1),
    training=replace(COMMANDS.training, max_updates=5000, validate_every=500),
)
TEXT = replace(
    SHAKESPEARE,
    run=Path("runs/masked_text"),
    corpus=TextFiles(),
    tokenizer="byte_bpe",
    batch_size=64,
    model=encoder(n_layers=6, d_model=384, n_heads=6, context=256, dropout=0.1),
    training=replace(
        SHAKESPEARE.training,
        optim=replace(
            COMMANDS.training.optim, peak_rate=1e-3, schedule="inverse_sqrt", final_rate=0.0, warmup_steps=500
        ),
        max_updates=100_000,
        patience=10,
    ),
)
SETTINGS = {
    "commands": ("English of the spoken commands that ship; minutes on two cores.", COMMANDS),
    "shakespeare": ("Characters, for a CPU.", SHAKESPEARE),
    "text": ("Any text, byte-level BPE; until ten validations bring nothing better; wants a GPU.", TEXT),
}


def run(x: Experiment) -> dict[str, float]:
    """Train, then find tokens again in held-out text; returns the scores."""
    # Data
    language = x.corpus.read(x.tokenizer, x.vocab_size)
    tokenizer, context = language.tokenizer, x.model.max_positions
    windows = Windows(stream=language.train, context=context, batch_size=x.batch_size, seed=x.training.seed)
    tested = Stream([encode_text(tokenizer, read_text(path)) for path in x.test]) if x.test else language.valid
    valid, test = (
        MaskedBatches(HeldOut(stream, context=context, batch_size=x.batch_size), x.masking, tokenizer)
        for stream in (language.valid, tested)
    )
    print(f"train: {windows}\nvalid: {len(language.valid):,} tokens, {sum(b.n_tokens for b in valid):,} of them chosen")

    # Model
    size = mask_id(tokenizer) + 1
    config = with_vocabularies(x.model, size, size, joint=True)
    model = new_model(x, config)

    # Training
    kept = Run(config, {**to_dict(x), "text": language.fingerprints()}, tokenizer, tokenizer)
    data = MaskedWindows(windows=windows, masking=x.masking, tokenizer=tokenizer)
    train(x, kept, model, data=data, validate=MaskedLanguageValidation(FillMask(model, tokenizer), valid))

    # Score
    neighbours = Neighbours(language.train, tokenizer.vocab_size, limit=x.neighbour_tokens)
    return masked_language_report(x.run, "test" if x.test else "valid", test, neighbours, x.device)


if __name__ == "__main__":
    sys.exit(main(run, SETTINGS, default="commands", description=__doc__))
