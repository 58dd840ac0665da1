"""Models from and for other libraries: `transduce import` and `transduce export`."""

import sys
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from transduce.cli.common import OwnRun, check_new
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
            extra onnx) for onnxruntime: the encoder and a step of the decoder.
    """
    from transduce.config import to_dict
    from transduce.interop import ctranslate2, encoder_decoder, language_models, onnx
    from transduce.run import load_run, read_model
    from transduce.tasks.config import SearchConfig
    from transduce.tasks.load import run_decoding

    check_new(directory)
    contents = load_run(run)
    model = read_model(run, contents.model, "cpu")
    source = contents.source_tokenizer
    target = contents.target_tokenizer
    if target is None:
        raise InputError(f"a model is exported with its tokenizer, but {run} has none")
    decoding = contents.experiment.get("decoding", {})
    if contents.model.encoder is not None:
        decoding = to_dict(run_decoding(run, contents, SearchConfig))
    is_written = True
    if to == "ctranslate2":
        ctranslate2.export_ctranslate2(model, directory, source=source, target=target)
    elif to == "onnx":
        suppress = decoding.get("suppress", ())
        onnx.export_onnx(model, directory, source=source, target=target, suppress=suppress)
    elif to == "marian":
        is_written = encoder_decoder.export_marian(
            model, directory, source=source, target=target, decoding=decoding
        )
    else:
        is_written = language_models.export_language_model(model, directory, to, tokenizer=target)
    if not is_written:
        kind = type(target).__name__
        print(f"transduce: {to} has no place for a {kind}, which was not written", file=sys.stderr)
    print(directory)


def import_run(
    words: Positional[
        Annotated[tuple[str, ...], arg(metavar="[KIND] HF_DIRECTORY RUN", help_behavior_hint="")]
    ],
) -> None:
    """Make a run directory from a model as transformers saves it: config.json, weights and its
    tokenizer.

    Args:
        words: The directory, and a run directory to make. KIND before them says what model_type
            config.json must have: gpt2, llama (also SmolLM2), qwen2, qwen3, mistral, gemma, phi3,
            olmo, opt, xglm, marian (opus-mt), m2m_100 (also NLLB), bart, mbart, pegasus,
            blenderbot, whisper or speech_to_text.
    """
    from transduce.config import from_dict
    from transduce.files import save_weights
    from transduce.interop.config_json import read_settings
    from transduce.interop.families import read_run
    from transduce.interop.settings import SETTINGS
    from transduce.run import WEIGHTS, Run, save_run
    from transduce.tasks.config import GenerationConfig, SearchConfig

    if len(words) not in (2, 3):
        raise InputError(
            f"import takes [KIND] HF_DIRECTORY RUN, but got {' '.join(words) or 'nothing'}"
        )
    directory, run = map(Path, words[-2:])
    if unknown := {*words[:-2]} - {*SETTINGS}:
        raise InputError(f"KIND must be one of {', '.join(SETTINGS)}, but it is {unknown.pop()!r}")
    settings = read_settings(directory, words[:-2] or SETTINGS)
    check_new(run)
    model, source, target, decoding, features = read_run(directory, settings)
    experiment = {"imported": settings.model_type} | ({"decoding": decoding} if decoding else {})
    kind = GenerationConfig if model.config.encoder is None else SearchConfig
    from_dict(kind, decoding, f"the search in {directory}")
    save_run(run, Run(model.config, experiment, source, target, features))
    save_weights(run / WEIGHTS, model)
    print(
        f"{run}: {sum(p.numel() for p in model.parameters()):,} parameters, {target.vocab_size} "
        "tokens"
    )
