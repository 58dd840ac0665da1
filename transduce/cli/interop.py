"""`transduce import HF_DIRECTORY RUN`: runs from models of transformers."""

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from transduce.cli.common import check_new
from transduce.errors import InputError


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
