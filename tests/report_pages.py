"""Chains for reports, and what is in their pages."""

from __future__ import annotations

import dataclasses
import html.parser
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import windrow
from windrow.sources import ZarrDataSource
from windrow.stats.stats import BlockTimes

HOSTILE = (
    "</script><script>alert(1)</script><img src=http://example.com/x.png onerror=alert(2)>&\"'"
)
_VOID = ("meta", "link", "img", "br", "input", "hr")


class Page(html.parser.HTMLParser):
    """What a page is made of: its tags in balance, its texts, its addresses, the values of charts."""

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self.text = Path(path).read_text(encoding="utf-8")
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.styles: list[str] = []
        self.open: list[str] = []
        self.ids: list[str] = []
        self._tables: list[tuple[list[str], list[list[str]]]] = []
        self.feed(self.text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.ids += [str(value) for name, value in attrs if name == "id"]
        if tag not in _VOID:
            self.open.append(tag)
        if tag == "table":
            self._tables.append(([], []))
        elif tag == "tr":
            self._tables[-1][1].append([])
        elif tag in ("th", "td"):
            self._tables[-1][1][-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts.append((self.tags[-1][1], data))
        elif self.open and self.open[-1] == "style":
            self.styles.append(data)
        elif data.strip():
            self.words.append(words := " ".join(data.split()))
            if "caption" in self.open:
                self._tables[-1][0].append(words)
            elif {"th", "td"} & set(self.open):
                row = self._tables[-1][1][-1]
                row[-1] = f"{row[-1]} {words}".strip()

    def charts(self) -> dict[str, dict[str, Any]]:
        """What each chart draws, by its name."""
        return {
            str(attrs["id"]).removesuffix("-values"): json.loads(data)
            for attrs, data in self.scripts
            if attrs.get("type") == "application/json"
        }

    def table(self, caption: str) -> list[list[str]]:
        """The cells, row by row, of the only table whose caption begins so."""
        (rows,) = (rows for words, rows in self._tables if " ".join(words).startswith(caption))
        return rows

    @property
    def said(self) -> str:
        """All its words."""
        return " ".join(self.words)

    @property
    def without_library(self) -> str:
        """The page without the code of the plotting library."""
        largest = max((data for _, data in self.scripts), key=len)
        return self.text.replace(largest, "")


def pictures_at(folder: Path) -> str:
    """A store of 600 pictures with labels, in chunks of 20."""
    group = zarr.create_group(folder / "pictures.zarr")
    image = np.arange(600 * 12 * 12, dtype=np.uint32) % 251
    group.create_array(
        "image", data=image.astype(np.uint8).reshape(600, 12, 12), chunks=(20, 12, 12)
    )
    group.create_array("label", data=np.arange(600) % 10, chunks=(20,))
    return str(folder / "pictures.zarr")


def brighter(element: dict[str, Any]) -> dict[str, Any]:
    """A function of a chain."""
    return {**element, "image": element["image"] // np.uint8(2)}


def chain_of_pictures(folder: Path) -> windrow.MapDataset[Any]:
    """The pictures, block-shuffled, mapped and in batches of 8."""
    source = ZarrDataSource(pictures_at(folder))
    dataset = windrow.MapDataset.source(source).block_shuffle(seed=1, window_blocks=4)
    return dataset.map(brighter).batch(8)


def chain_of_tokens() -> windrow.MapDataset[Any]:
    """Rows of tokens with a text each, of two sources that are mixed."""
    many = [{"tokens": np.arange(i, i + 40), "text": f"the text of {i} " * 4} for i in range(30)]
    few = [{"tokens": np.arange(9), "text": HOSTILE}]
    sources = [windrow.MapDataset.source(rows).shuffle(seed=3) for rows in (many, few)]
    return windrow.MapDataset.concatenate(sources)


def timeline(blocks: int) -> tuple[BlockTimes, ...]:
    """Blocks of two elements each, of which the loop waits for every third."""
    return tuple(
        BlockTimes(2, 0.01 * at, 0.004, 0.002, 0.01 * at + 0.006, 0.006 if at % 3 == 0 else 0.0)
        for at in range(blocks)
    )


def measured(dataset: Any, blocks: int) -> windrow.Stats:
    """What an iterator of a chain may have measured over `blocks` blocks."""
    explanation = dataset.explain()
    elements = 2 * blocks
    waited_s = sum(block.waited_s for block in timeline(blocks))
    return windrow.Stats(
        elements=elements,
        passed_s=0.01 * blocks,
        waited_s=waited_s,
        loop_s=0.01 * blocks - waited_s,
        reading_s=0.004 * blocks,
        mapping_s={"map(brighter)": 0.0015 * blocks, "batch(8)": 0.0005 * blocks},
        blocked_s=0.001 * blocks,
        waited_for={"reading": waited_s * 0.7, "map(brighter)": waited_s * 0.3},
        delivered_bytes=1000 * elements,
        sources=tuple(costs.times(elements) for costs in explanation.batch),
        buffers_bytes=1_000_000,
        peak_buffers_bytes=2_000_000,
        buffers_by={"chunks": 1_000_000, "queue": 0},
        peak_by={"chunks": 1_500_000, "queue": 500_000},
        timeline=timeline(blocks)[-1000:],
    )


class Counting:
    """A source that knows what was read of it."""

    def __init__(self, records: int) -> None:
        self.records = records
        self.read: list[int] = []

    def __len__(self) -> int:
        return self.records

    def __getitem__(self, index: int) -> int:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[int]:
        self.read += indices
        return [index * 10 for index in indices]


@dataclasses.dataclass(frozen=True)
class Odd:
    """A leaf that nothing can draw."""

    words: str


class Told(windrow.DatasetIterator[Any]):
    """An iterator that has measured what it is told."""

    def __init__(self, node: Any, stats: windrow.Stats) -> None:
        super().__init__(windrow.MapDataset(node).to_iter_dataset()._node)
        self._told = stats

    def stats(self) -> windrow.Stats:
        return self._told
