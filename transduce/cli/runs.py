"""Commands for run directories: describe, average, publish, tokenize, import, export."""

import re
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import yaml
from tyro.conf import Positional, arg

from transduce.cli.common import (
    STDIN,
    Count,
    Files,
    Flag,
    OptionalFile,
    OwnRun,
    Run,
    checked,
    lines_or_errors,
    to_stderr,
)
from transduce.cli.large_files import check_output
from transduce.errors import InputError, require
from transduce.hub import PREFIX

if TYPE_CHECKING:
    from transduce.run import Run as Contents

SCREEN = 36
"""Lines that `transduce describe` shows without --all."""

Name = Annotated[
    str,
    arg(
        metavar="USER/NAME[@BRANCH]",
        help="The repository and branch, created if they do not exist.",
    ),
]


def describe(run: Run, *, all: Flag = False) -> None:
    """Describe a run directory: scores first, then model, tokenizers and training, within a screen.

    Args:
        all: Show every field.
    """
    from transduce.config import shown
    from transduce.engine.support import by_layers
    from transduce.files import read_weights
    from transduce.kernels import origin
    from transduce.report.documents import facts, fields_of, scores, shown_first
    from transduce.run import checkpoints, load_run, weights_path

    contents = load_run(run)
    directory = contents.directory
    weights = weights_path(directory)
    n_parameters = sum(tensor.numel() for tensor in read_weights(weights).values())
    updates = [str(int(path.name)) for path in checkpoints(directory)]
    lines = [
        *(f"{label}: {score}" for label, score in scores(directory)),
        f"{directory}: {n_parameters:,} parameters in {weights.relative_to(directory)}",
        *facts(contents),
        f"C++ kernels for CPUs: {origin()}{by_layers(contents.model)}",
        f"checkpoints: {', '.join(updates) or 'none'}",
    ]
    fields = fields_of(contents)
    n_shown = max(0, SCREEN - len(lines) - 1)
    first = fields if all else dict(list(shown_first(fields).items())[:n_shown])
    lines += [f"  {name} = {shown(value)}" for name, value in first.items()]
    if n_more := len(fields) - len(first):
        lines.append(f"and {n_more} more fields: transduce describe {directory} --all")
    print("\n".join(lines))


def average_checkpoints(
    run: OwnRun, *, last: Count = None, best: Count = None, output: OptionalFile = None
) -> None:
    """Average checkpoints into the run's finished model; the previous one becomes
    model.before.safetensors, and its scores test.before.json.

    Run the training command again to score the new model.

    Args:
        last: Average this many newest checkpoints.
        best: Average this many checkpoints with the best validation score.
        output: Write the weights there, and keep the run's finished model as it is.
    """
    from transduce.experiment.run import validated_checkpoints
    from transduce.files import write_file
    from transduce.report.documents import write_reports
    from transduce.report.record import BEFORE, replace_model
    from transduce.run import WEIGHTS, average, load_run, serialize

    if (last is None) == (best is None):
        raise InputError(
            f"name either --last N or --best N, but {'neither' if last is None else 'both'} is "
            "given"
        )
    load_run(run)
    validated = validated_checkpoints(run, best=best is not None)
    count = last or best or 0
    if not 1 <= count <= len(validated):
        raise InputError(
            "an average takes at least 1 and at most all validated checkpoints, but --last or "
            f"--best is {count}, and {run} has {len(validated)}"
        )
    paths = [path / WEIGHTS for path in validated[-count:]]
    if output is not None:
        check_output(output, paths)
    weights = serialize(average(paths))
    if output is not None:
        write_file(output, weights)
    is_replaced = output is None and replace_model(run, weights)
    updates = ", ".join(str(int(path.parent.name)) for path in paths)
    print(f"{output or run / WEIGHTS}: mean of the updates {updates}")
    if is_replaced:
        write_reports(run)
        print(f"the previous model is in {run / BEFORE}")


