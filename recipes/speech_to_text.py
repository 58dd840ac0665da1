"""Speech to text: MFCC frames straight into the encoder, scored with WER.

    python recipes/speech_to_text.py
    python recipes/speech_to_text.py speechocean762 --data DIR
    python recipes/speech_to_text.py manifest --train a.tsv --valid b.tsv
    python recipes/speech_to_text.py vectors --train a.tsv --features.n-features 80

Every field can be set from the command line (see NAME --help). The same command again resumes.
"""

import sys
from dataclasses import replace
from pathlib import Path

import transduce as td
from transduce import experiment as ex
from transduce.recipes import DATA

CMU = DATA / "pronunciations" / "cmudict.dict.gz"  # pronunciations of 126,000 English words
OPTIM = ex.OptimConfig(optimizer="muon", peak_rate=5e-3, warmup_steps=100, schedule="cosine", clip_norm=5.0)
COMMANDS = ex.SpeechExperiment(
    corpus=ex.Manifests(data=DATA / "commands" / "sound", valid=Path("valid.tsv")),
    frames_per_batch=3000,  # two views of small batches, in the time of one view of larger ones, help with unseen accents
    ctc_consistency=0.2,
    augmentation=ex.Augmentation(token_dropout=0.3, n_time_masks=5),
    model=replace(ex.conformer_tiny(), dropout=0.05),  # with this augmentation, more dropout only slows training down
    interctc_weight=0.3,
    training=ex.TrainingConfig(optim=OPTIM, precision="auto", max_updates=1200, validate_every=300, keep_last=3),
    # nearly all words of these corpora occur in their training data
    decoding=td.SearchConfig(length_ratio=1.0, length_extra=5, ctc_weight=0.5, words="known"),
)
# 1 of 274 recordings with unseen accents is above this, and no noise, hum or music is below (scripts/bench no_speech)
LISTENING = ex.with_fields(COMMANDS, decoding={"no_speech_threshold": 0.45})
PAPER = ex.with_fields(COMMANDS, name="speech_paper", model=ex.speech_tiny(), frames_per_batch=2000)
PAPER = ex.with_fields(PAPER, training={"max_updates": 2400, "validate_every": 600})
ONE_VIEW = ex.with_fields(COMMANDS, ctc_consistency=0.0, augmentation={"n_time_masks": 2})
GERMAN = ex.with_fields(
    ONE_VIEW,
    corpus={"target_column": "german"},
    frames_per_batch=5000,
    vocab_size=400,  # for English, which CTC learns, and German
    ctc_weight=0.3,
    training={"optim": {"weight_decay": 0.33}, "max_updates": 2400, "validate_every": 400},
    decoding={"alpha": 1.6},  # with less, fusion with a language model ends at an "und"
)
FSDD = ex.with_fields(
    ONE_VIEW,
    name="fsdd",
    model={"dropout": 0.15},
    frames_per_batch=4000,
    pronunciations=CMU,
    corpus=ex.Manifests(data=ex.corpus_folder("fsdd"), hold_out="recordings"),
    features={"sample_rate": 8000, "n_mels": 40, "normalize": "global"},  # the mean of one digit tells which it is
    # masks do not hide a digit of 0.14 s; other levels, spectral tilts and noise make more of the five voices
    augmentation={"time_mask_width": 0.08, "frequency_mask_width": 8, "gain": 12.0, "tilt": 3.0, "lowest_snr": 10.0},
    training={"max_updates": 450, "validate_every": 150},
)
DIGITS = ex.with_fields(
    FSDD,
    name="digits",
    corpus=ex.Manifests(data=ex.corpus_folder("digits"), valid=Path("valid.tsv")),
    pronunciations=None,  # a digit is one token, as it is for FSDD without a dictionary
    augmentation={"n_time_masks": 4, "gain": 0.0, "tilt": 0.0, "lowest_snr": None},
    frames_per_batch=8000,
    model={"dropout": 0.1},
    training={"max_updates": 1200, "validate_every": 200},
    decoding={"length_ratio": 0.5},  # a digit is one token, and lasts at least three positions of 0.04 s
)
OCEAN = ex.Manifests(train=Path("train/manifest.tsv"), test=Path("test/manifest.tsv"))
LONGER = {"warmup_steps": 200, "weight_decay": 0.1}
SPEECHOCEAN = ex.with_fields(
    COMMANDS,
    name="speechocean762",
    corpus=replace(OCEAN, data=ex.corpus_folder("speechocean762")),
    pronunciations=CMU,  # 2.6 hours are too few to learn how English is spelled
    frames_per_batch=6000,
    model=replace(ex.conformer_small(), dropout=0.15),
    training={"optim": LONGER, "max_updates": 6500, "validate_every": 500, "keep_last": 5},
    decoding={"beam_size": 10, "ctc_weight": 0.2},
)
MANIFEST = ex.with_fields(
    SPEECHOCEAN,
    name="speech_manifest",
    corpus=ex.Manifests(test=None),
    pronunciations=None,  # the language may be any
    ctc_consistency=0.0,
    augmentation={"n_time_masks": 2, "silence": 0.3},  # users cut recordings less closely than corpora are cut
    vocab_size=500,
    frames_per_batch=16_000,
    decoding={"words": "any"},
    training={"optim": {"schedule": "inverse_sqrt", "warmup_steps": 500}, "max_updates": 100_000, "patience": 10},
)
VECTORS = ex.with_fields(MANIFEST, name="vectors", features=ex.VectorConfig(n_features=80))
SETTINGS = {
    "commands": ("The bundled spoken commands; minutes on two cores.", LISTENING),
    "paper": ("The commands with the paper's layers, the same as for text, and CTC; minutes on two cores.", PAPER),
    "commands_german": ("The same recordings with German text as output; minutes on two cores.", GERMAN),
    "fsdd": ("Spoken digits, 3,000 recordings; minutes on two cores.", FSDD),
    "digits": ("3 to 7 spoken digits in a row, 4,000 utterances made by scripts/corpora/make_digits.py.", DIGITS),
    "speechocean762": ("Read English by Mandarin speakers, 2,500 recordings; an hour on one core.", SPEECHOCEAN),
    "manifest": ("Any recordings; until ten validations bring no improvement.", MANIFEST),
    "vectors": ("Manifests whose audio are .npy files of shape (frames, --features.n-features).", VECTORS),
}


