"""A recipe as a command: its configuration from the command line and files, and how it ends."""

import json
import logging
import os
import re
import sys
import traceback
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stdout
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from transduce.arguments import HELP_ALL, call
from transduce.config import to_dict
from transduce.errors import InputError
from transduce.exit import command_process, exit_code
from transduce.experiment.config import AnyExperiment
from transduce.experiment.fields import like_run, with_files
from transduce.hub import PREFIX
from transduce.threads import limit_omp_spin

FOOT = f"""
  --config FILE    read fields from a JSON or YAML file, such as a run's config.json; flags win
  --print-config   print all fields as such a file, and do nothing else
{HELP_ALL}"""

ExperimentT = TypeVar("ExperimentT", bound=AnyExperiment)


def main(
    run: Callable[[ExperimentT], object],
    settings: Mapping[str, tuple[str, ExperimentT]],
    *,
    default: str,
    description: str | None,
    arguments: Sequence[str] | None = None,
    prog: str | None = None,
) -> int:
    """A recipe's command line: 0 if all went well, 2 if its input was at fault, 130 after Ctrl-C.

    Args:
        default: the setting where none is named.
        description: the recipe's help; it shows `prog` in place of `python recipes/RECIPE.py`.
        arguments: those of the process where they are None.
        prog: the command as help shows it; `python FILE` where it is None.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    prog = prog or f"python {sys.argv[0]}"
    joined = False

    def go() -> None:
        nonlocal joined
        told, several = (
            limit_omp_spin(),
            os.environ.get("WORLD_SIZE", "1") != "1" and "MASTER_ADDR" in os.environ,
        )
        with _one_of_several() if several else nullcontext():
            joined = several
            experiment = choose(
                settings, words, default=default, description=description, prog=prog
            )
            if told:
                print(told)
            from transduce.device import torch_device
            from transduce.experiment.run import teacher_run
            from transduce.train.distributed import world
            from transduce.train.log import require_libraries

            require_libraries()
            world().check(experiment.training)
            if not world().first:
                world().barrier()
            torch_device(experiment.device)  # before an hour with the data
            for teacher in experiment.training.teachers:
                teacher_run(teacher)
            run(experiment)

    interrupted = "stopped; run the same command again to go on from the newest checkpoint"
    with command_process("%(message)s", needs_output=False):
        try:
            code = exit_code(go, interrupted=interrupted)
        except BaseException as error:
            if not joined:
                raise
            code = int(error.code or 0) if isinstance(error, SystemExit) else 1
            if code == 1:
                traceback.print_exc()
        # Gloo's threads may abort an interpreter that ends while other processes are at work or
        # gone
        if joined:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return code


@contextmanager
def _one_of_several() -> Iterator[None]:
    """A process among those of torchrun: the first alone speaks; of those that fail, the one that
    does so first says why."""
    from transduce.train.distributed import end_with_parent, world

    end_with_parent()
    with ExitStack() as stack:
        if not world().first:
            os.environ["TQDM_DISABLE"] = "1"
            logging.disable(logging.WARNING)
            nowhere = stack.enter_context(open(os.devnull, "w", encoding="utf-8", errors="replace"))
            stack.enter_context(redirect_stdout(nowhere))
        try:
            yield
        except SystemExit:  # after --help
            raise
        except BaseException as error:
            if not world().report_failure():
                sys.exit(130 if isinstance(error, KeyboardInterrupt) else 2)
            raise


def choose(
    settings: Mapping[str, tuple[str, ExperimentT]],
    words: Sequence[str],
    *,
    default: str,
    description: str | None = None,
    prog: str = "python RECIPE.py",
) -> ExperimentT:
    """The named setting, with the fields that files and then flags override; `default` where none
    is named.

    Raises:
        InputError: there is no such setting, or a flag or a file does not fit.
        SystemExit: help or the configuration was asked for, and printed (0).
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
    words, files, printing = _own_flags(words)
    start = _starting_run(words, with_files(experiment, files))
    experiment = with_files(like_run(experiment, start) if start else experiment, files)
    kind: Any = type(experiment)
    chosen: ExperimentT = call(
        kind, words, prog=f"{prog} {name}", default=experiment, description=summary, foot=FOOT
    )
    if printing:
        print(json.dumps(to_dict(chosen), indent=2))
        sys.exit(0)
    return chosen


def _own_flags(words: list[str]) -> tuple[list[str], list[Path], bool]:
    """Split into the words that set fields, the files of --config, and whether --print-config is
    there."""
    left, files, rest = [], [], iter(words)
    for word in rest:
        flag, equals, value = word.partition("=")
        if flag == "--config":
            if not (name := value if equals else next(rest, "")):
                raise InputError(
                    "--config takes a file, .json or .yaml, but nothing follows it; --print-config "
                    "writes one"
                )
            files.append(Path(name))
        else:
            left.append(word)
    return [word for word in left if word != "--print-config"], files, "--print-config" in left


def _starting_run(words: list[str], experiment: AnyExperiment) -> Path | None:
    """The run of --start-from; where it is gone and the new run has begun, that one, which began
    like it."""
    flags = ArgumentParser(add_help=False, allow_abbrev=False)
    flags.add_argument(
        "--start-from",
        "--start_from",
        nargs="?",
        type=Path,
        default=getattr(experiment, "start_from", None),
    )
    flags.add_argument("--run", nargs="?", type=Path, default=experiment.run)
    found, _ = flags.parse_known_args(words)
    if str(found.start_from).startswith(PREFIX):
        from transduce.run import on_disk

        return on_disk(found.start_from)
    known = [
        path
        for path in (found.start_from, found.run)
        if path is not None and (path / "config.json").is_file()
    ]
    return known[0] if found.start_from is not None and known else None


def _print_settings(
    settings: Mapping[str, tuple[str, object]], prog: str, description: str | None
) -> None:
    width = max(map(len, settings)) + 2
    print(f"usage: {prog} [NAME] [--FLAG VALUE ...]\n")
    print(re.sub(r"python recipes/\w+\.py", prog, description or "").strip() + "\n")
    for name, (told, _) in settings.items():
        print(f"  {name:<{width}}{told}")
    print(f"\n{prog} NAME --help shows the flags that are used most.\n{FOOT}")
