"""Read a directory as transformers' save_pretrained writes it; the model_type in config.json says which module does."""

from pathlib import Path
from types import ModuleType

from transduce.interop import encoder_decoder, language_models, marian, speech
from transduce.interop.config_json import read_settings
from transduce.interop.pretrained import Imported
from transduce.interop.settings import Settings
from transduce.model.transformer import Transformer

FAMILIES: dict[str, ModuleType] = {
    "gpt2": language_models,
    "llama": language_models,
    "qwen2": language_models,
    "qwen3": language_models,
    "mistral": language_models,
    "gemma": language_models,
    "phi3": language_models,
    "olmo": language_models,
    "opt": language_models,
    "xglm": language_models,
    "marian": marian,
    "m2m_100": encoder_decoder,
    "bart": encoder_decoder,
    "mbart": encoder_decoder,
    "pegasus": encoder_decoder,
    "blenderbot": encoder_decoder,
    "whisper": speech,
    "speech_to_text": speech,
}
"""By model_type."""


def read_model(directory: Path) -> Transformer:
    """Read config.json and the weights, in one file or in shards, as a model in evaluation mode.

    Raises:
        InputError: the directory holds a model that cannot be read, or one with parts that a Transformer here lacks.
    """
    settings = read_settings(directory)
    model: Transformer = FAMILIES[settings.model_type].read_model(directory, settings)
    return model


def read_run(directory: Path, settings: Settings) -> Imported:
    """Read the model with its tokenizers and with how it generates.

    Args:
        settings: what `read_settings` found in the directory.

    Raises:
        InputError: as `read_model`; or a file of the tokenizer is missing or does not fit the model.
    """
    run: Imported = FAMILIES[settings.model_type].read_run(directory, settings)
    return run
