"""Read a directory as transformers' save_pretrained writes it, by the module for its settings."""

from pathlib import Path

from transduce.interop import encoder_decoder, language_models, marian, speech
from transduce.interop.config_json import read_settings
from transduce.interop.pretrained import Imported
from transduce.interop.settings import (
    BARTSettings,
    LanguageModelSettings,
    MarianSettings,
    Settings,
    SpeechSettings,
)
from transduce.model.transformer import Transformer


def read_model(directory: Path) -> Transformer:
    """Read config.json and the weights, in one file or in shards, as a model in evaluation mode.

    Raises:
        InputError: the directory holds a model that cannot be read, or one with parts that a
            Transformer here lacks.
    """
    settings = read_settings(directory)
    if isinstance(settings, LanguageModelSettings):
        return language_models.read_model(directory, settings)
    if isinstance(settings, BARTSettings):
        return encoder_decoder.read_model(directory, settings)
    assert isinstance(settings, SpeechSettings)
    return speech.read_model(directory, settings)


def read_run(directory: Path, settings: Settings) -> Imported:
    """Read the model with its tokenizers and with how it generates.

    Args:
        settings: those of config.json, which `read_settings` gives.

    Raises:
        InputError: as `read_model`; or a file of the tokenizer is missing or does not fit the
            model.
    """
    if isinstance(settings, LanguageModelSettings):
        return language_models.read_run(directory, settings)
    if isinstance(settings, MarianSettings):
        return marian.read_run(directory, settings)
    if isinstance(settings, BARTSettings):
        return encoder_decoder.read_run(directory, settings)
    assert isinstance(settings, SpeechSettings)
    return speech.read_run(directory, settings)
