"""The command line: translate, transcribe, generate, score, describe, average, import, export."""

import logging
import sys

import tyro
from tyro.extras import SubcommandApp

from transduce.cli.average import average_checkpoints
from transduce.cli.describe import describe
from transduce.cli.generate import generate, score_perplexity
from transduce.cli.interop import export, import_gpt2_run
from transduce.cli.score import score_bleu, score_chrf, score_ter
from transduce.cli.score_wer import score_cer, score_wer
from transduce.cli.transcribe import transcribe
from transduce.cli.translate import translate
from transduce.experiment.command import exit_code


def app() -> SubcommandApp:
    """All commands."""
    score = SubcommandApp()
    for name, command in (("bleu", score_bleu), ("chrf", score_chrf), ("ter", score_ter)):
        score.command(name=name)(command)
    score.command(name="wer")(score_wer)
    score.command(name="cer")(score_cer)
    score.command(name="perplexity")(score_perplexity)
    imports = SubcommandApp()
    imports.command(name="gpt2")(import_gpt2_run)
    commands = SubcommandApp()
    commands.command(translate)
    commands.command(transcribe)
    commands.command(generate)
    commands.command(score, name="score", help="Score translations, transcripts or a language model.")
    commands.command(describe)
    commands.command(name="average")(average_checkpoints)
    commands.command(imports, name="import", help="Make a run of another toolkit's weights.")
    commands.command(export)
    return commands


def main(arguments: list[str] | None = None) -> int:
    """Run one command; 0 if it went well, 2 if the input was at fault, 130 after Ctrl-C."""
    logging.basicConfig(format="transduce: %(message)s", level=logging.WARNING)
    return exit_code(
        lambda: app().cli(
            prog="transduce",
            description="One Transformer, many transductions.",
            args=arguments,
            config=(tyro.conf.FlagCreatePairsOff,),
        ),
        prefix="transduce",
        interrupted="transduce: stopped; every line written so far is whole",
    )


if __name__ == "__main__":
    sys.exit(main())
