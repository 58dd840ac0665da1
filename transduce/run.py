"""A run directory: config.json, tokenizers, model.safetensors, and checkpoints/UPDATE while training goes on."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as serialize
from torch import Tensor

from transduce.config import differences, flatten, from_dict, to_dict
from transduce.data.config import FeatureConfig, VectorConfig
from transduce.data.speech.features import FeatureExtractor, VectorReader
from transduce.data.text.base_tokenizer import Tokenizer
from transduce.data.text.json_tokenizer import JSONTokenizer
from transduce.data.text.tokenizer_files import FILES, side_files, write_tokenizers
from transduce.device import torch_device
from transduce.errors import InputError
from transduce.files import (
    check_whole,
    held,
    numbered,
    read_json,
    read_json_lines,
    read_weights,
    remove_leftovers,
    set_weights,
    write_file,
)
from transduce.hub import CARD, PREFIX, download
from transduce.model.config import Frames, Tokens, TransformerConfig
from transduce.model.size import check_fits, n_parameters
from transduce.model.transformer import Transformer, transformer_to_fill

CONFIG, WEIGHTS, CHECKPOINTS = "config.json", "model.safetensors", "checkpoints"
STATISTICS, METRICS, STATE = "features.safetensors", "metrics.jsonl", "state.json"
SAMPLES, SHORTLIST, MODEL_CARD = "samples", "shortlist.safetensors", "MODEL_CARD.md"
ERRORS, REPORT, LEXICON = "test.errors.txt", "report.html", "lexicon.txt"
PUBLISHED = (
    *(CONFIG, WEIGHTS, STATISTICS, SHORTLIST, LEXICON, *FILES, *side_files("source"), *side_files("target")),
    *(METRICS, "test.json", "validation.json", CARD),
)
"""The names of what a run has on the hub: all that it is used with, its scores and its card."""

FORMAT = 1
"""Of config.json. It grows by one whenever a field gets another name or meaning."""

MAY_CHANGE = (
    "run.",
    "name.",
    "device.",
    "corpus.",
    "pronunciations.",
    "test.",
    "cache.",
    "workers.",
    "decoding.",
    "shortlist.",
    "tokenize.",
    "normalization.",
    "generation.",
    "model.recompute.",
    "training.data_workers.",
    "training.max_updates.",
    "training.max_minutes.",
    "training.shard.",
    "training.save_every_minutes.",
    "training.compile_layers.",
)
"""What may change from one start of a run to the next: where files lie, the machine, how long to train, how often to save,
how to decode and what to test on."""

MUST_STAY = ("corpus.target_column",)
"""What must not change, although a prefix in MAY_CHANGE covers it."""


@dataclass(frozen=True)
class Run:
    """What a run directory holds besides weights: configurations, tokenizers and the feature extractor."""

    model: TransformerConfig
    experiment: dict[str, Any]
    source_tokenizer: Tokenizer | None
    target_tokenizer: Tokenizer | None
    """The only tokenizer of a decoder alone; the source's own where source and target share one."""
    feature_extractor: FeatureExtractor | VectorReader | None = None
    """How sound becomes frames, where the source is not text."""

    def resume_key(self) -> dict[str, Any]:
        """Everything that a resumed run must have in common with its beginning, by dotted name.

        Tokenizers are represented by a hash. What training data there is, the experiment says by a fingerprint.
        """
        sides = {"source_tokenizer": self.source_tokenizer, "target_tokenizer": self.target_tokenizer}
        hashes = {name: hashlib.sha256(side.model).hexdigest()[:12] if side else None for name, side in sides.items()}
        named = flatten({**self.experiment, "model": to_dict(self.model), **hashes})
        bound = {name: named[name] for name in MUST_STAY if name in named}  # first: it explains other differences
        return bound | {name: value for name, value in named.items() if not (name + ".").startswith(MAY_CHANGE)}


def save_run(directory: Path, run: Run) -> None:
    """Write config.json and tokenizers; one file where both sides share one."""
    directory.mkdir(parents=True, exist_ok=True)
    write_tokenizers(directory, run.source_tokenizer, run.target_tokenizer, alone=run.model.encoder is None)
    plain = {"format": FORMAT, "transduce": version("transduce")}
    plain |= {"model": to_dict(run.model), "experiment": run.experiment}
    extractor = run.feature_extractor
    if extractor is not None:
        plain["features"] = to_dict(extractor.config)
    if isinstance(extractor, FeatureExtractor) and extractor.mean is not None and extractor.std is not None:
        write_file(directory / STATISTICS, serialize({"mean": extractor.mean, "std": extractor.std}))
    write_file(directory / CONFIG, json.dumps(plain, indent=2) + "\n")


