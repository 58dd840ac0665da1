"""The command line: its commands, whose modules are imported when they are called."""

import sys
from collections import defaultdict
from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Literal

from tyro.conf import DisallowNone, FlagCreatePairsOff, Positional, arg
from tyro.extras import SubcommandApp

from transduce.arguments import call, registry
from transduce.errors import InputError, command_process, exit_code
from transduce.process import limit_omp_spin

COMMANDS = {
    "demo": (
        "demo:demo",
        "Train a translator in a minute, then type English and read German.",
    ),
    "train translation": (
        "main:_train",
        "Train text to text: parallel text in, a run directory and BLEU out.",
    ),
    "train speech-to-text": (
        "main:_train",
        "Train sound to text: recordings and their texts in, WER out.",
    ),
    "train language-model": ("main:_train", "Train a decoder-only model on any text."),
    "train masked-language-model": ("main:_train", "Train a masked language model."),
    "translate": ("translate:translate", "Translate text line by line, in the same order."),
    "transcribe": (
        "transcribe:transcribe",
        "Transcribe sound: a text for each file, as text, TSV, JSON or subtitles.",
    ),
    "generate": ("generate:generate", "Continue prompts with a language model."),
    "serve": ("serve:serve", "Serve runs over HTTP, as OpenAI, LibreTranslate and whisper.cpp do."),
    "score bleu": ("score:score_bleu", "BLEU of translations, with interval and paired test."),
    "score chrf": ("score:score_chrf", "chrF of translations."),
    "score ter": ("score:score_ter", "Translation edit rate."),
    "score wer": ("score:score_wer", "Word error rate of transcripts, with a report and tables."),
    "score cer": ("score:score_cer", "Character error rate."),
    "score per": ("score:score_per", "Phone error rate."),
    "score comet": ("score:score_comet", "COMET of translations, which reads their sources too."),
    "score likelihood": (
        "likelihood:score_likelihood",
        "Log-probability of given outputs, a line each.",
    ),
    "score perplexity": (
        "likelihood:score_perplexity",
        "Perplexity of a text by a language model.",
    ),
    "data get": ("data:get", "Fetch a corpus: multi30k, tinyshakespeare, fsdd, speechocean762."),
    "data manifest": (
        "data:manifest",
        "Make a manifest of a folder of recordings or of another tool's list.",
    ),
    "data clean": ("clean:clean", "Remove pairs of parallel text that are useless for training."),
    "data shards": (
        "shards:shards",
        "Make shards of token ids of a text that is larger than memory.",
    ),
    "tokenize": (
        "runs:tokenize",
        "Write lines as a run's tokens, to train n-gram models for --lm.",
    ),
    "merge": ("large_files:merge", "Join the parts of an output that several machines made."),
    "describe": (
        "runs:describe",
        "Describe a run directory: model, tokenizers, training, scores.",
    ),
    "watch": (
        "serve:watch",
        "Show a training in a browser as it runs: curves, samples, scores.",
    ),
    "average": (
        "runs:average_checkpoints",
        "Average checkpoints into the run's finished model.",
    ),
    "import": ("runs:import_run", "Make a run directory from a model saved by transformers."),
    "publish": (
        "runs:publish",
        "Put a finished run on the Hugging Face hub, with its model card.",
    ),
    "export": (
        "runs:export",
        "Export a run's model for other programs, or as a web page that translates.",
    ),
    "completion": (
        "main:completion",
        "Let the Tab key complete commands and flags in bash, zsh or fish.",
    ),
}
"""Each command's function and line of help, in the order of --help."""


def main(arguments: list[str] | None = None) -> int:
    """Run one command; return 0 on success, 2 for unusable input, 130 after Ctrl-C."""
    words = sys.argv[1:] if arguments is None else arguments
    n_words = 2 if " ".join(words[:2]) in COMMANDS else 1
    name = " ".join(words[:n_words])
    with command_process("transduce: %(message)s", needs_output=True):
        return exit_code(lambda: _call(name, words[n_words:]), interrupted="stopped")


def _call(name: str, arguments: list[str]) -> None:
    if name not in COMMANDS:
        return _without_command(name, arguments)
    if name.startswith("train "):
        return train(name.removeprefix("train "), arguments)
    limit_omp_spin()
    call(function(name), arguments, prog=f"transduce {name}")


def function(name: str) -> Callable[..., None]:
    """The function of a command."""
    module, _, attribute = COMMANDS[name][0].partition(":")
    command: Callable[..., None] = getattr(import_module(f"transduce.cli.{module}"), attribute)
    return command


def _without_command(word: str, rest: list[str]) -> None:
    """Print the version, or help where no command is named.

    Raises:
        InputError: there is no such command.
    """
    if word == "--version":
        return print(f"transduce {version('transduce')}")
    groups = {name.split()[0] for name in COMMANDS if " " in name}
    group = f"{word} " if word in groups else ""
    names = [name for name in COMMANDS if name.startswith(group)]
    second = "".join(rest[:1]) if group else word
    if second in ("", "-h", "--help"):
        width = max(map(len, names)) + 2
        lines = [f"  {name:<{width}}{COMMANDS[name][1]}\n" for name in names]
        page = (
            f"usage: transduce {group}COMMAND ...\n\nOne Transformer, many "
            f"transductions.\n\n{''.join(lines)}\ntransduce {group}COMMAND --help lists the "
            "arguments of a command."
        )
        if second:
            return print(page)
        raise InputError(f"a command must be named, but none is\n\n{page}")
    possible = names if group else [*names, *groups]
    near = get_close_matches(group + second, possible, n=1, cutoff=0.7)
    way_out = f"did you mean {near[0]}?" if near else f"transduce {group}--help lists them"
    raise InputError(f"there is no command {group + second!r}; {way_out}")


def train(task: str, arguments: list[str]) -> None:
    """Run a recipe as `python recipes/TASK.py ARGUMENTS` does, and exit as it does.

    Raises:
        SystemExit: always, with the recipe's exit code.
    """
    from transduce.experiment.command import main as run_recipe

    recipe = import_module(f"transduce.recipes.{task.replace('-', '_')}")
    code = run_recipe(
        recipe.run,
        recipe.SETTINGS,
        default="commands",
        description=recipe.__doc__,
        arguments=arguments,
        prog=f"transduce train {task}",
    )
    sys.exit(code)


def completion(
    shell: Positional[Annotated[Literal["bash", "zsh", "fish"], arg(metavar="SHELL")]],
) -> None:
    """Print a script that makes a shell complete commands and flags: eval "$(transduce completion
    bash)" in ~/.bashrc.

    Args:
        shell: bash, zsh (in ~/.zshrc) or fish.
    """
    app = SubcommandApp()
    groups: dict[str, SubcommandApp] = defaultdict(SubcommandApp)
    for name, (_, summary) in COMMANDS.items():
        first, _, second = name.partition(" ")
        command = function(name)
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
        if shell == "bash":  # complete file names where nothing else fits
            print("complete -o bashdefault -o default -F _tyro_transduce transduce")


def _train(words: Positional[tuple[str, ...]] = ()) -> None:
    """Train; the flags are those of the recipe."""


if __name__ == "__main__":
    sys.exit(main())
