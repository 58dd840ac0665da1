"""Models of transformers in CTranslate2, the fastest engine for translation and generation on CPUs, for the benchmarks."""

from pathlib import Path
from typing import Any

import ctranslate2
from ctranslate2.converters.transformers import GPT2Loader, MarianMTLoader


class AnyVocabulary(MarianMTLoader):  # type: ignore[misc]
    """Marian's loader without its assumption that padding is the last id of the vocabulary."""

    def _remove_pad_weights(self, spec: Any) -> None:
        pass


def names(n: int, **special: int) -> list[str]:
    """What the ids are called: CTranslate2 takes and gives strings."""
    found = [f"t{i}" for i in range(n)]
    for name, i in special.items():
        found[i] = f"<{name}>"
    return found


def translator(model: Any, directory: Path, compute_type: str, threads: int) -> ctranslate2.Translator:
    """A MarianMTModel; token i is "ti", and the end of a sentence "<eos>"."""
    spec = AnyVocabulary().get_model_spec(model)
    tokens = names(model.config.vocab_size, eos=model.config.eos_token_id, unk=model.config.vocab_size - 1)
    for register in (spec.register_source_vocabulary, spec.register_target_vocabulary):
        register(tokens)
    spec.config.bos_token = spec.config.eos_token = spec.config.decoder_start_token = "<eos>"
    spec.config.unk_token = "<unk>"
    spec.config.add_source_eos = False
    save(spec, directory)
    return ctranslate2.Translator(str(directory), compute_type=compute_type, intra_threads=threads)


def generator(model: Any, directory: Path, compute_type: str, threads: int) -> ctranslate2.Generator:
    """A GPT2LMHeadModel; token i is "ti"."""
    spec = GPT2Loader().get_model_spec(model)
    spec.register_vocabulary(names(model.config.vocab_size, eos=0, unk=1))
    spec.config.bos_token = spec.config.eos_token = "<eos>"
    spec.config.unk_token = "<unk>"
    save(spec, directory)
    return ctranslate2.Generator(str(directory), compute_type=compute_type, intra_threads=threads)


def save(spec: Any, directory: Path) -> None:
    """Write a model as the converters do."""
    spec.validate()
    spec.optimize(quantization="float32")
    directory.mkdir(parents=True, exist_ok=True)
    spec.save(str(directory))
