"""The manual: every tutorial runs, and pages, pictures and links come out as scripts/ops/build_docs.py says."""

import re
import traceback
from dataclasses import fields
from pathlib import Path
from subprocess import CalledProcessError

import nbformat
import pytest
from nbclient import NotebookClient

from scripts.ops.build_docs import (
    TUTORIALS,
    Cell,
    command_help,
    command_tables,
    make_site,
    module_page,
    read_cells,
    run,
    write_notebooks,
    write_pages,
)
from transduce.decode.config import BeamConfig, SamplingConfig

DOCS = Path(__file__).parents[1] / "docs"
PAGE = """\
# %% [markdown]
# # Squares
#
# See [more](../more.md), [notes](../../notes/NOTES.md#part) and [this](1_squares.py).

# %%
import numpy as np
from strokes import line

squares = np.arange(4) ** 2
print(squares.tolist())

# %% tags=["hide-input"]
line(squares)
"""
STROKES = """\
import matplotlib.pyplot as plt


def line(numbers):
    plt.plot(numbers)
    plt.title("Squares [of numbers]")
"""


@pytest.mark.parametrize("path", sorted(DOCS.glob(TUTORIALS)), ids=lambda path: f"{path.parent.name}/{path.stem}")
@pytest.mark.train
@pytest.mark.nightly
def test_every_tutorial_becomes_a_page(path, tmp_path):
    """The Korean ones have the code of the English ones, as tests/docs/test_korean.py sees."""
    run(path, tmp_path / "page.md")
    assert (tmp_path / "page.md").read_text().startswith("# ")


@pytest.fixture
def notebooks(once) -> Path:
    return once("notebooks", lambda folder: write_notebooks(DOCS, folder))


@pytest.mark.parametrize("name", [path.stem for path in sorted((DOCS / "tutorials").glob("[0-9]*_*.py"))])
@pytest.mark.process
@pytest.mark.train
@pytest.mark.long
def test_jupyter_runs_every_tutorial(name, notebooks, monkeypatch):
    """The kernel takes this package, wherever it is installed."""
    monkeypatch.setenv("PYTHONPATH", str(DOCS.parent))
    tutorial = nbformat.read(notebooks / f"{name}.ipynb", as_version=4)
    nbformat.validate(tutorial)
    done = NotebookClient(tutorial, timeout=600, resources={"metadata": {"path": str(notebooks)}}).execute()
    outputs = [output for cell in done.cells if cell.cell_type == "code" for output in cell.outputs]
    assert not [each for each in outputs if each.output_type == "error"]
    pictures = [each for each in outputs if "image/png" in each.get("data", {})]
    drawn = [cell for cell in done.cells if "hide-input" in cell.metadata.get("tags", [])]
    assert len(pictures) >= max(len(drawn), 1)


@pytest.fixture
def docs(tmp_path):
    """A repository with a manual of two pages, of which one is a tutorial, and a page elsewhere."""
    files = {
        "docs/index.md": "# Home\n\n```{toctree}\n:glob:\n\n*\ntutorials/*\nrepository/**\n```\n",
        "docs/more.md": "# More\n\nHere is [the home](index.md), and `a[0](index.md)`.\n\n[![A](a.svg)](a.svg)\n",
        "docs/a.svg": '<svg xmlns="http://www.w3.org/2000/svg"><a href="../notes/code.py"><text>code</text></a></svg>\n',
        "docs/conf.py": (DOCS / "conf.py").read_text(),
        "docs/tutorials/1_squares.py": PAGE,
        "docs/tutorials/strokes.py": STROKES,
        "notes/NOTES.md": "# Notes\n\n## Part\n\nBack to [more](../docs/more.md), [code](code.py) and [squares].\n"
        "\n[squares]: ../docs/tutorials/1_squares.py\n",
        "notes/code.py": "print(1)\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path / "docs"


def test_cells_are_parsed_from_markers():
    assert read_cells(
        '# %% [markdown]\n# # Title\n#\n# Text\n\n# %%\na = 1\n\n\n# %% tags=["hide-input"]\nb = "# %%"'
    ) == [
        Cell("markdown", "# Title\n\nText", 2),
        Cell("code", "a = 1", 7),
        Cell("hidden", 'b = "# %%"', 11),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "import os\n# %%\n",
            'a tutorial begins with a cell, "# %%" or "# %% [markdown]", but something stands before it',
        ),
        ("# %% [markdown]\n# Text\n#text\n", "a line of Markdown begins with \"# \", but line 3 is '#text'"),
    ],
)
def test_a_file_in_another_format_is_refused(text, message):
    with pytest.raises(ValueError) as error:
        read_cells(text)
    assert str(error.value) == message


