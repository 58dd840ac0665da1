"""The Korean tutorials are text alone: their code is that of the English ones, taken by number, all of it and in order."""

import re
from pathlib import Path

import pytest

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"
CELL = re.compile(r"^# %%.*$", flags=re.MULTILINE)


def cells(path: Path) -> list[tuple[str, str]]:
    """The marker and the body of every cell."""
    text = path.read_text(encoding="utf-8")
    got = list(CELL.finditer(text))
    stops = [each.start() for each in got[1:]] + [len(text)]
    return [(each[0], text[each.end() : stop].strip()) for each, stop in zip(got, stops, strict=True)]


@pytest.mark.parametrize("korean", sorted((TUTORIALS / "ko").glob("*_*.py")), ids=lambda path: path.stem)
def test_a_korean_tutorial_names_every_code_cell_once_and_in_order(korean):
    english = cells(TUTORIALS / korean.name)
    got, n_code = cells(korean), 0
    assert len(got) == len(english) > 30
    for (marker, body), (original, other) in zip(got, english, strict=True):
        if "[markdown]" in original:
            assert marker.startswith("# %% [markdown]")
            assert all(line.startswith("#") for line in body.splitlines())
            headings = [re.findall(r"^# (#+) ", text, flags=re.MULTILINE) for text in (body, other)]
            assert headings[0] == headings[1]
            assert re.search("[가-힣]", body)
        else:
            n_code += 1
            assert (marker, body) == (f"# %% [code {n_code}]", "")
