"""Builds the manual: runs the tutorials, writes the reference, and makes a static site that needs no network; or notebooks.

    pip install --constraint constraints.txt '.[docs]'      # Sphinx, MyST and furo
    python scripts/ops/build_docs.py OUT                                # then open OUT/index.html
    python scripts/ops/build_docs.py OUT --builder linkcheck            # asks the network for every external link
    python scripts/ops/build_docs.py OUT --builder notebooks            # the tutorials for Jupyter: jupyter lab OUT

Every .md in docs/ is a page, and so is every file of the repository that one of them links to. Every tutorial,
docs/tutorials/N_NAME.py, runs, and its page shows what its cells print and draw. The format of a tutorial is the percent
format of Jupytext, Spyder and VS Code:

    # %% [markdown]                   lines of Markdown, each behind a "# "
    # %%                              Python; figures of pyplot that are left open are put behind the cell and closed
    # %% tags=["hide-input"]          Python that is folded away, for the drawing of pictures
    # %% [code 3]                     in a translation, docs/tutorials/ko/N_NAME.py: the third cell of Python of ../N_NAME.py

Cells run from the top to the bottom in one namespace, where `__file__` is the tutorial; the working directory is an empty
folder, which is deleted afterwards. Modules that lie in docs/tutorials can be imported.
"""

import argparse
import importlib
import inspect
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import get_args

import matplotlib.pyplot as plt
from cycler import cycler

from transduce.cli.main import COMMANDS, main as transduce

ROOT = Path(__file__).resolve().parents[2]
TUTORIALS = "tutorials/**/[0-9]*_*.py"
"""In docs/."""
REFERENCES = {"transduce": "import transduce as td", "transduce.experiment": "from transduce import experiment as ex"}
"""Public modules, and how they are imported."""
LINK = re.compile(r"(?<=\]\()[^)\s#:]+(?=[)#])|(?<=\]: )[^)\s#:]+(?=$|#)", re.MULTILINE)
"""The path in a Markdown link to a file, also where a link is only defined."""
DRAWING = re.compile(r"^\[!\[[^\]]*\]\((\S+\.svg)\)\]\(\1\)$", re.MULTILINE)
"""A drawing that leads to itself: on the site it stands in the page, so that its own links work."""
LINK_OF_SVG = re.compile(r'(?<=href=")[^"#:]+(?=")')
"""The path in a link of a drawing."""
STYLE = {
    "axes.prop_cycle": cycler(color=["#2b6cb0", "#dd6b20", "#2f855a", "#b83280", "#718096"]),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": "medium",
    "figure.constrained_layout.use": True,
    "figure.figsize": (6, 3.2),
    "figure.labelsize": "medium",
    "figure.titlesize": "medium",
    "font.size": 10,
    "image.cmap": "Blues",
    "legend.frameon": False,
    "savefig.dpi": 160,
}
"""The style of all pictures: 6 inches are readable on a phone."""


@dataclass(frozen=True)
class Cell:
    """A part of a tutorial; its text begins in line `line`, counted from 1."""

    kind: str
    """markdown, code, or hidden: code that is folded away; in a translation the number of a cell of the original."""
    text: str
    line: int


def read_cells(text: str) -> list[Cell]:
    """The cells of a file in percent format.

    Raises:
        ValueError: something stands before the first cell, or a line of Markdown is no comment.
    """
    lines = text.splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith("# %%")]
    if any(line.strip() for line in lines[: starts[0] if starts else None]):
        raise ValueError('a tutorial begins with a cell, "# %%" or "# %% [markdown]", but something stands before it')
    cells = []
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        body, kind = lines[start + 1 : end], "code"
        if "[markdown]" in lines[start]:
            kind = "markdown"
            for number, line in enumerate(body, start + 2):
                if line.strip() and line != "#" and not line.startswith("# "):
                    raise ValueError(f'a line of Markdown begins with "# ", but line {number} is {line!r}')
            body = [line[2:] for line in body]
        elif match := re.search(r"\[code (\d+)\]", lines[start]):
            kind = match[1]
        elif "hide-input" in lines[start]:
            kind = "hidden"
        cells.append(Cell(kind, "\n".join(body).strip("\n"), start + 2))
    return cells


