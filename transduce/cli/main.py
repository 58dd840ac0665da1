"""The command line: translate, transcribe, generate, score, describe, average, import, export."""

import logging
import sys
from functools import partial

import tyro
from tyro.extras import SubcommandApp

from transduce.cli.average import average_checkpoints
from transduce.cli.describe import describe
from transduce.cli.generate import generate, score_perplexity
from transduce.cli.interop import export, import_gpt2_run
from transduce.cli.score import score_transcripts, score_translations
from transduce.cli.transcribe import transcribe
from transduce.cli.translate import translate
from transduce.exit import exit_code
from transduce.score.bleu import bleu, chrf, ter
from transduce.score.score import Measure
from transduce.score.wer import cer, per, wer


def app() -> SubcommandApp:
    """All commands."""
    score = SubcommandApp()
    for translations in (bleu, chrf, ter):
        score.command(name=translations.name, help=_help(translations))(partial(score_translations, translations))
    for transcripts in (wer, cer, per):
        score.command(name=transcripts.name, help=_help(transcripts))(partial(score_transcripts, transcripts))
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


def _help(measure: Measure) -> str:
    return f"{measure.title}, {measure.description}; {measure.better} is better."


def main(arguments: list[str] | None = None) -> int:
    """Run one command; 0 if it went well, 2 if the input was at fault, 130 after Ctrl-C."""
    logging.basicConfig(format="transduce: %(message)s", level=logging.WARNING)
    return exit_code(
        lambda: app().cli(
            prog="transduce",
            description="One Transformer, many transductions.",
            args=arguments,
            config=(tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes),
        ),
        prefix="transduce",
        interrupted="transduce: stopped; every line written so far is whole",
    )


if __name__ == "__main__":
    sys.exit(main())
