"""Speech to text: MFCC frames straight into the encoder, scored with WER.

    python recipes/speech_to_text.py                            the spoken commands that ship
    python recipes/speech_to_text.py paper                      the same with the layers of Vaswani et al. (2017)
    python recipes/speech_to_text.py commands_german            the same sound, German text: speech translation
    python recipes/speech_to_text.py fsdd --data DIR            Free Spoken Digit Dataset
    python recipes/speech_to_text.py digits --data DIR          3 to 7 of them in a row, see scripts/corpora/make_digits.py
    python recipes/speech_to_text.py speechocean762 --data DIR  read English (Zhang et al. 2021)
    python recipes/speech_to_text.py manifest --train a.tsv --valid b.tsv --test c.tsv
    python recipes/speech_to_text.py vectors --train a.tsv --features.n-features 80   .npy files instead of sound

Every field can be set from the command line (see NAME --help). The same command again resumes.
"""

import os
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import tyro

import transduce as td
from transduce import experiment as ex
from transduce.recipes import DATA

MFCC = ex.FeatureConfig(n_coefficients=20, deltas=1)
"""40 features: by four frames they are the 160 numbers of the models' d_model, and go straight in."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Every number of a speech experiment."""

    name: str = "speech"
    """What the run directory is called where run does not say."""
    run: ex.Common[Path | None] = None
    """The run directory, all one needs to transcribe with; by itself runs/NAME, or runs/NAME_COLUMN for another target."""
    corpus: ex.Common[Annotated[ex.Manifests, tyro.conf.arg(name="")]] = field(default_factory=ex.Manifests)
    features: ex.FeatureConfig | ex.VectorConfig = field(default_factory=lambda: MFCC)
    augmentation: ex.Augmentation = field(default_factory=lambda: ex.Augmentation(token_dropout=0.3))
    cache: Path = Path("runs/features")
    """Where log-mels are kept, for all runs; safe to share and to delete."""
    workers: int = os.cpu_count() or 1
    """Threads that compute them; 0: none but the first."""
    vocab_size: ex.Common[int] = 320
    """Tokens of the BPE vocabulary, 260 special ones and bytes included."""
    pronunciations: Path | None = None
    """A pronouncing dictionary, such as CMU's: tokens are then phones instead of parts of words, and what comes out are the
    training's words that sound so. vocab_size has no meaning then."""
    tokenizer: Path | None = None
    """What to use instead of training it: a SentencePiece model, or JSON of the library tokenizers."""
    symbols: str = ""
    """Words, separated by spaces, that are one token each wherever they stand, such as "<2de> <2fr>"."""
    max_seconds: ex.Common[float] = 20.0
    """Longer recordings are not trained on, and counted."""
    frames_per_batch: ex.Common[int] = 4000
    """Rows times the longest recording of a batch, padding included: what bounds memory."""
    ctc_weight: float = 0.5
    """Share of CTC in the loss; 0 = none."""
    interctc_weight: float = 0.5
    """Share of model.ctc_layers in CTC, where there are any; the rest is that of the encoder's last layer."""
    ctc_consistency: float = 0.0
    """Weight, beside CTC, of the divergence between the CTC outputs of two passes of each batch with different dropout and
    augmentation (not speed and silence); 0 = one pass. CR-CTC (Yao et al. 2024) has 0.2, and 2.5 times as many time masks."""
    ctc_column: str | None = None
    """The column that CTC learns. By itself it is text, what is said, where the manifests have it; searches into another
    target column then go without CTC."""
    model: ex.Common[td.TransformerConfig] = field(default_factory=ex.speech_tiny)
    start_from: ex.Common[Path | None] = None
    """Another run to go on from, with a schedule of its own: its weights where they fit; its sizes, features and tokenizer."""
    training: ex.Common[ex.TrainingConfig] = field(default_factory=ex.TrainingConfig)
    validate_by: ex.ValidateBy | None = None
    """What decides which checkpoint is best. By itself it is WER, or BLEU where the target column is a translation."""
    tokenize: ex.Tokenization | None = None
    """How BLEU separates words; by itself as the script of the references asks for."""
    decoding: td.SearchConfig = field(
        default_factory=lambda: td.SearchConfig(length_ratio=1.0, length_extra=5, ctc_weight=0.5)
    )
    device: ex.Common[str] = "auto"
    """auto (a GPU where there is one), cpu, cuda, cuda:1, ..."""

    def __post_init__(self) -> None:
        ex.at_least(1, vocab_size=self.vocab_size, frames_per_batch=self.frames_per_batch)
        ex.at_least(0, workers=self.workers)
        ex.within("(0, inf)", max_seconds=self.max_seconds)
        ex.within("[0, 1]", ctc_weight=self.ctc_weight, interctc_weight=self.interctc_weight)
        ex.at_least(0, ctc_consistency=self.ctc_consistency)


