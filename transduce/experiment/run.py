"""The model and the training of an experiment."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from socket import gethostname
from typing import Any

import torch

from transduce.checkpoints import checkpoints, weights_path
from transduce.config import differences, to_dict
from transduce.data.speech.features import FeatureExtractor, VectorReader
from transduce.data.text.base_tokenizer import Tokenizer
from transduce.data.text.tokenizer_files import same_tokens
from transduce.decode.phrases import save_lexicon
from transduce.device import torch_device, trains_in
from transduce.errors import InputError
from transduce.experiment.config import AnyExperiment
from transduce.experiment.finish import finish
from transduce.experiment.start import take_weights
from transduce.experiment.validation import Validator
from transduce.files import HOLDER
from transduce.model.config import StackConfig, Tokens, TransformerConfig
from transduce.model.meta import INFERENCE, TRAINING, check_fits
from transduce.model.transformer import Transformer
from transduce.report.page import write_reports
from transduce.run import Run, load_run, on_disk, open_run, read_model
from transduce.tasks.load import same_features
from transduce.train.config import LossConfig
from transduce.train.distributed import COLLECTIVE, leave, world
from transduce.train.log import Sink, full_speed, standard_sinks
from transduce.train.objectives import Objective
from transduce.train.state import Progress, Validation
from transduce.train.trainer import Data, Trainer, TrainingConfig


def with_vocabularies(
    config: TransformerConfig, source: int, target: int, *, joint: bool
) -> TransformerConfig:
    """The model for vocabularies of these sizes; tables are shared as far as vocabularies are."""

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


def new_model(
    x: AnyExperiment,
    config: TransformerConfig,
    start_from: Path | None = None,
    source_tokenizer: Tokenizer | None = None,
    target_tokenizer: Tokenizer | None = None,
) -> Transformer:
    """A model with the initial weights of the experiment's seed, on its device.

    Args:
        start_from: another run, whose weights are taken where names and shapes agree; the others
            are listed.
        source_tokenizer: the model's own; where it is not that of the run, pieces that both have
            keep their vectors.
        target_tokenizer: the same for the target.

    Raises:
        InputError: start_from is no run with weights, or none of them fits; or the model cannot fit
        into memory.
    """
    parts = world().size if x.training.shard else 1  # and a validation has whole weights
    check_fits(
        config, torch_device(x.device), bytes_each=INFERENCE + (TRAINING - INFERENCE) // parts
    )
    torch.manual_seed(x.training.seed)
    model = Transformer(config).to(torch_device(x.device))
    numbers = trains_in(x.training.precision, model.device)
    print(
        f"model: {sum(p.numel() for p in model.parameters()):,} parameters on {model.device}, "
        f"trained in {numbers}"
    )
    if start_from is not None and not checkpoints(x.run):
        take_weights(model, start_from, source_tokenizer, target_tokenizer)
    return model


def teacher_run(path: Path) -> Run:
    """The run of a teacher, whose weights are there.

    Raises:
        InputError: it is no run, or has no weights yet.
    """
    try:
        directory = on_disk(path)
        run = load_run(directory)
        weights_path(directory)
    except InputError as error:
        raise InputError(f"training.teachers: {error}") from error
    return run


def token_losses(
    x: AnyExperiment,
    student: Transformer,
    source_tokenizer: Tokenizer | None = None,
    target_tokenizer: Tokenizer | None = None,
    feature_extractor: FeatureExtractor | VectorReader | None = None,
) -> LossConfig:
    """Configure the losses of tokens by the experiment's training, and load its teachers.

    Args:
        student: the model to train; the others are what it reads and writes.

    Raises:
        InputError: a teacher is no run with weights, or does, reads or writes something else.
    """
    teachers = []
    own = Run(student.config, {}, source_tokenizer, target_tokenizer, feature_extractor)
    for path in x.training.teachers:
        run = teacher_run(path)
        teacher = read_model(on_disk(path), run.model, student.device).requires_grad_(False)
        if difference := _difference(run, own):
            raise InputError(
                "a teacher must do what its student does, with the same tokens and features, but "
                f"{path} has {difference}; train with --tokenizer and its tokenizer file, or start "
                f"from it (--start-from {path})"
            )
        print(f"teacher: {path}, {sum(p.numel() for p in teacher.parameters()):,} parameters")
        teachers.append(teacher)
    return LossConfig(
        label_smoothing=x.training.label_smoothing,
        consistency=x.training.consistency,
        teachers=tuple(teachers),
        distillation=x.training.distillation,
    )


def _difference(teacher: Run, student: Run) -> str | None:
    """The difference between two runs for which one cannot teach the other."""
    extractors = (teacher.feature_extractor, student.feature_extractor)
    pairs: list[tuple[str, Any, Any, Callable[[Any, Any], bool]]] = [
        ("source tokens", teacher.source_tokenizer, student.source_tokenizer, same_tokens),
        ("target tokens", teacher.target_tokenizer, student.target_tokenizer, same_tokens),
        ("features of sound", *extractors, same_features),
        ("encoder", teacher.model.encoder, student.model.encoder, lambda a, b: True),
        ("decoder", teacher.model.decoder, student.model.decoder, lambda a, b: True),
    ]
    for name, of_teacher, of_student, same in pairs:
        if of_teacher is None and of_student is not None:
            return f"no {name}"
        if of_teacher is not None and of_student is None:
            return {"encoder": "an encoder", "decoder": "a decoder"}.get(name, name)
        if of_teacher is not None and not same(of_teacher, of_student):
            return f"other {name}"
    sizes = teacher.model.vocab_size, student.model.vocab_size
    return None if sizes[0] == sizes[1] else f"a vocabulary of {sizes[0]} instead of {sizes[1]}"


class Reports(Sink):
    """Writes the reports of a run after every validation."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def validation(self, progress: Progress, validation: Validation) -> None:
        """Write them."""
        write_reports(self.directory)


