"""The register of results, recipes/results.tsv: a row for each measured figure.

    python scripts/ops/results.py list                      # every figure, with its command
    python scripts/ops/results.py command NAME [OPTIONS]    # the command that measures one again
    python scripts/ops/results.py compare NAME              # its result, compared with the stated one
    python scripts/ops/results.py readme                    # write the tables of recipes/README.md

scripts/reproduce.sh calls the first three. Figures of the same command share a run directory,
runs/reproduced/NAME after the first of them. Nothing but Python is needed.
"""

import csv
import json
import re
import shlex
import sys
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import NamedTuple, NoReturn

ROOT = Path(__file__).resolve().parents[2]
REGISTER = ROOT / "recipes" / "results.tsv"
README = ROOT / "recipes" / "README.md"

PREPARED = re.compile(r"(?<![\w$])[A-Z][A-Z0-9_]+(?![\w=])")
"""A word in capitals, in a command: a file or a run that other commands make first."""

MARKER = "<!-- What follows is made from results.tsv: python scripts/ops/results.py readme -->\n"
"""In the README: the text before this line is written by hand."""

SUBJECTS = {
    "Translation of the spoken commands": (
        "BLEU on combinations that are not in the training data. More in [translation](../docs/results/translation.md)."
    ),
    "Multi30k, English to German": (
        "Lower-cased BLEU on test_2016_flickr, models of 2.3M parameters unless stated "
        "otherwise. Wu et al. (2021) report 41.02, tokenized. More in [translation](../docs/results/"
        "translation.md)."
    ),
    "Multi30k: other directions, less data, and synthetic data": (
        "Lower-cased BLEU on test_2016_flickr unless stated otherwise. More in [translation]("
        "../docs/results/translation.md#other-directions-and-one-model-for-many-languages)."
    ),
    "Speech: spoken commands, voices and accents not in the training data": (
        "WER in percent, 150 recordings of 6 synthetic voices. More in [speech](../docs/results/"
        "speech.md#spoken-commands)."
    ),
    "Speech: from the paper's layers to the recipe's, accents left out of training": (
        "WER in percent, 274 recordings; each row from the third on adds one step. More in "
        "[speech](../docs/results/speech.md#from-the-papers-layers-to-the-recipes)."
    ),
    "Speech: digits, and English read by learners": (
        "WER in percent; the mean of six left-out voices is 14.6, and 10.2 when starting from a run of other voices (three seeds). "
        "More in [speech](../docs/results/speech.md#spoken-digits)."
    ),
    "Language models": (
        "Nats per character on held-out text, for masked_language per token; nanoGPT has 1.88 and 1.4697 for its two sizes. More "
        "in [language models](../docs/results/language_models.md)."
    ),
    "Speed, relative to other libraries": (
        "The systems take turns in one process. More in [speed](../docs/results/speed.md)."
    ),
}
"""The tables of the README: their titles in the register, and the line below each title."""


class Figure(NamedTuple):
    """A row of the register; every cell is text, and may be empty."""

    name: str
    """What reproduce.sh calls it."""
    subject: str
    """The table of the README."""
    what: str
    value: str
    interval: str
    """95 %, by resampling the test lines."""
    measure: str
    """bleu, bleu.lowercase, wer, loss (nats) or ratio (of two speeds)."""
    search: str
    """The search, as named in the run's file: greedy, beam5, beam5.ctc; with .en-de for one direction."""
    file: str
    """The JSON in the run directory that has the value; empty: the command prints it."""
    command: str
    """In a clone; TRANSDUCE_DATA names the folder of the corpora."""
    seed: str
    commit: str
    """The one that measured it."""
    device: str
    minutes: str
    """From the start of the command to its last score."""
    smoke: str
    """Options with which the command runs in seconds, on a corner of the corpora."""

    @property
    def prepared(self) -> list[str]:
        """The files and runs that must be made before the command."""
        return sorted(set(PREPARED.findall(re.sub(r"^(\w+=\S+ )+", "", self.command))))

    @property
    def stated(self) -> str:
        """The value with its interval."""
        return f"{self.value} {self.interval}".strip()


def read_register(path: Path = REGISTER) -> list[Figure]:
    """The rows of the register, in its order."""
    with path.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
    assert tuple(header) == Figure._fields
    return [Figure._make(row) for row in rows]


