"""Marian models, as the benchmarks of decoding search them."""

from pathlib import Path
from typing import NamedTuple

from transduce.errors import InputError
from transduce.interop import read_model
from transduce.interop.pretrained import read_settings
from transduce.interop.settings import MarianSettings
from transduce.model.transformer import Transformer


class Marian(NamedTuple):
    """A model in evaluation mode, and the ids that its search needs."""

    model: Transformer
    bos_id: int
    eos_id: int
    pad_id: int


def import_marian(directory: Path) -> Marian:
    """The model of a directory, whose first id of target_in is the padding id."""
    settings = read_settings(directory)
    if not isinstance(settings, MarianSettings):
        raise InputError(f"model_type must be 'marian', but in {directory} it is {settings.model_type!r}")
    assert settings.decoder_start_token_id is not None
    return Marian(
        read_model(directory), settings.decoder_start_token_id, settings.eos_token_id[0], settings.pad_token_id
    )