def run(specified: ex.SpeechExperiment) -> dict[str, float]:
    """Train, then transcribe and score the test recordings; returns the scores."""
    # Data
    recordings, valid, test = specified.corpus.read(specified.training.seed)
    canary = specified.corpus.part(specified.corpus.canary)
    x = ex.resolved(specified, columns=set.intersection(*({*r.columns} for r in recordings + valid)))
    tokenizer = ex.speech_tokenizer(x, recordings)
    cache = ex.FeatureCache(x.cache)
    features = ex.speech_features(x, recordings, cache)
    reader = ex.FrameReader(features, cache)
    x = ex.resolved(x, n_features=reader.n_features, vocab_sizes=[tokenizer.vocab_size])
    _, tokenizer = ex.in_languages(tokenizer, tokenizer, x.decoding)
    pairs = ex.speech_pairs(x, recordings, reader, tokenizer, training=True)
    held_out = ex.speech_pairs(x, valid, reader, tokenizer, training=False)
    print(f"train: {pairs}\nvalid: {held_out}")
    longest = max(r.seconds for r in [*pairs.recordings, *canary])
    x = ex.resolved(x, seconds=(min(r.seconds for r in pairs.recordings), longest))
    assert x.run is not None and x.validate_by is not None
    print(f"segments to transcribe: {x.decoding.min_seconds:.1f} to {x.decoding.max_seconds:.1f} s, as in the training")

    # Model
    words = sorted({word for r in recordings for word in r.text.split()})
    processor = ex.Processor(target=tokenizer, features=features, lexicon=words)
    model = ex.new_model(x, processor)
    print(f"input: {x.model.input_description}")

    # Training
    objective = ex.CrossEntropy(model, ex.token_losses(x, model, processor))  # and CTC
    transcriber, search = td.Transcriber(model, tokenizer, features, x.decoding, words), x.decoding.greedy()
    ex.check_search(transcriber, [held_out.recordings[0].audio], x.decoding)
    validate = ex.speech_validator(
        transcriber, held_out, by=x.validate_by, tokenize=x.tokenize, search=search, recordings=valid, canary=canary
    )
    key = ex.recordings_fingerprint(recordings, valid, column=x.ctc_text)
    if not ex.train(x, objective, processor, data=pairs, validate=validate, fingerprint=key, specified=specified):
        return {}  # of several processes, only the first one continues

    # Decoding and score
    if not test:
        return {}
    return ex.speech_report(x.run, test, x.decoding, x.device, canary=canary, measures=x.measures, tokenize=x.tokenize)


if __name__ == "__main__":
    sys.exit(ex.main(run, SETTINGS, default="commands", description=__doc__))
