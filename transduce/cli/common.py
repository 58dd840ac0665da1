"""What several commands share: a run, its machine and its search, standard input, and where the output goes."""

import errno
import os
import socket
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, make_dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from tyro.conf import Fixed, Suppress, arg

from transduce.data.text.lines import bounded_lines, decode_line, raw_lines
from transduce.data.text.parallel_text import blocks
from transduce.errors import InputError
from transduce.hub import PREFIX
from transduce.tasks.config import NOT_GREEDY, RULES, GenerationConfig, SearchConfig
from transduce.threads import keep_memory

if TYPE_CHECKING:
    from transduce.tasks.load import KindT
else:  # torch takes seconds to import, and --help does without
    KindT = TypeVar("KindT")

ItemT = TypeVar("ItemT")
ConfigT = TypeVar("ConfigT", SearchConfig, GenerationConfig)

Run = Annotated[Path, arg(metavar="RUN", help="A run directory, as a recipe makes it, or hub:USER/NAME.")]

OwnRun = Annotated[Path, arg(metavar="RUN", help="A run directory, as a recipe makes it.")]

Runs = Annotated[
    Path,
    arg(
        metavar="RUN[,RUN ...]",
        help="A run directory, or hub:USER/NAME; several are an ensemble, better than each, and as slow as all.",
    ),
]

LM = Annotated[Path | None, arg(metavar="LM", help_behavior_hint="")]

OptionalFile = Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")]

Forbid = Annotated[
    Path | None,
    arg(
        metavar="FILE",
        help="Phrases, one a line, that no output holds, where words are wrong or unwanted; a space at either end of one "
        "is the end of a word.",
        help_behavior_hint="",
    ),
]

Count = Annotated[int | None, arg(metavar="INT", help_behavior_hint="")]

STDIN = Path("-")

NO = "no_"
"""What a flag begins with that switches off what a run has."""

