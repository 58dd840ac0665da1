"""The words of a command line as the arguments of a call, by tyro; a wrong use is told as any other wrong input is."""

import inspect
import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from dataclasses import is_dataclass, make_dataclass
from difflib import get_close_matches
from io import StringIO
from itertools import takewhile
from shutil import get_terminal_size
from textwrap import wrap
from typing import Annotated, Any, NoReturn, get_type_hints

import tyro
from tyro import _errors as wrong
from tyro.conf import Fixed, Suppress

from transduce.errors import InputError

NARROWEST, WIDEST = 40, 5000
"""Columns of a page of help, at least: on a narrower one, tyro cuts flags and words anywhere; on the widest, it cuts none."""

KINDS = {"INT": "a whole number", "FLOAT": "a number", "PATH": "a path", "FILE": "a file", "STR": "text"}
"""What help calls a value, and what messages do."""


HELP_ALL = "  --help-all       show every flag, not only those that are used most"


def call(
    function: Callable[..., Any],
    words: Sequence[str],
    *,
    prog: str,
    more: str = "--help",
    often: Collection[str] = (),
    **how: Any,
) -> Any:
    """What `function`, or a class, gives when it is called with the arguments that the words stand for.

    Args:
        prog: the command, as one types it.
        more: the flag that shows all flags.
        often: the flags that --help shows, where --help-all shows the others; none: --help shows all there are.
        how: what else tyro.cli takes.

    Raises:
        InputError: an argument is missing, or has no value or one that does not fit, or a word stands for none.
        SystemExit: help was asked for, and printed (0).
    """

    def parse(words: Sequence[str]) -> Any:
        return tyro.cli(function, args=words, prog=prog, **how)

    def refuse(event: wrong.ParseErrorEvent) -> NoReturn:
        argument, missing = getattr(event, "argument", None), getattr(event, "missing_arguments", [])
        strange = getattr(event, "tokens", None) or getattr(event, "unrecognized_tokens", None)
        if strange:
            told = _strange(strange, _flags(parse))
        elif missing or (argument and argument.is_positional()):
            needed = " and ".join(_name(each) for each in [each.arg for each in missing] or [argument])
            told = f"{prog} needs {needed}, but got none"
        elif argument:
            value = _value(argument.lowered.name_or_flags, words)
            found = f"it is {value!r}" if value else "nothing follows it"
            told = f"{_name(argument)} takes {_kind(argument.lowered.metavar)}, but {found}"
        else:  # a configuration that checks itself
            raise InputError(getattr(event, "message", event))
        raise InputError(told if told.endswith("?") else f"{told}; {prog} {more} says more")

    width = get_terminal_size().columns
    with _columns(NARROWEST) if width < NARROWEST else nullcontext(), wrong.on_parse_error(refuse):
        if not (often and {"-h", "--help", "--help-all"} & set(words)):
            return parse(words)
        try:
            if "--help-all" in words:
                parse(["--help"])
            some = _with_some(function, {flag.strip("-").replace("-", "_") for flag in often})
            with _columns(WIDEST):
                page = _page(lambda words: tyro.cli(some, args=words, prog=prog, **how))
            print(_brief(page, often, max(width, NARROWEST)))
            raise SystemExit(0)
        finally:
            print(f"\n{HELP_ALL}")


