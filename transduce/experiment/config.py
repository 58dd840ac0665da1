"""The fields of experiments, and their completion from the data. This module does not import
torch."""

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import tyro

from transduce.config import Common, at_least, within
from transduce.data.base_tokenizer import TAG
from transduce.data.config import Augmentation, FeatureConfig, VectorConfig
from transduce.data.corpus import Directions, Files, Folder
from transduce.data.manifest import Manifests
from transduce.data.sentencepiece_bpe import Normalization
from transduce.data.tokenizer_files import TokenizerKind
from transduce.errors import InputError
from transduce.model.config import StackConfig, Tokens, TransformerConfig
from transduce.model.presets import speech_tiny, transformer_tiny
from transduce.score.measures import Tokenization
from transduce.tasks.config import SearchConfig
from transduce.train.config import TrainingConfig

ValidateBy = Literal[
    "loss", "bleu", "bleu.lowercase", "chrf", "chrf++", "ter", "wer", "cer", "per", "comet"
]
"""The metrics that can choose the best checkpoint: the loss, or a measure of outputs."""

MFCC = FeatureConfig(n_coefficients=20, deltas=1)
"""40 features a frame: four stacked frames have 160 numbers, as d_model, and need no projection."""

BEYOND = 1.2
"""Maximum length of a segment, relative to the longest training recording."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """The fields of every experiment."""

    NEXT: ClassVar[str] = "transduce describe {run}"
    """A command that uses the finished run."""

    run: Common[Path]
    """The run directory: all results, and everything that is needed to use the model."""
    model: Common[TransformerConfig]
    symbols: str = ""
    """Words, separated by spaces, that are always one token each, such as "<2de> <2fr>"."""
    start_from: Common[Path | None] = None
    """Another run to start from, with a new schedule. Its weights are used where they fit; its
    model's sizes, features and tokenizer unless others are given."""
    training: Common[TrainingConfig] = field(default_factory=TrainingConfig)
    device: Common[str] = "auto"
    """auto (a GPU where there is one), cpu, cuda, cuda:1, ..."""
    log: tuple[Literal["wandb", "mlflow"], ...] = ()
    """Services that receive the same as TensorBoard: Weights & Biases, MLflow. They are configured
    by their own environment variables, such as WANDB_MODE=offline and MLFLOW_TRACKING_URI."""


@dataclass(frozen=True, kw_only=True)
class TextExperiment(Experiment):
    """The fields of an experiment with running text."""

    tokenizer: Common[TokenizerKind | Path] = "characters"
    """A kind to train, or a file to use instead: a SentencePiece model, or JSON of the library
    tokenizers. Characters suit a text of one or two megabytes, in which the tokens of a larger
    vocabulary would be too rare; use byte_bpe for more text: its tokens carry more meaning, and a
    window holds about four times as much text. For shards, the kind with which they were made."""
    vocab_size: Common[int] = 8000
    """Tokens of a BPE vocabulary, all bytes included; not used for characters."""
    batch_size: Common[int]
    """Windows per batch, each of model.max_positions tokens."""

    def __post_init__(self) -> None:
        at_least(1, self, "vocab_size", "batch_size")


@dataclass(frozen=True, kw_only=True)
class TranslationExperiment(Experiment):
    """The fields of a translation experiment."""

    NEXT = "transduce translate {run} --interactive"

    corpus: Common[Annotated[Folder | Files | Directions, tyro.conf.arg(name="")]]
    vocab_size: Common[int] = 8000
    """Tokens of the BPE vocabulary, including 260 special ones and bytes; per side if not joint."""
    tokenizer: tuple[Path, ...] = ()
    """Files to use instead of training a tokenizer: a SentencePiece model, or JSON of the library
    tokenizers; one file for both sides, or one for each."""
    normalization: Normalization = "identity"
    """Normalization of characters: identity keeps them; nmt_nfkc writes ² as 2, and full-width
    characters as usual ones."""
    lowercase: bool = False
    """A vocabulary without capitals, as in many published results: input is lower-cased, and output
    has no capitals. Validation by "bleu" becomes validation by "bleu.lowercase"."""
    transcripts: bool = False
    """Train on a second copy of each pair, with a source in lower case and without punctuation,
    like the output of speech recognizers, so that one model translates both."""
    joint: bool = True
    """One vocabulary for both sides, and one table for encoder, decoder and output."""
    cache: Path = Path("runs/text")
    """Folder for the token ids of more than 262,144 training pairs, which are made once. It may be
    deleted at any time."""
    max_length: int = 256
    """Longer training pairs, in tokens, are left out and counted."""
    tokens_per_batch: Common[int] = 4096
    """Rows times the longest side of a batch, padding included; it limits memory."""
    model: Common[TransformerConfig] = field(default_factory=transformer_tiny)
    validate_by: ValidateBy = "bleu"
    """The metric that chooses the best checkpoint."""
    tokenize: Tokenization | None = None
    """How BLEU splits text into words; by default, by the script of the references."""
    decoding: SearchConfig = field(default_factory=SearchConfig)

    def __post_init__(self) -> None:
        at_least(1, self, "vocab_size", "max_length", "tokens_per_batch")


