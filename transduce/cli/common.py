"""What several commands share: arguments for runs, devices and searches; input lines; prompts."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from tqdm import tqdm
from tyro.conf import Positional, arg

from transduce.arguments import Group, Overrides
from transduce.config import Common, Json
from transduce.data.glossary import parse_glossary
from transduce.data.lines import bounded_lines, decode_line, raw_lines
from transduce.errors import InputError
from transduce.process import keep_memory
from transduce.tasks.config import GREEDY

TaskT = TypeVar("TaskT")
ItemT = TypeVar("ItemT")

Run = Positional[
    Annotated[
        Path, arg(metavar="RUN", help="A run directory, as a recipe makes it, or hub:USER/NAME.")
    ]
]

OwnRun = Positional[
    Annotated[Path, arg(metavar="RUN", help="A run directory, as a recipe makes it.")]
]

Runs = Positional[
    Annotated[
        Path,
        arg(
            metavar="RUN[,RUN ...]",
            help="A run directory or hub:USER/NAME, or an ensemble",
        ),
    ]
]

Files = Positional[Annotated[tuple[Path, ...], arg(metavar="[FILE ...]", help_behavior_hint="")]]

Texts = Annotated[tuple[Path, ...], arg(metavar="FILE ...", help_behavior_hint="(required)")]

OptionalFile = Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")]

Count = Annotated[int | None, arg(help_behavior_hint="")]

Flag = Annotated[bool, arg(help_behavior_hint="")]

STDIN = Path("-")

PROMPT = "> "
"""What --interactive shows on a terminal."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The model's device and precision."""

    device: Common[str] = "auto"
    """auto (a GPU where there is one), cpu, cuda, cuda:1, ..."""
    precision: Common[Literal["fp32", "bf16", "int8"]] = "fp32"
    """bf16 is faster if the hardware supports it, and int8 on CPUs, with large matrices in 8 bits;
    a few outputs change."""

    def load(self, kind: type[TaskT], run: Path, lm: Path | None = None) -> TaskT:
        """Load a run as a task of this kind.

        Raises:
            InputError: the run is for another task, or there is no such device.
        """
        from transduce.device import DTYPES
        from transduce.tasks.load import load_as

        task = load_as(kind, each_run(run), self.device, DTYPES[self.precision], lm=lm)
        keep_memory()
        return task


def each_run(runs: Path) -> list[Path]:
    """The directories of "RUN,RUN"; an existing directory is one run, even if its name has commas.

    Raises:
        InputError: a name before or after a comma is missing.
    """
    names = [str(runs)] if os.path.exists(runs) else str(runs).split(",")
    if "" in names:
        raise InputError(f"an ensemble is named RUN,RUN without spaces, but it is {str(runs)!r}")
    return [Path(name) for name in names]


def local(runs: Path) -> Path:
    """Replace hub:USER/NAME[@REVISION] in "RUN,RUN" by the directories that they are downloaded to.

    Raises:
        InputError: there is no such run on the hub, or it cannot be downloaded.
    """
    from transduce.run import on_disk

    return Path(",".join(str(on_disk(each)) for each in each_run(runs)))


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Settings of the search that replace the run's own."""

    greedy: Common[bool] = False
    """Take the likeliest next token each time: --beam-size 1."""
    lm: Common[Annotated[Path | None, arg(metavar="LM")]] = None
    """A language model for shallow fusion, which helps with words and phrases that the training
    data lacked. It is another run with the same target tokenizer, or an ARPA file of n-grams over
    its tokens, as transduce tokenize writes them."""
    forbid: OptionalFile = None
    """Phrases, one a line, that outputs must not contain, such as wrong or unwanted words; a space
    at either end of a phrase also matches the beginning or end of the text."""
    glossary: OptionalFile = None
    """Terms, one a line, each with a tab and its translation, or alone if it is not translated. A
    term in the source makes its translation likelier. In transcription all terms are made likelier,
    such as names that may be said."""
    settings: Group[Overrides]

    @property
    def files(self) -> list[Path]:
        """The files of phrases and terms that are read."""
        return [*filter(None, (self.forbid, self.glossary))]

    def overrides(self, files: Sequence[Path] = ()) -> Json:
        """The settings that the command line gives; `files` are those of the input.

        Raises:
            InputError: some of them conflict, or - is given for two files.
        """
        check_stdin([*files, self.forbid, self.glossary])
        others = [
            f"--{name.replace('_', '-')}"
            for name, value in GREEDY.items()
            if self.settings.get(name, value) != value
        ]
        if self.greedy and others:
            raise InputError(
                "--greedy takes the likeliest token each time, so leave it or "
                f"{', '.join(others)} out"
            )
        settings = self.settings | (GREEDY if self.greedy else {}) | forbidden(self.forbid)
        if self.glossary:
            settings["glossary"] = parse_glossary(
                read_side(self.glossary), side_name(self.glossary)
            )
        return settings


