"""Run a recipe as a command: read its configuration from files and flags, and end with a code."""

import json
import logging
import math
import os
import re
import sys
import traceback
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from shlex import quote
from typing import Any

import yaml

from transduce.arguments import HELP_ALL, call, help_texts
from transduce.config import Config, changed, flatten, to_dict, without_removed
from transduce.errors import InputError, command_process, errors_of, exit_code
from transduce.experiment.config import Experiment, ExperimentT, resolved
from transduce.process import keep_memory, limit_omp_spin

FOOT = f"""
  --config FILE    read fields from a JSON or YAML file, such as a run's config.json; flags win
  --print-config   print the fields that differ from the defaults as such a file, and exit
{HELP_ALL}"""

INTERRUPTED = "stopped; run the same command again to resume from the newest checkpoint"


def main(
    run: Callable[[ExperimentT], object],
    settings: Mapping[str, tuple[str, ExperimentT]],
    *,
    default: str,
    description: str | None,
    arguments: Sequence[str] | None = None,
    prog: str | None = None,
) -> int:
    """Run a recipe's command line; return 0 on success, 2 for unusable input, 130 after Ctrl-C.

    Args:
        default: the setting if none is named.
        description: the recipe's help, in which `prog` replaces `python recipes/RECIPE.py`.
        arguments: None: those of the process.
        prog: the command as help shows it; None: `python FILE`.
    """
    words = sys.argv[1:] if arguments is None else arguments
    prog = prog or f"python {sys.argv[0]}"

    def start() -> None:
        limit_omp_spin()
        keep_memory()
        experiment = choose(settings, words, default=default, description=description, prog=prog)
        _check_machine(experiment)
        try:
            run(experiment)
        except BrokenPipeError as error:  # its reader has ended, but the training has not
            raise KeyboardInterrupt from error
        directory = resolved(experiment).run
        print(f"curves, samples and scores: {directory / 'report.html'}")
        print(f"try it: {experiment.NEXT.format(run=quote(str(directory)))}")

    with command_process("%(message)s", needs_output=False):
        if os.environ.get("WORLD_SIZE", "1") != "1" and "MASTER_ADDR" in os.environ:
            _exit_together(start)
        return exit_code(start, interrupted=INTERRUPTED)


def _check_machine(x: Experiment) -> None:
    """Raise InputError if the device, a library or a teacher is missing, before the data is
    prepared, which may take an hour."""
    from transduce.device import torch_device
    from transduce.experiment.run import teacher_run
    from transduce.train.distributed import world
    from transduce.train.log import require_libraries

    require_libraries(x.log)
    x.training.check_processes(world().size)
    if not world().first:
        world().barrier()
    torch_device(x.device)
    for teacher in x.training.teachers:
        teacher_run(teacher)


def _exit_together(start: Callable[[], None]) -> None:
    """Run as one of the processes of torchrun, and end this process.

    Only the first process prints; of several that fail, only the first to fail says why. Gloo's
    threads may abort an interpreter that ends while other processes still work or have ended.
    """

    def start_among_others() -> None:
        from transduce.train.distributed import end_with_parent, world

        end_with_parent()
        if not world().first:
            os.environ["TQDM_DISABLE"] = "1"
            logging.disable(logging.WARNING)
            sys.stdout = open(os.devnull, "w", encoding="utf-8", errors="replace")  # noqa: SIM115
        try:
            start()
        except SystemExit:  # after --help
            raise
        except BaseException as error:
            if not world().report_failure():
                sys.exit(130 if isinstance(error, KeyboardInterrupt) else 2)
            raise

    try:
        code = exit_code(start_among_others, interrupted=INTERRUPTED)
    except SystemExit as stop:
        code = int(stop.code or 0)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def choose(
    settings: Mapping[str, tuple[str, ExperimentT]],
    words: Sequence[str],
    *,
    default: str,
    description: str | None = None,
    prog: str = "python RECIPE.py",
) -> ExperimentT:
    """Choose a setting by name, or `default`, and override its fields by files, then by flags.

    Raises:
        InputError: there is no such setting, or a flag or a file does not fit.
        SystemExit: help or the configuration was requested and printed (code 0).
    """
    words = list(words)
    if words[:1] in (["-h"], ["--help"]):
        _print_settings(settings, prog, description)
        sys.exit(0)
    name = default
    if words and not words[0].startswith("-"):
        name, *words = words
    if name not in settings:
        near = get_close_matches(name, settings, n=1)
        way_out = f"did you mean {near[0]}?" if near else f"name one of {', '.join(settings)}"
        raise InputError(f"there is no setting {name!r}; {way_out}")
    summary, experiment = settings[name]
    flags = ArgumentParser(add_help=False, allow_abbrev=False)
    flags.add_argument("--config", action="append", nargs="?", const="", default=[])
    flags.add_argument("--print-config", action="store_true")
    options, words = flags.parse_known_args(words)
    experiment = with_files(experiment, options.config)
    flags.add_argument("--start-from", "--start_from", nargs="?", default=experiment.start_from)
    flags.add_argument("--run", nargs="?", default=experiment.run)
    runs, _ = flags.parse_known_args(words)
    if start := _starting_run(runs.start_from, runs.run):
        experiment = with_files(_like_run(experiment, start), options.config)
    kind: Any = type(experiment)
    chosen: ExperimentT = call(
        kind, words, prog=f"{prog} {name}", default=experiment, description=summary, foot=FOOT
    )
    _check_vocabulary(chosen, experiment)
    if options.print_config:
        print(f"# {prog} {name} --config FILE")
        print(*_commented_yaml(chosen, [each for _, each in settings.values()]), sep="\n")
        sys.exit(0)
    return chosen