def publish(
    run: OwnRun,
    name: Positional[Name],
    *,
    private: Flag = False,
    benchmark: Annotated[str, arg(metavar="USER/DATASET/TASK")] = "",
) -> None:
    """Put a finished run on the Hugging Face hub, where commands and td.load find it as
    hub:USER/NAME.

    Uploads all files that are needed to use the run, its scores, and MODEL_CARD.md as README.md.
    Needs a token (hf auth login, or HF_TOKEN), and huggingface_hub (pip install '.[hub]' in a
    clone).

    Args:
        private: Only you see the repository.
        benchmark: The benchmark on the hub on which the run was tested: the first score of its last
            search is written to .eval_results, which the hub shows and ranks.
    """
    from transduce.hub import CARD, repository, upload
    from transduce.report.documents import is_unchanged, write_card
    from transduce.run import PUBLISHED, WEIGHTS, load_model

    identifier, branch = repository(name)
    if not (run / WEIGHTS).is_file():
        raise InputError(
            f"a finished run has {WEIGHTS}, but {run} has none; finish its training, or average "
            f"its checkpoints: transduce average {run} --best 1"
        )
    load_model(run)  # to publish only what can be loaded
    files = {each: run / each for each in PUBLISHED if each != CARD and (run / each).is_file()}
    files[CARD] = write_card(run)
    if benchmark:
        files[".eval_results/transduce.yaml"] = _write_benchmark(run, benchmark)
    is_generated = is_unchanged(files[CARD].read_text("utf-8", errors="replace"))

    def keeps(card: str) -> bool:
        keep = is_generated and not is_unchanged(card)
        if keep:
            print(f"  {CARD} was edited on the hub, and is kept", flush=True)
        return keep

    address = f"{PREFIX}{name.removeprefix(PREFIX)}"
    print(f"to {address}:", flush=True)
    for each, path in files.items():
        print(f"  {each}  {path.stat().st_size / 1e6:,.1f} MB", flush=True)
    url = upload(identifier, files, known=PUBLISHED, keeps=keeps, private=private, revision=branch)
    print(f"{url}: transduce describe {address}")


def _write_benchmark(run: Path, benchmark: str) -> Path:
    """Write a test score in the hub's format.

    Raises:
        InputError: the benchmark's name has not three parts, or there is no score.
    """
    require("huggingface_hub", "publish --benchmark", "hub")
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

    from transduce.files import write_file
    from transduce.report.record import read_scores

    dataset, _, task = benchmark.rpartition("/")
    if not re.fullmatch("[^/]+/[^/]+/[^/]+", benchmark):
        raise InputError(
            f"a benchmark is USER/DATASET/TASK, such as cais/hle/default, but it is {benchmark!r}"
        )
    path = run / "test.json"
    scores = [each for each in read_scores(path) if not each.group] if path.is_file() else []
    if not scores:
        raise InputError(
            f"a benchmark's score is one of test.json, but {run} has none; train with test data"
        )
    score = next(each for each in scores if each.search == scores[-1].search)
    notes = f"{score.search}: {score.score}"
    entry = EvalResultEntry(dataset, task, round(score.value, 2), notes=notes)
    output = run / "eval_results.yaml"
    write_file(output, yaml.safe_dump(eval_result_entries_to_yaml([entry]), sort_keys=False))
    return output


def tokenize(run: Run, files: Files = (), *, source: Flag = False) -> None:
    """Write lines as the tokens of a run, separated by spaces, to train n-gram models for --lm.

    For example: transduce tokenize RUN text.de | lmplz -o 5 > de.arpa

    Args:
        files: Text, plain or .gz, one after the other; - is standard input, which is also the
            default.
        source: Use the source tokenizer instead of the target tokenizer.
    """
    from transduce.run import load_run

    contents = load_run(run)
    tokenizer = contents.source_tokenizer if source else contents.target_tokenizer
    if tokenizer is None:
        raise InputError(
            f"tokens need a tokenizer, but {run} has none for its "
            f"{'source' if source else 'target'}"
        )
    for line in map(checked, chain.from_iterable(map(lines_or_errors, files or [STDIN]))):
        print(*tokenizer.tokens(tokenizer.encode([line])[0]))


Theirs = Positional[Annotated[Path, arg(metavar="DIRECTORY", help="The new directory.")]]

Format = Literal["argos", "ctranslate2", "gpt2", "llama", "marian", "onnx", "web", "whisper"]