@contextmanager
def _columns(n: int) -> Iterator[None]:
    """Have help on a page so wide, whatever the terminal is."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(n)
    try:
        yield
    finally:
        os.environ.pop("COLUMNS", None)
        os.environ.update({} if before is None else {"COLUMNS": before})


def _flags(parse: Callable[[Sequence[str]], Any]) -> list[str]:
    """All flags that help shows."""
    return re.findall(r"(?:^  |, )(--[a-z][\w.-]*)", _page(parse), re.MULTILINE)


def _page(parse: Callable[[Sequence[str]], Any]) -> str:
    """What --help prints."""
    with redirect_stdout(StringIO()) as page, suppress(SystemExit):
        parse(["--help"])
    return page.getvalue()


def _brief(page: str, often: Collection[str], width: int) -> str:
    """A page of help as a line or two for each argument, flags in the order of `often`.

    Args:
        page: as tyro prints it where it is so wide that no line is cut.
    """
    usage, _, about, *lines = page.splitlines()
    entries: dict[str, list[str]] = {}
    text: list[str] = []
    section = ""
    for line in lines:
        name, _, told = line[2:].partition("  ")
        if re.match(r" \w", line):
            section = line.strip()
        elif name.startswith("-") or (name.strip() and section == "positional arguments"):
            text = entries[name] = [told]
        else:  # goes on, or describes the section, for which nobody looks here
            text = text if not name else []
            text.append(told)
    order = [name for name in entries if not name.startswith("-")]
    order += [name for flag in often for name in entries if name.split()[0] == flag]
    indent = max(map(len, order)) + 4
    found = [*wrap(usage, width), "", *wrap(about, width), ""]
    for name in order:
        told = _first(" ".join(" ".join(entries[name]).split()), width - indent)
        first, *rest = wrap(told, max(width - indent, NARROWEST // 2)) or [""]
        found += [f"  {name:<{indent - 2}}{first}", *(" " * indent + each for each in rest)]
    return "\n".join(found)


def _first(text: str, width: int) -> str:
    """The first sentence of a help text, or its first clauses where all of it does not fit, and the default."""
    default = re.search(r" \((default: .*|required)\)$| \(the run's\)$", text)
    whole = text[: default.start()] if default else text
    told = re.split(r"(?<=\.) (?=[A-Z(])", whole)[0]
    told = told if told.endswith("..") else told.removesuffix(".")
    if len(told) > width:
        ends = [each.start() for each in re.finditer(r"[;,.] | \(", told) if 15 < each.start() <= width]
        closed = [i for i in ends if told.count("(", 0, i) == told.count(")", 0, i)]
        told = told[: closed[-1]] if closed else told
    shown = default[0] if default and default[1] not in (None, "default: False") else ""
    return told + shown


def _with_some(function: Callable[..., Any], names: Collection[str]) -> Callable[..., Any]:
    """For its help: a function like this one with fewer optional parameters, and fields of dataclasses among them."""
    signature, hints, parameters = inspect.signature(function), inspect.get_annotations(function, eval_str=True), []
    for parameter in signature.parameters.values():
        kind = hints[parameter.name]
        makers = [getattr(told, "constructor_factory", None) for told in getattr(kind, "__metadata__", ())]
        inner = next((make() for make in makers if make), kind)
        if is_dataclass(inner):
            kind = type(showing(inner(), names))  # type: ignore[operator]
        elif parameter.kind is parameter.KEYWORD_ONLY and parameter.name not in names:
            kind = Annotated[kind, Suppress, Fixed]
        parameters.append(parameter.replace(annotation=kind))

    with_some: Any = lambda **_: None
    with_some.__doc__, with_some.__name__ = function.__doc__, function.__name__
    with_some.__annotations__ = {each.name: each.annotation for each in parameters}
    with_some.__signature__ = signature.replace(parameters=parameters)
    return with_some


def showing(config: Any, names: Collection[str]) -> Any:
    """A configuration like this one, of which tyro shows the fields of these dotted names alone.

    Its class inherits from that of `config` because tyro looks there for the docstrings of the fields.
    """
    options: list[tuple[str, Any, Any]] = []
    for name, kind in get_type_hints(type(config), include_extras=True).items():
        value = getattr(config, name)
        inner = {each.removeprefix(f"{name}.") for each in names if each.startswith(f"{name}.")}
        if inner and is_dataclass(value):
            value = showing(value, inner)
            kind, told = type(value), getattr(kind, "__metadata__", ())
            for each in told:
                kind = Annotated[kind, each]
        elif name not in names:
            kind = Annotated[kind, Suppress, Fixed]
        options.append((name, kind, value))
    namespace = {"__doc__": type(config).__doc__, "__post_init__": lambda self: None}
    kind = make_dataclass(
        type(config).__name__, options, bases=(type(config),), namespace=namespace, frozen=True, kw_only=True
    )
    return kind()


def _strange(words: Sequence[str], flags: Collection[str]) -> str:
    """What is wrong with words that are no arguments: flags that there are not, with the nearest, or too many words."""
    unknown = [word.partition("=")[0] for word in words if word.startswith("-")]
    if not unknown:
        return f"a word must be an argument or the value of a flag, but {words[0]!r} is neither"
    near = [flag for each in unknown for flag in _nearest(each.replace("_", "-"), flags)]
    told = f"there is no flag {', '.join(unknown)}"
    return f"{told}; did you mean {' or '.join(near)}?" if near else told


def _nearest(word: str, flags: Collection[str]) -> list[str]:
    """The flags that begin with this word, as --training.lora.rank does with --training.lora; or of the nearest name."""
    names = {flag: flag.strip("-").split(".")[-1] for flag in flags}
    near = get_close_matches(word.strip("-").split(".")[-1], names.values(), n=1, cutoff=0.7)
    return [flag for flag, name in names.items() if flag.startswith((f"{word}.", f"{word}-")) or name in near][:3]


def _name(argument: Any) -> str:
    """What help calls an argument: a positional one by its metavar."""
    return str(argument.lowered.metavar if argument.is_positional() else argument.lowered.name_or_flags[0])


def _value(flags: Collection[str], words: Sequence[str]) -> str:
    """What follows a flag where it stands last."""
    found = ""
    for i, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if flag.replace("_", "-") in flags:
            found = value if equals else " ".join(takewhile(lambda each: not each.startswith("--"), words[i + 1 :]))
    return found


def _kind(metavar: str) -> str:
    """What fits, in words: "{None}|FLOAT" is "None or a number"."""
    kinds = re.sub(r"^\[(.+) \[.*", r"\1", metavar).split("|")  # PATH of [PATH [PATH ...]]
    told = [", ".join(KINDS.get(word, word) for word in re.split("[ ,]", kind.strip("{}"))) for kind in kinds]
    return " or ".join("one of " * ("," in kind) + each for kind, each in zip(kinds, told, strict=True))
