"""report.html: a run on one page that needs no other file and no network."""

import re
from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup, escape

from transduce.files import write_file
from transduce.plot import NAMES, curve_svg, curves
from transduce.report.card import about, shown_first, templates, write_card
from transduce.report.record import progress, read_metrics, read_samples
from transduce.run import ERRORS, MODEL_CARD, REPORT, SAMPLES, load_run

MAX_TEXT = 400
"""Characters of a sample."""

MAX_ERRORS = 60_000
"""Characters of an error report."""

MAX_PICTURES = 600_000
"""Bytes of all pictures in base64."""


@dataclass(frozen=True)
class Picture:
    """A picture that a validation drew."""

    name: str
    title: str
    update: int | str
    content: bytes
    """The PNG; empty where it is too large."""


def write_reports(directory: Path) -> None:
    """Write a run's report.html, and its MODEL_CARD.md unless somebody has changed that.

    Raises:
        InputError: the directory is no run.
    """
    write_card(directory)
    write_file(directory / REPORT, page(directory).encode("utf-8", "replace"))


def page(directory: Path) -> str:
    """The page of a run, also while it is trained: below 1 MB, and the same for the same files.

    Text of the run is escaped. Times of the clock are inside <time>, or behind "seconds".

    Raises:
        InputError: the directory is no run.
    """
    known = about(directory, load_run(directory))
    metrics = read_metrics(directory)
    updates, clock = progress(directory, metrics)
    return templates.get_template("page.html").render(
        known,
        fields=shown_first(known["fields"]) | known["fields"],
        progress=updates,
        clock=clock,
        curves={
            NAMES.get(name, name): curve_svg(name, lines)
            for name, lines in curves(metrics).items()
            if any(lines)
        },
        samples=read_samples(directory / SAMPLES),
        pictures=_pictures(directory / SAMPLES),
        errors=_errors(directory / ERRORS),
        card=MODEL_CARD,
    )


def _pictures(folder: Path) -> list[Picture]:
    """The pictures of the last validation that drew any."""
    paths = sorted(path for path in folder.glob("*.png") if path.is_file())
    pictures: list[Picture] = []
    size = 0
    for path in paths:
        update, _, title = path.stem.partition(".")
        if update == paths[-1].stem.partition(".")[0]:
            content = path.read_bytes()
            fits = size + len(content) <= MAX_PICTURES
            size += len(content) * 4 // 3 * fits
            number = int(update) if update.isdecimal() else update
            pictures.append(Picture(f"{SAMPLES}/{path.name}", title, number, content * fits))
    return pictures


def _errors(path: Path) -> str:
    text = path.read_text("utf-8", "replace") if path.is_file() else ""
    if len(text) <= MAX_ERRORS:
        return text
    return text[:MAX_ERRORS].rpartition("\n")[0] + f"\n\nand more in {path.name}"


def _code(text: str) -> Markup:
    """Text whose parts in backticks are code."""
    return Markup(re.sub("`(.+?)`", r"<code>\1</code>", str(escape(text))))


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + " ..."


def _base64(content: bytes) -> str:
    return b64encode(content).decode()


templates.filters |= {"base64": _base64, "code": _code, "shorten": _shorten}
