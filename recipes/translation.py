"""Translation: text to text, scored with BLEU.

    python recipes/translation.py
    python recipes/translation.py multi30k --data DIR
    python recipes/translation.py multilingual --data DIR --languages en de fr
    python recipes/translation.py files --train-source a.en --train-target a.de

Every field can be set from the command line (see NAME --help). The same command again resumes.
"""

import sys
from dataclasses import replace
from pathlib import Path

import transduce as td
from transduce import experiment as ex
from transduce.recipes import DATA

OPTIM = ex.OptimConfig(peak_rate=5e-3, warmup_steps=150, cooldown=0.3)
LONGER = replace(OPTIM, warmup_steps=1000, cooldown=0.0)
COMMANDS = ex.TranslationExperiment(
    run=Path("runs/commands"),
    corpus=ex.Folder(data=DATA / "commands", valid="valid"),
    vocab_size=1000,
    model=replace(td.transformer_tiny(), dropout=0.1),
    tokens_per_batch=2048,
    training=ex.TrainingConfig(optim=OPTIM, max_updates=500, validate_every=100, keep_last=2),
)
PAPER = replace(  # all of the paper but its sizes: layers, initial weights, Adam, schedule, label smoothing, checkpoint averaging
    COMMANDS,
    run=Path("runs/paper"),
    model=replace(COMMANDS.model, init_gain=1.0),
    training=ex.TrainingConfig(
        optim=ex.OptimConfig(peak_rate=3e-3, warmup_steps=400, clip_norm=0.0), max_updates=1500, validate_every=250
    ),
)
FILES = ex.TranslationExperiment(
    run=Path("runs/files"),
    corpus=ex.Files(),
    tokens_per_batch=2048,
    model=replace(td.transformer_tiny(), dropout=0.25),
    training=ex.TrainingConfig(
        optim=LONGER, max_updates=100_000, patience=10, precision="auto", validate_every=500, keep_last=10
    ),
    decoding=td.SearchConfig(alpha=1.6),
)
MULTI30K = ex.with_fields(
    FILES,
    run=Path("runs/multi30k"),
    corpus=ex.Folder(data=ex.corpus_folder("multi30k"), test="test_2016_flickr"),
    model={"positions": "rotary", "dropout": 0.3},
    validate_by="loss",  # the rate ends at 0, and BLEU on 1,000 lines separates the last checkpoints less well
    training={
        "optim": {"optimizer": "muon", "cooldown": 0.3, "weight_decay": 0.1},
        "max_updates": 11_000,
        "max_minutes": 58.0,
        "patience": None,
    },
)
MULTILINGUAL = ex.with_fields(
    FILES,
    run=Path("runs/multilingual"),
    corpus=ex.Directions(
        data=ex.corpus_folder("multi30k"), languages=("cs", "de", "en", "fr"), test="test_2016_flickr"
    ),
    vocab_size=12_000,
    training={"optim": {"cooldown": 0.3}, "max_updates": 40_000, "patience": None, "validate_every": 1000},
)
FILES_BASE = ex.TranslationExperiment(
    run=Path("runs/files_base"), corpus=ex.Files(), vocab_size=32000, model=td.transformer_base()
)
SETTINGS = {
    "commands": ("The bundled spoken commands; minutes on two cores.", COMMANDS),
    "paper": ("The same, with the paper's model and training at this corpus's size.", PAPER),
    "multi30k": ("Image captions, 29,000 pairs; an hour on two cores.", MULTI30K),
    "multilingual": ("Image captions in four languages, one model for all; hours on two cores.", MULTILINGUAL),
    "files": ("Any parallel text, the small model; until ten validations bring no improvement.", FILES),
    "files_base": ("Any parallel text, the base model of the paper; needs a GPU.", FILES_BASE),
}


def run(specified: ex.TranslationExperiment) -> dict[str, float]:
    """Train, then translate and score the test split; returns its scores."""
    # Data
    x = ex.resolved(specified)
    text, valid, test = x.corpus.splits(x.training.seed, x.cache)
    text = text.with_copies(ex.normalized) if x.transcripts else text
    symbols = " ".join((*x.corpus.symbols, x.symbols))
    source, target = ex.saved_tokenizers(
        x.run, x.start_from, x.tokenizer, symbols, needs=("bos_id", "eos_id"), lowercase=x.lowercase
    ) or ex.train_tokenizer_pair(
        *text.sample(),
        vocab_size=x.vocab_size,
        joint=x.joint,
        symbols=symbols.split(),
        lowercase=x.lowercase,
        normalization=x.normalization,
    )
    tokenizers = ex.in_languages(source, target, x.decoding)
    pairs, held_out = (
        ex.TextPairs(
            side,
            *tokenizers,
            tokens_per_batch=x.tokens_per_batch,
            max_length=x.max_length,
            seed=x.training.seed,
        )
        for side in (text, valid)
    )
    print(f"train: {pairs}\nvalid: {held_out}")
    vocab_sizes = [source.vocab_size] if source is target else [source.vocab_size, target.vocab_size]
    x = ex.resolved(x, vocab_sizes=vocab_sizes, usual_length=pairs.usual_length)

    # Model
    processor = ex.Processor(source=source, target=target)
    model = ex.new_model(x, processor)

    # Training
    translator = td.Translator(model, *tokenizers)
    ex.check_search(translator, [*filter(str.strip, valid.source)][:1], x.decoding)
    validate = ex.translation_validator(translator, valid, held_out.epoch(0), by=x.validate_by, tokenize=x.tokenize)
    objective = ex.CrossEntropy(model, ex.token_losses(x, model, processor))
    key = ex.fingerprint(text, valid)
    if not ex.train(x, objective, processor, data=pairs, validate=validate, fingerprint=key, specified=specified):
        return {}  # of several processes, only the first one continues

    # Decoding and score
    if test is None:
        return {}
    translator, lines = td.load_translator(x.run, x.device), list(zip(test.source, test.target, strict=True))
    return ex.search_report(
        x.run,
        lambda search: translator(test.source, search),
        lines,
        x.decoding,
        ["bleu", "bleu.lowercase", "chrf"],
        tokenize=x.tokenize,
        groups=x.corpus.test_groups(),
    )


if __name__ == "__main__":
    sys.exit(ex.main(run, SETTINGS, default="commands", description=__doc__))
