"""Translation: text to text, scored with BLEU.

    python recipes/translation.py                        the spoken commands that ship, English to German
    python recipes/translation.py paper                  the same with the model and training of Vaswani et al. (2017)
    python recipes/translation.py multi30k --data DIR    image captions (Elliott et al. 2016)
    python recipes/translation.py multilingual --data DIR --languages en de fr    one model between all of them
    python recipes/translation.py files --train-source a.en --train-target a.de --valid-source b.en --valid-target b.de

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


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Every number of a translation experiment."""

    run: ex.Common[Path]
    """The run directory: everything that comes out, and all one needs to translate with it."""
    corpus: ex.Common[Annotated[ex.Folder | ex.Files | ex.Directions, tyro.conf.arg(name="")]]
    vocab_size: ex.Common[int] = 8000
    """Tokens of the BPE vocabulary, 260 special ones and bytes included; per side if not joint."""
    tokenizer: tuple[Path, ...] = ()
    """What to use instead of training it: a SentencePiece model, or JSON of the library tokenizers; one file for both
    sides, or one for each."""
    symbols: str = ""
    """Words, separated by spaces, that are one token each wherever they stand, such as "<2de> <2fr>"."""
    normalization: ex.Normalization = "identity"
    """What the vocabulary makes of characters: identity keeps them; nmt_nfkc writes ² as 2, and full-width as usual ones."""
    lowercase: bool = False
    """A vocabulary without capitals, as in many published figures: text is lower-cased as it is read, and what comes out
    has none. Where validation goes by "bleu", it goes by "bleu.lowercase"."""
    joint: bool = True
    """One vocabulary for both sides, and one table for encoder, decoder and output."""
    bpe_dropout: float = 0.0
    """Share of BPE's merges that training leaves out at random (Provilkov et al. 2020); 0: none."""
    cache: Path = Path("runs/text")
    """Where more than 262,144 training pairs are kept as token ids, which are made once. It may be deleted at any time."""
    max_length: int = 256
    """Longer training pairs, in tokens, are left out and counted."""
    tokens_per_batch: ex.Common[int] = 4096
    """Rows times the longest side of a batch, padding included: what bounds memory."""
    model: ex.Common[td.TransformerConfig] = field(default_factory=td.transformer_tiny)
    start_from: ex.Common[Path | None] = None
    """Another run to go on from, with a schedule of its own: its weights where they fit; its model's sizes and
    tokenizer unless others are named."""
    training: ex.Common[ex.TrainingConfig] = field(default_factory=ex.TrainingConfig)
    validate_by: ex.ValidateBy = "bleu"
    """What decides which checkpoint is best."""
    tokenize: ex.Tokenization | None = None
    """How BLEU separates words; by itself as the script of the references asks for."""
    decoding: td.SearchConfig = field(default_factory=td.SearchConfig)
    shortlist: bool = False
    """Learn, at the end, which target tokens may translate a source token: transduce translate --shortlist is faster."""
    device: ex.Common[str] = "auto"
    """auto (a GPU where there is one), cpu, cuda, cuda:1, ..."""

    def __post_init__(self) -> None:
        ex.at_least(1, vocab_size=self.vocab_size, max_length=self.max_length, tokens_per_batch=self.tokens_per_batch)
        ex.within("[0, 1)", bpe_dropout=self.bpe_dropout)


