"""Every link of a page to a file or a heading of the repository leads somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), ROOT / "recipes" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)\s#]*)(?:#([^)\s]+))?\)")


def prose(page: Path) -> str:
    """A page without its code."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]+`", lambda code: code[0].replace("](", "] ("), text)


def anchors(page: Path) -> set[str]:
    """The names of a page's headings, as GitHub and MyST make them."""
    headings = re.findall(r"^#+ (.*)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_have_existing_targets(page):
    for name, anchor in LINK.findall(prose(page)):
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{page}: {name}"
        assert target.is_file() or page.parent == ROOT, f"{page}: {name} is a folder, of which the site has no page"
        assert not anchor or target.suffix != ".md" or anchor in anchors(target), f"{page}: {name}#{anchor}"


def test_anchors_of_headings(tmp_path):
    (tmp_path / "page.md").write_text("# From the paper's layers, to `c_d`\n\n```\n# no heading\n```\n\n## Read-me\n")
    assert anchors(tmp_path / "page.md") == {"from-the-papers-layers-to-c_d", "read-me"}


def test_llms_txt_has_the_standard_form_and_links_every_guide():
    """A title, a quoted summary, prose, and sections of links with notes: https://llmstxt.org."""
    docs = ROOT / "docs"
    title, summary, *parts = re.split(r"\n\n", (docs / "llms.txt").read_text("utf-8").strip())
    assert re.fullmatch(r"# \w+", title) and all(line.startswith("> ") for line in summary.splitlines())
    sections = parts[next(i for i, part in enumerate(parts) if part.startswith("## ")) :]
    assert all(re.fullmatch(r"## [\w ]+", heading) for heading in sections[::2])
    links = [
        re.fullmatch(r"- \[[^\]]+\]\(([^)]+)\): .+", line) for part in sections[1::2] for line in part.splitlines()
    ]
    assert all(links)
    paths = {(docs / link[1]).resolve() for link in links if link}
    assert all(path.is_file() for path in paths)
    assert paths >= {path.resolve() for path in (docs / "guides").glob("*.md")}
