"""The model of an experiment, its losses and its training, up to the finished model."""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from socket import gethostname
from typing import Any

import torch

from transduce.config import Json, differences, from_dict, to_dict
from transduce.data.base_tokenizer import Tokenizer
from transduce.data.features import Features
from transduce.decode.phrases import save_lexicon
from transduce.device import full_speed, torch_device, trains_in
from transduce.errors import InputError, errors_of
from transduce.experiment.config import Experiment, SpeechExperiment
from transduce.experiment.start import take_weights
from transduce.experiment.validation import Validator, draw_attention
from transduce.files import HOLDER, read_json, set_weights, weights_of
from transduce.model.meta import INFERENCE, TRAINING, check_fits, flops_per_token, on_meta
from transduce.model.transformer import Transformer
from transduce.report.documents import write_reports
from transduce.report.record import BEFORE, is_finished, replace_model
from transduce.run import (
    SAMPLES,
    STATE,
    WEIGHTS,
    Run,
    average,
    checkpoint_weights,
    checkpoints,
    load_run,
    open_run,
    read_model,
    serialize,
    weights_path,
)
from transduce.tasks.load import differing_parts, load
from transduce.tasks.transcribe import Transcriber
from transduce.tasks.translate import Translator
from transduce.train.config import LossConfig
from transduce.train.distributed import COLLECTIVE, leave, world
from transduce.train.log import Sink, standard_sinks
from transduce.train.objectives import Objective
from transduce.train.optim import add_lora, freeze, merge
from transduce.train.state import Progress, Validation, parts_like
from transduce.train.trackers import TRACKERS
from transduce.train.trainer import Data, Trainer


@dataclass(frozen=True, kw_only=True)
class Processor:
    """The tokenizers and the features of a model; a side without text has no tokenizer."""

    source: Tokenizer | None = None
    target: Tokenizer | None = None
    features: Features | None = None
    lexicon: Sequence[str] = ()
    """The words of the training texts, to which a search can be restricted."""

    def as_run(self, model: Transformer, experiment: Json, specified: Json) -> Run:
        """The run of this model, without its weights."""
        tokenizers = self.source, self.target
        return Run(model.config, experiment, *tokenizers, self.features, specified)


def new_model(x: Experiment, processor: Processor) -> Transformer:
    """A model with the initial weights of the experiment's seed, on its device.

    Weights of `x.start_from` are used where names and shapes agree, and the others are listed. If
    the tokenizers differ from that run's, pieces that both have keep their vectors.

    Raises:
        InputError: start_from is not a run with weights, or none of them fits; or the model does
            not fit into memory, or lacks what is to be frozen or adapted.
    """
    device = torch_device(x.device)
    parts = world().size if x.training.shard else 1  # unsharded weights are needed in validation
    more = 0 if x.training.lora.rank or x.training.freeze else (TRAINING - INFERENCE) // parts
    check_fits(x.model, device, bytes_each=INFERENCE + more)
    probe = on_meta(x.model)  # the Trainer would raise the same errors after the run has begun
    if x.training.lora.rank:
        add_lora(probe, x.training.lora, seed=0)
    freeze(probe, x.training.freeze)
    torch.manual_seed(x.training.seed)
    model = Transformer(x.model).to(device)
    numbers = trains_in(x.training.precision, device)
    print(f"model: {model.n_parameters:,} parameters on {model.device}, trained in {numbers}")
    if x.start_from is not None and not checkpoints(x.run):
        take_weights(model, x.start_from, processor.source, processor.target)
    return model


def teacher_run(path: Path) -> Run:
    """The run of a teacher, which must have weights.

    Raises:
        InputError: it is not a run, or has no weights yet.
    """
    with errors_of("training.teachers"):
        run = load_run(path)
        weights_path(run.directory)
    return run


