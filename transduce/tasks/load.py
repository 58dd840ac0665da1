"""A run directory as something one calls: text or sound in, text out."""

from pathlib import Path
from typing import TypeVar

import torch

from transduce.config import from_dict
from transduce.model.config import Tokens
from transduce.model.packed import pack
from transduce.model.static import make_static
from transduce.run import CONFIG, Run, load_model, load_run
from transduce.tasks.config import SearchConfig
from transduce.tasks.fill_mask import FillMask
from transduce.tasks.generate import Generator
from transduce.tasks.shortlist import load_shortlist
from transduce.tasks.transcribe import Transcriber
from transduce.tasks.translate import Translator

KindT = TypeVar("KindT", Translator, Transcriber, Generator, FillMask)


def load(
    directory: Path | str, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> Translator | Transcriber | Generator | FillMask:
    """Load a run directory as what it was trained to be; it searches as the run's own configuration says.

    The weights are converted to `dtype`: bfloat16 is faster, and its outputs differ a little; int8, on CPUs, rounds
    large matrices to 8 bits (see transduce/model/packed.py). They cannot be trained; `load_model` gives weights that can.

    Raises:
        ValueError: the directory is not a whole run, or int8 is wanted where there are no kernels for it.
    """
    directory = Path(directory)
    run = load_run(directory)
    if run.target_tokenizer is None:
        raise ValueError(f"text needs a tokenizer to come out, but {directory} has none")
    int8 = dtype == torch.int8
    model = pack(load_model(directory, device).to(torch.float32 if int8 else dtype), int8=int8)
    if model.device.type == "cuda":
        make_static(model)
    if run.model.encoder is None:
        return Generator(model, run.target_tokenizer)
    if run.model.decoder is None:
        return FillMask(model, run.target_tokenizer)
    _check_ends(directory, run)
    decoding = own_decoding(directory, run)
    if run.feature_extractor is not None:
        return Transcriber(model, run.target_tokenizer, run.feature_extractor, decoding)
    if not isinstance(run.model.encoder.input, Tokens):
        raise ValueError(
            f"a transcriber needs features, but {directory / CONFIG} has none; copy the whole run directory"
        )
    if run.source_tokenizer is None:
        raise ValueError(f"a translator needs two tokenizers or a shared one, but {directory} has none")
    return Translator(model, run.source_tokenizer, run.target_tokenizer, decoding, load_shortlist(directory, run))


def own_decoding(directory: Path, run: Run) -> SearchConfig:
    """How a run searches where nothing else is said.

    Raises:
        ValueError: its configuration does not say it as it should.
    """
    return from_dict(SearchConfig, run.experiment.get("decoding", {}), f"decoding in {directory / CONFIG}")


def _check_ends(directory: Path, run: Run) -> None:
    """Raise ValueError unless the tokenizers mark where a text begins and ends."""
    for tokenizer in filter(None, (run.source_tokenizer, run.target_tokenizer)):
        try:
            tokenizer.required("bos_id", "eos_id")
        except ValueError as error:
            raise ValueError(f"{directory}: {error}") from error


KINDS: dict[type, tuple[str, str]] = {
    Translator: ("translating takes a run of text to text", "translates; use transduce translate"),
    Transcriber: ("transcribing takes a run of speech to text", "transcribes; use transduce transcribe"),
    Generator: ("generating takes a run of a language model", "is a language model; use transduce generate"),
    FillMask: (
        "fill-mask takes a run of masked language modelling",
        "fills masks; use td.load(RUN)(['a line with a _']) in Python",
    ),
}
"""What a message about the wrong kind of run says: what is wanted, and what the run does."""


def load_as(
    kind: type[KindT], directory: Path | str, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> KindT:
    """Load a run directory where only one kind of run will do.

    Raises:
        ValueError: something else was trained there.
    """
    found = load(directory, device, dtype)
    if not isinstance(found, kind):
        raise ValueError(f"{KINDS[kind][0]}, but {directory} {KINDS[type(found)][1]}")
    return found


def load_translator(
    directory: Path | str, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> Translator:
    """Load a run of text to text, as `load` does.

    Raises:
        ValueError: something else was trained there, or the directory is not a whole run.
    """
    return load_as(Translator, directory, device, dtype)


def load_transcriber(
    directory: Path | str, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> Transcriber:
    """Load a run of speech to text, as `load` does.

    Raises:
        ValueError: something else was trained there, or the directory is not a whole run.
    """
    return load_as(Transcriber, directory, device, dtype)


def load_generator(
    directory: Path | str, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> Generator:
    """Load a run of language modelling, as `load` does.

    Raises:
        ValueError: something else was trained there, or the directory is not a whole run.
    """
    return load_as(Generator, directory, device, dtype)


def load_fill_mask(
    directory: Path | str, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> FillMask:
    """Load a run of masked language modelling, as `load` does.

    Raises:
        ValueError: something else was trained there, or the directory is not a whole run.
    """
    return load_as(FillMask, directory, device, dtype)