def find(figures: Iterable[Figure], name: str) -> Figure:
    """The figure of this name.

    Raises:
        SystemExit: there is none (2).
    """
    for figure in figures:
        if figure.name == name:
            return figure
    _refuse(f"a figure must be one that bash scripts/reproduce.sh lists, but it is {name!r}")


def same_command(figures: Iterable[Figure], figure: Figure) -> list[Figure]:
    """The figures that this one's command measures, in the order of the register."""
    return [each for each in figures if each.command == figure.command]


def run_directory(figures: Iterable[Figure], figure: Figure) -> str:
    """Where the figure is measured again."""
    return f"runs/reproduced/{same_command(figures, figure)[0].name}"


def full_command(figures: list[Figure], figure: Figure, options: list[str]) -> str:
    """The command with its run directory and more options, as bash reads it.

    Raises:
        SystemExit: it needs files or runs that other commands make (2).
    """
    if figure.prepared:
        _refuse(
            f"{figure.name} needs {', '.join(figure.prepared)}, which other commands make; the pages "
            "of docs/results say how"
        )
    directory, more = run_directory(figures, figure), shlex.join(options)
    if "scripts/bench" in figure.command:
        words = [figure.command, more]
    elif "recipes/" in figure.command:
        words = [figure.command, f"--run {directory}", more]
    else:  # a script of several trainings: options, then the folder of its runs
        words = [figure.command, more, directory]
    return " ".join(filter(None, words))


def comparison(figure: Figure, run: Path) -> str:
    """A line with the stated and the measured value."""
    line = f"{figure.name}, {figure.measure} {figure.search}".strip()
    return f"{line}: stated {figure.stated}, measured {measured(figure, run)}"


def measured(figure: Figure, run: Path) -> str:
    """The value in the run's file, with its interval; with as many decimals as are stated."""
    if not figure.file:
        return "as printed above"
    scores = json.loads((run / figure.file).read_text(encoding="utf-8"))
    decimals = len(figure.value.partition(".")[2])
    if isinstance(scores, dict):
        return f"{scores[figure.measure]:.{decimals}f}"
    wanted = (figure.measure, figure.search)
    for row in scores:
        search = ".".join(filter(None, (row["search"], row.get("group"))))
        if (row["measure"], search) == wanted:
            value, *interval = (f"{row[key]:.{decimals}f}" for key in ("value", "low", "high"))
            return f"{value} [{', '.join(interval)}]"
    raise KeyError(f"{run / figure.file} has no {wanted}")


def listing(figures: list[Figure]) -> str:
    """A line for each figure."""
    rows = [("name", "stated", "minutes", "command")]
    rows += [(each.name, each.value, each.minutes, each.command) for each in figures]
    return "".join(f"{a:<26} {b:>7} {c:>8}  {d}\n" for a, b, c, d in rows)


def readme(figures: list[Figure], before: str) -> str:
    """The README: the text of `before` up to the marker, then a table for each subject."""
    parts = [before.partition(MARKER)[0] + MARKER]
    for subject, rows in groupby(figures, key=lambda each: each.subject):
        parts.append(f"## {subject}\n\n{SUBJECTS[subject]}\n\n{_table(rows)}")
    return "\n".join(parts)


def _table(figures: Iterable[Figure]) -> str:
    lines = ["| name | what | figure | search | time, device | seed, commit |", "|---" * 6 + "|"]
    for each in figures:
        value = f"**{each.value}** {each.interval}".strip()
        times = f"{each.minutes} min, {each.device}" if each.minutes else each.device
        origin = ", ".join(filter(None, (each.seed, each.commit)))
        cells = (f"`{each.name}`", each.what, value, each.search, times, origin)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _refuse(message: str) -> NoReturn:
    print(f"reproduce.sh: {message}", file=sys.stderr)
    sys.exit(2)


def main(words: list[str]) -> None:
    """Do what the first word says."""
    figures = read_register()
    match words:
        case ["list"]:
            print(listing(figures), end="")
        case ["command", name, *options]:
            print(full_command(figures, find(figures, name), options))
        case ["compare", name]:
            figure = find(figures, name)
            for each in same_command(figures, figure):
                print(comparison(each, ROOT / run_directory(figures, figure)))
        case ["readme"]:
            README.write_text(readme(figures, README.read_text("utf-8")), "utf-8")
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
