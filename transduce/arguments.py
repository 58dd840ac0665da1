"""Call functions with command-line arguments (by tyro): short help, one-line errors."""

import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import is_dataclass, replace
from functools import partial, wraps
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from shutil import get_terminal_size
from textwrap import fill
from types import NoneType
from typing import (
    Annotated,
    Any,
    ClassVar,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import tyro
from tyro.conf import AvoidSubcommands, DisallowNone, FlagCreatePairsOff, Suppress, arg
from tyro.constructors import (
    ConstructorRegistry,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

from transduce.config import COMMON, flatten, our_names, to_dict
from transduce.errors import InputError

T = TypeVar("T")

Group = Annotated[T, COMMON, arg(name="")]
"""A dataclass whose fields are flags of the command itself."""

MIN_HELP, MAX_HELP = 12, 45
"""--help shows the first clauses of a long help text: more than MIN_HELP characters, and at most
MAX_HELP where a clause ends there."""

MIN_COLUMNS = 40
"""Minimum width of a help page: on a narrower one tyro breaks flags and words anywhere."""

HELP_ALL = "\n  --help-all       show every flag, not only those that are used most"

HELP_INDENT = " " * 8
"""The indentation of a flag's help text on tyro's error page."""


class Overrides(dict[str, Any]):
    """The configuration fields that a command line sets, by field name."""

    CONFIG: ClassVar[type]
    WITHOUT: ClassVar[tuple[str, ...]] = ()
    """Fields that do not apply to the command."""
    HINT: ClassVar[str] = "(default: {})"
    """What help shows after each flag; {} is the default."""


class _Refused(Exception):
    """Carries an InputError of a configuration through tyro, which would print it as a page."""


def call(
    function: Callable[..., T],
    words: Sequence[str],
    *,
    prog: str,
    default: Any = None,
    description: str | None = None,
    foot: str = HELP_ALL,
) -> T:
    """Call a function with command-line arguments, or build a dataclass from them.

    Args:
        prog: the command as the user types it.
        default: the dataclass that a recipe's flags change; None: flags are those of `function`.
        foot: printed below help that does not show all flags.

    Raises:
        InputError: an argument is missing, unknown, without a value, or has one that does not fit.
        SystemExit: help was printed (code 0): Common flags, or all if none is Common or --help-all.
    """
    is_recipe = default is not None
    wants_help = bool({"-h", "--help", "--help-all"} & set(words))
    has_common = wants_help and (is_recipe or any(COMMON in notes for _, notes in _marks(function)))
    brief = has_common and "--help-all" not in words
    if wants_help and get_terminal_size().columns < MIN_COLUMNS:
        os.environ["COLUMNS"] = str(MIN_COLUMNS)
    page = StringIO()
    out: Any = _Wrapping() if wants_help else TextIOWrapper(BytesIO(), "utf-8")  # no colours
    try:
        with redirect_stderr(page), redirect_stdout(out):
            parsed: Any = tyro.cli(
                _deferred(function, brief=brief),
                args=["--help"] if wants_help else words,
                prog=prog,
                description=description,
                default=default if is_recipe else tyro.MISSING,
                config=(AvoidSubcommands,) if is_recipe else (FlagCreatePairsOff, DisallowNone),
                registry=registry(is_recipe=is_recipe, brief=brief),
            )
    except _Refused as refused:
        raise InputError(str(refused)) from refused
    except SystemExit as stop:
        if stop.code:
            keys = flatten(to_dict(default)) if is_recipe else dict(_marks(function))
            more = f"{prog} --help{'-all' * is_recipe} says more"
            raise InputError(_wrong_use(page.getvalue(), keys, more)) from stop
        if has_common:
            print(foot)
        raise
    return parsed if is_recipe else parsed()


class _Wrapping:
    """Wraps paragraphs to the terminal's width, as tyro prints each in one line."""

    def __init__(self) -> None:
        self.out = sys.stdout

    def __getattr__(self, name: str) -> Any:
        return getattr(self.out, name)

    def write(self, page: str) -> None:
        """Print a page of help, or a part of one."""
        width = get_terminal_size().columns
        lines = (line if line[:1] in " │╭╰\x1b" else fill(line, width) for line in page.split("\n"))
        self.out.write("\n".join(lines))


def _marks(owner: Callable[..., Any]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield the name and annotations of each argument of a function and each flag of its groups."""
    for name, hint in get_type_hints(owner, include_extras=True).items():
        kind, notes = _split(hint)
        if _is_group(kind):
            yield from _marks(getattr(kind, "CONFIG", kind))
        else:
            yield name, notes


def _wrong_use(page: str, keys: Iterable[str], more: str) -> str:
    """Describe wrong usage in one line: our names for other toolkits' flags, or tyro's message."""
    message = _in_one_line(page)
    _, _, unknown = message.partition("Unrecognized options: ")
    flags = re.findall(r"--[\w.-]+", unknown.partition(";")[0])
    flags_of_fields = [key.removeprefix("corpus.") for key in keys]  # as recipes name them
    names = {flag: our_names(flag.lstrip("-"), flags_of_fields) for flag in flags}
    hints = [
        f"there is no flag {flag}; here it is {' or '.join(f'--{each}' for each in ours)}".replace(
            "_", "-"
        )
        for flag, ours in names.items()
        if ours
    ]
    return "; ".join(hints or [message, more])


def _in_one_line(page: str) -> str:
    """Turn tyro's error page into one line, without its frame and help texts."""
    parts = [""]
    for line in page.splitlines()[1:-1]:
        text = line.strip("│|").rstrip()[1:]
        if not text or text.startswith(("For full helptext", "Argument helptext")):
            break
        if not text.strip("─-"):
            parts.append("")
        elif not text.startswith(HELP_INDENT):
            parts[-1] += f" {text.strip()}"
    # keep flags only: tyro also lists the values and files after them as options
    parts[0] = re.sub(r"(--[\w.-]+)(, [^-,][^,]*)+", r"\1", parts[0])
    alike = (" Perhaps", " Arguments similar to")
    parts = [
        re.sub(r"(?<![:,])(?<! to) --", " or --", part) if part.startswith(alike) else part
        for part in parts
    ]
    return "; ".join(part.strip(" .") for part in parts if part)


def _deferred(function: Callable[..., Any], *, brief: bool) -> Callable[..., Any]:
    """A function that only binds its arguments, to be called after tyro has parsed them all."""
    if inspect.isclass(function):
        return function
    bind: Any = wraps(function)(lambda *args, **options: partial(function, *args, **options))
    del bind.__wrapped__  # tyro would show the docstring of __wrapped__
    bind.__signature__ = inspect.signature(function)
    # tyro shows the line breaks inside the description of an argument
    doc = re.sub(r"\n {8}(?=\S)", " ", inspect.getdoc(function) or "")
    if brief:
        summary, *rest = doc.split("\n\n")
        arguments = [part for part in rest if part.startswith("Args:")]
        doc = "\n\n".join([summary, *arguments])
        doc = re.sub(r"(?m)^( +\w+: )(.*)$", lambda line: line[1] + _first_clauses(line[2]), doc)
    bind.__doc__ = doc
    return bind


def _first_sentence(text: str) -> str:
    """The text up to the first full stop or semicolon outside parentheses."""
    ends = r"((?<=[^.]\.)(?<!al\.)\s|;\s)(?![^(]*\))"
    return re.split(ends, " ".join(text.split()))[0].removesuffix(".")


def _first_clauses(text: str) -> str:
    """The first sentence of a help text, or as many of its first clauses as fit a line."""
    sentence = _first_sentence(text)
    ends = [match.start() for match in re.finditer(r"[,:] | \(", sentence)]
    ends = [end for end in ends if end > MIN_HELP]
    if len(sentence) <= MAX_HELP or not ends:
        return sentence
    return sentence[: max([end for end in ends if end <= MAX_HELP], default=ends[0])]


def _split(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    """A type without its annotations, and these."""
    return (get_args(kind)[0], kind.__metadata__) if get_origin(kind) is Annotated else (kind, ())


def _annotated(kind: Any, *notes: Any) -> Any:
    for note in notes:
        kind = Annotated[kind, note]
    return kind


def _is_group(kind: Any) -> bool:
    return is_dataclass(kind) or (inspect.isclass(kind) and issubclass(kind, Overrides))


def _fields(kind: Any, default: Any = tyro.MISSING) -> tuple[StructFieldSpec, ...]:
    """The fields of a dataclass as tyro specifies them."""
    spec = ConstructorRegistry.get_struct_spec(StructTypeInfo.make(kind, default, False))
    assert isinstance(spec, StructConstructorSpec)
    return spec.fields


def help_texts(kind: type, default: Any) -> dict[str, str]:
    """The first sentence of the help of each field of a dataclass, by field name."""
    return {field.name: _first_sentence(_help(field)) for field in _fields(kind, default)}


def registry(*, is_recipe: bool, brief: bool = False) -> ConstructorRegistry:
    """tyro's rules for turning dataclasses and Overrides into flags.

    Args:
        brief: show only Common fields, and only the first clauses of their help.
    """
    rules = ConstructorRegistry()
    is_inside = False

    @rules.struct_rule
    def rule(info: StructTypeInfo) -> StructConstructorSpec | None:
        nonlocal is_inside
        if is_inside or not _is_group(info.type):
            return None
        is_inside = True  # so that tyro's own rules find the fields
        try:
            if is_dataclass(info.type):
                make: Callable[..., Any] = info.type
                fields = _fields(make, info.default)
            else:
                make, fields = _override_fields(info.type)
        finally:
            is_inside = False
        fields = tuple(map(_without_none if is_recipe else _tidied, fields))
        return StructConstructorSpec(
            partial(_checked, make), tuple(map(_briefly, fields)) if brief else fields
        )

    return rules


def _checked(make: Callable[..., T], **values: Any) -> T:
    try:
        return make(**values)
    except InputError as error:
        raise _Refused(str(error)) from error


def _tidied(field: StructFieldSpec) -> StructFieldSpec:
    """Hide empty defaults, and join the lines of docstrings."""
    kind, notes = _split(field.type)
    if _is_group(kind):
        return field
    if field.default in (None, False, (), ""):
        field = replace(field, type=_annotated(kind, arg(help_behavior_hint=""), *notes))
    return replace(field, helptext=lambda: " ".join(_help(field).split()))


def _without_none(field: StructFieldSpec) -> StructFieldSpec:
    """For an optional value, show only the type besides None, and hide None as a default."""
    kind, notes = _split(field.type)
    others = [each for each in get_args(kind) if each is not NoneType]
    if NoneType not in get_args(kind) or others not in ([int], [float], [str], [Path]):
        return field
    default = "" if field.default is None else None
    hint = arg(metavar=others[0].__name__.upper(), help_behavior_hint=default)
    return replace(field, type=_annotated(kind, hint, *notes))


def _help(field: StructFieldSpec) -> str:
    return (field.helptext() if callable(field.helptext) else field.helptext) or ""


def _briefly(field: StructFieldSpec) -> StructFieldSpec:
    kind, notes = _split(field.type)
    if COMMON not in notes:
        return replace(field, type=_annotated(field.type, Suppress))
    if is_dataclass(field.default) or _is_group(kind):
        return field
    return replace(field, helptext=lambda: _first_clauses(_help(field)))


def _override_fields(
    kind: type[Overrides],
) -> tuple[Callable[..., Overrides], tuple[StructFieldSpec, ...]]:
    """Flags for the fields of a configuration; None if not given. A bool has two flags."""
    fields: list[StructFieldSpec] = []
    off: dict[str, str] = {}
    silent = arg(help_behavior_hint="")
    for field in _fields(kind.CONFIG):
        inner, notes = _split(field.type)
        if field.name in kind.WITHOUT:
            continue
        if inner is not bool:
            hint = arg(help_behavior_hint=kind.HINT.format(getattr(kind.CONFIG, field.name)))
            option = _annotated(inner | None, *notes, hint)
            fields.append(replace(field, type=option, default=None))
            continue
        flag = _annotated(bool, *notes, silent)
        without = f"Turn off --{field.name.replace('_', '-')}, which a run may have set."
        off[f"no_{field.name}"] = field.name
        fields += [
            replace(field, type=flag, default=False),
            StructFieldSpec(f"no_{field.name}", _annotated(bool, silent), False, without),
        ]

    def named(**values: Any) -> Overrides:
        return kind(
            {
                off.get(name, name): name not in off and value
                for name, value in values.items()
                if value is not None and value is not False
            }
        )

    return named, tuple(fields)
