"""Pictures of matrices, all in one style, which the tutorials share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

BLUE, ORANGE, GREEN, PINK, GREY = "#2b6cb0", "#dd6b20", "#2f855a", "#b83280", "#718096"


@dataclass
class Matrix:
    """Numbers, and what stands above them, to the left and at the top; NaN is an empty cell."""

    values: object
    rows: Sequence[str] = ()
    columns: Sequence[str] = ()
    name: str = ""
    digits: int | None = None
    """Decimals; None: as many as the number needs, two at most. -1: no numbers."""
    bright: Sequence[int] = ()
    """Rows with a frame around them."""

    def __post_init__(self) -> None:
        self.values = np.atleast_2d(np.asarray(self.values, dtype=float))
        self.left = 0.2 + 0.24 * max(map(len, self.rows), default=0)
        """Cells that the names of the rows take."""
        self.names = 0.3 + 0.21 * max(map(len, self.columns), default=0)
        self.above = self.names * bool(self.columns) + 0.9 * bool(self.name)
        """Cells that stand above the numbers."""


def equation(*parts: Matrix | str, title: str = "") -> None:
    """Draw matrices, and signs between them, side by side with cells of one size."""
    matrices = [part for part in parts if isinstance(part, Matrix)]
    height = max(len(matrix.values) for matrix in matrices)
    above = max(
        0.1, *(matrix.above - (height - len(matrix.values)) / 2 for matrix in matrices), 0.1
    )
    widths = [
        part.left + part.values.shape[1] if isinstance(part, Matrix) else 1.1 for part in parts
    ]
    cell = min(0.45, 5.8 / (sum(widths) + 0.2))
    figure = plt.figure(figsize=(6, cell * (height + above + 0.1) + (0.35 if title else 0.0)))
    axes = figure.subplots()
    spare = (5.9 / cell - sum(widths)) / 2
    axes.set(xlim=(-spare, sum(widths) + spare), ylim=(height + 0.1, -above), aspect="equal")
    axes.axis("off")
    axes.set_title(title)
    size, here = min(10.0, 23 * cell), 0.0
    for part, width in zip(parts, widths, strict=True):
        if isinstance(part, str):
            axes.text(
                here + 0.55, height / 2, part, ha="center", va="center", fontsize=1.5 * size
            )
        else:
            _draw(axes, part, here + part.left, (height - len(part.values)) / 2, size)
        here += width


def _draw(axes: Axes, matrix: Matrix, left: float, top: float, size: float) -> None:
    n_rows, n_columns = matrix.values.shape
    known = matrix.values[np.isfinite(matrix.values)]
    most = max(np.abs(known).max(initial=0.0), 1e-9)
    signed = known.min(initial=0.0) < 0
    for i in range(n_rows):
        for j in range(n_columns):
            value = matrix.values[i, j]
            share = value / most if np.isfinite(value) else 0.0
            color = (
                plt.get_cmap("RdBu")(0.5 + 0.33 * share)
                if signed
                else plt.get_cmap("Blues")(0.75 * share)
            )
            axes.add_patch(
                Rectangle(
                    (left + j, top + i), 1, 1, facecolor=color, edgecolor="white", linewidth=1
                )
            )
            if np.isnan(value) or matrix.digits == -1:
                continue
            said = (
                f"{value:.{matrix.digits}f}"
                if matrix.digits is not None
                else f"{round(value, 2):g}"
            )
            said = said.replace("-inf", "−∞").replace("-", "−")
            place = left + j + 0.5, top + i + 0.5
            dark = abs(share) > 0.65
            color = "white" if dark else "#a0aec0" if value == 0 else "black"
            axes.text(*place, said, ha="center", va="center", fontsize=size, color=color)
    for i, row in enumerate(matrix.rows):
        axes.text(left - 0.15, top + i + 0.5, row, ha="right", va="center", fontsize=size)
    for j, column in enumerate(matrix.columns):
        axes.text(
            left + j + 0.5,
            top - 0.15,
            column,
            ha="center",
            va="bottom",
            fontsize=size,
            rotation=90,
        )
    for i in matrix.bright:
        axes.add_patch(
            Rectangle((left, top + i), n_columns, 1, fill=False, edgecolor=ORANGE, linewidth=2)
        )
    place = left + n_columns / 2, top - matrix.names * bool(matrix.columns) - 0.2
    axes.text(*place, matrix.name, ha="center", va="bottom", fontsize=size, style="italic")


def heatmap(
    axes: Axes,
    values: object,
    rows: Sequence[str],
    columns: Sequence[str],
    title: str,
    **style: object,
) -> None:
    """Draw a large matrix by its colours alone."""
    axes.imshow(np.asarray(values, dtype=float), aspect="auto", **style)
    axes.set_yticks(range(len(rows)), rows)
    axes.set_xticks(range(len(columns)), columns, rotation=90)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_title(title)


def chain(paths: Mapping[tuple[str, ...], float], title: str) -> None:
    """Draw which state follows which, and with what share, for paths that occur so often."""
    column: dict[str, int] = {}
    arrows: dict[tuple[str, str], float] = {}
    for path, share in paths.items():
        for place, state in enumerate(path):
            column[state] = max(place, column.get(state, 0))
        for step in pairwise(path):
            arrows[step] = arrows.get(step, 0.0) + share
    places = {}
    for here in range(max(column.values()) + 1):
        there = [state for state in column if column[state] == here]
        places |= {state: (here, (len(there) - 1) / 2 - i) for i, state in enumerate(there)}
    rows = [y for _, y in places.values()]
    axes = plt.figure(figsize=(6, 1.3 + 0.45 * (max(rows) - min(rows)))).subplots()
    axes.axis("off")
    axes.set(xlim=(-0.4, here + 0.4), ylim=(min(rows) - 0.6, max(rows) + 0.6), title=title)
    for (one, other), n in arrows.items():
        share = n / sum(each for (first, _), each in arrows.items() if first == one)
        far = column[other] - column[one] > 1
        color = ORANGE if share < 1 else GREY
        axes.annotate(
            "",
            places[other],
            places[one],
            arrowprops={
                "arrowstyle": "-|>",
                "color": color,
                "linewidth": 2.5 * share,
                "shrinkA": 18,
                "shrinkB": 18,
                "connectionstyle": f"arc3,rad={0.35 if far else 0}",
            },
        )
        if share < 1:
            (x0, y0), (x1, y1) = places[one], places[other]
            middle = (x0 + x1) / 2, (y0 + y1) / 2 - (0.45 if far else -0.2)
            axes.text(
                *middle,
                f"{share:.1f}",
                color=color,
                ha="center",
                va="center",
                fontsize=8,
                bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none"},
            )
    box = {"boxstyle": "round", "facecolor": "white", "edgecolor": BLUE}
    for state, place in places.items():
        axes.text(*place, state, ha="center", va="center", fontsize=8, bbox=box)


def shapes(
    steps: Sequence[tuple[str, int, int, int, str]], title: str, *, cell: float = 0.1
) -> None:
    """Draw matrices side by side as rectangles: name, how many there are, rows, columns, colour."""
    axes = plt.figure(figsize=(6, 2.2)).subplots()
    axes.axis("off")
    here, most = 0.0, max(rows for _, _, rows, _, _ in steps)
    for name, n, rows, columns, color in steps:
        width = columns * cell
        for behind in reversed(range(n)):
            corner = here + 0.3 * behind, 0.4 * behind - rows / 2
            axes.add_patch(
                Rectangle(corner, width, rows, facecolor=color, edgecolor="white", alpha=0.6)
            )
        said = f"{rows} × {columns}" if n == 1 else f"{n} of\n{rows} × {columns}"
        axes.text(here + width / 2, 0, said, ha="center", va="center", fontsize=7)
        axes.text(here + width / 2, -most / 2 - 0.7, name, ha="center", va="top", fontsize=6.5)
        here += width + 0.3 * (n - 1) + 0.9
    axes.set(xlim=(-0.3, here), ylim=(-most / 2 - 4, most / 2 + 1.5), title=title)
