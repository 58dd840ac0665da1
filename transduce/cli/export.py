"""`transduce export RUN DIRECTORY --to KIND`: a run's model for another library."""

import sys
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from transduce.cli.common import OwnRun, check_new
from transduce.data.text.json_tokenizer import JSONTokenizer
from transduce.errors import InputError

Theirs = Positional[Annotated[Path, arg(metavar="DIRECTORY", help="The new directory.")]]


def export(
    run: OwnRun, directory: Theirs, *, to: Literal["ctranslate2", "gpt2", "llama", "marian", "onnx"]
) -> None:
    """Write the model of a run, with its tokenizers, as a directory that another library loads.

    Args:
        to: ctranslate2 for ctranslate2.Translator, or, of a language model, ctranslate2.Generator
            (pip install '.[ctranslate2]' in a clone). For from_pretrained of transformers gpt2,
            llama, which gives a Qwen2 or Qwen3 where their parts are needed, or marian. onnx (the
            extra onnx) for onnxruntime and others: the encoder and a step of the decoder. The code
            that runs them is in docs/models_in_and_out.md.
    """
    from transduce.config import to_dict
    from transduce.run import load_model, load_run
    from transduce.tasks.load import own_decoding

    check_new(directory)
    contents = load_run(run)
    model = load_model(run)
    source = contents.source_tokenizer
    target = contents.target_tokenizer
    lacking = ""
    if target is None:
        raise InputError(
            f"a model is exported with its tokenizer, but {run} has none; copy the whole run "
            "directory"
        )
    decoding = contents.experiment.get("decoding", {})
    if contents.model.encoder is not None:
        decoding = to_dict(own_decoding(run, contents))
    if to == "ctranslate2":
        from transduce.interop.ctranslate2 import export_ctranslate2

        export_ctranslate2(model, directory, source=source, target=target)
    elif to == "onnx":
        from transduce.interop.onnx import export_onnx

        export_onnx(
            model, directory, source=source, target=target, suppress=decoding.get("suppress", ())
        )
    elif to == "marian":
        from transduce.interop.encoder_decoder import export_marian

        if not export_marian(model, directory, source=source, target=target, decoding=decoding):
            lacking = "SentencePiece models"
    else:
        from transduce.interop.language_models import export_gpt2, export_llama

        known = (
            target
            if isinstance(target, JSONTokenizer) and (to == "llama" or target.is_byte_bpe)
            else None
        )
        (export_gpt2 if to == "gpt2" else export_llama)(model, directory, tokenizer=known)
        lacking = "" if known else "byte-level BPE" if to == "gpt2" else "a tokenizer.json"
    if lacking:
        tokenizer = f"the {type(target).__name__} of {run}"
        print(f"transduce: {to} has {lacking}, so {tokenizer} was not written", file=sys.stderr)
    print(directory)
