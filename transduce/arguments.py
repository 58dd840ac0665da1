"""The words of a command line as the arguments of a call, by tyro; a wrong use is told as any other wrong input is."""

import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from difflib import get_close_matches
from io import StringIO
from itertools import takewhile
from shutil import get_terminal_size
from typing import Any, NoReturn

import tyro
from tyro import _errors as wrong

NARROWEST = 40
"""Columns of a page of help, at least: on a narrower one, tyro cuts flags and words anywhere."""

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
        ValueError: an argument is missing, or has no value or one that does not fit, or a word stands for none.
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
            raise ValueError(getattr(event, "message", event))
        raise ValueError(told if told.endswith("?") else f"{told}; {prog} {more} says more")

    with _legible(), wrong.on_parse_error(refuse):
        if often and {"-h", "--help", "--help-all"} & set(words):
            page = _page(parse)
            print(page if "--help-all" in words else _shortened(page, often), end="")
            print(f"\n{HELP_ALL}")
            raise SystemExit(0)
        return parse(words)


@contextmanager
def _legible() -> Iterator[None]:
    """Have help on a page that is not too narrow, whatever the terminal is."""
    before = os.environ.get("COLUMNS")
    if get_terminal_size().columns < NARROWEST:
        os.environ["COLUMNS"] = str(NARROWEST)
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


def _shortened(page: str, often: Collection[str]) -> str:
    """A page of help with some of its flags alone; a box without any goes."""
    shown, kept, box = True, [], []
    for line in page.splitlines(keepends=True):
        if flag := re.match(r"[│ ] (--[a-z][\w-]*)", line):
            shown = flag[1] in often
        elif re.match(r"[╭╰]|\S|$|[│ ] -h, ", line):
            shown = True
        if shown:
            box.append(line)
        if line.startswith("╰") or not re.match("[╭│]", line):
            flags = any(re.match(r"[│ ] (-h,|--|\[|[A-Z])", each) for each in box)
            kept += box if flags or not line.startswith("╰") else []
            box = []
    return "".join(kept + box)


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