def read_tutorial(path: Path) -> tuple[list[Cell], Path]:
    """The cells of a tutorial, and the file that its Python is in: of a translation, that of the same name above."""
    cells, above = read_cells(path.read_text("utf-8")), path.parents[1] / path.name
    if not any(cell.kind.isdigit() for cell in cells):
        return cells, path
    codes = [cell for cell in read_cells(above.read_text("utf-8")) if cell.kind != "markdown"]
    return [codes[int(cell.kind) - 1] if cell.kind.isdigit() else cell for cell in cells], above


@contextmanager
def elsewhere(path: Path) -> Iterator[None]:
    """Run a file like `python PATH` in an empty folder, with our style of pictures."""
    before, modules, here = sys.path[:], set(sys.modules), Path.cwd()
    sys.path[0:0] = [str(parent) for parent in path.parents if parent.name == "tutorials"]
    with TemporaryDirectory() as folder, plt.rc_context(STYLE):
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(here)
            plt.close("all")
            sys.path[:] = before
            for name in set(sys.modules) - modules:  # another tutorial may have another module of this name
                if str(getattr(sys.modules[name], "__file__", "")).startswith(str(path.parent)):
                    del sys.modules[name]


def run(path: Path, page: Path) -> None:
    """Run a tutorial and write its page, with its figures beside it.

    Raises:
        Exception: whatever a cell raises; the traceback has the lines of the tutorial.
    """
    page, parts = page.resolve(), []
    cells, path = read_tutorial(path.resolve())
    names: dict[str, object] = {"__name__": "__main__", "__file__": str(path)}
    page.parent.mkdir(parents=True, exist_ok=True)
    backend = plt.get_backend()
    plt.switch_backend("agg")
    with elsewhere(path):
        for number, cell in enumerate(cells, 1):
            if cell.kind == "markdown":
                parts.append(cell.text)
                continue
            code = fenced("python", cell.text)
            folded = f"<details>\n<summary>The code of this picture</summary>\n\n{code}\n\n</details>"
            with redirect_stdout(io.StringIO()) as printed:
                exec(compile("\n" * (cell.line - 1) + cell.text, str(path), "exec"), names)
            shown = [fenced("text", printed.getvalue().rstrip())] if printed.getvalue().strip() else []
            for figure in map(plt.figure, plt.get_fignums()):
                picture = page.with_name(f"{page.stem}_{number}_{figure.number}.png")
                titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
                shown.append(f"![{'; '.join(titles).translate(PLAIN)}]({picture.name})")
                figure.savefig(picture)
            plt.close("all")
            parts += [*shown, folded] if cell.kind == "hidden" else [code, *shown]
    plt.switch_backend(backend)
    page.write_text("\n\n".join(parts) + "\n", "utf-8")


PLAIN = str.maketrans("\n[]()", "     ")
"""Markup that is left out of an image's description."""


def fenced(language: str, text: str) -> str:
    """A fenced block of code, with a fence that is longer than any in it."""
    fence = "`" * max(3, *(len(ticks) + 1 for ticks in re.findall("^`+", text, re.MULTILINE)), 0)
    return f"{fence}{language}\n{text}\n{fence}"


def place(path: Path, docs: Path) -> Path:
    """The path of a repository file in the site: files outside docs/ are in repository/, and Python files become
    pages."""
    if not path.is_relative_to(docs):
        page = Path("repository") / path.relative_to(docs.parent)
        return page.with_name(f"{page.name}.md") if path.suffix == ".py" else page
    inside = path.relative_to(docs)
    return inside.with_suffix(".md") if inside.parts[0] == "tutorials" and path.suffix == ".py" else inside