def check_token_scores(token_scores: bool, format: str) -> None:
    """Raise InputError if the format has no place for token scores."""
    if token_scores and "json" not in format:
        raise InputError(
            f"scores of tokens need --format json, but it is {format}; add --format json"
        )


def forbidden(file: Path | None) -> Json:
    """The setting that forbids the phrases in a file, one a line."""
    return {"forbid": [*filter(str.strip, read_side(file))]} if file else {}


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Columns after an input: its output's prefix, and phrases that the output must contain."""

    prefix: bool = False
    """Lines are INPUT<TAB>PREFIX, and an output begins with its prefix, whose last word may be
    continued unless a space follows it. For transcribe, FILE is then a list of such lines, each
    with the name of a sound file and its prefix."""
    require: bool = False
    """Lines are INPUT<TAB>PHRASE<TAB>PHRASE ..., after a PREFIX if there is one, and an output
    contains all of its phrases, such as prescribed terms or names, which may be inflected. This is
    slower, and needs a wide beam and sound in one segment."""

    def __bool__(self) -> bool:
        return self.prefix or self.require

    def split(self, line: Any, number: int) -> tuple[Any, str, list[str]]:
        """The input, the prefix and the phrases of a line.

        Raises:
            InputError: a line has more columns than an input and a prefix.
        """
        if not self:
            return line, "", []
        text, *cells = line.split("\t")
        if not self.require and len(cells) > 1:
            raise InputError(
                f"line {number} must be INPUT<TAB>PREFIX, but it has {len(cells) + 1} columns; "
                "remove tabs"
            )
        prefix = cells.pop(0) if self.prefix and cells else ""
        return text, prefix, [*filter(str.strip, cells)]


def lines_or_errors(path: Path) -> Iterator[str | InputError]:
    """Yield the lines of a file or of standard input as they arrive; an InputError for a line that
    cannot be read."""
    name = side_name(path)
    lines = bounded_lines(sys.stdin.buffer.readline, name) if path == STDIN else raw_lines(path)
    for number, line in enumerate(lines, start=1):
        try:
            yield decode_line(line.removesuffix(b"\n"), name, number)
        except InputError as error:
            yield error


class Lines:
    """The lines of several files, or their errors. Every loop reads the files again; only lines of
    standard input and pipes, which cannot be read twice, are kept in memory."""

    def __init__(self, *paths: Path) -> None:
        self.paths = paths
        self.known = {
            path: list(lines_or_errors(path)) for path in dict.fromkeys(paths) if not path.is_file()
        }

    def __iter__(self) -> Iterator[str | InputError]:
        for path in self.paths:
            yield from self.known[path] if path in self.known else lines_or_errors(path)


def read_side(path: Path) -> list[str]:
    """All lines of a file, or of standard input for -.

    Raises:
        InputError: one of them is not UTF-8.
    """
    return list(map(checked, lines_or_errors(path)))


def checked(item: ItemT | InputError) -> ItemT:
    """Return an item, or raise it where it is an InputError."""
    if isinstance(item, InputError):
        raise item
    return item


def check_stdin(paths: Sequence[Path | None]) -> None:
    """Raise InputError if - is given for several files."""
    if (n := paths.count(STDIN)) > 1:
        raise InputError(
            f"standard input can be read once, but - stands for {n} files; name the others"
        )


def side_name(path: Path) -> str:
    """The name of a file in messages."""
    return "standard input" if path == STDIN else str(path)


def to_stderr(message: object) -> None:
    """Print a line for the user, above a progress bar if there is one."""
    tqdm.write(f"transduce: {message}", file=sys.stderr)


def interact(answer: Callable[[str, int], object]) -> None:
    """Answer line after line of standard input, with history and editing on a terminal; Ctrl-D
    ends.

    Ctrl-C stops the answer that is being made, or clears the line that is being typed. An answer
    that raises InputError is shown on stderr, and the next line is read.

    Args:
        answer: called with a line and how many came before it; it prints.
    """
    lines = _typed() if sys.stdin.isatty() else lines_or_errors(STDIN)
    for number, line in enumerate(lines):
        try:
            answer(checked(line), number)
        except KeyboardInterrupt:
            print("\nstopped", file=sys.stderr)
        except InputError as error:
            to_stderr(error)


def _typed() -> Iterator[str]:
    """Yield the lines that are typed on a terminal."""
    if find_spec("readline"):
        import_module("readline")
    print("type a line to get its output; Ctrl-C stops an output, Ctrl-D ends", file=sys.stderr)
    while True:
        try:
            yield input(PROMPT)
        except KeyboardInterrupt:
            print("\nstopped", file=sys.stderr)
        except EOFError:
            return print()


def check_interactive(others: dict[str, object]) -> None:
    """Check that --interactive does not conflict with other options.

    Raises:
        InputError: one of these options is given as well.
    """
    if named := [name for name, value in others.items() if value]:
        raise InputError(
            "--interactive asks for its lines and prints to the terminal, so leave out "
            f"{', '.join(named)}"
        )