BEYOND = 1.2
"""Recordings are cut into segments that last at most this times the longest one of the training."""

CMU = DATA / "pronunciations" / "cmudict.dict.gz"
"""The CMU Pronouncing Dictionary: how 126,000 words of English sound."""
COMMANDS = Experiment(
    name="speech",
    corpus=ex.Manifests(data=DATA / "commands" / "sound", valid=Path("valid.tsv")),
    # two views of small batches: in the time of as many updates of one view of larger ones, and unheard accents gain by it
    frames_per_batch=3000,
    ctc_consistency=0.2,
    augmentation=ex.Augmentation(token_dropout=0.3, n_time_masks=5),
    # the loss of augmented recordings is several times that of validation: more dropout only takes longer
    model=replace(ex.conformer_tiny(), dropout=0.05),
    interctc_weight=0.3,
    training=ex.TrainingConfig(
        optim=ex.OptimConfig(optimizer="muon", peak_rate=5e-3, warmup_steps=100, schedule="cosine", clip_norm=5.0),
        precision="auto",
        max_updates=1200,
        validate_every=300,
        keep_last=3,
    ),
    # all that is said in these corpora is said in their training, or nearly all
    decoding=td.SearchConfig(length_ratio=1.0, length_extra=5, ctc_weight=0.5, words="known"),
)
PAPER = replace(
    COMMANDS,
    name="speech_paper",
    model=ex.speech_tiny(),
    frames_per_batch=2000,
    training=replace(COMMANDS.training, max_updates=2400, validate_every=600),
)
ONE_VIEW = replace(COMMANDS, ctc_consistency=0.0, augmentation=replace(COMMANDS.augmentation, n_time_masks=2))
GERMAN = replace(
    ONE_VIEW,
    corpus=replace(COMMANDS.corpus, target_column="german"),
    frames_per_batch=5000,
    vocab_size=400,  # English, which CTC learns, and German
    ctc_weight=0.3,
    training=replace(
        COMMANDS.training,
        optim=replace(COMMANDS.training.optim, weight_decay=0.1),
        max_updates=2400,
        validate_every=400,
    ),
)
FSDD = replace(
    ONE_VIEW,
    name="fsdd",
    model=replace(ex.conformer_tiny(), dropout=0.15),
    frames_per_batch=4000,
    pronunciations=CMU,
    corpus=ex.Manifests(data=ex.corpus_folder("fsdd"), hold_out="recordings"),
    # the mean of a single digit tells much of which one it is, so statistics are those of the corpus
    features=replace(MFCC, sample_rate=8000, n_mels=40, normalize="global"),
    # the shortest digit lasts 0.14 s, and there are 40 bands, not 80: masks that do not hide a whole digit
    # five voices are few to learn from: other levels, tilts of the spectrum and noise make more of them
    augmentation=replace(
        ONE_VIEW.augmentation, time_mask_width=0.08, frequency_mask_width=8, gain=12.0, tilt=3.0, lowest_snr=10.0
    ),
    training=replace(COMMANDS.training, max_updates=450, validate_every=150, keep_last=3),
)
DIGITS = replace(
    FSDD,
    name="digits",
    corpus=ex.Manifests(data=ex.corpus_folder("digits"), valid=Path("valid.tsv")),
    pronunciations=None,  # a digit is one token, as it is for FSDD without a dictionary
    augmentation=replace(ONE_VIEW.augmentation, time_mask_width=0.08, frequency_mask_width=8, n_time_masks=4),
    frames_per_batch=8000,
    model=replace(ex.conformer_tiny(), dropout=0.1),
    training=replace(FSDD.training, max_updates=1200, validate_every=200),
    # a digit is one token and lasts at least three positions of 0.04 s; room for spelling is left
    decoding=replace(COMMANDS.decoding, length_ratio=0.5),
)
SPEECHOCEAN = replace(
    COMMANDS,
    name="speechocean762",
    corpus=ex.Manifests(
        data=ex.corpus_folder("speechocean762"), train=Path("train/manifest.tsv"), test=Path("test/manifest.tsv")
    ),
    pronunciations=CMU,  # 2.6 hours are too few to learn how English is spelled
    frames_per_batch=6000,
    model=replace(ex.conformer_small(project=True), dropout=0.15),  # its 2.6 hours gain a little by the map
    training=replace(
        COMMANDS.training,
        optim=replace(COMMANDS.training.optim, warmup_steps=200, weight_decay=0.1),
        max_updates=6500,
        validate_every=500,
        keep_last=5,
    ),
    decoding=replace(COMMANDS.decoding, beam_size=10, ctc_weight=0.2),
)
SETTINGS = {
    "commands": (
        "The spoken commands that ship; minutes on two cores.",
        # no validation recording is above 0.25, and no noise, hum or music below 0.4 (scripts/bench no_speech)
        replace(COMMANDS, decoding=replace(COMMANDS.decoding, no_speech_threshold=0.35)),
    ),
    "paper": ("The commands with the paper's layers, the same as for text, and CTC; minutes on two cores.", PAPER),
    "commands_german": ("The same recordings, German text comes out; minutes on two cores.", GERMAN),
    "fsdd": ("Spoken digits, 3,000 recordings; minutes on two cores.", FSDD),
    "digits": ("3 to 7 spoken digits in a row, 4,000 utterances made by scripts/corpora/make_digits.py.", DIGITS),
    "speechocean762": ("Read English by Mandarin speakers, 2,500 recordings; an hour on one core.", SPEECHOCEAN),
    "manifest": (
        "Any recordings; until ten validations bring nothing better.",
        replace(
            SPEECHOCEAN,
            name="speech_manifest",
            corpus=ex.Manifests(test=None),
            pronunciations=None,  # of whatever language it is
            model=replace(ex.conformer_small(), dropout=0.15),
            ctc_consistency=0.0,
            # whoever records something does not cut it as closely as a corpus does
            augmentation=replace(ONE_VIEW.augmentation, silence=0.3),
            vocab_size=500,
            frames_per_batch=16_000,
            decoding=replace(SPEECHOCEAN.decoding, words="any"),
            training=replace(
                SPEECHOCEAN.training,
                optim=replace(SPEECHOCEAN.training.optim, schedule="inverse_sqrt", warmup_steps=500),
                max_updates=100_000,
                patience=10,
            ),
        ),
    ),
}
SETTINGS["vectors"] = (
    "Any dense vectors: manifests whose audio are .npy files of shape (frames, --features.n-features).",
    replace(SETTINGS["manifest"][1], name="vectors", features=ex.VectorConfig(n_features=80)),
)


