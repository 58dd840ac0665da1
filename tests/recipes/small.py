"""Experiments of the recipes that are small enough for tests, and folders of data for them."""

import json
from dataclasses import replace
from pathlib import Path

import transduce as td
from recipes import language_model, masked_language_model, translation
from tests.runs import FEATURES, SPEECH, record, sentences
from transduce.data.config import Augmentation
from transduce.data.corpus import Folder
from transduce.data.language import OneText
from transduce.data.manifest import Manifests, Recording, write_manifest
from transduce.experiment.config import SpeechExperiment, TranslationExperiment
from transduce.train.config import OptimConfig, TrainingConfig
from transduce.train.trainer import Trainer

PAIRS = {"train": 150, "valid": 4, "test": 4}
"""Lines of the small parallel corpus."""

LINES = ["To be, or not to be: that is the question.", "", "Whether 'tis nobler in the mind to suffer"]
"""The text of the language models, several times."""


def parallel_text(folder: Path) -> None:
    """A corner of the corpus of commands that ships."""
    corpus = translation.COMMANDS.corpus
    assert isinstance(corpus, Folder)
    assert corpus.data is not None
    folder.mkdir(parents=True)
    for split, n in PAIRS.items():
        for language in ("en", "de"):
            lines = (corpus.data / f"{split}.{language}").read_text().split("\n")[:n]
            (folder / f"{split}.{language}").write_text("".join(line + "\n" for line in lines))


def translator(run: Path, data: Path, /, **fields) -> TranslationExperiment:
    """Two layers of width 16 in bf16; two updates, each of which is validated."""
    setting = translation.COMMANDS
    optim = replace(setting.training.optim, warmup_steps=2, cooldown=0.0)
    training = replace(setting.training, optim=optim, max_updates=2, validate_every=1, precision="bf16")
    layers = {
        "encoder": replace(setting.model.encoder, n_layers=2),
        "decoder": replace(setting.model.decoder, n_layers=2),
    }
    given = {
        "corpus": Folder(data=data, valid="valid"),
        "vocab_size": 320,
        "tokens_per_batch": 512,
        "model": replace(setting.model, d_model=16, d_ff=32, n_heads=2, **layers),
        "training": training,
        "decoding": td.SearchConfig(beam_size=2, length_ratio=1.0, length_extra=3),
        "device": "cpu",
    }
    return replace(setting, run=run, **(given | fields))


def recordings(folder: Path) -> None:
    """Train, valid and test manifests of tones; one recording of each is no sound."""
    for seed, (split, n) in enumerate((("train", 12), ("valid", 3), ("test", 4))):
        got = record(folder, sentences(n, seed=seed), name=split)
        (folder / f"{split}.wav").write_text("no sound")
        broken = Recording("broken", folder / f"{split}.wav", 1.0, "A", "red", {"german": "rot"})
        write_manifest(folder / f"{split}.tsv", [*got, broken])


def transcriber(run: Path | None, folder: Path, /, **fields) -> SpeechExperiment:
    """Two layers of width 20, the frames straight in; dropout, speeds and masks on."""
    optim = OptimConfig(peak_rate=3e-3, warmup_steps=5)
    given = {
        "corpus": Manifests(data=folder, valid=Path("valid.tsv")),
        "features": FEATURES,
        "augmentation": Augmentation(n_time_masks=1, n_frequency_masks=1, frequency_mask_width=4),
        "cache": folder.parent / "recipes-features",
        "workers": 0,
        "vocab_size": 290,
        "frames_per_batch": 300,
        "model": SPEECH,
        "training": TrainingConfig(optim=optim, max_updates=2, validate_every=2),
        "decoding": td.SearchConfig(beam_size=2, length_ratio=0.2, length_extra=5, ctc_weight=0.5),
        "device": "cpu",
    }
    return SpeechExperiment(run=run, **(given | fields))


def running_text(folder: Path) -> None:
    """A file input.txt."""
    folder.mkdir(parents=True)
    (folder / "input.txt").write_text("".join(f"{line}\n" for line in LINES * 6))


def generator(run: Path, data: Path, /, **fields) -> language_model.Experiment:
    """Windows of 11 characters, with dropout."""
    setting = language_model.SHAKESPEARE_CPU
    given = {
        "corpus": OneText(data=data, valid_share=0.3),
        "batch_size": 4,
        "model": replace(language_model.COMMANDS.model, d_model=16, d_ff=32, n_heads=2, max_positions=11, dropout=0.2),
        "training": replace(setting.training, max_updates=2, validate_every=1),
        "generation": td.GenerationConfig(max_length=7),
        "device": "cpu",
    }
    return replace(setting, run=run, **(given | fields))


def fill_mask(
    run: Path, data: Path, /, setting: masked_language_model.Experiment = masked_language_model.SHAKESPEARE, **fields
) -> masked_language_model.Experiment:
    """Windows of 11 characters, with dropout."""
    commands = masked_language_model.COMMANDS
    given = {
        "corpus": OneText(data=data, valid_share=0.3),
        "batch_size": 4,
        "model": replace(commands.model, d_model=16, d_ff=32, n_heads=2, max_positions=11, dropout=0.2),
        "training": replace(commands.training, max_updates=2, validate_every=1, precision="fp32"),
        "device": "cpu",
    }
    return replace(setting, run=run, **(given | fields))


def metrics(run: Path, kind: str) -> list[dict[str, float]]:
    """The lines of this kind that a training has logged, without what the clock says."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    clock = ("seconds", "tokens_per_second")
    return [{k: v for k, v in line.items() if k not in clock} for line in lines if line["kind"] == kind]


def loss_parts(trainer: Trainer) -> dict[str, float]:
    """The loss of the first batch in training, and its parts, per token."""
    batch = trainer.data.epoch(0)[0].to(trainer.device)  # with its lengths on the host, as in an update
    trainer.model.train()
    loss = trainer.objective(batch)
    parts = {name: part.item() / batch.n_tokens for name, part in loss.parts.items()}
    return {"loss": loss.total.item() / batch.n_tokens, **parts}
