"""What every recipe needs besides its data: a new model, and its training."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from transduce.device import torch_device
from transduce.experiment.command import AnyExperiment
from transduce.model.config import StackConfig, Tokens, TransformerConfig
from transduce.model.transformer import Transformer
from transduce.run import Run, open_run, write_average
from transduce.train.objectives import CrossEntropy, HybridCTC, Objective
from transduce.train.state import Validation
from transduce.train.trainer import Data, Trainer, TrainingConfig


def with_vocabularies(config: TransformerConfig, source: int, target: int, *, joint: bool) -> TransformerConfig:
    """The same model for vocabularies of these sizes; tables are shared as far as vocabularies are."""
    stacks: dict[str, StackConfig | None] = {}
    for name, stack, size in (("encoder", config.encoder, source), ("decoder", config.decoder, target)):
        if stack is not None and isinstance(stack.input, Tokens):
            stack = replace(stack, input=replace(stack.input, vocab_size=size))
        stacks[name] = stack
    tie = "output" if config.tie == "all" and not joint else config.tie
    return replace(config, encoder=stacks["encoder"], decoder=stacks["decoder"], tie=tie)


def with_frames(config: TransformerConfig, n_features: int, target: int) -> TransformerConfig:
    """The same model for frames of this many features and a vocabulary of this size.

    Raises:
        ValueError: the model has no encoder that takes frames, or no decoder.
    """
    frames = replace(config.frames, n_features=n_features)
    if config.encoder is None or config.decoder is None:
        raise ValueError(f"speech needs an encoder and a decoder, but decoder={config.decoder}")
    config = replace(config, encoder=replace(config.encoder, input=frames))
    return with_vocabularies(config, target, target, joint=False)


def new_model(x: AnyExperiment, config: TransformerConfig) -> Transformer:
    """Weights as the experiment's seed has them, on its device."""
    torch.manual_seed(x.training.seed)
    model = Transformer(config).to(torch_device(x.device))
    print(f"model: {sum(p.numel() for p in model.parameters()):,} parameters on {x.device}")
    return model


def train(
    x: AnyExperiment,
    run: Run,
    model: Transformer,
    *,
    data: Data,
    validate: Callable[[Any], Validation],
    ctc_weight: float = 0.0,
    flops_per_token: float | None = None,
) -> None:
    """Train in the experiment's directory, or go on there, and leave the finished model behind.

    Raises:
        ValueError: another experiment lives in the directory.
        FloatingPointError, KeyboardInterrupt: see Trainer.run.
    """
    open_run(x.run, run)
    trainer = Trainer(
        objective=objective_of(model, x.training, ctc_weight),
        data=data,
        validate=validate,
        config=x.training,
        directory=x.run,
        flops_per_token=flops_per_token,
    )
    write_average(x.run, trainer.run().chosen(x.training.average, x.training.keep_last, x.training.keep_best))


def objective_of(model: Transformer, training: TrainingConfig, ctc_weight: float = 0.0) -> Objective:
    """Cross-entropy with the training's label smoothing, and CTC beside it where it has a weight."""
    if ctc_weight:
        return HybridCTC(model, ctc_weight=ctc_weight, label_smoothing=training.label_smoothing)
    return CrossEntropy(model, label_smoothing=training.label_smoothing)
