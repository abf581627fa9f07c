"""What programs of the model are made of: functions of users, sources, and trees of elements.

The functions take any element, so that any method may follow any other.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import windrow
from tests.array_record_bytes import written
from tests.model.trees import columns_in, is_tree
from windrow import transforms


def on_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """`tree` with `function` applied to each leaf; lists of columns count as trees."""
    if isinstance(tree, dict):
        return {key: on_leaves(function, value) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(on_leaves(function, value) for value in tree)
    if isinstance(tree, transforms.ListColumns):
        return transforms.ListColumns([on_leaves(function, value) for value in tree])
    return [on_leaves(function, x) for x in tree] if isinstance(tree, list) else function(tree)


def has_lists_of_trees(batch: Any) -> bool:
    """Whether a list in a batch holds rows of which some are trees, not columns of arrays."""
    lists = [column for column in columns_in(batch) if isinstance(column, list)]
    return any(
        not isinstance(leaf, (list, np.ndarray))
        for rows in lists
        if any(map(is_tree, rows))
        for row in rows
        for leaf in columns_in(row)
    )


def number(tree: Any) -> int:
    """A number that depends on all of an element, and not on its types."""
    if isinstance(tree, dict):
        return sum((i + 1) * number(x) for i, x in enumerate(tree.values()))
    if isinstance(tree, (list, tuple)):
        return sum((i + 1) * number(x) for i, x in enumerate(tree))
    if isinstance(tree, np.ndarray):
        return sum((i + 1) * number(x) for i, x in enumerate(tree.ravel().tolist()))
    if isinstance(tree, (str, bytes)):
        return zlib.crc32(tree if isinstance(tree, bytes) else tree.encode()) % 1000
    return 0 if tree is None else int(tree)


# --- functions of users --------------------------------------------------------------------------


def plus(tree: Any) -> Any:
    """Adds one to numbers, and turns strings round; of elements and of columns alike."""

    def leaf(x: Any) -> Any:
        if isinstance(x, (str, bytes)):
            return x[::-1]
        return x if x is None or np.asarray(x).dtype == bool else x + 1

    return on_leaves(leaf, tree)


def total(tree: Any) -> int:
    return number(tree)


def keep(tree: Any) -> bool:
    return number(tree) % 3 != 0


def gone(tree: Any) -> Any:
    """A function that makes elements absent."""
    return tree if number(tree) % 4 else None


class BadError(ValueError):
    """The error of a function for some elements."""


def bad(tree: Any) -> Any:
    if number(tree) % 5 == 2:
        raise BadError("bad")
    return tree


def indexed(index: int, tree: Any) -> Any:
    return {"n": index, "x": tree}


def noisy(tree: Any, rng: np.random.Generator) -> Any:
    return (int(rng.integers(1000)), tree)


def several(tree: Any) -> list[Any]:
    """A function for `flat_map`: none, one or two elements."""
    return [tree] * (number(tree) % 3)


def as_x(tree: Any) -> Any:
    """A function for packers of streams: elements as dicts of a sequence `x`."""
    return tree if isinstance(tree, dict) else {"x": tree}


class Turns(transforms.DatasetSelectionMap):
    """Each of two datasets in turn, with keys that run into their later epochs."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index % 2, index * 2


class Declared(transforms.Map):
    """A function that declares what it makes."""

    def map(self, element: Any) -> Any:
        return plus(element)

    def output_spec(self, spec: Any) -> Any:
        return spec


# --- sources -------------------------------------------------------------------------------------


class Records:
    """A source of a program, and the same records as a list."""

    def __init__(
        self,
        source: Any,
        records: Sequence[Any],
        blocks: Sequence[int] | None = None,
        *,
        ragged: bool | None = False,
    ) -> None:
        self.source = source
        self.ragged = ragged  # whether the source knows lengths; None where pages are silent
        self.records = list(records)
        self.blocks = blocks


FOLDER: list[Path] = []  # where stores are written, once per session


def _lengths(n: int) -> list[int]:
    return [(3, 1, 0, 6, 2, 4, 8, 5)[i % 8] for i in range(n)]


@functools.cache
def numbers(n: int) -> Records:
    """Numbers in memory."""
    return Records(np.arange(n) * 7 % 101, list(np.arange(n) * 7 % 101))


@functools.cache
def columns(n: int) -> Records:
    """A dict of arrays in memory."""
    data: dict[str, Any] = {
        "x": np.arange(n * 2, dtype=np.float32).reshape(n, 2),
        "y": np.arange(n, dtype=np.int8),
    }
    return Records(data, [{key: array[i] for key, array in data.items()} for i in range(n)])


@functools.cache
def words(n: int) -> Records:
    """Strings in memory."""
    return Records([f"w{i}" for i in range(n)], [f"w{i}" for i in range(n)], ragged=None)


@functools.cache
def ragged(n: int) -> Records:
    """Arrays of different lengths in memory."""
    rows = [np.arange(length) + 10 * i for i, length in enumerate(_lengths(n))]
    return Records(rows, rows, ragged=True)


@functools.cache
def stored(n: int) -> Records:
    """A Zarr array in chunks of three, whatever its length."""
    data = np.arange(n * 2, dtype=np.int32).reshape(n, 2)
    path = FOLDER[0] / f"stored{n}.zarr"
    zarr.create_array(path, data=data, chunks=(3, 2))
    return Records(
        windrow.sources.ZarrDataSource(path), list(data), [*range(0, n, 3), n] if n else [0]
    )


@functools.cache
def stored_ragged(n: int) -> Records:
    """Rows of different lengths in a Zarr group."""
    rows = [np.arange(length) + 10 * i for i, length in enumerate(_lengths(n))]
    path = FOLDER[0] / f"ragged{n}.zarr"
    group = zarr.create_group(path)
    offsets = np.cumsum([0, *_lengths(n)])
    group.create_array("offsets", data=offsets, chunks=(4,))
    group.create_array("values", data=np.concatenate([*rows, np.zeros(0, int)]), chunks=(7,))
    return Records(windrow.sources.RaggedDataSource(path), rows, ragged=True)


@functools.cache
def packed(n: int) -> Records:
    """An ArrayRecord file."""
    records = [b"r%d" % i for i in range(n)]
    path = FOLDER[0] / f"packed{n}.array_record"
    written(path, records, "group_size:4")
    return Records(
        windrow.sources.ArrayRecordDataSource(path),
        records,
        [*range(0, n, 4), n] if n else [0],
        ragged=None,
    )


SOURCES = (numbers, columns, words, ragged, stored, stored_ragged, packed)
FUNCTIONS = (plus, total, keep, gone, bad, indexed, noisy, several, as_x)


def paths_of(folder: Path) -> Iterator[None]:
    """While it is not closed, stores are written into a folder."""
    FOLDER.append(folder)
    yield
    FOLDER.clear()
    for source in SOURCES:
        source.cache_clear()
