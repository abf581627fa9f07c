"""The pictures of `benchmarks.shuffling`: orders, their numbers over window sizes, losses.

The paper is white, whatever the page's is, so that they can be read on dark pages too.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from tqdm import tqdm

import windrow
from benchmarks.pictures import FAINT, INK, PAPER, RULE, style, title, write

_GLOBAL, _NONE, _SLIDING = "#0969da", "#57606a", "#8250df"
_BLOCKS = ("#7d2b00", "#bc4c00", "#e16f24", "#f5a45d")  # from few blocks in a window to many
WINDOWS = tuple(2**k for k in range(14))
_LAST = 10  # of a curve's looks at the test data count as its end


class Losses(TypedDict):
    """The losses on the test data.

    `steps` of training at which they were looked at; `curves` by order, one for each seed; `quality`
    of each order, as JSON has it.
    """

    steps: list[int]
    curves: dict[str, list[list[float]]]
    quality: dict[str, dict[str, Any]]


def at_the_end(curves: Sequence[Sequence[float]]) -> list[float]:
    """The mean of the last losses of each curve."""
    return [float(np.mean(curve[-_LAST:])) for curve in curves]


def draw(folder: Path, found: Losses, windows: Sequence[int] = WINDOWS) -> None:
    """Write the three pictures as PNG files; the numbers are drawn over `windows`, in blocks."""
    folder.mkdir(parents=True, exist_ok=True)
    draw_orders(folder / "shuffle_orders.png")
    draw_quality(folder / "shuffle_quality.png", windows)
    draw_losses(folder / "shuffle_losses.png", found)


# --- which record comes when ---------------------------------------------------------------------

_RECORDS, _BLOCK, _BATCH = 4_800, 60, 64


def draw_orders(path: Path) -> None:
    """Records by position in several orders, with their numbers."""
    data = windrow.MapDataset.range(_RECORDS)
    orders = [
        ("no shuffle", data, _NONE),
        ("window_shuffle\nwindows of 960 records", data.window_shuffle(960, 1), _SLIDING),
        ("block_shuffle\nwindows of 4 blocks", _in_blocks(data, 4), _BLOCKS[1]),
        ("block_shuffle\nwindows of 16 blocks", _in_blocks(data, 16), _BLOCKS[2]),
        ("shuffle\nover the whole epoch", data.shuffle(1), _GLOBAL),
    ]
    figure = Figure(figsize=(11.5, 3.5), facecolor=PAPER)
    for place, (name, chain, colour) in enumerate(orders):
        axis = figure.add_axes((0.048 + 0.1915 * place, 0.205, 0.168, 0.575))
        axis.scatter(
            np.arange(_RECORDS), chain.read(range(_RECORDS)), s=0.9, color=colour, linewidths=0
        )
        axis.set(xlim=(0, _RECORDS), ylim=(0, _RECORDS), xticks=[0, _RECORDS], yticks=[])
        axis.set_xticks([0, _RECORDS], ["0", f"{_RECORDS:,}"])
        axis.set_title(name, fontsize=10, color=INK, fontweight="bold", loc="left")
        axis.spines[:].set_color(RULE)
        axis.tick_params(colors=FAINT, labelsize=8.5, length=0)
        first, last = axis.xaxis.get_ticklabels()
        first.set_horizontalalignment("left")
        last.set_horizontalalignment("right")
        quality = windrow.shuffle_quality(chain.batch(_BATCH), block=_BLOCK)
        blocks, ratio = quality.blocks_per_batch, quality.variance_ratio
        if blocks is not None and ratio is not None:
            below = f"{_about(blocks)} blocks in a batch\nvariance ratio {_about(ratio)}"
            axis.text(
                0, -0.14, below, transform=axis.transAxes, va="top", fontsize=9.5, color=colour
            )
        if not place:
            axis.set_yticks([0, _RECORDS], ["0", f"{_RECORDS:,}"])
            first, last = axis.yaxis.get_ticklabels()
            first.set(verticalalignment="bottom", rotation=90)
            last.set(verticalalignment="top", rotation=90)
            axis.set_ylabel("record", color=FAINT, fontsize=9.5, labelpad=-6)
    head = (
        f"which record comes at which position: {_RECORDS:,} records in blocks of {_BLOCK}, batches"
        f" of {_BATCH}"
    )
    figure.text(0.048, 0.945, head, fontsize=10.5, color=FAINT)
    figure.savefig(path, dpi=120)


def _in_blocks(data: windrow.MapDataset[Any], window_blocks: int) -> windrow.MapDataset[Any]:
    return data.block_shuffle(1, block=_BLOCK, window_blocks=window_blocks)


def _about(number: float) -> str:
    return f"{number:.0f}" if number >= 9.95 else f"{number:.1f}"


# --- the numbers over window sizes ---------------------------------------------------------------

_MANY, _CHUNK = 1_000_000, 100
_SIZES = (32, 256)


def draw_quality(path: Path, windows: Sequence[int] = WINDOWS) -> None:
    """Both numbers over the records in a window, of `block_shuffle` and `window_shuffle`."""
    figure = Figure(figsize=(11.5, 5), facecolor=PAPER)
    left = figure.add_axes((0.062, 0.115, 0.41, 0.735))
    right = figure.add_axes((0.553, 0.115, 0.41, 0.735))
    data = windrow.MapDataset.range(_MANY)
    records = np.minimum(_CHUNK * np.array(windows), _MANY)
    for size, dashes in zip(_SIZES, ((0, (4, 1.5)), "-"), strict=True):
        for colour, width, chains in (
            (_BLOCKS[1], 3.2, [_chunks(data, w).batch(size) for w in windows]),
            (_SLIDING, 1.4, [data.window_shuffle(int(n), 1).batch(size) for n in records]),
        ):
            ratios, blocks = _both(chains)
            left.plot(records, ratios, color=colour, lw=width, ls=dashes)
            right.plot(records, blocks, color=colour, lw=width, ls=dashes)
        left.plot(records, 1 + size / np.array(windows), color=FAINT, lw=1.2, ls=":", zorder=1)
        shuffled = windrow.shuffle_quality(data.batch(size), block=_CHUNK)
        if shuffled.blocks_per_batch_shuffled is not None:
            level = shuffled.blocks_per_batch_shuffled
            right.axhline(level, color=_GLOBAL, lw=1.4, ls=dashes, zorder=0)
    left.axhline(1, color=_GLOBAL, lw=1.4, zorder=0)
    for axis in (left, right):
        style(axis)
        axis.set(xscale="log", yscale="log", ylim=(0.6, 500))
        axis.set_xlim(records[0] / 1.15, records[-1] * 1.15)
        axis.set_xticks([10**k for k in range(2, 7)], [f"{10**k:,}" for k in range(2, 7)])
        axis.xaxis.set_minor_locator(NullLocator())
        _plain_numbers(axis.yaxis)
        axis.set_xlabel("records in a window", color=INK, fontsize=10)
    title(left, "variance ratio: 1 is a global shuffle")
    title(right, "different blocks in a batch")
    write(left, "window_shuffle, batches of 256", (2_500, 256), 7, _SLIDING)
    write(left, "of 32", (60_000, 32), 6, _SLIDING)
    write(left, "block_shuffle, batches of 256", (2_000, 14), 6, _BLOCKS[1])
    write(left, "of 32", (380, 4.3), -3, _BLOCKS[1])
    write(left, "1 + batch size / blocks in a window", (330, 80), 2, FAINT, fontweight="normal")
    write(left, "global shuffle", (108, 1), -14, _GLOBAL)
    write(right, "global shuffle, batches of 256", (108, 256), 7, _GLOBAL)
    write(right, "of 32", (108, 32), 6, _GLOBAL)
    write(right, "block_shuffle and", (7_500, 38), 14, _BLOCKS[1])
    write(right, "window_shuffle alike", (7_500, 38), 1, _SLIDING)
    head = f"{_MANY:,} records in blocks of {_CHUNK}, batches of 32 (dashed) and 256"
    figure.text(0.062, 0.95, head, fontsize=10.5, color=FAINT)
    figure.savefig(path, dpi=120)


def _chunks(data: windrow.MapDataset[Any], window_blocks: int) -> windrow.MapDataset[Any]:
    return data.block_shuffle(1, block=_CHUNK, window_blocks=window_blocks)


def _both(chains: Sequence[windrow.MapDataset[Any]]) -> tuple[list[Any], list[Any]]:
    """Variance ratios and blocks in a batch of each chain."""
    found = [
        windrow.shuffle_quality(chain, block=_CHUNK)
        for chain in tqdm(chains, "quality", unit="chain", disable=None)
    ]
    return [each.variance_ratio for each in found], [each.blocks_per_batch for each in found]


# --- losses --------------------------------------------------------------------------------------


def draw_losses(path: Path, found: Losses) -> None:
    """Losses by training step, and at the end by the number of the order."""
    figure = Figure(figsize=(11.5, 5), facecolor=PAPER)
    left = figure.add_axes((0.052, 0.11, 0.535, 0.81))
    right = figure.add_axes((0.655, 0.11, 0.325, 0.81))
    names = list(found["curves"])
    between = [*_BLOCKS[::-1], *[_BLOCKS[0]] * len(names)][: len(names) - 2]
    for name, colour in reversed(list(zip(names, (_GLOBAL, *between, _NONE), strict=True))):
        low, middle, high = np.quantile(found["curves"][name], [0.1, 0.5, 0.9], axis=0)
        left.fill_between(found["steps"], low, high, color=colour, alpha=0.2, lw=0)
        left.plot(found["steps"], middle, color=colour, lw=1.6, label=name)
        ends = at_the_end(found["curves"][name])
        ratio = found["quality"][name]["variance_ratio"]
        right.plot([ratio, ratio], [min(ends), max(ends)], color=colour, lw=2.4)
        right.plot(ratio, np.median(ends), "o", ms=8, color=colour)
        words = name.replace("block_shuffle, windows of ", "")
        is_best = name == names[0]  # its label would meet that of the next one
        corner = (ratio, min(ends) if is_best else max(ends))
        write(right, words, corner, -18 if is_best else 8, colour, ha="center")
    for axis in (left, right):
        style(axis)
        axis.set(yscale="log")
        _plain_numbers(axis.yaxis)
    left.set_xlim(0, found["steps"][-1])
    left.set_ylim(None, 60)  # room for the legend
    left.set_xlabel("train step", color=INK, fontsize=10)
    left.legend(
        *(side[::-1] for side in left.get_legend_handles_labels()),
        loc="upper left",
        ncols=2,
        frameon=False,
        fontsize=9.5,
        labelcolor=INK,
        handlelength=1.6,
    )
    right.set(xscale="log")
    right.set_xticks([1, 2, 5, 10, 20, 50, 100], ["1", "2", "5", "10", "20", "50", "100"])
    right.xaxis.set_minor_locator(NullLocator())
    right.set_xlim(0.38, 130)
    bottom, top = right.get_ylim()
    right.set_ylim(0.75 * bottom, 1.25 * top)
    right.set_xlabel("variance ratio; of block_shuffle by its windows", color=INK, fontsize=10)
    seeds = len(found["curves"][names[0]])
    title(left, f"loss on digits that were not trained on, {seeds} seeds")
    title(right, "mean of the last epoch")
    figure.savefig(path, dpi=120)


def _plain_numbers(axis: Any) -> None:
    """1, 2, 5, 10 rather than powers."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(LogLocator(subs=(2, 5)))
    axis.set_minor_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_tick_params(which="minor", labelsize=8.5, labelcolor=FAINT, color=FAINT)
