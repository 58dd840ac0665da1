"""The systems that the benchmarks of decoding and generation compare, and how they are loaded."""

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from transformers.utils import logging

from transduce.device import computes_bf16
from transduce.engine.select import engine_for
from transduce.interop.ctranslate2 import write_ctranslate2
from transduce.kernels import library
from transduce.model.transformer import Transformer

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.float32}
"""Types of the weights by number format; int8 quantizes them later."""


def system_names(device: str, beginnings: Sequence[str] = ()) -> list[str]:
    """Names of toolkit and number format: all systems that can be measured here, the baseline
    first.

    Args:
        beginnings: prefixes of the names to keep; none for all.
    """
    names = ["transformers float32", "transduce float32"]
    if computes_bf16(torch.device(device)):
        names += ["transformers bfloat16", "transduce bfloat16"]
    if device == "cpu" and library() is not None:
        names.append("transduce int8")
    if device == "cpu" and find_spec("ctranslate2"):
        names += ["CTranslate2 float32", "CTranslate2 int8"]
    return [name for name in names if not beginnings or name.startswith(tuple(beginnings))]


def exact_system(device: str) -> str | None:
    """The system whose output must be the baseline's."""
    return "transduce float32" if device == "cpu" else None


def our_engine(model: Transformer, device: str, kind: str) -> Any:
    """The engine for our model in this number format."""
    return engine_for(model.to(device, DTYPES[kind]), int8=kind == "int8")


def for_ctranslate2(
    model: Transformer, directory: Path, *, bos_id: int = 0, eos_id: int = 0, **settings: Any
) -> str:
    """Write a model with a shared vocabulary, whose token i is "ti"; return its directory."""
    tokens = [f"t{i}" for i in range(model.vocab_size)]
    special = {"bos_token": tokens[bos_id], "eos_token": tokens[eos_id], "unk_token": tokens[-1]}
    write_ctranslate2(model, directory, tokens, settings=special | settings)
    return str(directory)


def quiet_transformers() -> None:
    """Turn off transformers' warnings and progress bars, which would break the table."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
