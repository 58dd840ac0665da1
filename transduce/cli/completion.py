"""`transduce completion bash`: completion of commands and flags, as tyro writes it."""

from collections import defaultdict
from typing import Annotated, Literal

from tyro.conf import DisallowNone, FlagCreatePairsOff, Positional, arg
from tyro.extras import SubcommandApp

from transduce.arguments import registry


def completion(
    shell: Positional[Annotated[Literal["bash", "zsh", "fish"], arg(metavar="SHELL")]],
) -> None:
    """Print what lets a shell complete commands and flags: eval "$(transduce completion bash)" in
    ~/.bashrc.

    Args:
        shell: bash, zsh, where the file is ~/.zshrc, or fish.
    """
    from transduce.cli.main import COMMANDS, function

    app = SubcommandApp()
    groups: dict[str, SubcommandApp] = defaultdict(SubcommandApp)
    for name, (_, summary) in COMMANDS.items():
        first, _, second = name.partition(" ")
        command = _train if first == "train" else function(name)
        if second:
            app.command(groups[first], name=first)
            groups[first].command(name=second, help=summary)(command)
        else:
            app.command(name=first, help=summary)(command)
    try:
        app.cli(
            prog="transduce",
            args=["--tyro-print-completion", shell],
            registry=registry(is_recipe=False),
            config=(FlagCreatePairsOff, DisallowNone),
        )
    finally:
        if shell == "bash":  # names of files, where nothing else can stand
            print("complete -o bashdefault -o default -F _tyro_transduce transduce")


def _train(words: Positional[tuple[str, ...]] = ()) -> None:
    """Train; the flags are those of the recipe."""
