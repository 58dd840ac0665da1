"""A run directory: config.json, tokenizers, weights, and checkpoints while training goes on."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import torch
from safetensors.torch import save as serialize

from transduce.config import Json, differences, flatten, from_dict, to_dict, without_removed
from transduce.data.base_tokenizer import Tokenizer
from transduce.data.config import FeatureConfig, VectorConfig
from transduce.data.features import FeatureExtractor, Features, VectorReader
from transduce.data.json_tokenizer import JSONTokenizer
from transduce.data.tokenizer_files import FILES, side_files, stored_tokenizer, write_tokenizers
from transduce.decode.phrases import LEXICON
from transduce.device import Device, torch_device
from transduce.errors import InputError, errors_of
from transduce.files import (
    Weights,
    check_undamaged,
    held,
    numbered,
    read_json,
    read_json_lines,
    read_weights,
    remove_leftovers,
    write_file,
    write_json,
)
from transduce.hub import CARD, PREFIX, download
from transduce.model.config import Frames, Tokens, TransformerConfig
from transduce.model.meta import check_fits, filled_transformer, n_parameters
from transduce.model.transformer import Transformer

WEIGHTS, CHECKPOINTS, STATE = "model.safetensors", "checkpoints", "state.json"
CONFIG, STATISTICS, METRICS = "config.json", "features.safetensors", "metrics.jsonl"
SAMPLES, MODEL_CARD, ERRORS, REPORT = "samples", "MODEL_CARD.md", "test.errors.txt", "report.html"
USED = (
    *(CONFIG, WEIGHTS, STATISTICS, LEXICON, *FILES),
    *(*side_files("source"), *side_files("target")),
)
"""The names of the files that are read to use a finished run."""

PUBLISHED = (*USED, METRICS, "test.json", "validation.json", CARD)
"""The names of a run's files on the hub: those that are read to use it, its scores and its card."""

FORMAT = 1
"""The format of config.json: one more whenever a field gets another name or meaning."""

MAY_CHANGE = (
    "run.", "name.", "device.", "log.", "corpus.", "pronunciations.", "test.", "cache.", "workers.",
    "decoding.", "tokenize.", "generation.", "model.recompute.",
    "training.data_workers.", "training.max_updates.", "training.max_minutes.", "training.shard.",
    "training.save_every_minutes.", "training.patience.",
)  # fmt: skip
"""What may change from one start of a run to the next: where files lie, the machine, how long to
train, how often to save, how to decode and what to test on."""

MUST_STAY = (
    "corpus.target_column", "tokenize", "decoding.source_language", "decoding.target_language",
)  # fmt: skip
"""What must not change, although a prefix in MAY_CHANGE covers it: what is trained on, and how
validations are scored."""


@dataclass(frozen=True)
class Run:
    """A run without its weights: configurations, tokenizers and the feature extractor."""

    model: TransformerConfig
    experiment: Json
    source_tokenizer: Tokenizer | None
    target_tokenizer: Tokenizer | None
    """The only tokenizer of a decoder-only model; the source's own if both sides share one."""
    feature_extractor: Features | None = None
    """How sound becomes frames, where the source is not text."""
    specified: Json = field(default_factory=dict)
    """The experiment as the user specified it, without the values derived from the data."""
    directory: Path = Path()
    """Where the run was read; for a run on the hub, its download."""

    def resume_key(self) -> Json:
        """Everything that a resumed run must have in common with its beginning, by dotted name.

        Tokenizers are represented by a hash; the experiment has a fingerprint of the training data.
        """
        named = flatten({**self.experiment, "model": to_dict(self.model)})
        for name in ("source_tokenizer", "target_tokenizer"):
            side = getattr(self, name)
            named[name] = hashlib.sha256(side.model).hexdigest()[:12] if side else None
        # first, as these explain other differences
        must_stay = {name: named[name] for name in MUST_STAY if named.get(name)}
        return must_stay | {
            name: value for name, value in named.items() if not (name + ".").startswith(MAY_CHANGE)
        }


def save_run(directory: Path, run: Run) -> None:
    """Write config.json and the tokenizers; a shared tokenizer is one file."""
    write_tokenizers(
        directory, run.source_tokenizer, run.target_tokenizer, alone=run.model.encoder is None
    )
    plain = {
        "format": FORMAT,
        "transduce": version("transduce"),
        "model": to_dict(run.model),
        "experiment": run.experiment,
        "specified": run.specified,
    }
    extractor = run.feature_extractor
    if extractor is not None:
        plain["features"] = to_dict(extractor.config)
        if extractor.mean is not None and extractor.std is not None:
            statistics = {"mean": extractor.mean, "std": extractor.std}
            write_file(directory / STATISTICS, serialize(statistics))
    write_json(directory / CONFIG, plain)


