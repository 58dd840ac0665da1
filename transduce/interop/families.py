"""Which models of transformers can be read, by the model_type in their config.json; torch is not needed to know it."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from transduce.errors import InputError

if TYPE_CHECKING:
    from transduce.interop.pretrained import Imported

FAMILIES = {
    "gpt2": "gpt2",
    **dict.fromkeys(("llama", "qwen2", "qwen3", "mistral", "gemma", "phi3", "olmo"), "llama"),
    **dict.fromkeys(("opt", "xglm"), "opt"),
    "marian": "marian",
    **dict.fromkeys(("m2m_100", "bart", "mbart", "pegasus", "blenderbot"), "fairseq"),
    **{"whisper": "speech", "speech_to_text": "speech"},
}
"""By model_type, the module beside this one whose `import_run(directory)` gives what a run directory holds."""


def importer(directory: Path, kind: str | None = None) -> "tuple[str, Callable[[Path], Imported]]":
    """The model_type of a directory as save_pretrained writes it, and the function that reads it.

    Args:
        kind: what it must be; None: whatever its config.json says.

    Raises:
        InputError: there is no config.json, or its model_type is another one or one that cannot be read.
    """
    from transduce.files import read_json
    from transduce.interop.settings import CONFIG

    found = read_json(directory / CONFIG).get("model_type")
    allowed = [kind] if kind in FAMILIES else [*FAMILIES]
    if kind not in (None, found) or found not in allowed:
        rule, value = f"model_type must be {' or '.join(map(repr, allowed))}", f"in {directory} it is {found!r}"
        asked = f", and {kind!r} was asked for" if kind not in (None, *allowed) else ""
        raise InputError(f"{rule}, but {value}{asked}")
    return found, import_module(f"transduce.interop.{FAMILIES[found]}").import_run
