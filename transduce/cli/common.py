"""What several commands share: a run, its machine and its search, standard input, and where the output goes."""

import math
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO, TypeVar, get_args, get_origin, get_type_hints

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm
from tyro.conf import Fixed, Suppress, arg

from transduce.data.text.corpus import decode_line, raw_lines
from transduce.data.text.parallel import blocks
from transduce.tasks.config import NOT_GREEDY, RULES, SearchConfig

if TYPE_CHECKING:
    from transduce.tasks.load import KindT
    from transduce.tasks.search import Output
    from transduce.tasks.words import TokenScores, Word
else:  # torch takes seconds to import, and --help does without
    KindT = TypeVar("KindT")

ItemT = TypeVar("ItemT")

Run = Annotated[Path, arg(metavar="RUN", help="A run directory, as a recipe makes it.")]

Runs = Annotated[
    Path,
    arg(
        metavar="RUN[,RUN ...]", help="A run directory; several are an ensemble, better than each, and as slow as all."
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
            ValueError: something else was trained there, or there is no such device.
        """
        from transduce.device import dtype_of
        from transduce.tasks.load import load_as

        return load_as(kind, each_run(run), self.device, dtype_of(self.precision), lm=lm)


def each_run(runs: Path) -> list[Path]:
    """The directories of "RUN,RUN": what is itself a directory is one, whatever commas its name has.

    Raises:
        ValueError: nothing stands before or behind a comma.
    """
    names = [str(runs)] if runs.exists() else str(runs).split(",")
    if "" in names:
        raise ValueError(f"an ensemble is named RUN,RUN without spaces, but it is {str(runs)!r}")
    return [Path(name) for name in names]


def search_options(*, without: Collection[str] = ()) -> Any:
    """A class of command-line options: greedy, and the fields of SearchConfig, each None where it is not named.

    It inherits from SearchConfig because tyro shows the docstrings of the fields, and looks for them there.

    Args:
        without: fields that mean nothing to a command, and are not offered.
    """
    options: list[tuple[str, Any, Any]] = [("greedy", Annotated[bool, arg(help=GREEDY, help_behavior_hint="")], False)]
    without = {*without, "forbid"}  # a file says it, see Forbid
    for name, kind in get_type_hints(SearchConfig).items():
        metavar = f"{{{','.join(get_args(kind))}}}" if get_origin(kind) is Literal else kind.__name__.upper()
        if get_origin(kind) is tuple:
            metavar = "INT [INT ...]"
        offered: Any = Annotated[kind | None, arg(metavar=metavar, help_behavior_hint="(the run's)")]
        if kind is bool:
            offered = Annotated[bool, arg(help_behavior_hint="")]
        hidden: Any = Annotated[kind | None, Suppress, Fixed]
        options.append((name, hidden if name in without else offered, False if kind is bool else None))
    namespace = {"__doc__": "The run's own configuration decides what is not named here.", "__post_init__": _unchecked}
    made: Any = make_dataclass(
        "SearchOptions", options, bases=(SearchConfig,), namespace=namespace, frozen=True, kw_only=True
    )
    # --help tells of the rules last, though a base class comes first
    made.__dataclass_fields__ = dict(sorted(made.__dataclass_fields__.items(), key=lambda pair: pair[0] in RULES))
    return made


def _unchecked(self: object) -> None:
    """Leave the checks to the SearchConfig that the options become."""


def with_options(own: SearchConfig, options: object, forbid: Path | None = None) -> SearchConfig:
    """A run's own way to search, with what the command line names instead; greedy search has one hypothesis."""
    named = {name: value for name, value in vars(options).items() if value is not None and value is not False}
    if forbid:
        named["forbid"] = read_phrases(forbid)
    greedy = named.pop("greedy", False)
    if greedy and (others := [f"--{name.replace('_', '-')}" for name in named if name in NOT_GREEDY]):
        raise ValueError(f"--greedy takes the likeliest token each time, so leave it or {', '.join(others)} out")
    found = own.changed(**named)
    return found.greedy() if greedy else found


def check_lm(lm: Path | None, decoding: SearchConfig) -> None:
    """Raise ValueError where there is a language model, but no weight for it, or a weight without one."""
    if (lm is None) == (decoding.lm_weight > 0):
        raise ValueError(
            f"--lm and --lm-weight go together, but lm={lm} and lm_weight={decoding.lm_weight}; try --lm LM --lm-weight 0.3"
        )


def plain_output(output: "Output") -> dict[str, object]:
    """An output as JSON has it: what the search did not compute, or nobody asked for, is left out."""
    found: dict[str, object] = {"text": output.text}
    if not math.isnan(output.score):
        found |= {"score": output.score, "log_prob": output.log_prob}
    if output.token_scores:
        found["tokens"] = plain_tokens(output.token_scores)
    if output.words:
        found["words"] = [_plain_word(word) for word in output.words]
    if output.alignment:
        found["alignment"] = [list(pair) for pair in output.alignment.pairs]
    return found


def plain_tokens(scores: "TokenScores") -> list[dict[str, object]]:
    """Scores of tokens as JSON has them."""
    pairs = zip(scores.tokens, scores.log_probs.tolist(), strict=True)
    return [{"token": token, "log_prob": round(log_prob, 4)} for token, log_prob in pairs]


def _plain_word(word: "Word") -> dict[str, object]:
    times = {"start": word.start, "stop": word.stop}
    rounded = {name: round(seconds, 3) for name, seconds in times.items() if seconds is not None}
    return {"word": word.text, "confidence": round(word.confidence, 4), **rounded}


@contextmanager
def writing(
    output: Path | None, *, unit: str, total: int | None, quiet: bool = False
) -> Iterator[tuple[TextIO, "tqdm[None]"]]:
    """The file to write to, standard output for None, and a bar on stderr if that is a terminal and not `quiet`.

    Where both are the same terminal, `bar.clear()` before lines are written lets them begin at its left edge.
    """
    with ExitStack() as stack:
        out = stack.enter_context(output.open("w", encoding="utf-8", newline="\n")) if output else sys.stdout
        stack.enter_context(logging_redirect_tqdm())
        hidden = quiet or not sys.stderr.isatty()
        yield out, stack.enter_context(tqdm(total=total, unit=unit, disable=hidden, dynamic_ncols=True))


def each_or_error(lines: Iterable[bytes], name: str) -> Iterator[str | ValueError]:
    """`decode_lines`, but what it would raise stands in its line's place."""
    for number, line in enumerate(lines, start=1):
        try:
            yield decode_line(line.removesuffix(b"\n"), name, number)
        except ValueError as error:
            yield error


def lines_or_errors(path: Path) -> list[str | ValueError]:
    """The lines of one file, or of standard input for -; an error in place of one that is not UTF-8."""
    return list(each_or_error(sys.stdin.buffer if path == STDIN else raw_lines(path), side_name(path)))


def read_side(path: Path) -> list[str]:
    """The lines of one file, or of standard input for -.

    Raises:
        ValueError: one of them is not UTF-8.
    """
    return [_checked(line) for line in lines_or_errors(path)]


def _checked(line: str | ValueError) -> str:
    if isinstance(line, ValueError):
        raise line
    return line


def read_phrases(path: Path) -> tuple[str, ...]:
    """The phrases of a file, one a line, without blank lines.

    Raises:
        ValueError: one of them is not UTF-8.
    """
    return tuple(phrase for line in read_side(path) if (phrase := line.removesuffix("\r")).strip())


def side_name(path: Path) -> str:
    """What messages call it."""
    return "standard input" if path == STDIN else str(path)


def standard_input() -> Iterator[str]:
    """The lines of standard input, each as soon as it is there.

    Raises:
        ValueError: one of them is not UTF-8.
    """
    return map(_checked, standard_input_or_errors())


def standard_input_or_errors() -> Iterator[str | ValueError]:
    """The lines of standard input, each as soon as it is there; an error in place of one that is not UTF-8."""
    return each_or_error(sys.stdin.buffer, "standard input")


def chunks(items: Iterable[ItemT], size: int, done: int = 0) -> Iterator[tuple[int, list[ItemT]]]:
    """So many items at a time, and how many came before, `done` at first; the last chunk may have fewer."""
    for some in blocks(items, size):
        yield done, some
        done += len(some)
