"""Import and export of models of other toolkits; the class of its settings selects a model's
module."""

from pathlib import Path
from typing import Any

from transduce.interop import encoder_decoder, language_models, speech, t5
from transduce.interop.generation import read_generation
from transduce.interop.pretrained import Parts, read_settings
from transduce.interop.settings import (
    BARTSettings,
    LanguageModelSettings,
    Settings,
    SpeechSettings,
    T5Settings,
)
from transduce.model.transformer import Transformer

MODULES: dict[type[Settings], Any] = {
    LanguageModelSettings: language_models,
    T5Settings: t5,
    SpeechSettings: speech,
    BARTSettings: encoder_decoder,
}


def _module(settings: Settings) -> Any:
    return next(module for kind, module in MODULES.items() if isinstance(settings, kind))


def read_model(directory: Path) -> Transformer:
    """Read config.json and the weights, in one file or in shards, as a model in evaluation mode.

    Raises:
        InputError: the directory has a model that cannot be read, or one with parts that
            Transformer does not support.
    """
    settings = read_settings(directory)
    model: Transformer = _module(settings).read_model(settings)
    return model


def read_run(settings: Settings) -> Parts:
    """Read the model with its tokenizers and generation settings.

    Args:
        settings: those of config.json, which `read_settings` gives.

    Raises:
        InputError: as `read_model`; or a file of the tokenizer is missing or does not fit the
            model.
    """
    module = _module(settings)
    parts: Parts = module.read_run(settings, module.read_model(settings), read_generation(settings))
    return parts