def train(
    x: AnyExperiment,
    objective: Objective,
    *,
    data: Data,
    validate: Callable[[Transformer], Validation],
    fingerprint: Any,
    source_tokenizer: Tokenizer | None = None,
    target_tokenizer: Tokenizer | None = None,
    feature_extractor: FeatureExtractor | VectorReader | None = None,
    lexicon: Sequence[str] = (),
    flops_per_token: float | None = None,
) -> bool:
    """Train in the experiment's directory, or go on there, up to the finished model.

    Args:
        fingerprint: of the training and validation data; another one is another experiment.
        lexicon: the words of the training's texts.
        flops_per_token: operations of training on one token, for the progress bar's MFU.

    Returns:
        Whether this process goes on: the first of several, which from now on works alone.

    Raises:
        InputError: another process holds the directory, or another experiment lives there.
        FloatingPointError, KeyboardInterrupt: see Trainer.run.
    """
    plain = {**to_dict(x), "data": fingerprint}
    run = Run(objective.model.config, plain, source_tokenizer, target_tokenizer, feature_extractor)
    here = world()
    held = open_run(x.run, run) if here.first else nullcontext()  # the first alone writes there
    with here.exchanging(COLLECTIVE), held:
        if here.first:
            save_lexicon(x.run, lexicon)
        here.barrier()
        _check_alike(x, run)
        _print_schedule(x.run, x.training)
        speed = full_speed(objective.model.device, flops_per_token)
        trainer = Trainer(
            objective=objective,
            data=data,
            validate=validate,
            config=x.training,
            directory=x.run,
            pretrained=getattr(x, "start_from", None) is not None,
            sinks=[*standard_sinks(x.run, x.training.max_updates, speed), Reports(x.run)],
        )
        _print_frozen(trainer.model)
        trainer.run()
        finish(x.run, trainer, validate.draw if isinstance(validate, Validator) else None)
    if not leave():
        return False
    write_reports(x.run)  # for a recipe without scores, with which they would be written
    return True


def _check_alike(x: AnyExperiment, run: Run) -> None:
    """Check that this process sees the directory that the first one holds, and has its experiment.

    Raises:
        InputError: it does not.
    """
    here = world()
    process = f"process {here.rank} of {here.size}, on {gethostname()}"
    path = x.run / HOLDER
    holder = path.read_text() if path.is_file() else ""
    if here.broadcast(holder) != holder:
        raise InputError(
            f"every process must see the same run directory, but for {process}, {x.run.absolute()} "
            "is "
            "not the one that the first process holds; give all machines the same --run, on a file "
            "system that they share"
        )
    settings = {**run.resume_key(), "training": to_dict(replace(x.training, data_workers=0))}
    if changed := differences(here.broadcast(settings), settings):
        raise InputError(
            f"every process must have the same settings and data, but in {process}, this differs "
            "from "
            f"the first: {'; '.join(changed)}; start the same command on all machines"
        )


def _print_schedule(directory: Path, training: TrainingConfig) -> None:
    """Print the change of the rate where a run that had ended goes on."""
    first = load_run(directory).experiment["training"]["max_updates"]
    done = max((int(path.name) for path in checkpoints(directory)), default=0)
    if first <= done < training.max_updates:
        before = training.optim.rate(done, done)
        now = training.optim.rate(done + 1, training.max_updates)
        print(
            f"goes on after update {done}, in a schedule of {training.max_updates} updates: the "
            "rate was "
            f"{before:.3g} and is now {now:.3g}; for a schedule of its own: --start-from "
            f"{directory} "
            "--run NEW"
        )


def _print_frozen(model: torch.nn.Module) -> None:
    sizes = {True: 0, False: 0}
    for parameter in model.parameters():
        sizes[parameter.requires_grad] += parameter.numel()
    if sizes[False]:
        print(f"trained: {sizes[True]:,} parameters; frozen: {sizes[False]:,}")