COMMANDS = Experiment(
    run=Path("runs/commands"),
    corpus=ex.Folder(data=DATA / "commands", valid="valid"),
    vocab_size=1000,
    model=replace(td.transformer_tiny(), dropout=0.1),
    tokens_per_batch=2048,
    training=ex.TrainingConfig(
        optim=ex.OptimConfig(peak_rate=5e-3, warmup_steps=150, cooldown=0.3),
        max_updates=500,
        validate_every=100,
        keep_last=2,
    ),
)
PAPER = replace(  # of the paper all but the sizes: its layers, initial weights, Adam, schedule, smoothing, mean of checkpoints
    COMMANDS,
    run=Path("runs/paper"),
    model=replace(COMMANDS.model, init_gain=1.0),
    training=ex.TrainingConfig(
        optim=ex.OptimConfig(peak_rate=3e-3, warmup_steps=400, clip_norm=0.0), max_updates=1500, validate_every=250
    ),
)
FILES = Experiment(
    run=Path("runs/files"),
    corpus=ex.Files(),
    tokens_per_batch=2048,
    model=replace(td.transformer_tiny(), dropout=0.25),
    training=ex.TrainingConfig(
        optim=ex.OptimConfig(peak_rate=5e-3, warmup_steps=1000),
        max_updates=100_000,
        patience=10,
        precision="auto",
        validate_every=500,
        keep_last=10,
    ),
    decoding=td.SearchConfig(alpha=1.6),
)
MULTI30K = replace(
    FILES,
    run=Path("runs/multi30k"),
    corpus=ex.Folder(data=ex.corpus_folder("multi30k"), test="test_2016_flickr"),
    model=replace(FILES.model, positions="rotary", dropout=0.3),
    training=replace(
        FILES.training,
        optim=replace(FILES.training.optim, optimizer="muon", cooldown=0.3),
        max_updates=9000,
        max_minutes=58.0,
        patience=None,
    ),
)
MULTILINGUAL = replace(
    FILES,
    run=Path("runs/multilingual"),
    corpus=ex.Directions(
        data=ex.corpus_folder("multi30k"), languages=("cs", "de", "en", "fr"), test="test_2016_flickr"
    ),
    vocab_size=12_000,
    training=replace(
        FILES.training,
        optim=replace(FILES.training.optim, cooldown=0.3),
        max_updates=40_000,
        patience=None,
        validate_every=1000,
    ),
)
SETTINGS = {
    "commands": ("The spoken commands that ship; minutes on two cores.", COMMANDS),
    "paper": ("The same, with the paper's model and training at this corpus's size.", PAPER),
    "multi30k": ("Image captions, 29,000 pairs; an hour on two cores.", MULTI30K),
    "multilingual": (
        "Image captions in four languages, one model for all directions; hours on two cores.",
        MULTILINGUAL,
    ),
    "files": ("Any parallel text, the small model; until ten validations bring nothing better.", FILES),
    "files_base": (
        "Any parallel text, the base model of the paper; wants a GPU.",
        Experiment(run=Path("runs/files_base"), corpus=ex.Files(), vocab_size=32000, model=td.transformer_base()),
    ),
}


def run(x: Experiment) -> dict[str, float]:
    """Train, then translate and score the test split; returns its scores."""
    if x.corpus.symbols and x.decoding.target_language:
        raise td.InputError(
            f"the lines of this corpus say which language to write, but decoding.target_language={x.decoding.target_language}; "
            "leave it out, and name one when you translate"
        )
    if x.lowercase and x.validate_by == "bleu":  # references keep their capitals
        x = replace(x, validate_by="bleu.lowercase")

    # Data
    text, valid, test = x.corpus.splits(x.training.seed, x.cache)
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
    spoken = ex.in_languages(source, target, x.decoding)
    pairs, held_out = (
        ex.TextPairs(
            side,
            *spoken,
            tokens_per_batch=x.tokens_per_batch,
            max_length=x.max_length,
            bpe_dropout=dropout,
            seed=x.training.seed,
        )
        for side, dropout in ((text, x.bpe_dropout), (valid, 0.0))
    )
    print(f"train: {pairs}\nvalid: {held_out}")
    x = replace(x, decoding=replace(x.decoding, split_length=x.decoding.split_length or pairs.usual_length))

    # Model
    config = ex.with_vocabularies(x.model, source.vocab_size, target.vocab_size, joint=source is target)
    model = ex.new_model(x, config, x.start_from, source, target)

    # Training
    if not ex.train(
        x,
        ex.CrossEntropy(model, ex.token_losses(x, model, source, target)),
        data=pairs,
        validate=ex.translation_validator(
            td.Translator(model, *spoken), valid, held_out.epoch(0), by=x.validate_by, tokenize=x.tokenize
        ),
        source_tokenizer=source,
        target_tokenizer=target,
        fingerprint=ex.fingerprint(text, valid),
    ):  # of several processes, the first one goes on
        return {}

    if x.shortlist:
        ex.save_shortlist(x.run, ex.learn_shortlist(source, target, *text.sample()))

    # Decoding and score
    if test is None:
        return {}
    translator, pairs = td.load(x.run, x.device), list(zip(test.source, test.target, strict=True))
    measures = ["bleu", "bleu.lowercase", "chrf"]
    groups = x.corpus.test_groups()
    return ex.search_report(
        x.run,
        lambda how: translator(test.source, how),
        pairs,
        x.decoding,
        measures,
        tokenize=x.tokenize,
        groups=groups,
    )


if __name__ == "__main__":
    sys.exit(ex.main(run, SETTINGS, default="commands", description=__doc__))
