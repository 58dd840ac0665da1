"""Which models of transformers can be read, by the model_type in their config.json."""

from collections.abc import Callable
from pathlib import Path

from transduce.errors import InputError
from transduce.files import read_json
from transduce.interop import fairseq, gpt2, llama, marian, opt, speech
from transduce.interop.config_json import CONFIG, one_of
from transduce.interop.pretrained import Imported

FAMILIES: dict[str, Callable[[Path], Imported]] = {
    "gpt2": gpt2.import_run,
    "llama": llama.import_run,
    "qwen2": llama.import_run,
    "qwen3": llama.import_run,
    "mistral": llama.import_run,
    "gemma": llama.import_run,
    "phi3": llama.import_run,
    "olmo": llama.import_run,
    "opt": opt.import_run,
    "xglm": opt.import_run,
    "marian": marian.import_run,
    "m2m_100": fairseq.import_run,
    "bart": fairseq.import_run,
    "mbart": fairseq.import_run,
    "pegasus": fairseq.import_run,
    "blenderbot": fairseq.import_run,
    "whisper": speech.import_run,
    "speech_to_text": speech.import_run,
}
"""By model_type, the function that reads a directory as save_pretrained writes it."""


def model_type_of(directory: Path, kind: str | None = None) -> str:
    """The model_type in config.json.

    Args:
        kind: what it must be; None: any that can be read.

    Raises:
        InputError: there is no config.json, or its model_type is another one or one that cannot be read.
    """
    model_type = read_json(directory / CONFIG).get("model_type")
    allowed = [kind] if kind in FAMILIES else [*FAMILIES]
    if model_type not in allowed or kind not in (None, model_type):
        requested = "" if kind in (None, *FAMILIES) else f", and {kind!r} was asked for"
        raise InputError(f"model_type must be {one_of(allowed)}, but in {directory} it is {model_type!r}{requested}")
    return model_type
