"""What every recipe needs besides its data: a configuration from the command line, a new model, and its training."""

import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
import tyro
from torch import Tensor

from transduce.checkpoint import Run, claim, finish
from transduce.device import torch_device
from transduce.exit import exit_code
from transduce.model.config import StackConfig, Tokens, TransformerConfig
from transduce.model.transformer import Transformer
from transduce.train.ctc import hybrid_loss
from transduce.train.state import Validation
from transduce.train.trainer import Data, Trainer, TrainingConfig


@runtime_checkable
class AnyExperiment(Protocol):
    """What all experiments have: where, how, and on what machine."""

    @property
    def run(self) -> Path: ...
    @property
    def training(self) -> TrainingConfig: ...
    @property
    def device(self) -> str: ...


ExperimentT = TypeVar("ExperimentT", bound=AnyExperiment)


def main(
    run: Callable[[ExperimentT], object],
    settings: Mapping[str, tuple[str, ExperimentT]],
    *,
    default: str,
    description: str | None,
) -> int:
    """A recipe's command line: 0 if all went well, 2 if its input was at fault, 130 after Ctrl-C."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    experiment = choose(settings, default=default, description=description)

    def go() -> None:
        torch_device(experiment.device)  # before an hour with the data
        run(experiment)

    return exit_code(
        go,
        prefix="error",
        interrupted="stopped; run the same command again to go on from the newest checkpoint",
    )


def choose(settings: Mapping[str, tuple[str, ExperimentT]], *, default: str, description: str | None) -> ExperimentT:
    """The named setting, with the fields that the command line overrides; `default` where it names none."""
    arguments = sys.argv[1:]
    if not arguments or (arguments[0].startswith("-") and arguments[0] not in ("-h", "--help")):
        arguments = [default, *arguments]
    return tyro.extras.overridable_config_cli(dict(settings), args=arguments, description=description)


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
    operations_per_token: float | None = None,
) -> None:
    """Train in the experiment's directory, or go on there, and leave the finished model behind.

    Raises:
        ValueError: another experiment lives in the directory.
        FloatingPointError, KeyboardInterrupt: see Trainer.run.
    """
    claim(x.run, run)
    trainer = Trainer(
        model=model,
        data=data,
        loss=loss_of(x.training, ctc_weight),
        validate=validate,
        config=x.training,
        directory=x.run,
        operations_per_token=operations_per_token,
    )
    finish(x.run, trainer.run().chosen(x.training.average, x.training.keep_last, x.training.keep_best))


def loss_of(training: TrainingConfig, ctc_weight: float = 0.0) -> Callable[..., Tensor]:
    """Cross-entropy with the training's label smoothing, and CTC beside it where it has a weight."""
    return partial(hybrid_loss, label_smoothing=training.label_smoothing, ctc_weight=ctc_weight)


def operations_per_token(model: Transformer) -> float:
    """Floating-point operations that a decoder alone takes for one token of a full context in training: 6 N + 12 L d T.

    N counts what is multiplied: all parameters but tables that are only looked up, and experts that a token does not
    visit; T is max_positions.

    Raises:
        ValueError: the model has an encoder, so that lengths of two sides decide.
    Source: Chowdhery et al. (2022), PaLM, appendix B.
    """
    config = model.config
    if config.decoder is None or config.encoder is not None:
        raise ValueError(f"operations_per_token() takes a decoder alone, but the model is {config}")
    n = sum(p.numel() for p in model.parameters())
    if config.positions == "learned":
        n -= config.max_positions * config.d_model
    if config.tie == "none" and isinstance(config.decoder.input, Tokens):
        n -= config.decoder.input.rows * config.d_model
    if config.n_experts:
        experts = sum(p.numel() for name, p in model.named_parameters() if ".experts." in name)
        n -= experts * (config.n_experts - config.experts_per_token) // config.n_experts
    width = config.n_heads * config.d_head
    return 6.0 * n + 12.0 * config.decoder.n_layers * width * config.max_positions