@dataclass(frozen=True, kw_only=True)
class SpeechExperiment(Experiment):
    """The fields of an experiment with speech."""

    NEXT = "transduce transcribe {run} FILE"

    name: str = "speech"
    """Name of the run directory if `run` is not given."""
    run: Common[Path | None] = None  # type: ignore[assignment]  # `resolved` names it
    """The run directory, with everything that transcription needs; by default runs/NAME, or
    runs/NAME_COLUMN for another target column."""
    corpus: Common[Annotated[Manifests, tyro.conf.arg(name="")]] = field(default_factory=Manifests)
    features: FeatureConfig | VectorConfig = field(default_factory=lambda: MFCC)
    augmentation: Augmentation = field(default_factory=lambda: Augmentation(token_dropout=0.3))
    cache: Path = Path("runs/features")
    """Folder of cached log-mels, for all runs; safe to share and to delete."""
    workers: int = os.cpu_count() or 1
    """Threads that compute log-mels; 0 is the same as 1."""
    vocab_size: Common[int] = 320
    """Tokens of the BPE vocabulary, 260 special ones and bytes included."""
    pronunciations: Path | None = None
    """A pronouncing dictionary, such as CMU's: tokens are then phones instead of subwords, and
    outputs are the words of the training data with these phones. vocab_size is then not used."""
    tokenizer: Path | None = None
    """A file to use instead of training a tokenizer: a SentencePiece model, or JSON of the library
    tokenizers."""
    max_seconds: Common[float] = 20.0
    """Longer training recordings are left out and counted."""
    frames_per_batch: Common[int] = 4000
    """Rows times the longest recording of a batch, padding included; it limits memory."""
    ctc_weight: float = 0.5
    """Share of CTC in the loss; 0 = none."""
    interctc_weight: float = 0.5
    """Share of model.ctc_layers in the CTC loss, if there are any; the rest is that of the
    encoder's last layer."""
    ctc_consistency: float = 0.0
    """Weight, relative to CTC, of the divergence between the CTC outputs of two passes of each
    batch with different dropout and augmentation (not speed and silence); 0 = one pass. CR-CTC (Yao
    et al. 2024) uses 0.2, and 2.5 times as many time masks."""
    ctc_column: str | None = None
    """The column that CTC learns. By default, text (what is said) if the manifests have it; with
    another target column, the search then does without CTC."""
    model: Common[TransformerConfig] = field(default_factory=speech_tiny)
    validate_by: ValidateBy | None = None
    """The metric that chooses the best checkpoint, such as cer where no spaces separate words. By
    default WER, or BLEU if the target column is a translation."""
    tokenize: Tokenization | None = None
    """How BLEU splits text into words; by default, by the script of the references."""
    decoding: SearchConfig = field(
        default_factory=lambda: SearchConfig(length_ratio=1.0, length_extra=5, ctc_weight=0.5)
    )

    def __post_init__(self) -> None:
        at_least(1, self, "vocab_size", "frames_per_batch")
        at_least(0, self, "workers", "ctc_consistency")
        within("(0, inf)", self, "max_seconds")
        within("[0, 1]", self, "ctc_weight", "interctc_weight")

    @property
    def measures(self) -> tuple[Literal["wer", "bleu"], Literal["cer", "chrf"]]:
        """The measures of outputs: those of a translation, if the target is not the text."""
        return ("wer", "cer") if self.corpus.target_column == "text" else ("bleu", "chrf")

    @property
    def ctc_text(self) -> str:
        """The column of the text that CTC learns, if it is not the target."""
        return "" if self.ctc_column == self.corpus.target_column else self.ctc_column or ""


ExperimentT = TypeVar("ExperimentT", bound=Experiment)


def resolved(
    x: ExperimentT,
    *,
    columns: Collection[str] = (),
    vocab_sizes: Sequence[int] = (),
    n_features: int = 0,
    seconds: tuple[float, float] | None = None,
    usual_length: int = 0,
) -> ExperimentT:
    """Complete an experiment with values that depend on its data, as far as they are known.

    Args:
        columns: for recordings: the columns that all of them have.
        vocab_sizes: the size of the vocabulary, or those of the source's and the target's.
        n_features: for recordings: the number of features of a frame.
        seconds: for recordings: the durations of the shortest and the longest one of the training.
        usual_length: for translation: a number of tokens that 99 % of the sources do not exceed.

    Raises:
        InputError: fields contradict each other.
    """
    changed: Any = x
    if isinstance(x, TranslationExperiment):
        changed = _resolved_translation(x, usual_length)
    elif isinstance(x, SpeechExperiment):
        _check_speech(x)
        changed = _resolved_targets(x, columns)
        if seconds is not None:
            changed = replace(changed, decoding=_resolved_segments(changed, *seconds))
    model = changed.model
    if n_features:
        model = with_frames(model, n_features, *vocab_sizes)
    elif vocab_sizes:
        source, *others = vocab_sizes
        model = with_vocabularies(model, source, vocab_sizes[-1], joint=not others)
    return replace(changed, model=model)


