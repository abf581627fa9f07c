"""Draws the pictures of how a plan reads and how a batch comes to be, docs/images/plan.svg and batch.svg.

    python -m tools.draw_pages

They have a background of their own, so that they are legible on light and on dark pages.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

IMAGES: Final = Path(__file__).resolve().parent.parent / "docs" / "images"
PAPER, INK, GREY, PALE = "#f6f8fa", "#1f2933", "#7b8794", "#e4e7eb"
# One colour for each chunk.
COLOURS: Final = ("#4c9f9a", "#e2a33d", "#7d6fb3", "#c9605b")
CHUNKS, ROWS = 4, 4  # chunks, and records of each
ORDER: Final = (9, 2, 12, 5, 0, 14, 7, 10, 13, 4, 3, 8, 11, 6, 15, 1)
BATCH = 4

Box = tuple[float, float]


def chart(width: float, height: float, size: tuple[float, float]) -> tuple[Figure, Any]:
    """An empty picture of `size` inches, whose units are cells."""
    figure = Figure(figsize=size, facecolor=PAPER)
    axis = figure.add_axes((0, 0, 1, 1))
    axis.set(xlim=(0, width), ylim=(height, 0))
    axis.axis("off")
    return figure, axis


def cell(axis: Any, at: Box, record: int | None, *, faded: bool = False) -> None:
    """A record, in the colour of its chunk; None is a place that is still empty."""
    colour = PALE if record is None or faded else COLOURS[record // ROWS]
    axis.add_patch(Rectangle(at, 0.92, 0.92, facecolor=colour, edgecolor="white"))
    if record is not None:
        ink = GREY if faded else "white"
        text(axis, (at[0] + 0.46, at[1] + 0.48), str(record), colour=ink, ha="center")


def chunk(axis: Any, at: Box, number: int, *, faded: bool = False) -> None:
    """A chunk: its records in a frame."""
    for row in range(ROWS):
        cell(axis, (at[0] + row, at[1]), number * ROWS + row, faded=faded)
    frame = (at[0] - 0.12, at[1] - 0.12)
    axis.add_patch(Rectangle(frame, ROWS + 0.16, 1.16, fill=False, edgecolor=INK, linewidth=1.1))


def text(axis: Any, at: Box, what: str, *, colour: str = INK, size: float = 9, **how: Any) -> None:
    """A line, its middle at the height of `at`."""
    axis.text(*at, what, color=colour, fontsize=size, va="center", **how)


def arrow(axis: Any, start: Box, end: Box, colour: str = GREY) -> None:
    """An arrow from one place to another."""
    style: dict[str, Any] = {
        "arrowstyle": "-|>",
        "mutation_scale": 9,
        "linewidth": 1.0,
        "shrinkA": 1,
        "shrinkB": 1,
    }
    axis.add_patch(FancyArrowPatch(start, end, color=colour, **style))


def plan() -> Figure:
    """The chunks that two batches of a shuffled order take: read by record, and planned."""
    figure, axis = chart(20, 25.2, (5.4, 6.8))
    first = ORDER[: 2 * BATCH]
    left = 0.8
    places = [left + number * 4.7 + ROWS / 2 for number in range(CHUNKS)]
    for top, is_planned in ((0.0, False), (12.6, True)):
        title = "planned" if is_planned else "record by record"
        text(axis, (left, top + 0.9), title, size=11, weight="bold")
        for number in range(CHUNKS):
            chunk(axis, (left + number * 4.7, top + 9.0), number)
        for step, record in enumerate(first):
            at = (left + 4.2 + step + (1.2 if step >= BATCH else 0), top + 3.1)
            cell(axis, at, record)
            if not is_planned:
                start = (places[record // ROWS] + (step - 3.5) * 0.28, top + 8.8)
                arrow(axis, start, (at[0] + 0.46, top + 4.2), COLOURS[record // ROWS])
        if is_planned:
            for number in range(CHUNKS):
                end = (left + 5.2 + number * 2.45, top + 6.5)
                arrow(axis, (places[number], top + 8.8), end, COLOURS[number])
            corner = (left + 3.9, top + 5.2)
            axis.add_patch(Rectangle(corner, 10.0, 1.3, facecolor="white", edgecolor=INK))
            text(axis, (left + 8.9, top + 5.85), "chunk cache", ha="center")
            for middle in (left + 6.2, left + 11.4):
                arrow(axis, (middle, top + 5.1), (middle, top + 4.2))
        for number, name in enumerate(("batch 1", "batch 2")):
            text(axis, (left + 6.2 + number * 5.2, top + 2.4), name, colour=GREY, ha="center")
        reads = len({x // ROWS for x in first}) if is_planned else len(first)
        how = "each chunk once, for both batches" if is_planned else "a chunk again for each record"
        text(axis, (left, top + 11.1), f"{reads} reads: {how}", size=10)
    return figure


def batch() -> Figure:
    """How a batch comes to be, in five steps."""
    figure, axis = chart(30, 23.5, (6.6, 5.17))
    at = {"positions": 1.2, "indices": 5.4, "chunks": 10.4, "columns": 15.6, "batch": 20.2}
    says = {
        "positions": ("1. Positions", "The iterator asks for\nthe next batch."),
        "indices": ("2. Indices", "The shuffle turns positions\ninto records. No data yet."),
        "chunks": ("3. Chunks", "Each chunk that is needed is\ndecoded once, into a slot."),
        "columns": ("4. Columns", "Rows are copied into one\narray for each field."),
        "batch": ("5. Batch", "Functions have run;\nthe queue holds it for the loop."),
    }
    for name, top in at.items():
        title, more = says[name]
        text(axis, (0.6, top + 0.1), title, size=10.5, weight="bold")
        axis.text(0.6, top + 0.8, more, color=INK, fontsize=8.5, va="top")
    left = 11.5
    taken = ORDER[:BATCH]
    for step, record in enumerate(taken):
        x = left + 6.6 + step
        cell(axis, (x, at["positions"]), None)
        text(axis, (x + 0.46, at["positions"] + 0.48), str(step), ha="center")
        arrow(axis, (x + 0.46, at["positions"] + 1.1), (x + 0.46, at["indices"] - 0.1))
        cell(axis, (x, at["indices"]), record)
        cell(axis, (x, at["columns"]), record)
    wanted = sorted({record // ROWS for record in taken})
    for number in range(CHUNKS):
        x = left + number * 4.6
        chunk(axis, (x, at["chunks"]), number, faded=number not in wanted)
        if number in wanted:
            column = next(k for k, record in enumerate(taken) if record // ROWS == number)
            up = (left + 7.06 + column, at["indices"] + 1.1)
            arrow(axis, up, (x + 2, at["chunks"] - 0.3), COLOURS[number])
    for column, record in enumerate(taken):
        start = (left + (record // ROWS) * 4.6 + record % ROWS + 0.46, at["chunks"] + 1.2)
        end = (left + 7.06 + column, at["columns"] - 0.1)
        arrow(axis, start, end, COLOURS[record // ROWS])
    text(axis, (left + 11, at["columns"] + 0.5), "image", colour=GREY)
    frame = Rectangle((left + 6.4, at["batch"] - 0.25), 4.4, 1.45, facecolor="white", edgecolor=INK)
    axis.add_patch(frame)
    for column, record in enumerate(taken):
        cell(axis, (left + 6.6 + column, at["batch"]), record)
    arrow(axis, (left + 8.6, at["columns"] + 1.1), (left + 8.6, at["batch"] - 0.35))
    text(axis, (left + 11, at["batch"] + 0.5), "next(iterator)", colour=GREY)
    return figure


def save(figure: Figure, path: Path, about: str | None = None) -> None:
    """Write a picture, the same bytes each time; `about` is a line of its metadata."""
    settings: dict[Any, Any] = {"svg.hashsalt": path.stem, "svg.fonttype": "path"}
    with mpl.rc_context(settings):
        figure.savefig(
            path, facecolor=PAPER, metadata={"Date": None, "Creator": None, "Description": about}
        )


def main() -> None:
    """Draw all of them."""
    assert sorted(ORDER) == list(np.arange(CHUNKS * ROWS))
    save(plan(), IMAGES / "plan.svg")
    save(batch(), IMAGES / "batch.svg")


if __name__ == "__main__":
    main()
