"""What every recipe needs besides its data: a model for it, the tokenizers of a run that goes on, and the training."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from transduce.config import to_dict
from transduce.data.speech.features import FeatureExtractor
from transduce.data.speech.vectors import VectorReader
from transduce.data.text.tokenizers import Tokenizer
from transduce.device import torch_device
from transduce.experiment.command import AnyExperiment
from transduce.model.config import StackConfig, Tokens, TransformerConfig
from transduce.model.transformer import Transformer
from transduce.run import CONFIG, Run, load_run, open_run, write_average
from transduce.train.objectives import Objective
from transduce.train.state import Validation
from transduce.train.trainer import Data, Trainer


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
    """A model with the initial weights of the experiment's seed, on its device."""
    torch.manual_seed(x.training.seed)
    model = Transformer(config).to(torch_device(x.device))
    print(f"model: {sum(p.numel() for p in model.parameters()):,} parameters on {x.device}")
    return model


def saved_tokenizers(directory: Path) -> tuple[Tokenizer | None, Tokenizer | None] | None:
    """Source and target tokenizer of a run that was begun in this directory; None where none was.

    Raises:
        ValueError: the directory's config.json is not ours, or of another format.
    """
    if not (directory / CONFIG).exists():
        return None
    run = load_run(directory)
    return run.source_tokenizer, run.target_tokenizer


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
    flops_per_token: float | None = None,
) -> None:
    """Train in the experiment's directory, or go on there, and leave the finished model behind.

    Args:
        fingerprint: what the training and validation data is, wherever it lies; another one is another experiment.
        flops_per_token: floating-point operations of training on one token, for the progress bar's MFU.

    Raises:
        ValueError: another process holds the directory, or another experiment lives there.
        FloatingPointError, KeyboardInterrupt: see Trainer.run.
    """
    plain = {**to_dict(x), "data": fingerprint}
    run = Run(objective.model.config, plain, source_tokenizer, target_tokenizer, feature_extractor)
    with open_run(x.run, run):
        trainer = Trainer(
            objective=objective,
            data=data,
            validate=validate,
            config=x.training,
            directory=x.run,
            flops_per_token=flops_per_token,
        )
        progress = trainer.run()
        write_average(x.run, progress.chosen(x.training.average, x.training.keep_last, x.training.keep_best))