def export(
    run: OwnRun,
    directory: Theirs,
    *,
    to: Format,
    languages: Annotated[tuple[str, str], arg(metavar="SOURCE TARGET", help_behavior_hint="")] = (
        "",
        "",
    ),
) -> None:
    """Write the model of a run, with its tokenizers, as a directory that another library loads.

    Args:
        to: ctranslate2 for ctranslate2.Translator, or, if it is a language model,
            ctranslate2.Generator (pip install '.[ctranslate2]' in a clone). gpt2, llama or marian
            for from_pretrained of transformers; llama makes a Qwen2, Qwen3 or Mistral if the model
            needs their parts. onnx (the extra onnx) for onnxruntime: the encoder and a step of the
            decoder; web (also onnx) for a page that translates in the browser, whose runtime (33
            MB) is fetched once. argos for Argos Translate and LibreTranslate: one file,
            *.argosmodel. whisper for from_pretrained of transformers, and so for the converters of
            faster-whisper and whisper.cpp.
        languages: Codes of the source and the target language, such as en de; for argos and web.
    """
    from transduce.run import load_run

    check_new(directory)
    contents = load_run(run)
    if any(languages) and to not in ("argos", "web"):
        raise InputError(f"languages are for argos and web, but this is --to {to}; leave them out")
    if to == "argos":
        check_output(directory)
        if not all(languages):
            raise InputError("argos needs the languages; add --languages SOURCE TARGET (en de)")
        if others := [code for code in languages if not code.replace("-", "").isalnum()]:
            raise InputError(f"a language is a code such as en or pt-BR, but not {others[0]!r}")
    if not _exported(contents, directory, to, languages):
        kind = type(contents.target_tokenizer).__name__
        to_stderr(f"{to} cannot store a {kind}, so the tokenizer was not written")
    print(directory)


def _exported(run: "Contents", directory: Path, to: Format, languages: tuple[str, str]) -> bool:
    """Write a run for another library; return False if that cannot store its tokenizer."""
    from transduce.cli.web import export_page
    from transduce.config import to_dict
    from transduce.interop import ctranslate2, encoder_decoder, language_models, onnx, whisper
    from transduce.interop.pretrained import Parts
    from transduce.run import read_model
    from transduce.tasks.config import GenerationConfig, SearchConfig
    from transduce.tasks.load import run_decoding

    target = run.target_tokenizer
    if target is None:
        raise InputError(f"a model is exported with its tokenizer, but {run.directory} has none")
    model = read_model(run, "cpu")
    kind: type[Any] = GenerationConfig if model.config.encoder is None else SearchConfig
    decoding = to_dict(run_decoding(run, kind))
    parts = Parts(model, run.source_tokenizer, target, decoding, run.feature_extractor)
    match to:
        case "ctranslate2":
            ctranslate2.export_ctranslate2(parts, directory)
        case "argos":
            ctranslate2.export_argos(parts, directory, languages)
        case "onnx":
            onnx.export_onnx(parts, directory)
        case "web":
            export_page(parts, directory, (run.directory.resolve().name, *languages))
        case "whisper":
            whisper.export_whisper(parts, directory)
        case "marian":
            return encoder_decoder.export_marian(parts, directory)
        case _:
            return language_models.export_language_model(parts, directory, to)
    return True


def import_run(
    directory: Positional[Annotated[Path, arg(metavar="HF_DIRECTORY")]],
    run: Positional[Annotated[Path, arg(metavar="RUN")]],
) -> None:
    """Make a run directory from a model saved by transformers: config.json, weights and tokenizer.

    Args:
        directory: The model, of the type gpt2, llama (also SmolLM2), qwen2, qwen3, mistral, gemma,
            phi3, olmo, opt, xglm, marian (opus-mt), m2m_100 (also NLLB), bart, mbart, pegasus,
            blenderbot, t5, mt5, whisper or speech_to_text.
        run: The run directory to make.
    """
    from transduce.config import from_dict
    from transduce.files import save_weights
    from transduce.interop import read_run
    from transduce.interop.pretrained import read_settings
    from transduce.run import WEIGHTS, Run, check_sizes, save_run
    from transduce.tasks.config import GenerationConfig, SearchConfig

    settings = read_settings(directory)
    check_new(run)
    model, source, target, decoding, features = read_run(settings)
    experiment = {"imported": settings.model_type} | ({"decoding": decoding} if decoding else {})
    kind = GenerationConfig if model.config.encoder is None else SearchConfig
    from_dict(kind, decoding, f"the search in {directory}")
    contents = Run(model.config, experiment, source, target, features)
    check_sizes(directory / "preprocessor_config.json", contents)
    run.mkdir(parents=True, exist_ok=True)
    save_weights(run / WEIGHTS, model)  # config.json comes last, as it makes this a run
    save_run(run, contents)
    print(f"{run}: {model.n_parameters:,} parameters, {target.vocab_size} tokens")


def check_new(directory: Path) -> None:
    """Raise InputError if a directory already has a model of any library, or is a file."""
    path = directory if directory.is_file() else directory / "config.json"
    if path.exists():
        raise InputError(f"{path} is there already; name another directory, or remove this one")