def _resolved_translation(x: TranslationExperiment, usual_length: int) -> TranslationExperiment:
    """Set a lower-case measure for a vocabulary without capitals, and the length above which
    sources are split."""
    if None in (x.model.encoder, x.model.decoder) or x.model.ctc:
        raise InputError(
            "a translator has an encoder, a decoder and no CTC head, but this model has others: "
            f"encoder={x.model.encoder is not None}, decoder={x.model.decoder is not None}, "
            f"ctc={x.model.ctc}; change it"
        )
    if x.transcripts and not all(map(TAG.fullmatch, x.symbols.split())):
        raise InputError(
            "copies of sources without capitals and punctuation can have only tags such as <2de> "
            f"as symbols, but transcripts=True and symbols={x.symbols}; leave one of them out"
        )
    if x.corpus.symbols and x.decoding.target_language:
        raise InputError(
            "the lines of this corpus say which language to write, but "
            f"decoding.target_language={x.decoding.target_language}; leave it out, and name one "
            "when you translate"
        )
    if x.lowercase and x.validate_by == "bleu":  # references keep their capitals
        x = replace(x, validate_by="bleu.lowercase")
    split_length = x.decoding.split_length or usual_length
    return replace(x, decoding=replace(x.decoding, split_length=split_length))


def _check_speech(x: SpeechExperiment) -> None:
    """Raise InputError if fields of CTC or of pronunciations contradict others."""
    if x.ctc_weight and not x.model.ctc:
        raise InputError(
            f"CTC needs a head, but ctc_weight={x.ctc_weight} and the model has none; give "
            "--ctc-weight 0, or --model.ctc"
        )
    for name in ("ctc_column", "ctc_consistency"):
        if getattr(x, name) and not x.ctc_weight:
            raise InputError(f"{name} is for CTC, but ctc_weight=0; leave one of them out")
    others = {
        "tokenizer": x.tokenizer,
        "symbols": x.symbols,
        "ctc_column": x.ctc_column,
        "corpus.target_column": x.corpus.target_column if x.corpus.target_column != "text" else "",
    }
    named = ", ".join(f"{name}={value}" for name, value in others.items() if value)
    if x.pronunciations and named:
        raise InputError(
            f"pronunciations are for tokens of what is said only, but {named}; leave one of them "
            "out (--pronunciations None)"
        )


def _resolved_targets(x: SpeechExperiment, columns: Collection[str]) -> SpeechExperiment:
    """Set the directory, the validation metric, and the column that CTC learns.

    A CTC head that learns another text than the target, or nothing, is not used in the search.
    """
    target = x.corpus.target_column
    name = x.name if target == "text" else f"{x.name}_{target}"
    run = x.run or Path("runs") / name
    x = replace(x, run=run, validate_by=x.validate_by or x.measures[0])
    if target != "text" and x.ctc_column is None and x.ctc_weight and "text" in columns:
        x = replace(x, ctc_column="text")
    if x.ctc_weight and not x.ctc_text:
        return x
    layers = x.model.ctc_layers if x.ctc_weight else ()
    model = replace(x.model, ctc_conditioning=False, ctc_layers=layers)
    decoding = replace(x.decoding, ctc_weight=0.0, no_speech_threshold=0.0)
    return replace(x, model=model, decoding=decoding)


def _resolved_segments(x: SpeechExperiment, shortest: float, longest: float) -> SearchConfig:
    """The search in segments about as long as training recordings; a model fails on others."""
    most = x.decoding.max_seconds
    if most == SearchConfig.max_seconds:  # the default
        most = max(most, x.max_seconds)
    longest = min(most, max(1.0, BEYOND * longest))
    shortest = min(shortest, longest)
    margin = x.augmentation.silence / 2
    return replace(x.decoding, min_seconds=shortest, max_seconds=longest, margin=margin)


def with_vocabularies(
    config: TransformerConfig, source: int, target: int, *, joint: bool
) -> TransformerConfig:
    """The model for vocabularies of these sizes; tables are shared if vocabularies are."""

    def resized(stack: StackConfig | None, vocab_size: int) -> StackConfig | None:
        if stack is None or not isinstance(stack.input, Tokens):
            return stack
        return replace(stack, input=replace(stack.input, vocab_size=vocab_size))

    return replace(
        config,
        encoder=resized(config.encoder, source),
        decoder=resized(config.decoder, target),
        tie="output" if config.tie == "all" and not joint else config.tie,
    )


def with_frames(config: TransformerConfig, n_features: int, target: int) -> TransformerConfig:
    """The model for frames of this many features and a vocabulary of this size.

    Raises:
        InputError: the model has no encoder that takes frames, or no decoder.
    """
    frames = replace(config.frames, n_features=n_features)
    if config.encoder is None or config.decoder is None:
        raise InputError(f"speech needs an encoder and a decoder, but decoder={config.decoder}")
    config = replace(config, encoder=replace(config.encoder, input=frames))
    return with_vocabularies(config, target, target, joint=False)