def _check_vocabulary(x: Experiment, default: Experiment) -> None:
    """Raise InputError if flags describe a vocabulary to train, but an existing one is used."""
    tokenizer = getattr(x, "tokenizer", None)  # a kind, a file, several files or None
    files = tokenizer if isinstance(tokenizer, tuple) else [tokenizer] * isinstance(tokenizer, Path)
    names = ["vocab_size", "normalization", *["joint"] * (len(files) < 2)]
    names += ["tokenizer"] * (not files)
    named = {
        name: value for name in names if (value := getattr(x, name, 0)) != getattr(default, name, 0)
    }
    begun = x.run is not None and (x.run / "config.json").exists()  # `open_run` compares them
    if named and (x.start_from or files) and not begun:
        raise InputError(
            "a vocabulary is either trained, or taken from --tokenizer FILE or the run to start "
            f"from, but {', '.join(f'{name}={value}' for name, value in named.items())} is for "
            "training one; leave it out, or the other"
        )


def _starting_run(start_from: Path | str | None, run: Path | str | None) -> Path | None:
    """The directory of --start-from's run; if that run is gone and the new run has begun, the new
    run's, which has the same model."""
    if start_from is None:
        return None
    from transduce.run import on_disk

    runs = [on_disk(path) for path in (start_from, run) if path is not None]
    return next((run for run in runs if (run / "config.json").is_file()), None)


def _commented_yaml(config: Any, others: Sequence[Any], indent: str = "") -> Iterator[str]:
    """Yield a YAML line for each field that differs from its default or from other configurations.

    Args:
        others: configurations of the same class. A file with these lines makes each of them equal
            to `config`; without others, all fields are written.
    """
    comments = help_texts(type(config), config)
    for field in fields(config):
        value = getattr(config, field.name)
        before = [getattr(other, field.name) for other in others]
        default: Any = field.default
        if field.default_factory is not MISSING:
            default = field.default_factory()
        if before and all(each == value for each in before) and default in (value, MISSING):
            continue
        text, inner = "", list[str]()
        if is_dataclass(value):
            alike = all(type(each) is type(value) for each in before)
            known = [*before, *[default] * isinstance(default, type(value))] if alike else []
            inner = list(_commented_yaml(value, known, f"{indent}  "))
            if not inner:
                continue
        else:
            plain = yaml.dump(
                to_dict(value), Dumper=_QuotingYaml, default_flow_style=True, width=math.inf
            )
            text = " " + plain.removesuffix("...\n").strip()
        comment = comments[field.name]
        yield f"{indent}{field.name}:{text}" + (f"  # {comment}" if comment else "")
        yield from inner