def write_pages(docs: Path, into: Path) -> None:
    """Write every page of docs/, and whatever they link to, as pages and files that Sphinx reads."""
    docs = docs.resolve()
    shutil.copy(docs / "conf.py", into)
    tutorials = sorted(docs.glob(TUTORIALS))
    waiting = [*tutorials, *sorted(docs.glob("**/*.md"))]
    done: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path in done:
            continue
        done.add(path)
        page = into / place(path, docs)
        page.parent.mkdir(parents=True, exist_ok=True)
        if path in tutorials:
            run(path, page)
        elif page.suffix == ".md" and path.suffix == ".py":
            page.write_text(
                f"# {path.relative_to(docs.parent)}\n\n{fenced('python', path.read_text('utf-8'))}\n", "utf-8"
            )
            continue  # what looks like a link there is none
        else:
            shutil.copy(path, page)
        if page.suffix != ".md":
            continue

        def linked(match: re.Match[str], path: Path = path, page: Path = page) -> str:
            target = (path.parent / match[0]).resolve()
            if not target.is_file() or not target.is_relative_to(docs.parent):
                return match[0]
            waiting.append(target)
            return os.path.relpath(into / place(target, docs), page.parent)

        def drawn(match: re.Match[str], path: Path = path, linked: Callable[[re.Match[str]], str] = linked) -> str:
            picture = LINK_OF_SVG.sub(linked, (path.parent / match[1]).read_text("utf-8"))
            return fenced("{raw} html", picture.replace('.py.md"', '.py.html"'))

        text = LINK.sub(linked, DRAWING.sub(drawn, page.read_text("utf-8")))
        page.write_text(text, "utf-8")


def write_notebooks(docs: Path, out: Path) -> None:
    """Write every tutorial as a notebook, beside the modules that it imports and our style of pictures."""
    docs, out = docs.resolve(), out.resolve()
    colors = ", ".join(repr(each["color"].lstrip("#")) for each in STYLE["axes.prop_cycle"])
    style = STYLE | {"axes.prop_cycle": f"cycler('color', [{colors}])", "figure.figsize": "6, 3.2"}
    tutorials = sorted(docs.glob(TUTORIALS))
    for path in tutorials:
        to = (out / path.relative_to(docs / "tutorials")).with_suffix(".ipynb")
        to.parent.mkdir(parents=True, exist_ok=True)
        for module in (docs / "tutorials").glob("[a-z]*.py"):
            shutil.copy(module, to.parent)
        (to.parent / "matplotlibrc").write_text("".join(f"{name}: {value}\n" for name, value in style.items()))

        def linked(match: re.Match[str], path: Path = path, to: Path = to) -> str:
            target = (path.parent / match[0]).resolve()
            if not target.is_file() or not target.is_relative_to(docs.parent):
                return match[0]
            if target in tutorials:
                target = (out / target.relative_to(docs / "tutorials")).with_suffix(".ipynb")
            return os.path.relpath(target, to.parent)

        cells = [
            Cell(cell.kind, LINK.sub(linked, cell.text) if cell.kind == "markdown" else cell.text, cell.line)
            for cell in read_tutorial(path)[0]
        ]
        to.write_text(json.dumps(notebook(cells), ensure_ascii=False, indent=1) + "\n", "utf-8")


def notebook(cells: list[Cell]) -> dict[str, object]:
    """Cells as a notebook without outputs, in version 4.5 of Jupyter's format."""
    hidden = {"jupyter": {"source_hidden": True}, "tags": ["hide-input"]}
    parts: list[dict[str, object]] = []
    for number, cell in enumerate(cells, 1):
        part = {"id": f"cell-{number}", "source": cell.text, "metadata": hidden if cell.kind == "hidden" else {}}
        code = {"cell_type": "code", "execution_count": None, "outputs": []}
        parts.append(part | ({"cell_type": "markdown"} if cell.kind == "markdown" else code))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": parts, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def write_reference(into: Path) -> None:
    """Write a page for each public module, made of docstrings, and one for each command, made of its help."""
    (into / "commands").mkdir(parents=True)
    for name, imported in REFERENCES.items():
        (into / f"{name}.md").write_text(module_page(name, imported), "utf-8")
    contents = fenced("{toctree}", "\n".join(name.replace(" ", "_") for name in COMMANDS))
    (into / "commands" / "index.md").write_text(f"# Command line\n\n{contents}\n", "utf-8")
    for name, (_, line) in COMMANDS.items():
        text = f"# transduce {name}\n\n{line}\n\n{command_tables(command_help(name))}\n"
        (into / "commands" / f"{name.replace(' ', '_')}.md").write_text(text, "utf-8")