def on_disk(directory: Path | str) -> Path:
    """The run directory itself, or the download of hub:USER/NAME[@REVISION].

    Raises:
        InputError: there is no such run on the hub, or it cannot be downloaded; see `download`.
    """
    return download(directory, PUBLISHED) if str(directory).startswith(PREFIX) else Path(directory)


def load_run(directory: Path | str) -> Run:
    """Read what `save_run` wrote.

    Raises:
        InputError: `directory` is not a run directory, or its config.json is invalid.
    """
    directory = on_disk(directory)
    path = directory / CONFIG
    plain = _read_config(path)
    config = from_dict(TransformerConfig, plain["model"], str(path))
    shared = stored_tokenizer(directory)
    run = Run(
        model=config,
        experiment=plain["experiment"],
        source_tokenizer=(shared if config.encoder else None)
        or stored_tokenizer(directory, side_files("source")),
        target_tokenizer=shared or stored_tokenizer(directory, side_files("target")),
        feature_extractor=_read_feature_extractor(plain["features"], directory)
        if "features" in plain
        else None,
        directory=directory,
    )
    check_sizes(path, run)
    return run


def _read_config(path: Path) -> Json:
    """The content of config.json, in a format that this version reads."""
    directory = path.parent
    if not path.is_file():
        reason = "does not exist; a recipe makes one (--run DIRECTORY)"
        if directory.exists():
            reason = f"has no {CONFIG}; copy the whole run directory, or name another"
        raise InputError(f"a run directory holds {CONFIG}, but {directory} {reason}")
    plain = read_json(path)
    if (number := plain.get("format", 0)) != FORMAT:
        writer = str(plain.get("transduce", "0.1"))[:20]  # which wrote no format
        raise InputError(
            f"{path} must have format {FORMAT}, which transduce {version('transduce')} reads, but "
            f"it has format {str(number)[:20]} of transduce {writer}; use the source of that "
            "version for it, or train the run again"
        )
    for name in ("model", "experiment"):
        if not isinstance(plain.get(name), dict):
            value = f"it is {plain[name]!r:.60}" if name in plain else "it has none"
            raise InputError(
                f"{path} must have an object {name!r}, but {value}; copy the whole run directory "
                "again"
            )
    return without_removed(plain, str(path), is_trained=True)


def check_sizes(path: Path, run: Run) -> None:
    """Raise InputError unless tokenizers and feature extractor have the sizes of the model."""
    encoder = run.model.encoder
    if run.feature_extractor is not None and encoder and isinstance(encoder.input, Frames):
        n_features = run.feature_extractor.config.n_features
        if n_features != encoder.input.n_features:
            raise InputError(
                f"the model takes {encoder.input.n_features} features a frame, but those of {path} "
                f"are {n_features}"
            )
    sides = [(encoder, run.source_tokenizer), (run.model.decoder, run.target_tokenizer)]
    for stack, tokenizer in sides if run.model.decoder else ():  # FillMask checks encoders
        if stack is None or tokenizer is None or not isinstance(stack.input, Tokens):
            continue
        size = stack.input.vocab_size
        # GPT-2 models have more tokens than their tokenizer; Generator handles that
        is_padded = encoder is None and isinstance(tokenizer, JSONTokenizer)
        if tokenizer.vocab_size > size or (tokenizer.vocab_size < size and not is_padded):
            raise InputError(
                f"a tokenizer must have as many tokens as the model, which has {size}, but that of "
                f"{path.parent} has {tokenizer.vocab_size}; copy the whole run directory again"
            )


def _read_feature_extractor(plain: object, directory: Path) -> Features:
    name = str(directory / CONFIG)
    if not isinstance(plain, dict) or "sample_rate" not in plain:
        return VectorReader(from_dict(VectorConfig, plain, name))
    config = from_dict(FeatureConfig, plain, name)
    if not config.has_statistics:
        return FeatureExtractor(config)
    path = directory / STATISTICS
    if not path.is_file():
        raise InputError(
            f"normalize={config.normalize} needs the training data's mean and std, but {directory} "
            f"has no {STATISTICS}; copy the whole run directory"
        )
    statistics = read_weights(path)
    if not all(
        each.dtype == torch.float32 and each.isfinite().all() for each in statistics.values()
    ):
        raise InputError(
            f"mean and std must be finite numbers of float32, but in {path} they are not"
        )
    with errors_of(path):
        return FeatureExtractor(config, mean=statistics.get("mean"), std=statistics.get("std"))