def run(x: Experiment) -> dict[str, float]:
    """Train, then transcribe and score the test recordings; returns the scores."""
    translating = x.corpus.target_column != "text"
    measures = ("bleu", "chrf") if translating else ("wer", "cer")
    run = x.run or Path("runs") / (f"{x.name}_{x.corpus.target_column}" if translating else x.name)
    x = replace(x, run=run, validate_by=x.validate_by or measures[0])
    for name in ("ctc_column", "ctc_consistency"):
        if getattr(x, name) and not x.ctc_weight:
            raise td.InputError(f"{name} is for CTC, but ctc_weight=0; leave one of them out")
    others = {name: getattr(x, name) for name in ("tokenizer", "symbols", "ctc_column")}
    others |= {"corpus.target_column": x.corpus.target_column if translating else None}
    if x.pronunciations and (named := [f"{name}={value}" for name, value in others.items() if value]):
        raise td.InputError(
            f"pronunciations make the tokens of what is said, and no others, but {', '.join(named)}; leave one of them out "
            "(--pronunciations None)"
        )

    # Data
    recordings, valid, test = x.corpus.read(x.training.seed)
    if translating and x.ctc_column is None and x.ctc_weight and all("text" in r.columns for r in recordings + valid):
        x = replace(x, ctc_column="text")
    ctc_column = "" if x.ctc_column == x.corpus.target_column else x.ctc_column or ""
    if ctc_column or not x.ctc_weight:  # the head learns another text, or nothing: of no use to what decodes
        model = replace(x.model, ctc_conditioning=False, ctc_layers=x.model.ctc_layers if x.ctc_weight else ())
        x = replace(x, decoding=replace(x.decoding, ctc_weight=0.0, no_speech_threshold=0.0), model=model)
    needs = ("bos_id", "eos_id", *["pad_id"] * bool(x.ctc_weight))  # padding is CTC's blank
    begun_by = None if x.pronunciations else x.start_from  # which may have spelled otherwise
    _, tokenizer = ex.saved_tokenizers(run, begun_by, x.tokenizer or (), x.symbols, needs=needs) or (None, None)
    transcripts = ex.cells(recordings, ctc_column) if ctc_column else []
    if tokenizer is None and x.pronunciations:
        tokenizer = ex.PronunciationTokenizer.train([r.text for r in recordings], ex.read_dictionary(x.pronunciations))
    tokenizer = tokenizer or ex.SentencePieceTokenizer.train(
        [*(r.text for r in recordings), *transcripts],
        vocab_size=x.vocab_size,
        symbols=x.symbols.split(),
    )
    cache = ex.FeatureCache(x.cache)
    reader = ex.FrameReader(
        ex.make_feature_extractor(x.features, recordings, cache, x.workers, max_seconds=x.max_seconds), cache
    )
    config = ex.with_frames(x.model, reader.n_features, tokenizer.vocab_size)
    _, spoken = ex.in_languages(tokenizer, tokenizer, x.decoding)
    settings = ex.SpeechPairsConfig(
        frames_per_batch=x.frames_per_batch,
        max_seconds=x.max_seconds,
        workers=x.workers,
        seed=x.training.seed,
        ctc_column=ctc_column,
    )
    two_views = max(x.training.consistency, x.ctc_consistency) > 0
    augmented = replace(settings, augmentation=x.augmentation, two_views=two_views)
    pairs = ex.SpeechPairs(recordings, reader, spoken, augmented, config.frames.out_lengths)
    held_out = ex.SpeechPairs(valid, reader, spoken, settings)
    print(f"train: {pairs}\nvalid: {held_out}")
    # in longer or shorter segments than these the model would be lost
    shortest, longest = (extreme(r.seconds for r in pairs.recordings) for extreme in (min, max))
    longest = min(x.decoding.max_seconds, max(1.0, BEYOND * longest))
    margin = x.augmentation.silence / 2
    x = replace(x, decoding=replace(x.decoding, min_seconds=min(shortest, longest), max_seconds=longest, margin=margin))
    print(f"segments to transcribe: {shortest:.1f} to {longest:.1f} s, about as long as recordings of the training")

    # Model
    model = ex.new_model(x, config, x.start_from, target_tokenizer=tokenizer)
    print(f"input: {config.input_description}")

    # Training
    losses = ex.token_losses(x, model, target_tokenizer=spoken, feature_extractor=reader.feature_extractor)
    if x.ctc_weight:
        (blank,) = tokenizer.required("pad_id")
        losses = replace(losses, ctc_weight=x.ctc_weight, interctc_weight=x.interctc_weight, blank_id=blank)
        losses = replace(losses, ctc_consistency=x.ctc_consistency)
    objective = (ex.HybridCTC if x.ctc_weight else ex.CrossEntropy)(model, losses)
    words = sorted({word for r in recordings for word in r.text.split()})
    transcriber = td.Transcriber(model, spoken, reader.feature_extractor, lexicon=words)
    if not ex.train(
        x,
        objective,
        data=pairs,
        validate=ex.speech_validator(
            transcriber, held_out, by=x.validate_by, tokenize=x.tokenize, search=x.decoding.greedy(), recordings=valid
        ),
        target_tokenizer=spoken,
        feature_extractor=reader.feature_extractor,
        lexicon=words,
        fingerprint=ex.recordings_fingerprint(recordings, valid, column=ctc_column),
    ):  # of several processes, the first one goes on
        return {}

    # Decoding and score
    return ex.speech_report(run, test, x.decoding, x.device, measures=measures, tokenize=x.tokenize) if test else {}


if __name__ == "__main__":
    sys.exit(ex.main(run, SETTINGS, default="commands", description=__doc__))
