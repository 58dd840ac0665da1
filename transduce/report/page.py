"""report.html: all that there is to see of a run, on one page that needs no other file and no network."""

import re
from base64 import b64encode
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

from transduce.files import read_json_lines, write_file
from transduce.plot import NAMES, Points, curve_svg, curves
from transduce.report.card import (
    AGAIN,
    AGAIN_ELSEWHERE,
    HOW_TO_READ,
    about,
    facts,
    fields_of,
    made_with,
    plain,
    recipe_of,
    scores,
    shown_first,
    write_card,
)
from transduce.report.record import samples
from transduce.run import ERRORS, METRICS, MODEL_CARD, REPORT, SAMPLES, load_run

VALIDATIONS = 8
"""Whose outputs are shown, if there are so many: the first, the last, and some between."""

LONGEST, LONGEST_REPORT, LARGEST = 400, 60_000, 600_000
"""Characters of a sample and of an error report, and bytes of a picture, that have their place on the page."""

STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1c1c1e; --faint: #6b7280; --rule: #d9dce1; --box: #f4f5f7 }
@media (prefers-color-scheme: dark) { :root { --paper: #131417; --ink: #e6e6e8; --faint: #9aa1ac; --rule: #33363d;
  --box: #1c1e22 } img { filter: invert(0.92) } }
body { margin: 0 auto; max-width: 62rem; padding: 1rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; overflow-wrap: anywhere }
h1 { font-size: 1.6rem; margin: 0.4rem 0 } h2 { font-size: 1.1rem; margin: 2.2rem 0 0.6rem }
p { margin: 0.5rem 0 } small, time, dt, th, figcaption { color: var(--faint) } time, small { font-size: 0.9em }
table { border-collapse: collapse; width: 100% } td, th { border-top: 1px solid var(--rule); padding: 0.3rem 0.8rem 0.3rem 0;
  text-align: left; vertical-align: top; font-weight: normal } th { white-space: nowrap; width: 1% }
caption { text-align: left; padding: 0.6rem 0.8rem; background: var(--box) } table + table { margin-top: 1rem }
pre { background: var(--box); padding: 0.8rem; overflow-x: auto; font-size: 12px; line-height: 1.4; overflow-wrap: normal }
code { background: var(--box); padding: 0.1rem 0.3rem } img { max-width: 100%; height: auto; display: block }
.curves { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); gap: 1rem }
figure { margin: 0 }
dl { columns: 19rem; column-gap: 2rem; font-size: 13px; margin: 0 } dl div { break-inside: avoid; display: flex; gap: 0.6rem }
dd { margin: 0 } @media (max-width: 34rem) { td, th { padding-right: 0.5rem } th { white-space: normal; width: 30% } }
"""

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""What a browser lets the page do: nothing but look as it does. It runs no script, and loads and sends nothing."""

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{name}</title>
<style>{style}</style>
</head>
<body>
<h1>{name}</h1>
{body}
</body>
</html>
"""


def write_reports(directory: Path) -> None:
    """Write a run's MODEL_CARD.md, unless somebody has changed the one that is there, and its report.html.

    Raises:
        InputError: the directory is no run.
    """
    write_card(directory)
    write_file(directory / REPORT, page(directory).encode("utf-8", "replace"))


def page(directory: Path) -> str:
    """The page of a run as it is now, also while it is trained: below 1 MB, and the same for the same files.

    Whatever text of the run stands in it is escaped. What the clock said is inside <time>, or behind "seconds".

    Raises:
        InputError: the directory is no run.
    """
    run = load_run(directory)
    path = directory / METRICS
    metrics = read_json_lines(path) if path.is_file() else []
    fields = fields_of(run)
    fields = {**shown_first(fields), **fields}
    again = (
        ""
        if "imported" in run.experiment
        else f"<pre>{escape(AGAIN.format(recipe_of(run)))}</pre>{_prose(AGAIN_ELSEWHERE)}"
    )
    parts = {
        "": _prose(about(run)) + _progress(metrics, fields),
        "Scores": _scores(directory),
        "Learning curves": _wrap("div", "".join(_curve(*each) for each in curves(metrics).items()), "curves"),
        "Samples over time": _samples(directory / SAMPLES),
        "Attention": _pictures(directory / SAMPLES),
        "Errors": _errors(directory / ERRORS),
        "Make it again": again + _prose(f"{made_with(directory)}. {MODEL_CARD} has its data and limits, and how to use it."),
        "Configuration": "".join(_prose(line) for line in facts(run))
        + _wrap("dl", "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(plain(v))}</dd></div>" for k, v in fields.items())),
    }  # fmt: skip
    body = "\n".join(f"<h2>{title}</h2>\n{part}" if title else part for title, part in parts.items() if part)
    return PAGE.format(policy=POLICY, style=STYLE, name=escape(directory.absolute().name), body=body)


def _prose(text: str) -> str:
    """A paragraph; what stands in backticks is code."""
    return "<p>" + re.sub("`(.+?)`", r"<code>\1</code>", escape(text)) + "</p>"


def _wrap(tag: str, inside: str, kind: str = "") -> str:
    """An element, where there is something to stand in it."""
    return f"<{tag}{kind and f' class={kind}'}>{inside}</{tag}>" if inside else ""


def _rows(rows: Iterable[tuple[str, str]], caption: str = "") -> str:
    """A table of two columns; the caption is HTML."""
    inside = "".join(f'<tr><th>{escape(a)}</th><td dir="auto">{escape(b)}</td></tr>' for a, b in rows)
    return _wrap("table", (caption and f"<caption>{caption}</caption>") + inside)


def _progress(metrics: list[dict[str, Any]], fields: dict[str, Any]) -> str:
    """How far the training is, how long it has taken, and how fast it was at last."""
    if not metrics:
        return ""
    last, speeds = metrics[-1], [line["tokens_per_second"] for line in metrics if "tokens_per_second" in line]
    told = f"update {last.get('update')} of {fields.get('training.max_updates')}, epoch {last.get('epoch', 0) + 1}"
    clock = f"{last.get('seconds', 0) / 60:.1f} min" + (f", {speeds[-1]:,.0f} tokens/s" if speeds else "")
    return f"<p>{escape(told)} <time>{escape(clock)}</time></p>"


def _scores(directory: Path) -> str:
    told = [line.partition(": ") for line in scores(directory)]
    return _rows((what, value) for what, _, value in told) + f"<p><small>{escape(HOW_TO_READ)}</small></p>" * bool(told)


def _samples(folder: Path) -> str:
    """What the model wrote of the same sources after one validation and the next."""
    told = ""
    for each in samples(folder, VALIDATIONS):
        outputs = [(f"update {update}", _short(text)) for update, text in each.outputs]
        source = f'<span dir="auto">{escape(_short(each.source))}</span>'
        told += _rows([("should be", _short(each.reference)), *outputs], source)
    return told


def _curve(name: str, lines: dict[str, Points]) -> str:
    """The curves of one metric as a picture."""
    svg = b64encode(curve_svg(name, lines)).decode()
    alt = f"{escape(NAMES.get(name, name))} by update"
    return _wrap("figure", svg and f'<img alt="{alt}" src="data:image/svg+xml;base64,{svg}">')


def _pictures(folder: Path) -> str:
    """The pictures of the last validation that drew any."""
    found = sorted(path for path in folder.glob("*.png") if path.is_file())
    told = ""
    for path in (each for each in found if each.name.split(".")[0] == found[-1].name.split(".")[0]):
        update, _, what = path.stem.partition(".")
        caption = (
            f"<figcaption>{escape(what)}, update {int(update) if update.isdecimal() else escape(update)}</figcaption>"
        )
        content = path.read_bytes()
        shown = f'<img alt="{escape(what)}" src="data:image/png;base64,{b64encode(content).decode()}">'
        if len(told) + len(content) > LARGEST:
            shown = _prose(f"{SAMPLES}/{path.name} is too large for this page.")
        told += f"<figure>{caption}{shown}</figure>"
    return told


def _errors(path: Path) -> str:
    text = path.read_text("utf-8", "replace") if path.is_file() else ""
    if len(text) > LONGEST_REPORT:
        text = text[:LONGEST_REPORT].rpartition("\n")[0] + f"\n\nand more in {path.name}"
    return _wrap("pre", escape(text))


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else text[:LONGEST] + " ..."
