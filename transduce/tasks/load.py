"""Loading run directories as tasks that can be called: text or sound in, text out."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter, eq
from pathlib import Path
from typing import Any, TypeVar

import torch

from transduce.config import from_dict
from transduce.data.base_tokenizer import Tokenizer
from transduce.data.features import Features
from transduce.data.lines import each_line
from transduce.data.tokenizer_files import same_tokens
from transduce.decode.ngram import NGrams, NGramScorer
from transduce.decode.phrases import load_lexicon
from transduce.device import Device, DType, torch_dtype
from transduce.engine.select import engine_for
from transduce.errors import InputError, errors_of
from transduce.model.config import Tokens
from transduce.model.transformer import Transformer
from transduce.run import CONFIG, Run, load_run, read_model
from transduce.tasks.base import LanguageModel, Task, last_position
from transduce.tasks.config import GenerationConfig, SearchConfig
from transduce.tasks.fill_mask import FillMask
from transduce.tasks.generate import Generator
from transduce.tasks.seq2seq import Alignment, Seq2SeqTask
from transduce.tasks.transcribe import Transcriber
from transduce.tasks.translate import Translator

AnyTask = Translator | Transcriber | Generator | FillMask
KindT = TypeVar("KindT")
ConfigT = TypeVar("ConfigT", SearchConfig, GenerationConfig)

Directories = Path | str | Sequence[Path | str]
"""One run, or the runs of an ensemble; hub:USER/NAME[@REVISION] is a published run (pip install
'.[hub]' in a clone)."""


def load(
    directory: Directories,
    device: Device = "cpu",
    dtype: DType = torch.float32,
    *,
    lm: Path | str | None = None,
) -> AnyTask:
    """Load a run directory as the task that it was trained for, with the run's own search
    configuration.

    Several runs are an ensemble, with the search configuration of the first: a token's
    log-probability is the mean over the models. They must read and write the same tokens.

    `lm` is a language model for shallow fusion in translation and transcription, used if
    `lm_weight` is not 0: a run with the same target tokenizer, or n-grams of its tokens in an ARPA
    file.

    The weights are converted to `dtype`: bf16 is faster, and its outputs differ a little; int8, on
    CPUs, rounds large matrices to 8 bits (see transduce/engine/stack.py), but those of the language
    model stay float32. They cannot be trained; `load_model` gives weights that can.

    Raises:
        InputError: a directory is not a complete run, runs do not fit together, or there are no
            kernels for int8.
    """
    dtype = torch_dtype(dtype)
    runs = [*map(load_run, names_of(directory))]
    first = runs[0].directory
    for run in runs[1:]:
        if differing := differing_parts(run, runs[0]):
            raise InputError(
                "the runs of an ensemble must have the same task, tokens and features, but "
                f"{run.directory} and {first} differ in {differing}; train one with --tokenizer "
                "and the file of the other, or with --start-from the other"
            )
        if run.model.decoder is None:
            raise InputError(f"an ensemble writes text, but {first} fills masks; name one run")
    task, *others = (_load(run, device, dtype) for run in runs)
    task.engines = tuple(each.engine for each in (task, *others))
    if lm is not None:
        if not isinstance(task, Translator | Transcriber):
            _, does, way_out = KINDS[type(task)]
            raise InputError(
                f"only a run that translates or transcribes takes a language model, but {first} "
                f"{does}; {way_out}"
            )
        task.lm = load_lm(Path(lm), first, task, torch.float32 if dtype == torch.int8 else dtype)
    return task


def load_lm(
    path: Path,
    run: Path,
    task: Translator | Transcriber,
    dtype: torch.dtype,
) -> LanguageModel:
    """Load a language model for `task`, which came from `run`; `path` is a run directory or an ARPA
    file of n-grams.

    Raises:
        InputError: it is neither, or it has other tokens.
    """
    tokenizer, device = task.tokenizer, task.model.device
    bos, eos = tokenizer.required("bos_id", "eos_id")
    if not path.exists():
        raise InputError(
            f"a language model is a run directory or a file of n-grams, but {path} does not exist; "
            "check the path"
        )
    if path.is_file():
        words = tokenizer.all_tokens
        with errors_of(path):
            ngrams = NGrams(each_line(path), words, bos_id=bos, eos_id=eos, device=device)
        return LanguageModel(partial(NGramScorer, ngrams))
    generator = load_generator(path, device, dtype)
    if (
        not same_tokens(tokenizer, generator.tokenizer)
        or generator.model.vocab_size != task.model.vocab_size
    ):
        raise InputError(
            f"a language model must have the tokens of the run that it is used with, but {path} "
            f"has others than {run}; train it with --tokenizer and the target's tokenizer file of "
            "that run"
        )
    start = torch.tensor([[bos]], device=device)
    return LanguageModel(
        lambda n: generator.scorer(start.expand(n, 1)), last_position(*generator.engines)
    )


def names_of(directory: Directories) -> list[Path | str]:
    """The names of one run or of the runs of an ensemble.

    Raises:
        InputError: no run is named.
    """
    names = [directory] if isinstance(directory, Path | str) else list(directory)
    if not names:
        raise InputError("load takes a run directory, or several as an ensemble, but got none")
    return names


def _load(run: Run, device: Device, dtype: torch.dtype) -> AnyTask:
    if run.target_tokenizer is None:
        raise InputError(f"a run needs a tokenizer to write text, but {run.directory} has none")
    int8 = dtype == torch.int8
    model = read_model(run, device).to(torch.float32 if int8 else dtype)
    experiment = run.experiment
    ctc_column = experiment.get("ctc_column")
    of_another_text = ctc_column and ctc_column != experiment.get("corpus", {}).get("target_column")
    if experiment.get("ctc_weight") == 0 or of_another_text:  # untrained, or of no use to a search
        model.ctc = None
        model.config = replace(model.config, ctc=False, ctc_layers=())
    task = _task(run, model, run.target_tokenizer)
    task.engines = (engine_for(model.eval().requires_grad_(False), int8=int8),)
    return task


def _task(run: Run, model: Transformer, target: Tokenizer) -> AnyTask:
    """The task that a run was trained for."""
    directory = run.directory
    if run.model.encoder is None:
        return Generator(model, target, run_decoding(run, GenerationConfig))
    if run.model.decoder is None:
        return FillMask(model, target)
    decoding = run_decoding(run, SearchConfig)
    for tokenizer in filter(None, (run.source_tokenizer, target)):
        with errors_of(directory):
            tokenizer.required("bos_id", "eos_id")
    if run.feature_extractor is not None:
        lexicon = load_lexicon(directory)
        return Transcriber(model, target, run.feature_extractor, decoding, lexicon)
    if not isinstance(run.model.encoder.input, Tokens):
        raise InputError(
            f"a transcriber needs features, but {directory / CONFIG} has none; copy the whole run "
            "directory"
        )
    if run.source_tokenizer is None:
        raise InputError(
            f"a translator needs two tokenizers or a shared one, but {directory} has none"
        )
    return Translator(model, run.source_tokenizer, target, decoding)


def run_decoding(run: Run, kind: type[ConfigT]) -> ConfigT:
    """The run's own search configuration.

    Raises:
        InputError: its config.json is not valid.
    """
    plain = run.experiment.get("decoding", {})
    return from_dict(kind, plain, f"decoding in {run.directory / CONFIG}")


def differing_parts(one: Run, other: Run) -> str:
    """The parts in which two runs differ so that they form no ensemble, and one cannot teach the
    other; "" if there are none."""
    parts: dict[str, Callable[[Any, Any], bool]] = {
        "source_tokenizer": same_tokens,
        "target_tokenizer": same_tokens,
        "feature_extractor": _same_features,
        "model.encoder": lambda *_: True,
        "model.decoder": lambda *_: True,
        "model.vocab_size": eq,
    }
    names = []
    for name, same in parts.items():
        its, ours = map(attrgetter(name), (one, other))
        if its is not ours and (None in (its, ours) or not same(its, ours)):
            names.append(name)
    return ", ".join(names)


def _same_features(a: Features, b: Features) -> bool:
    """Whether both make the same frames of a sound."""
    pairs = ((a.mean, b.mean), (a.std, b.std))  # where the configurations are equal, both or none
    return a.config == b.config and all(
        x is None or y is None or torch.equal(x, y) for x, y in pairs
    )


KINDS: dict[type, tuple[str, str, str]] = {
    Translator: (
        "translating takes a run of text to text",
        "translates",
        "use transduce translate",
    ),
    Transcriber: (
        "transcribing takes a run of speech to text",
        "transcribes",
        "use transduce transcribe",
    ),
    Generator: (
        "generating takes a run of a language model",
        "is a language model",
        "use transduce generate",
    ),
    FillMask: (
        "fill-mask takes a run of masked language modelling",
        "fills masks",
        "use td.load(RUN)(['a line with a _']) in Python",
    ),
}
"""The parts of a message about the wrong kind of run: what is required, what the run does, and the
way out."""


def load_as(
    kind: type[KindT],
    directory: Directories,
    device: Device = "cpu",
    dtype: DType = torch.float32,
    *,
    lm: Path | str | None = None,
) -> KindT:
    """Load a run directory that must be of this kind.

    Raises:
        InputError: the run is of another kind.
    """
    task = load(directory, device, dtype, lm=lm)
    if not isinstance(task, kind):
        _, does, way_out = KINDS[type(task)]
        raise InputError(f"{KINDS[kind][0]}, but {names_of(directory)[0]} {does}; {way_out}")
    return task


def load_translator(
    directory: Directories,
    device: Device = "cpu",
    dtype: DType = torch.float32,
    *,
    lm: Path | str | None = None,
) -> Translator:
    """Load a run of text to text, as `load` does.

    Raises:
        InputError: the run is of another kind, or the directory is not a complete run.
    """
    return load_as(Translator, directory, device, dtype, lm=lm)


def load_transcriber(
    directory: Directories,
    device: Device = "cpu",
    dtype: DType = torch.float32,
    *,
    lm: Path | str | None = None,
) -> Transcriber:
    """Load a run of speech to text, as `load` does.

    Raises:
        InputError: the run is of another kind, or the directory is not a complete run.
    """
    return load_as(Transcriber, directory, device, dtype, lm=lm)


def load_generator(
    directory: Directories,
    device: Device = "cpu",
    dtype: DType = torch.float32,
) -> Generator:
    """Load a run of language modelling, as `load` does.

    Raises:
        InputError: the run is of another kind, or the directory is not a complete run.
    """
    return load_as(Generator, directory, device, dtype)


def load_fill_mask(
    directory: Path | str,
    device: Device = "cpu",
    dtype: DType = torch.float32,
) -> FillMask:
    """Load a run of masked language modelling, as `load` does.

    Raises:
        InputError: the run is of another kind, or the directory is not a complete run.
    """
    return load_as(FillMask, directory, device, dtype)


def show(task: Task, source: Any, text: str | None = None, **settings: Any) -> Alignment:
    """The cross-attention of a translator or a transcriber between one input and a text; a notebook
    shows it as a picture.

    Args:
        text: the output; default: the best one that the search finds.
        settings: fields of SearchConfig.

    Raises:
        InputError: as for `align`; or the run is of another kind.
    """
    if not isinstance(task, Seq2SeqTask):
        raise InputError(
            "show draws the attention of a translator or a transcriber, but this run "
            f"{KINDS[type(task)][1]}; load another one"
        )
    return task.align([source], [task(source, **settings) if text is None else text], **settings)[0]