def read_metrics(directory: Path) -> list[Json]:
    """The lines of metrics.jsonl, oldest first; none where there is no such file."""
    path = directory / METRICS
    return read_json_lines(path) if path.is_file() else []


def load_model(directory: Path | str, device: Device = "cpu") -> Transformer:
    """The run's model in evaluation mode.

    Raises:
        InputError: the directory is not a whole run, or this machine has no such device.
    """
    return read_model(load_run(directory), device)


def read_model(run: Run, device: Device) -> Transformer:
    """The model of a run that has been read; otherwise as `load_model`."""
    device = torch_device(device)
    path = weights_path(run.directory)
    if path.parent != run.directory:
        check_undamaged(path)
    weights = read_weights(path)
    with errors_of(run.directory / CONFIG):
        n_configured = n_parameters(run.model)
    n_stored = sum(tensor.numel() for tensor in weights.values())
    if n_configured > 2 * n_stored:  # below that, the error lists names and shapes that do not fit
        raise InputError(
            f"weights must fit the configuration, but it describes {n_configured:,} and {path} has "
            f"{n_stored:,}; copy the whole run directory again"
        )
    check_fits(run.model, device)
    model = filled_transformer(run.model, weights, str(path), device)
    if infinite := [name for name, tensor in weights.items() if not tensor.isfinite().all()]:
        raise InputError(
            f"weights must be finite, but in {path} {', '.join(infinite[:3])} are not; take an "
            f"earlier checkpoint: transduce average {run.directory} --best 1"
        )
    return model


@contextmanager
def open_run(directory: Path, run: Run) -> Iterator[None]:
    """Begin or resume a run in `directory`, and keep it locked until the `with` ends.

    Raises:
        InputError: another process uses the directory, or it has another experiment; the message
            names the process, or lists the differences.
    """
    if directory.exists() and not directory.is_dir():
        raise InputError(f"a run is a folder, but {directory} is a file; name another --run")
    directory.mkdir(parents=True, exist_ok=True)
    with held(directory):
        for folder in (directory, directory / SAMPLES):
            remove_leftovers(folder)
        begun = any((directory / name).exists() for name in (CONFIG, CHECKPOINTS, WEIGHTS))
        if begun and (changed := differences(load_run(directory).resume_key(), run.resume_key())):
            way_out = f"and --start-from {directory} to start from its weights"
            if not checkpoints(directory) and not (directory / WEIGHTS).exists():
                way_out = "or remove this one, which has no weights yet"
            raise InputError(
                "a run must be resumed with the configuration that it began with, but in "
                f"{directory} this differs: {'; '.join(changed)}. Name another directory with "
                f"--run, {way_out}"
            )
        save_run(directory, run)  # again, as some fields may have changed
        yield


def checkpoints(directory: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    return numbered(directory / CHECKPOINTS)


def checkpoint_weights(directory: Path, updates: Sequence[int]) -> list[Path]:
    """The weight files of these updates' checkpoints."""
    return [directory / CHECKPOINTS / f"{update:08d}" / WEIGHTS for update in updates]


def weights_path(directory: Path) -> Path:
    """The weights to decode with: the finished model, or the newest checkpoint while there is none.

    Raises:
        InputError: there are none.
    """
    for path in (directory, *reversed(checkpoints(directory))):
        if (path / WEIGHTS).is_file():
            return path / WEIGHTS
    reason = f"has neither {WEIGHTS} nor a checkpoint; train it first"
    if not directory.exists():
        reason = "does not exist; name another run"
    raise InputError(f"a run needs weights, but {directory} {reason}")


def average(paths: Sequence[Path]) -> Weights:
    """The mean of several weight files, computed in float64.

    Source: Vaswani et al. (2017), section 6.1, "checkpoint averaging".
    """
    if not paths:
        raise InputError("an average needs at least one checkpoint, but there is none")
    for path in paths:
        check_undamaged(path)
    first = read_weights(paths[0])
    total = {name: tensor.double() for name, tensor in first.items()}
    for path in paths[1:]:
        weights = read_weights(path)
        if weights.keys() != total.keys():
            raise InputError(
                f"checkpoints to average must have the same names, but {paths[0]} and {path} differ"
            )
        total = {name: total[name] + tensor.double() for name, tensor in weights.items()}
    return {name: (tensor / len(paths)).to(first[name].dtype) for name, tensor in total.items()}