def token_losses(x: Experiment, student: Transformer, processor: Processor) -> LossConfig:
    """Make the experiment's loss configuration, and load its teachers.

    Raises:
        InputError: a teacher is not a run with weights, or has another task, tokenizer or features.
    """
    teachers = []
    taught = processor.as_run(student, {}, {})
    for path in x.training.teachers:
        run = teacher_run(path)
        teacher = read_model(run, student.device).requires_grad_(False)
        if differing := differing_parts(run, taught):
            raise InputError(
                "a teacher must have the task, tokens and features of its student, but that of "
                f"{path} differs in {differing}; train with --tokenizer and its tokenizer file, "
                f"or start from it (--start-from {path})"
            )
        print(f"teacher: {path}, {teacher.n_parameters:,} parameters")
        teachers.append(teacher)
    losses = LossConfig(
        label_smoothing=x.training.label_smoothing,
        consistency=x.training.consistency,
        teachers=tuple(teachers),
        distillation=x.training.distillation,
    )
    if not isinstance(x, SpeechExperiment) or not x.ctc_weight:
        return losses
    assert processor.target is not None
    (blank,) = processor.target.required("pad_id")
    return replace(
        losses,
        ctc_weight=x.ctc_weight,
        interctc_weight=x.interctc_weight,
        blank_id=blank,
        ctc_consistency=x.ctc_consistency,
    )


@dataclass
class Reports(Sink):
    """Writes the reports of a run after every validation."""

    directory: Path

    def validation(self, progress: Progress, validation: Validation) -> None:
        """Write the reports."""
        write_reports(self.directory)


def train(
    x: Experiment,
    objective: Objective,
    processor: Processor,
    *,
    data: Data,
    validate: Validator,
    fingerprint: Any,
    specified: Experiment | None = None,
) -> bool:
    """Train in the experiment's directory, or resume there, up to the finished model.

    Args:
        fingerprint: identifies the training and validation data of the experiment.
        specified: the experiment before it was resolved, for config.json.

    Returns:
        Whether this process continues: of several, only the first does, alone from now on.

    Raises:
        InputError: another process uses the directory, or it has another experiment.
        FloatingPointError, KeyboardInterrupt: see Trainer.run.
    """
    done = max((int(path.name) for path in checkpoints(x.run)), default=0)
    x, specified = _with_updates(x, done), _with_updates(specified or x, done)
    run = processor.as_run(objective.model, to_dict(x) | {"data": fingerprint}, to_dict(specified))
    here = world()  # only the first process writes in the directory
    with here.exchanging(COLLECTIVE), open_run(x.run, run) if here.first else nullcontext():
        if here.first:
            save_lexicon(x.run, processor.lexicon)
        _check_alike(x, run)
        trainer = Trainer(
            objective=objective,
            data=data,
            validate=validate,
            config=x.training,
            directory=x.run,
            pretrained=x.start_from is not None,
            sinks=_sinks(x, objective.model),
        )
        _print_frozen(trainer.model)
        trainer.run()  # does nothing if the training has ended
        if here.broadcast(trainer.progress.update > done or not is_finished(x.run)):
            finish(x.run, trainer)
        draw_finished(x.run, trainer, validate.example)
    if goes_on := leave():
        write_reports(x.run)  # recipes that compute scores write them again
    return goes_on


def _with_updates(x: Experiment, done: int) -> Experiment:
    """The experiment with max_updates raised to the updates that are already done."""
    training = replace(x.training, max_updates=max(done, x.training.max_updates))
    return replace(x, training=training)


def _sinks(x: Experiment, model: Transformer) -> list[Sink]:
    """The logs of a training; for a decoder-only model, they include its share of the GPUs' peak
    speed."""
    flops = None  # of each device, as all processes share the tokens
    if model.config.encoder is None:
        flops = flops_per_token(model) * (2 if x.training.consistency else 1) / world().size
    speed = full_speed(model.device, flops)
    sinks = standard_sinks(x.run, x.training, speed)
    trackers = [TRACKERS[name](x.run, to_dict(x)) for name in x.log]
    return [*sinks, *trackers, Reports(x.run)]


