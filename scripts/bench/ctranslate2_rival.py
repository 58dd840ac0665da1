"""Our models in CTranslate2, the fastest engine for translation and generation on CPUs, for the benchmarks."""

from pathlib import Path
from typing import Any

import ctranslate2

from transduce.interop.ctranslate2 import write_ctranslate2
from transduce.model.transformer import Transformer


def translator(
    model: Transformer, directory: Path, compute_type: str, threads: int, *, bos_id: int, eos_id: int
) -> ctranslate2.Translator:
    """A model with both halves and one vocabulary; token i is "ti", and nothing is added to a source."""
    tokens = _tokens(model, bos_id, eos_id) | {"add_source_eos": False, "decoder_start_token": f"t{bos_id}"}
    return ctranslate2.Translator(_write(model, directory, tokens), compute_type=compute_type, intra_threads=threads)


def generator(model: Transformer, directory: Path, compute_type: str, threads: int) -> ctranslate2.Generator:
    """A decoder alone; token i is "ti"."""
    path = _write(model, directory, _tokens(model, 0, 0))
    return ctranslate2.Generator(path, compute_type=compute_type, intra_threads=threads)


def _tokens(model: Transformer, bos_id: int, eos_id: int) -> dict[str, Any]:
    return {"bos_token": f"t{bos_id}", "eos_token": f"t{eos_id}", "unk_token": f"t{model.vocab_size - 1}"}


def _write(model: Transformer, directory: Path, settings: dict[str, Any]) -> str:
    write_ctranslate2(model, directory, [f"t{i}" for i in range(model.vocab_size)], settings=settings)
    return str(directory)