GREEDY = "Take the likeliest next token each time: --beam-size 1."


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where the model computes, and in which numbers."""

    device: str = "auto"
    """auto (a GPU where there is one), cpu, cuda, cuda:1, ..."""
    precision: Literal["fp32", "bf16", "int8"] = "fp32"
    """bf16 is faster where the hardware has it, and int8 on CPUs, with large matrices in 8 bits; a few outputs change."""

    def load(self, kind: type[KindT], run: Path, lm: Path | None = None) -> KindT:
        """The run as something one calls.

        Raises:
            InputError: something else was trained there, or there is no such device.
        """
        from transduce.device import dtype_of
        from transduce.tasks.load import load_as

        found = load_as(kind, each_run(run), self.device, dtype_of(self.precision), lm=lm)
        keep_memory()
        return found


def each_run(runs: Path) -> list[Path]:
    """The directories of "RUN,RUN": what is itself a directory is one, whatever commas its name has.

    Raises:
        InputError: nothing stands before or behind a comma.
    """
    names = [str(runs)] if os.path.exists(runs) else str(runs).split(",")
    if "" in names:
        raise InputError(f"an ensemble is named RUN,RUN without spaces, but it is {str(runs)!r}")
    return [Path(name) for name in names]


def local(runs: Path) -> Path:
    """The same "RUN,RUN", where hub:USER/NAME[@REVISION] is the directory that it was downloaded to.

    Raises:
        InputError: there is no such run on the hub, or it cannot be had.
    """
    if PREFIX not in str(runs):
        return runs
    from transduce.run import on_disk

    return Path(",".join(str(on_disk(each)) for each in each_run(runs)))


def search_options(kind: type[SearchConfig | GenerationConfig] = SearchConfig, *, without: Collection[str] = ()) -> Any:
    """A class of command-line options: the fields of `kind`, each None where it is not named, and greedy beside SearchConfig's.

    It inherits from `kind` because tyro shows the docstrings of the fields, and looks for them there.

    Args:
        without: fields that mean nothing to a command, and are not offered.
    """
    options = list[tuple[str, Any, Any]]()
    if kind is SearchConfig:
        options.append(("greedy", Annotated[bool, arg(help=GREEDY, help_behavior_hint="")], False))
    without = {*without, "forbid"}  # a file says it, see Forbid
    for name, type_ in get_type_hints(kind).items():
        metavar = f"{{{','.join(get_args(type_))}}}" if get_origin(type_) is Literal else type_.__name__.upper()
        if get_origin(type_) is tuple:
            metavar = "INT [INT ...]"
        hint = "(the run's)" if kind is SearchConfig else f"(default: {getattr(kind, name)})"
        offered: Any = Annotated[type_ | None, arg(metavar=metavar, help_behavior_hint=hint)]
        if type_ is bool:
            offered = Annotated[bool, arg(help_behavior_hint="")]
            if name not in without:
                off = arg(help=f"Without --{name.replace('_', '-')}, which a run may have.", help_behavior_hint="")
                options.append((f"{NO}{name}", Annotated[bool, off], False))
        hidden: Any = Annotated[type_ | None, Suppress, Fixed]
        options.append((name, hidden if name in without else offered, False if type_ is bool else None))
    namespace = {"__doc__": "The run's own configuration decides what is not named here.", "__post_init__": _unchecked}
    made: Any = make_dataclass("Options", options, bases=(kind,), namespace=namespace, frozen=True, kw_only=True)
    # --help tells of the rules last, though a base class comes first
    made.__dataclass_fields__ = dict(sorted(made.__dataclass_fields__.items(), key=lambda pair: pair[0] in RULES))
    return made


def _unchecked(self: object) -> None:
    """Leave the checks to the configuration that the options become."""


def search_of(
    runs: Path, options: object, *, forbid: Path | None, lm: Path | None, format: str, token_scores: bool
) -> tuple[dict[str, Any], SearchConfig]:
    """The experiment of the first of some runs, and how to search: its own way, with what the command line names instead.

    Raises:
        InputError: flags do not go together, or a run or its way to search is not whole.
    """
    from transduce.run import load_run
    from transduce.tasks.load import own_decoding

    if token_scores and format != "json":
        raise InputError(f"scores of tokens need --format json, but it is {format}; add --format json")
    found = load_run(first := each_run(runs)[0])
    decoding = with_options(own_decoding(first, found), options, forbid)
    if (lm is None) == (decoding.lm_weight > 0):
        given = "there is no --lm" if lm is None else f"lm={lm}"
        raise InputError(
            f"--lm and --lm-weight go together, but {given} and lm_weight={decoding.lm_weight}; try --lm LM --lm-weight 0.3"
        )
    return found.experiment, decoding


def with_options(own: ConfigT, options: object, forbid: Path | None = None) -> ConfigT:
    """A run's own way to search, with what the command line names instead; greedy search has one hypothesis."""
    named = {name: value for name, value in vars(options).items() if value is not None and value is not False}
    if forbid:
        named["forbid"] = read_phrases(forbid)
    own_fields = {each.name for each in fields(own)}
    for name in [name for name in named if name not in own_fields and name.startswith(NO)]:
        del named[name]
        named[name.removeprefix(NO)] = False
    greedy = named.pop("greedy", False)
    single: list[str] = [name for name in ("beam_size", "n_best") if named.get(name, 1) != 1]
    others = [f"--{name.replace('_', '-')}" for name in named if name in (*NOT_GREEDY, *single) and named[name]]
    if greedy and others:
        raise InputError(f"--greedy takes the likeliest token each time, so leave it or {', '.join(others)} out")
    found = own.changed(**named)
    return found.greedy() if greedy and isinstance(found, SearchConfig) else found


def phrases_of(
    lines: Sequence[str], *, prefix: bool, require: bool
) -> tuple[list[str], dict[str, list[str] | list[list[str]]]]:
    """Of lines with tabs, the first columns, and what their outputs begin with and hold, as a task takes it."""
    rows, first = [line.split("\t") for line in lines], 1 + prefix
    told: dict[str, list[str] | list[list[str]]] = {}
    told["prefix"] = [row[1] if prefix and len(row) > 1 else "" for row in rows]
    told["require"] = [[phrase for phrase in row[first:] if phrase.strip()] * require for row in rows]
    return [row[0] for row in rows], told