def _print_settings(
    settings: Mapping[str, tuple[str, object]], prog: str, description: str | None
) -> None:
    width = max(map(len, settings)) + 2
    print(f"usage: {prog} [NAME] [--FLAG VALUE ...]\n")
    print(re.sub(r"python recipes/\w+\.py", prog, description or "").strip() + "\n")
    for name, (summary, _) in settings.items():
        print(f"  {name:<{width}}{summary}")
    print(f"\n{prog} NAME --help shows the most common flags.\n{FOOT}")


def with_files(config: Config, paths: Sequence[Path | str]) -> Config:
    """Change the fields that files name; they are written by --print-config, or config.json of
    runs.

    The last file wins.

    Raises:
        InputError: there is no such file, it is neither JSON nor YAML, or a field has a wrong name
            or a value that does not fit.
    """
    for path in paths:
        plain = _read_fields(path)
        with errors_of(path):
            config = changed(config, plain)
    return config


def _read_fields(name: Path | str) -> Any:
    path = Path(name)
    if not path.is_file():
        reason = f"{path} is none" if str(name) else "nothing follows it"
        raise InputError(
            f"--config takes a file, .json or .yaml, but {reason}; --print-config writes one"
        )
    raw = path.read_bytes()
    try:
        text = raw.decode("utf-8-sig")
        in_yaml = path.suffix in (".yaml", ".yml")
        plain = yaml.load(text, _Yaml) if in_yaml else json.loads(text, object_pairs_hook=_object)
        again = json.dumps(plain, default=str, ensure_ascii=False)  # raises for circular references
        again.encode(errors="surrogateescape")  # raises for lone surrogates
        if "\\u0000" in again:
            raise InputError("a text must not contain the character 0")
    except Exception as error:  # PyYAML raises many kinds, as for an invalid date
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(
            f"--config takes JSON, or YAML in a .yaml, but {path} is not: {reason}"
        ) from error
    if isinstance(plain, dict) and isinstance(plain.get("experiment"), dict):  # a run's config.json
        specified = plain.get("specified") or plain["experiment"]  # in version 0.2
        known = without_removed(specified, str(path))
        return {name: value for name, value in known.items() if name != "data"}
    return {} if plain is None else plain


def _object(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """The fields of an object.

    Raises:
        InputError: a field is named twice; YAML and JSON would silently take the last one.
    """
    plain = dict(pairs)
    if len(plain) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(
            f"a field must be named once, but {twice!r} is named {names.count(twice)} times; join "
            "them"
        )
    return plain


class _Yaml(yaml.SafeLoader):
    """YAML in which each field is named once, 5e-3 is a number, and 0500, 1:30 and 2024-06-01 are
    text instead of 320, 90 and a date."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        is_text = kind is yaml.ScalarNode and re.match(r"[-+]?(0[\d_]|[\d_]+:)|\d{4}-", value)
        return self.DEFAULT_SCALAR_TAG if is_text else super().resolve(kind, value, implicit)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        # before << merges others in
        keys = [key for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        mapping: dict[str, Any] = super().construct_mapping(node, deep)
        _object([(self.construct_object(key, deep=True), None) for key in keys])
        return mapping


class _QuotingYaml(yaml.SafeDumper):
    """YAML with quotes around text that _Yaml would read as a number."""


_Yaml.add_constructor("tag:yaml.org,2002:int", lambda _, node: int(node.value, 0))

for each in (_Yaml, _QuotingYaml):
    each.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+[eE][-+]?\d+$"), list("-+0123456789")
    )


def _like_run(x: ExperimentT, directory: Path) -> ExperimentT:
    """Use the model of another run with the same types of input and output; for sound, also its
    features and alignment heads.

    A run of another kind, such as a translator for a language model, changes nothing.

    Raises:
        InputError: the run cannot be read.
    """
    from transduce.run import load_run

    run = load_run(directory)
    taken: dict[str, Any] = {"model": run.model}
    if run.feature_extractor is not None and hasattr(x, "features"):
        heads = flatten(run.experiment).get("decoding.alignment_heads", [])
        taken["features"] = run.feature_extractor.config
        taken["decoding"] = {"alignment_heads": heads}
    like = changed(x, taken)
    return like if _inputs(like) == _inputs(x) else x


def _inputs(x: Experiment) -> list[type]:
    """The types of the inputs of encoder and decoder; NoneType for a missing stack."""
    return [type(getattr(stack, "input", None)) for stack in (x.model.encoder, x.model.decoder)]
