"""`transduce import gpt2 HF_DIRECTORY RUN` and `transduce export RUN HF_DIRECTORY`: models from and to transformers."""

import sys
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from transduce.data.text.json_tokenizer import JSONTokenizer

Theirs = Annotated[Path, arg(metavar="HF_DIRECTORY", help="A directory as transformers' save_pretrained makes it.")]
Ours = Annotated[Path, arg(metavar="RUN", help="A run directory.")]


def import_gpt2_run(directory: Positional[Theirs], run: Positional[Ours]) -> None:
    """Make a run directory from a GPT-2 as transformers saves it: config.json, model.safetensors and its tokenizer."""
    from transduce.files import save_weights
    from transduce.interop.gpt2 import import_gpt2
    from transduce.run import WEIGHTS, Run, save_run

    _check_new(run)
    found = import_gpt2(directory)
    tokenizer = JSONTokenizer.load(directory)
    end = tokenizer.eos_id
    if end != found.eos_id:
        raise ValueError(
            f"the tokenizer's <|endoftext|> must be config.json's eos_token_id, but in {directory} "
            f"they are {end} and {found.eos_id}"
        )
    save_run(run, Run(found.model.config, {"imported": "gpt2"}, None, tokenizer))
    save_weights(run / WEIGHTS, found.model)
    print(f"{run}: {sum(p.numel() for p in found.model.parameters()):,} parameters, {tokenizer.vocab_size} tokens")


def export(run: Positional[Ours], directory: Positional[Theirs], *, to: Literal["gpt2"]) -> None:
    """Write the model of a run as a directory that transformers can read.

    Args:
        to: The kind of model in transformers whose from_pretrained will read the directory.
    """
    from transduce.interop.gpt2 import export_gpt2
    from transduce.run import load_model, load_run

    _check_new(directory)
    tokenizer = load_run(run).target_tokenizer
    known = tokenizer if isinstance(tokenizer, JSONTokenizer) and tokenizer.is_byte_bpe else None
    export_gpt2(load_model(run), directory, tokenizer=known)
    if tokenizer is not None and known is None:
        print(
            f"transduce: {to} has byte-level BPE, so the {type(tokenizer).__name__} of {run} was not written",
            file=sys.stderr,
        )
    print(directory)


def _check_new(directory: Path) -> None:
    from transduce.run import CONFIG

    if (directory / CONFIG).exists():
        raise ValueError(f"{directory} already holds a {CONFIG}; name another directory, or remove this one")