def test_a_page_has_the_output_and_plots_of_its_cells(docs, tmp_path):
    here = Path.cwd()
    run(docs / "tutorials" / "1_squares.py", tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    assert page.startswith("# Squares\n\nSee [more]")
    assert "print(squares.tolist())\n```\n\n```text\n[0, 1, 4, 9]\n```\n\n![Squares  of numbers ](page_3_1.png)" in page
    assert page.index("<details>") < page.index("line(squares)") < page.index("</details>")
    assert (tmp_path / "page_3_1.png").read_bytes().startswith(b"\x89PNG")
    assert Path.cwd() == here


def test_a_translated_tutorial_runs_the_original_code(docs, tmp_path):
    path = docs / "tutorials" / "ko" / "1_squares.py"
    path.parent.mkdir()
    path.write_text("# %% [markdown]\n# # 제곱\n\n# %% [code 1]\n\n# %% [code 2]\n")
    run(path, tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    assert page.startswith("# 제곱\n") and "[0, 1, 4, 9]" in page and (tmp_path / "page_3_1.png").exists()


def test_notebooks_have_the_cells_and_correct_links(docs, tmp_path):
    out = tmp_path / "notebooks"
    write_notebooks(docs, out)
    book = nbformat.read(out / "1_squares.ipynb", as_version=4)
    nbformat.validate(book)
    assert [cell.cell_type for cell in book.cells] == ["markdown", "code", "code"]
    assert book.cells[1].source == PAGE.split("# %%\n")[1].split("\n\n# %%")[0]
    assert [bool(cell.metadata) for cell in book.cells] == [False, False, True]
    links = re.findall(r"\]\((.*?)\)", book.cells[0].source)
    assert links == ["../docs/more.md", "../notes/NOTES.md#part", "1_squares.ipynb"]
    assert (out / "strokes.py").is_file() and "figure.figsize: 6, 3.2\n" in (out / "matplotlibrc").read_text()


def test_an_error_in_a_tutorial_names_its_line(docs, tmp_path):
    path = docs / "tutorials" / "1_squares.py"
    path.write_text(PAGE.replace("print(squares", "assert not any(squares"))
    with pytest.raises(AssertionError) as error:
        run(path, tmp_path / "page.md")
    last = traceback.extract_tb(error.value.__traceback__)[-1]
    assert (last.filename, last.lineno) == (str(path), 11)


@pytest.mark.process
@pytest.mark.long
def test_a_site_is_built_without_the_network(docs, tmp_path):
    pytest.importorskip("furo")
    source, out = tmp_path / "source", tmp_path / "site"
    source.mkdir()
    write_pages(docs, source)
    make_site(source, out)
    page = (out / "tutorials" / "1_squares.html").read_text()
    for link in ("../more.html", "../repository/notes/NOTES.html#part", "../_images/1_squares_3_1.png"):
        assert f'"{link}"' in page, link
    assert (out / "_images" / "1_squares_3_1.png").exists()
    notes = (out / "repository" / "notes" / "NOTES.html").read_text()
    assert 'href="../../more.html"' in notes and 'href="../../tutorials/1_squares.html"' in notes
    assert "print" in (out / "repository" / "notes" / "code.py.html").read_text()
    assert (
        '<svg xmlns="http://www.w3.org/2000/svg"><a href="repository/notes/code.py.html">'
        in (out / "more.html").read_text()
    )
    assert "a[0](index.md)" in (out / "more.html").read_text()
    assert 'src="http' not in page and '<link href="http' not in page


@pytest.mark.process
@pytest.mark.long
@pytest.mark.parametrize("link", ["[gone](gone.md)", "[part](more.md#gone)"])
def test_a_broken_link_is_an_error(link, docs, tmp_path, capfd):
    pytest.importorskip("furo")
    (docs / "broken.md").write_text(f"# Broken\n\n{link}\n")
    (docs / "tutorials" / "1_squares.py").unlink()
    source = tmp_path / "source"
    source.mkdir()
    write_pages(docs, source)
    with pytest.raises(CalledProcessError):
        make_site(source, tmp_path / "site")
    assert "gone" in capfd.readouterr().err


def test_the_reference_has_every_public_name_and_every_flag():
    page = module_page("transduce", "import transduce as td")
    assert ".. autofunction:: transduce.load\n" in page
    assert ".. autoclass:: transduce.Transformer\n   :members:" in page
    rows = dict(re.findall(r"^\| `(--[\w-]+).*?` \| (.+) \|$", command_tables(command_help("translate")), re.MULTILINE))
    assert {f"--{field.name.replace('_', '-')}" for field in fields(BeamConfig) + fields(SamplingConfig)} <= set(rows)
    assert (
        rows["--n-best"] == "Outputs per source, best first; samples in the order in which they are drawn. (the run's)"
    )


@pytest.mark.long
def test_the_reference_has_no_local_paths():
    page = command_help("train translation")
    assert "(default: recipes/data/commands)" in page and str(DOCS.parent) not in page
