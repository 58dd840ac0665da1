"""Calls from command lines by tyro, with short help, and a line for a wrong use."""

import inspect
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr
from dataclasses import is_dataclass, replace
from difflib import get_close_matches
from functools import partial, wraps
from io import StringIO
from pathlib import Path
from shutil import get_terminal_size
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import tyro
from tyro.conf import AvoidSubcommands, DisallowNone, FlagCreatePairsOff, Positional, Suppress, arg
from tyro.constructors import (
    ConstructorRegistry,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

from transduce.config import COMMON
from transduce.errors import InputError

T = TypeVar("T")

Group = Annotated[T, COMMON, arg(name="")]
"""A dataclass whose fields are flags of the command itself."""

SHORT, CLAUSES = 12, 45
"""Characters of the clauses of a help text that --help shows: more than SHORT, at most CLAUSES."""

NARROWEST = 40
"""Columns of a page of help, at least: on a narrower one tyro cuts flags and words anywhere."""

HELP_ALL = "\n  --help-all       show every flag, not only those that are used most"

KINDS = {int: "a whole number", float: "a number", Path: "a path", str: "text", NoneType: "None"}
"""What messages call a value of a type."""


class Overrides(dict[str, Any]):
    """The settings of a configuration that a command line names, by the names of its fields."""

    CONFIG: ClassVar[type]
    WITHOUT: ClassVar[tuple[str, ...]] = ()
    """Fields that mean nothing to the command."""
    HINT: ClassVar[str] = "(default: {})"
    """What help shows behind each flag; {} is the default."""


class _Refused(Exception):
    """An InputError of a configuration; tyro would print a ValueError as a page."""


def call(
    function: Callable[..., T],
    words: Sequence[str],
    *,
    prog: str,
    default: Any = None,
    description: str | None = None,
    foot: str = HELP_ALL,
) -> T:
    """Call a function with the arguments of a command line, or make a dataclass of them.

    --help shows the fields that are marked as Common, if there are any, and --help-all shows all
    fields.

    Args:
        prog: the command, as one types it.
        default: the dataclass that the flags of a recipe change; None: a function's parameters are
            flags.
        foot: printed below help where it does not show all.

    Raises:
        InputError: an argument is missing, unknown, without a value, or has one that does not fit.
        SystemExit: help was asked for, and printed (0).
    """
    is_recipe = default is not None
    wants_help = bool({"-h", "--help", "--help-all"} & set(words))
    has_common = wants_help and any(each.is_common for each in _arguments(function, default))
    if wants_help and get_terminal_size().columns < NARROWEST:
        os.environ["COLUMNS"] = str(NARROWEST)
    brief = has_common and "--help-all" not in words
    try:
        with redirect_stderr(StringIO()):
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
        if not stop.code:
            if has_common:
                print(foot)
            raise
        way_out = f"{prog} {'--help-all' if is_recipe else '--help'} says more"
        raise InputError(
            _mistake(words, list(_arguments(function, default)), prog, way_out)
        ) from stop
    return parsed if is_recipe else parsed()


def _deferred(function: Callable[..., Any], *, brief: bool) -> Callable[..., Any]:
    """A function that binds its arguments, to be called after they are parsed."""
    if inspect.isclass(function):
        return function
    bind: Any = wraps(function)(lambda *args, **options: partial(function, *args, **options))
    del bind.__wrapped__  # whose docstring tyro would show
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


def _first_clauses(text: str) -> str:
    """The first sentence of a help text, or as many of its first clauses as fit a line."""
    sentence = re.split(r"(?<=[^.]\.)\s|;\s", text)[0].removesuffix(".")
    ends = [match.start() for match in re.finditer(r"[,:] | \(", sentence)]
    ends = [end for end in ends if end > SHORT]
    if len(sentence) <= CLAUSES or not ends:
        return sentence
    return sentence[: max([end for end in ends if end <= CLAUSES], default=ends[0])]


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
    """The fields of a dataclass as tyro finds them."""
    spec = ConstructorRegistry.get_struct_spec(StructTypeInfo.make(kind, default, False))
    assert isinstance(spec, StructConstructorSpec)
    return spec.fields


def registry(*, is_recipe: bool, brief: bool = False) -> ConstructorRegistry:
    """How tyro takes dataclasses and Overrides apart.

    Args:
        brief: show Common fields alone, and of their help the first sentence.
    """
    rules = ConstructorRegistry()
    is_inside = False

    @rules.struct_rule
    def rule(info: StructTypeInfo) -> StructConstructorSpec | None:
        nonlocal is_inside
        if is_inside or not _is_group(info.type):
            return None
        is_inside = True  # so that the rules of tyro itself come next
        try:
            if is_dataclass(info.type):
                make: Callable[..., Any] = info.type
                fields = _fields(make, info.default)
            else:
                make, fields = _override_fields(info.type)
        finally:
            is_inside = False
        fields = fields if is_recipe else tuple(map(_tidied, fields))
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
    """Hide defaults that say nothing, and line breaks of docstrings."""
    kind, notes = _split(field.type)
    if _is_group(kind):
        return field
    if field.default in (None, False, (), ""):
        field = replace(field, type=_annotated(kind, arg(help_behavior_hint=""), *notes))
    return replace(field, helptext=lambda: " ".join(_help(field).split()))


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
    """Flags for the fields of a configuration, None if not named; two for a bool."""
    fields: list[StructFieldSpec] = []
    off: dict[str, str] = {}
    for field in _fields(kind.CONFIG):
        inner, notes = _split(field.type)
        if field.name in kind.WITHOUT:
            continue
        hint = arg(
            help_behavior_hint=""
            if inner is bool
            else kind.HINT.format(getattr(kind.CONFIG, field.name))
        )
        option = inner if inner is bool else inner | None
        unnamed = False if inner is bool else None
        fields.append(replace(field, type=_annotated(option, *notes, hint), default=unnamed))
        if inner is bool:
            without = f"Without --{field.name.replace('_', '-')}, which a run may have."
            off[f"no_{field.name}"] = field.name
            fields.append(
                StructFieldSpec(f"no_{field.name}", _annotated(bool, hint), False, without)
            )

    def named(**values: Any) -> Overrides:
        settings = {
            name: value
            for name, value in values.items()
            if value is not None and value is not False
        }
        return kind(
            {off.get(name, name): name not in off and value for name, value in settings.items()}
        )

    return named, tuple(fields)


class _Argument(NamedTuple):
    """An argument: its flag, or what help calls it where it is positional, and its type."""

    name: str
    kind: Any
    is_positional: bool = False
    is_required: bool = False
    is_common: bool = False


def _arguments(function: Callable[..., Any], default: Any) -> Iterator[_Argument]:
    """All arguments of a function, or all fields of a dataclass with this default."""
    with registry(is_recipe=default is not None):
        if default is not None:
            for field in _fields(function, default):
                yield from _flags(field, "--", with_pairs=True)
            return
        hints = get_type_hints(function, include_extras=True)
        for name, parameter in inspect.signature(function).parameters.items():
            yield from _flags(
                StructFieldSpec(name, hints[name], parameter.default), "--", with_pairs=False
            )


def _flags(field: StructFieldSpec, prefix: str, *, with_pairs: bool) -> Iterator[_Argument]:
    kind, notes = _split(field.type)
    names = [each.name for each in notes if getattr(each, "name", None) is not None]
    metavars = [each.metavar for each in notes if getattr(each, "metavar", None)]
    name = prefix + (names or [field.name.replace("_", "-")])[0]
    if is_dataclass(field.default) or _is_group(kind):
        is_given = is_dataclass(field.default)
        for each in _fields(
            type(field.default) if is_given else kind, field.default if is_given else tyro.MISSING
        ):
            yield from _flags(each, name if name == prefix else f"{name}.", with_pairs=with_pairs)
        return
    if get_origin(kind) in (Union, UnionType) and not with_pairs:
        kind = Union[tuple(each for each in get_args(kind) if each is not NoneType)]  # noqa: UP007
    is_positional = Positional in notes
    shown = (metavars or [field.name.upper()])[0] if is_positional else name
    yield _Argument(
        shown, kind, is_positional, field.default is inspect.Parameter.empty, COMMON in notes
    )
    if kind is bool and with_pairs:
        yield _Argument(f"{prefix}no-{name.removeprefix(prefix)}", kind)


def _mistake(words: Sequence[str], arguments: Sequence[_Argument], prog: str, way_out: str) -> str:
    """Say what is wrong with words that tyro refuses."""
    flags = {each.name: each for each in arguments if not each.is_positional}
    positional = [each for each in arguments if each.is_positional]
    uses: list[tuple[str, list[str]]] = [("", [])]
    for word in words:
        flag, equals, value = word.partition("=")
        if re.match("--?[A-Za-z]", word):
            uses.append((flag.replace("_", "-"), [value] if equals else []))
        else:
            uses[-1][1].append(word)
    unknown = [flag for flag, _ in uses[1:] if flag not in flags]
    near = [each for flag in unknown for each in _nearest(flag, list(flags))]
    if near:
        return f"there is no flag {', '.join(unknown)}; did you mean {' or '.join(near)}?"
    if unknown:
        return f"there is no flag {', '.join(unknown)}; {way_out}"
    loose = uses[0][1]
    for flag, values in uses[1:]:
        kind = flags[flag].kind
        n = _n_values(kind)
        loose = [*loose, *values[n:]]
        if n and not _fit(kind, values[:n]):
            got = f"it is {' '.join(values[:n])!r}" if values else "nothing follows it"
            return f"{flag} takes {_in_words(kind)}, but {got}; {way_out}"
    needed = [each.name for each in positional[len(loose) :] if each.is_required]
    needed += [flag for flag, each in flags.items() if each.is_required and flag not in dict(uses)]
    if needed:
        return f"{prog} needs {' and '.join(needed)}, but got none; {way_out}"
    for argument, value in zip(positional, loose, strict=False):
        if not _fit(argument.kind, [value]):
            return (
                f"{argument.name} takes {_in_words(argument.kind)}, but it is {value!r}; {way_out}"
            )
    stray = [*loose[len(positional) :], *words][0]
    return f"a word must be an argument or the value of a flag, but {stray!r} is neither; {way_out}"


def _nearest(word: str, flags: Sequence[str]) -> list[str]:
    """The flags that begin with this word, as --model.d-model with --model, or the nearest ones."""
    names = {flag: flag.strip("-").split(".")[-1] for flag in flags}
    near = get_close_matches(word.strip("-").split(".")[-1], names.values(), n=1, cutoff=0.7)
    return [
        flag
        for flag, name in names.items()
        if flag.startswith((f"{word}.", f"{word}-")) or name in near
    ][:3]


def _n_values(kind: Any) -> int | None:
    """How many words a flag takes; None: any number."""
    if kind is bool:
        return 0
    tuples = [each for each in (kind, *get_args(kind)) if get_origin(each) is tuple]
    if not tuples:
        return 1
    return None if ... in get_args(tuples[0]) else len(get_args(tuples[0]))


def _fit(kind: Any, values: list[str]) -> bool:
    """Whether the values of a flag are of its type."""
    try:
        with redirect_stderr(StringIO()):
            tyro.cli(kind, args=values)
    except SystemExit:
        return False
    return True


def _in_words(kind: Any) -> str:
    """Name a type: `float | None` is "a number or None"."""
    parts = [each for each in get_args(kind) if each is not ...]
    if get_origin(kind) is Literal:
        return "one of " * (len(parts) > 1) + ", ".join(map(str, parts))
    if parts:
        return (", " if get_origin(kind) is tuple else " or ").join(map(_in_words, parts))
    return KINDS.get(kind, str(kind))