def on_disk(directory: Path | str) -> Path:
    """The run directory itself, or, of hub:USER/NAME[@REVISION], where it was downloaded to.

    Raises:
        InputError: there is no such run on the hub, or it cannot be had; see `download`.
    """
    return download(directory, PUBLISHED) if str(directory).startswith(PREFIX) else Path(directory)


def load_run(directory: Path) -> Run:
    """Read what `save_run` wrote.

    Raises:
        InputError: `directory` is not a run directory, or its config.json is not ours.
    """
    directory = on_disk(directory)
    path = directory / CONFIG
    if not path.is_file():
        what = "does not exist" if not directory.exists() else f"has no {CONFIG}"
        raise InputError(
            f"a run directory holds {CONFIG}, but {directory} {what}; a recipe makes one (--run DIRECTORY)"
        )
    plain = read_json(path)
    _check_format(path, plain)
    for name in ("model", "experiment"):
        if not isinstance(plain.get(name), dict):
            found = f"it is {plain[name]!r:.60}" if name in plain else "it has none"
            raise InputError(f"{path} must have an object {name!r}, but {found}; copy the whole run directory again")
    config = from_dict(TransformerConfig, plain["model"], str(path))
    shared = _read_tokenizer(directory, FILES)
    run = Run(
        model=config,
        experiment=plain["experiment"],
        source_tokenizer=(shared if config.encoder else None) or _read_tokenizer(directory, side_files("source")),
        target_tokenizer=shared or _read_tokenizer(directory, side_files("target")),
        feature_extractor=_read_feature_extractor(plain["features"], directory) if "features" in plain else None,
    )
    _check_sizes(directory, run)
    return run


def _check_sizes(directory: Path, run: Run) -> None:
    """Raise InputError unless the tokenizers and the feature extractor have the sizes that the model is made for."""
    encoder, decoder = run.model.encoder, run.model.decoder
    if run.feature_extractor is not None and encoder is not None and isinstance(encoder.input, Frames):
        wanted, found = encoder.input.n_features, run.feature_extractor.config.n_features
        if found != wanted:
            raise InputError(
                f"the model takes {wanted} features a frame, but those of {directory / CONFIG} are {found}"
            )
    for side, stack, tokenizer in (
        ("encoder", encoder, run.source_tokenizer),
        ("decoder", decoder, run.target_tokenizer),
    ):
        if stack is None or tokenizer is None or decoder is None or not isinstance(stack.input, Tokens):
            continue  # FillMask checks what an encoder alone needs
        size = stack.input.vocab_size
        padded = encoder is None and isinstance(tokenizer, JSONTokenizer)  # as GPT-2s have it, which Generator knows
        if tokenizer.vocab_size > size or (tokenizer.vocab_size < size and not padded):
            raise InputError(
                f"a tokenizer must have as many tokens as the model's {side}, which has {size}, but that of {directory} "
                f"has {tokenizer.vocab_size}; copy the whole run directory again"
            )


def _check_format(path: Path, plain: dict[str, Any]) -> None:
    """Raise InputError unless this version reads such a config.json."""
    if (found := plain.get("format", 0)) != FORMAT:
        by = str(plain.get("transduce", "0.1"))[:20]  # the version that did not say its format
        raise InputError(
            f"{path} must have format {FORMAT}, which transduce {version('transduce')} reads, but it has format {str(found)[:20]} "
            f"of transduce {by}; use the source of that version for it, or train the run again"
        )


def _read_feature_extractor(plain: object, directory: Path) -> FeatureExtractor | VectorReader:
    where = str(directory / CONFIG)
    if not isinstance(plain, dict) or "sample_rate" not in plain:
        return VectorReader(from_dict(VectorConfig, plain, where))
    path = directory / STATISTICS
    config = from_dict(FeatureConfig, plain, where)
    if not config.has_statistics:
        return FeatureExtractor(config)
    if not path.is_file():
        raise InputError(
            f"normalize={config.normalize} needs the training data's mean and std, but {directory} has no {STATISTICS}; copy the "
            "whole run directory"
        )
    statistics = read_weights(path)
    if not all(tensor.dtype == torch.float32 and tensor.isfinite().all() for tensor in statistics.values()):
        raise InputError(f"mean and std must be finite numbers of float32, but in {path} they are not")
    try:
        return FeatureExtractor(config, mean=statistics.get("mean"), std=statistics.get("std"))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _read_tokenizer(directory: Path, files: dict[str, type[Tokenizer]]) -> Tokenizer | None:
    for name, kind in files.items():
        if (directory / name).is_file():
            return kind.load(directory / name)
    return None


