"""What every recipe needs besides its data: a configuration from the command line, and what identifies it."""

import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeVar

import tyro
from torch import Tensor

from transduce.exit import exit_code
from transduce.model.config import StackConfig, Tokens, TransformerConfig
from transduce.train.loss import sequence_loss
from transduce.train.trainer import TrainingConfig

ExperimentT = TypeVar("ExperimentT")


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
    return exit_code(
        lambda: run(experiment),
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
        tokens = stack is not None and isinstance(stack.input, Tokens)
        stacks[name] = replace(stack, input=Tokens(vocab_size=size)) if stack and tokens else stack
    tie = "output" if config.tie == "all" and not joint else config.tie
    return replace(config, encoder=stacks["encoder"], decoder=stacks["decoder"], tie=tie)


def loss_of(training: TrainingConfig) -> Callable[..., Tensor]:
    """Cross-entropy with the training's label smoothing."""
    return partial(sequence_loss, label_smoothing=training.label_smoothing)