def _check_alike(x: Experiment, run: Run) -> None:
    """Check that this process sees the run directory of the first one, and has its experiment.

    Raises:
        InputError: it does not.
    """
    here = world()
    here.barrier()  # wait until the first process has locked the directory
    process = f"process {here.rank} of {here.size}, on {gethostname()}"
    path = x.run / HOLDER
    holder = path.read_text() if path.is_file() else ""
    if here.broadcast(holder) != holder:
        raise InputError(
            f"every process must see the same run directory, but for {process}, "
            f"{x.run.absolute()} is not that of the first process; give all machines the same "
            "--run, on a file system that they share"
        )
    settings = {**run.resume_key(), "training": to_dict(replace(x.training, data_workers=0))}
    if changed := differences(here.broadcast(settings), settings):
        raise InputError(
            f"every process must have the same settings and data, but in {process}, this differs "
            f"from the first: {'; '.join(changed)}; start the same command on all machines"
        )


def _print_frozen(model: torch.nn.Module) -> None:
    sizes = {True: 0, False: 0}
    for parameter in model.parameters():
        sizes[parameter.requires_grad] += parameter.numel()
    if sizes[False]:
        print(f"trained: {sizes[True]:,} parameters; frozen: {sizes[False]:,}")


def mean_candidates(progress: Progress, *, last: int, best: int) -> dict[str, list[int]]:
    """Return, by name, the updates of checkpoints whose mean may become the finished model.

    Args:
        last: number of latest checkpoints to average, without those of the first half of the
            training.
        best: number of the best checkpoints to average.
    """
    means = {
        "best": progress.best(best),
        "last": [update for update in progress.last(last) if 2 * update > progress.update],
    }
    if set(means["best"]) == set(means["last"]):
        del means["last"]
    return {
        f"mean of the {len(updates)} {name}": updates
        for name, updates in means.items()
        if len(updates) > 1
    }


def validated_checkpoints(directory: Path, *, best: bool) -> list[Path]:
    """The validated checkpoints of a run, the newest last, or, with `best`, the best last.

    Raises:
        InputError: the newest checkpoint has no valid state.
    """
    paths = {int(path.name): path for path in checkpoints(directory)}
    if not paths:
        return []
    path = paths[max(paths)] / STATE
    progress = from_dict(Progress, read_json(path), str(path))
    n = len(progress.validations)
    updates = progress.best(n)[::-1] if best else progress.last(n)
    return [paths[update] for update in updates if update in paths]


def finish(directory: Path, trainer: Trainer) -> None:
    """Make the best candidate the finished model, and print which one it is.

    Candidates are the best checkpoint and means of checkpoints. All are validated, so the finished
    model is never worse on the validation data than any checkpoint. A checkpoint that was removed
    is no candidate.
    """
    config = trainer.config
    merge(trainer.model)
    trainer.world.broadcast(None)  # wait until the first process has written the checkpoints
    progress = trainer.progress.among([int(path.name) for path in checkpoints(directory)])
    means = mean_candidates(progress, last=config.keep_last, best=config.keep_best)
    candidates = {"best checkpoint": progress.best(1), **means}
    results = {"best checkpoint": progress.best_validation()}
    for name, updates in means.items():
        weights = average(checkpoint_weights(directory, updates))
        set_weights(trainer.model, parts_like(weights_of(trainer.model), weights), name)
        results[name] = trainer.validation()
    chosen = min(
        results,
        key=lambda name: (-results[name].score, results[name].metrics.get("loss", math.inf)),
    )
    numbers = ", ".join(map(str, sorted(candidates[chosen])))
    scores = ", ".join(f"{name} {abs(result.score):.3f}" for name, result in results.items())
    by = list(results.values())[-1].by
    if trainer.world.first:
        content = serialize(average(checkpoint_weights(directory, candidates[chosen])))
        if replace_model(directory, content):
            print(f"the previous model is in {directory / BEFORE}")
    print(f"finished model: {chosen} (update {numbers}); {by}: {scores}")


def draw_finished(directory: Path, trainer: Trainer, example: tuple[Any, str] | None) -> None:
    """Draw the attention of the finished model, unless that is done; a killed run may lack it."""
    path = directory / SAMPLES / f"{trainer.progress.update:08d}.attention.png"
    if not trainer.world.first or example is None:
        return
    if not path.exists() or path.stat().st_mtime < (directory / WEIGHTS).stat().st_mtime:
        task = load(directory, trainer.device)
        assert isinstance(task, Translator | Transcriber)
        draw_attention(task, example, path)