def check_columns(line: str, number: int, what: str, *, prefix: bool, require: bool) -> None:
    """Raise InputError where a line that has a `what` and its prefix alone has more tabs; `number` counts from 1."""
    if prefix and not require and (n := line.count("\t") + 1) > 2:
        raise InputError(f"line {number} must be {what}<TAB>PREFIX, but it has {n} columns; remove tabs")


def each_or_error(lines: Iterable[bytes], name: str) -> Iterator[str | InputError]:
    """`decode_lines`, but what it would raise stands in its line's place."""
    for number, line in enumerate(lines, start=1):
        try:
            yield decode_line(line.removesuffix(b"\n"), name, number)
        except InputError as error:
            yield error


def lines_or_errors(path: Path) -> Iterator[str | InputError]:
    """The lines of one file, or of standard input for -, as they come; an error in place of one that is not UTF-8."""
    return each_or_error(_raw_lines(path), side_name(path))


def _raw_lines(path: Path) -> Iterator[bytes]:
    return bounded_lines(sys.stdin.buffer.readline, side_name(path)) if path == STDIN else raw_lines(path)


class Lines:
    """The lines of files, one after the other, or errors, read anew by every loop: none is kept in memory.

    What cannot be read twice, as standard input and pipes, is copied to a temporary file.
    """

    def __init__(self, *paths: Path) -> None:
        self.paths, self.copies = paths, dict[Path, IO[bytes]]()

    def __del__(self) -> None:
        for copy in self.copies.values():
            copy.close()

    def __iter__(self) -> Iterator[str | InputError]:
        for path in self.paths:
            if path not in self.copies and (path == STDIN or not path.is_file()):
                self.copies[path] = TemporaryFile()  # noqa: SIM115
                self.copies[path].writelines(_raw_lines(path))
            if copy := self.copies.get(path):
                copy.seek(0)
            yield from each_or_error(copy or raw_lines(path), side_name(path))


def checked_lines(*paths: Path) -> Iterator[str]:
    """The lines of files, one after the other, when all are known to be UTF-8; none is kept in memory.

    Raises:
        InputError: one of them is not UTF-8.
    """
    lines = Lines(*paths)
    for line in lines:
        checked(line)
    return map(checked, lines)


def each_of(path: Path) -> Iterator[str]:
    """The lines of one file, or of standard input for -, as they come.

    Raises:
        InputError: one of them is not UTF-8.
    """
    return map(checked, lines_or_errors(path))


def read_side(path: Path) -> list[str]:
    """All lines of one file, or of standard input for -.

    Raises:
        InputError: one of them is not UTF-8.
    """
    return list(each_of(path))


def checked(item: ItemT | InputError) -> ItemT:
    """The same item.

    Raises:
        InputError: it is one.
    """
    if isinstance(item, InputError):
        raise item
    return item


def read_phrases(path: Path) -> tuple[str, ...]:
    """The phrases of a file, one a line, without blank lines.

    Raises:
        InputError: one of them is not UTF-8.
    """
    return tuple(phrase for line in read_side(path) if (phrase := line.removesuffix("\r")).strip())


def side_name(path: Path) -> str:
    """What messages call it."""
    return "standard input" if path == STDIN else str(path)


def chunks(items: Iterable[ItemT], size: int, done: int = 0) -> Iterator[tuple[int, list[ItemT]]]:
    """So many items at a time, and how many came before, `done` at first; the last chunk may have fewer."""
    for some in blocks(items, size):
        yield done, some
        done += len(some)


def check_new(directory: Path) -> None:
    """Raise InputError where a directory already holds a model, of whatever library."""
    if (path := directory / "config.json").exists():
        raise InputError(f"{directory} already holds a {path.name}; name another directory, or remove this one")


def listening_on(host: str, port: int, option: str = "--port") -> socket.socket:
    """What listens there.

    Args:
        option: what names the port.

    Raises:
        InputError: nothing can.
    """
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        elsewhere = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
        way_out = "name an address of this machine" if elsewhere else f"{option} 0 takes a free port"
        reason = str(error.strerror).split(" (while")[0]
        raise InputError(f"cannot listen on {host}, port {port} ({reason}); {way_out}") from error