def module_page(name: str, imported: str) -> str:
    """A public module's functions, classes and configurations, for autodoc."""
    module = importlib.import_module(name)
    kinds: dict[str, list[str]] = {"Functions": [], "Classes": [], "Configurations and records": [], "Values": []}
    for public in sorted(dir(module)):
        thing, where = getattr(module, public), f"{name}.{public}"
        if inspect.isfunction(thing):
            kinds["Functions"].append(f".. autofunction:: {where}")
        elif is_dataclass(thing):
            kinds["Configurations and records"].append(f".. autoclass:: {where}\n   :members:")
        elif inspect.isclass(thing):
            kinds["Classes"].append(f".. autoclass:: {where}\n   :members:\n   :special-members: __call__")
        else:
            names = ", ".join(f"`{each}`" for each in get_args(thing) or thing)
            kinds["Values"].append(f".. py:data:: {where}\n\n   {names}")
    parts = [f"# {name}", inspect.getdoc(module) or "", fenced("python", imported)]
    for kind, entries in kinds.items():
        parts += [f"## {kind}", fenced("{eval-rst}", "\n\n".join(entries))] if entries else []
    return "\n\n".join(parts) + "\n"


def command_help(name: str) -> str:
    """The help of a command, 88 columns wide, without the paths of this machine."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "88"
    page = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")  # an encoding that has the lines of boxes
    try:
        with redirect_stdout(page), suppress(SystemExit):
            transduce([*name.split(), "--help-all"])
    finally:
        os.environ.pop("COLUMNS")
        os.environ.update({} if before is None else {"COLUMNS": before})
    page.seek(0)
    return page.read().replace(f"{ROOT}{os.sep}", "").strip()


def command_tables(page: str) -> str:
    """A help page as Markdown: its boxes become tables of flags and their meanings."""
    usage, text = page.split("\n\n", 1)
    parts: list[str] = [fenced("text", usage), ""]
    for line in text.replace("<", r"\<").splitlines():
        inside = line.strip("│ ").replace("|", r"\|")
        if line.startswith("╭"):
            parts += [f"## {line.strip('╭─╮ ')}", "", "| | |", "|---|---|"]
        elif line.startswith("│ ") and line[2] != " ":
            flag, _, meaning = inside.partition("  ")
            parts.append(f"| `{flag}` | {meaning.strip()} |")
        elif line.startswith("│"):  # goes on with what the flag above means
            parts[-1] = f"{parts[-1].removesuffix('|').rstrip()} {inside} |"
        elif not line.startswith(("╰", "  --help-all")):
            parts.append(line)
    return "\n".join(parts).strip()


def make_site(source: Path, out: Path, builder: str = "html") -> None:
    """Have Sphinx build what lies in `source`; every warning, such as a broken link, is an error.

    Raises:
        CalledProcessError: there was one, which Sphinx has printed.
    """
    words = ["-W", "--keep-going", "-q", "-b", builder, "-d", str(source / ".doctrees"), str(source), str(out)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))}
    subprocess.run([sys.executable, "-m", "sphinx", *words], check=True, env=environment)


def main() -> None:
    """Run, write, build."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="the folder of the site")
    parser.add_argument("--builder", default="html", help="Sphinx's: html, linkcheck ...; or notebooks")
    args = parser.parse_args()
    if args.builder == "notebooks":
        write_notebooks(ROOT / "docs", args.out)
        print(f"written: {args.out}")
        return
    with TemporaryDirectory() as folder:
        write_pages(ROOT / "docs", Path(folder))
        write_reference(Path(folder) / "reference")
        make_site(Path(folder), args.out.resolve(), args.builder)
    print(f"written: {args.out}")


if __name__ == "__main__":
    main()