def checkpoints(directory: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    return numbered(directory / CHECKPOINTS)


def validated_checkpoints(directory: Path) -> list[tuple[Path, float]]:
    """The checkpoints of a run that were validated, with their scores (higher is better), oldest first.

    Raises:
        InputError: the newest checkpoint does not tell what the validations gave.
    """
    found = checkpoints(directory)
    if not found:
        return []
    path = found[-1] / STATE
    state = read_json(path)
    try:
        scores = {int(update): float(score) for update, score in state["validations"]}
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} must list validations as pairs of update and score, but it does not") from error
    return [(path, scores[int(path.name)]) for path in found if int(path.name) in scores]


def validations(directory: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl that validations wrote, oldest first."""
    path = directory / METRICS
    return [line for line in read_json_lines(path) if line.get("kind") == "valid"] if path.is_file() else []


def weights_path(directory: Path) -> Path:
    """The weights to decode with: the finished model, or the newest checkpoint while there is none.

    Raises:
        InputError: there are none.
    """
    found = [directory / WEIGHTS, *(path / WEIGHTS for path in reversed(checkpoints(directory)))]
    for path in found:
        if path.is_file():
            return path
    raise InputError(f"a run needs weights, but {directory} has neither {WEIGHTS} nor a checkpoint; train it first")


def load_model(directory: Path | str, device: torch.device | str = "cpu") -> Transformer:
    """The run's model in evaluation mode.

    Raises:
        InputError: the directory is not a whole run, or this machine has no such device.
    """
    directory, device = on_disk(directory), torch_device(device)
    config = load_run(directory).model
    path = weights_path(directory)
    if path.parent != directory:
        check_whole(path)
    weights = read_weights(path)
    _check_number(config, weights, path)
    check_fits(config, device)
    model = transformer_to_fill(config)
    set_weights(model, weights, str(path))
    if wrong := [name for name, tensor in weights.items() if not tensor.isfinite().all()]:
        raise InputError(
            f"weights must be finite, but in {path} {', '.join(wrong[:3])} are not; take an earlier checkpoint: "
            f"transduce average {directory} --best 1"
        )
    return model.to(device).eval()


def _check_number(config: TransformerConfig, weights: dict[str, Tensor], path: Path) -> None:
    """Raise InputError where the configuration asks for far more weights than there are, before they take memory."""
    wanted, found = n_parameters(config), sum(tensor.numel() for tensor in weights.values())
    if wanted > 2 * found:  # below that, the names and shapes that do not fit are told
        raise InputError(
            f"weights must fit the configuration, but it describes {wanted:,} and {path} has {found:,}; copy the whole "
            "run directory again"
        )


def average(paths: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of several weight files, summed in float64.

    Source: Vaswani et al. (2017), section 6.1, "checkpoint averaging".
    """
    if not paths:
        raise InputError("an average needs at least one checkpoint, but there is none")
    total: dict[str, Tensor] = {}
    for path in paths:
        check_whole(path)
    first = read_weights(paths[0])
    for path in paths:
        weights = read_weights(path)
        if weights.keys() != first.keys():
            raise InputError(f"checkpoints to average must have the same names, but {paths[0]} and {path} differ")
        for name, tensor in weights.items():
            total[name] = total[name] + tensor.double() if name in total else tensor.double()
    return {name: (tensor / len(paths)).to(first[name].dtype) for name, tensor in total.items()}


@contextmanager
def open_run(directory: Path, run: Run) -> Iterator[None]:
    """Make `directory` this run's, or go on with it where it already is, and hold it until the `with` ends.

    Raises:
        InputError: another process holds the directory, or another experiment lives there; the message says which
            process, or lists what differs.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with held(directory, "a run is trained by one process at a time", "name another directory with --run"):
        for folder in (directory, directory / SAMPLES):
            remove_leftovers(folder)
        _begin_or_go_on(directory, run)
        yield


def _begin_or_go_on(directory: Path, run: Run) -> None:
    if not (directory / CONFIG).exists():
        save_run(directory, run)
    elif changed := differences(load_run(directory).resume_key(), run.resume_key()):
        raise InputError(
            f"a run goes on with the configuration it began with, but in {directory} this differs: "
            f"{'; '.join(changed)}. Name another directory with --run, and --start-from {directory} to go on from its weights"
        )


def checkpoint_weights(directory: Path, updates: Sequence[int]) -> list[Path]:
    """The weight files of these updates' checkpoints."""
    return [directory / CHECKPOINTS / f"{update:08d}" / WEIGHTS for update in updates]
