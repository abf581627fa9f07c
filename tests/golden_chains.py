"""Golden chains as plain data: a recipe in JSON, and the dataset that is built of it.

A recipe is a list of steps. The first is a source, or a constructor of several recipes; each other
is a method of the dataset with its arguments by name:

    [["zarr", {"store": "chunks"}], ["shuffle", {"seed": 1}], ["batch", {"batch_size": 4}]]
    [["mix", {"weights": [1, 2]}, [recipe, recipe]], ["map", {"transform": "@bump"}]]

A text that begins with `@` names a function of this module. The recipes lie in `golden/chains.json`.
"""

from __future__ import annotations

import collections
import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from windrow import IterDataset, MapDataset, ReadOptions, sources, transforms

Recipe: TypeAlias = list[list[Any]]
Dataset: TypeAlias = MapDataset[Any] | IterDataset[Any]


@functools.cache
def recipes() -> dict[str, Recipe]:
    """The recipes of the golden chains, by their names."""
    text = (Path(__file__).resolve().parent / "golden" / "chains.json").read_text(encoding="utf-8")
    return {name: held["recipe"] for name, held in json.loads(text).items()}


# --- functions -----------------------------------------------------------------------------------


def on_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """`tree` with `function` applied to each leaf, in order; a None in it stays."""
    if tree is None:
        return None
    if isinstance(tree, dict):
        return {key: on_leaves(function, value) for key, value in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(on_leaves(function, value) for value in tree))
    if isinstance(tree, list | tuple):
        return type(tree)([on_leaves(function, value) for value in tree])
    return function(tree)


def added(leaf: Any, number: int) -> Any:
    """A leaf and a number, in the leaf's own type."""
    if isinstance(leaf, bytes):
        return leaf + b"+%d" % number
    if isinstance(leaf, str):
        return f"{leaf}+{number}"
    if isinstance(leaf, np.ndarray | np.generic):
        return _array_added(leaf, number)
    return leaf + number


def _array_added(leaf: Any, number: int) -> Any:
    if leaf.dtype.kind in "mM":
        return leaf + np.timedelta64(number, "s")
    if leaf.dtype.kind == "b":
        return leaf ^ bool(number % 2)
    with np.errstate(all="ignore"):
        return leaf + np.array(number % 100).astype(leaf.dtype)


def summed(tree: Any) -> int:
    """A sum of all that is in a tree, which no order of addition changes."""
    found = [0]

    def one(leaf: Any) -> None:
        if isinstance(leaf, bytes | str):
            found.append(len(leaf) + sum(leaf if isinstance(leaf, bytes) else leaf.encode()))
            return
        values = np.asarray(leaf)
        if values.dtype.kind in "mM":
            values = values.astype("i8")
        found.append(int(np.nansum(values.astype("f8") * 4)))

    on_leaves(one, tree)
    return sum(found)


def bump(element: Any) -> Any:
    return on_leaves(lambda leaf: added(leaf, 3), element)


def bump_columns(columns: Any) -> Any:
    return on_leaves(lambda leaf: added(leaf, 5), columns)


def with_index(index: int, element: Any) -> Any:
    return on_leaves(lambda leaf: added(leaf, index % 97), element)


def with_rng(element: Any, rng: np.random.Generator) -> Any:
    return on_leaves(lambda leaf: added(leaf, int(rng.integers(50))), element)


def as_pair(element: Any) -> Any:
    return {"value": element, "sum": np.int64(summed(element))}


def none_of_three(element: Any) -> Any:
    return None if summed(element) % 3 == 0 else element


def odd(element: Any) -> bool:
    return summed(element) // 4 % 2 == 1


def not_of_five(element: Any) -> bool:
    return summed(element) % 5 != 0


def nothing(element: Any) -> bool:
    return False


def total(elements: Sequence[Any]) -> int:
    return sum((at + 1) * summed(element) for at, element in enumerate(elements))


def first_and_count(elements: Sequence[Any]) -> Any:
    return elements[0], len(elements)


def copies(element: Any) -> list[Any]:
    return [element] * (summed(element) // 4 % 3)


def as_tokens(element: Any) -> Any:
    return {"t": np.full(summed(element) // 4 % 5 + 1, summed(element) % 100)}


def fails_at_some(element: Any) -> Any:
    if summed(element) // 4 % 7 == 3:
        raise ValueError("not this one")
    return element


def fails_at_seven(index: int, element: Any) -> Any:
    if index == 7:
        raise ValueError("no element 7")
    return element


class Bump(transforms.Map):
    def map(self, element: Any) -> Any:
        return bump(element)


class Odd(transforms.Filter):
    def filter(self, element: Any) -> bool:
        return odd(element)


class Noise(transforms.RandomMap):
    def random_map(self, element: Any, rng: np.random.Generator) -> Any:
        return with_rng(element, rng)


class Numbered(transforms.MapWithIndex):
    def map_with_index(self, index: int, element: Any) -> Any:
        return with_index(index, element)


class Shaped(transforms.Map):
    """Says what it makes."""

    def map(self, element: Any) -> Any:
        return as_pair(element)

    def output_spec(self, spec: Any) -> Any:
        return {"value": spec, "sum": sources.ArraySpec((), np.dtype("i8"))}


class Zigzag(transforms.DatasetSelectionMap):
    """Each of two datasets in turn."""

    def __init__(self, length: int, fingerprint: str = "") -> None:
        self._length = length
        if fingerprint:
            self.fingerprint = fingerprint

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index % 2, index * 5 % 1000


# --- sources of others ---------------------------------------------------------------------------


class Squares:
    """Records one by one."""

    __module__ = "golden"  # fingerprints have it: this file may move

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return {"square": int(index) ** 2, "row": np.full(3, index)}


class SquaresOfMany(Squares):
    """Many records in one call, and a fingerprint of its own."""

    __module__ = "golden"  # fingerprints have it: this file may move

    fingerprint = "squares of many"

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        return [self[index] for index in indices]


class Pieces(sources.BatchedSource):
    """Numbers in blocks of several sizes."""

    __module__ = "golden"  # fingerprints have it: this file may move

    def __init__(self, sizes: Sequence[int]) -> None:
        self._bounds = np.cumsum([0, *sizes])

    def __len__(self) -> int:
        return int(self._bounds[-1])

    def read(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return indices * 2 + 1

    def blocks(self) -> npt.NDArray[np.int64]:
        return self._bounds

    @property
    def fingerprint(self) -> str:
        return f"pieces {self._bounds.tolist()}"


class Point(NamedTuple):
    """A record with named fields."""

    x: Any
    name: str


def _zarr(folder: Path, store: Any, **more: Any) -> Any:
    return sources.ZarrDataSource(_placed(folder, store), **more)


def _windows(folder: Path, store: Any, **more: Any) -> Any:
    for name, field in (more.get("fields") or {}).items():
        more["fields"] = {**more["fields"], name: sources.Field(**field)}
    by_dim: dict[Any, dict[str, Any]] = {}
    for name, own in (("sizes", "size"), ("strides", "stride"), ("anchors", "anchors")):
        for dim, value in (more.pop(name, None) or {}).items():
            by_dim.setdefault(dim, {})[own] = value
    start, stop = (more.pop(name, None) or {} for name in ("start", "stop"))
    for dim in {**start, **stop}:
        by_dim.setdefault(dim, {})["cells"] = slice(start.get(dim), stop.get(dim))
    method = more.pop("method", None)
    for dim, value in (more.pop("select", None) or {}).items():
        by_dim.setdefault(dim, {}).update(select=value, method=method)
    pad = more.pop("pad", None)
    for dim in by_dim if isinstance(pad, str) else pad or {}:
        by_dim[dim]["pad"] = pad if isinstance(pad, str) else pad[dim]
    # JSON has no numbers as keys.
    windows = {int(k) if k.isdigit() else k: sources.Window(**v) for k, v in by_dim.items()}
    more = {key: tuple(v) if key == "dims" else v for key, v in more.items()}
    return sources.WindowDataSource(_placed(folder, store), windows, **more)


def _array_record(folder: Path, store: Any, **more: Any) -> Any:
    return sources.ArrayRecordDataSource(_placed(folder, store), **more)


def _tfds(folder: Path, store: Any, **more: Any) -> Any:
    return sources.TFDSDataSource(_placed(folder, store), **more)


def _placed(folder: Path, store: Any) -> Any:
    if isinstance(store, dict):
        return {name: _placed(folder, one) for name, one in store.items()}
    if isinstance(store, list):
        return [_placed(folder, one) for one in store]
    return store if "://" in store else str(folder / store)


def _columns(folder: Path, length: int) -> Any:
    numbers = np.arange(length)
    return {
        "x": np.stack([numbers, numbers + 1], axis=1).astype(np.int32),
        "deep": {"y": numbers, "z": (numbers % 7).astype("f4")},
    }


def _view(folder: Path, store: str, start: int, stop: int) -> Any:
    import tensorstore as ts

    spec = {"driver": "zarr3", "kvstore": f"file://{folder / store}/"}
    return ts.open(spec).result()[start:stop]


# Of each kind of source: what makes it, in the folder of the stores, of the recipe's arguments.
SOURCES: dict[str, Callable[..., Any]] = {
    "array": lambda folder, length, dtype="i8": (np.arange(length) * 7).astype(dtype),
    "matrix": lambda folder, length: np.arange(length * 6, dtype="f4").reshape(length, 2, 3),
    "columns": _columns,
    "mapped": lambda folder: np.load(folder / "mapped.npy", mmap_mode="r"),
    "dates": lambda folder, length: np.datetime64("2020-01-01", "s") + np.arange(length),
    "booleans": lambda folder, length: np.arange(length) % 3 == 0,
    "list": lambda folder, length: [{"n": n, "text": f"text {n}"} for n in range(length)],
    "tuples": lambda folder, length: tuple((n, [np.full(2, n), b"%d" % n]) for n in range(length)),
    "points": lambda folder, length: [Point(np.float32(n), f"p{n}") for n in range(length)],
    "ragged": lambda folder, length: [np.arange(n % 4) for n in range(length)],
    "texts": lambda folder, length: [f"t{n}" for n in range(length)],
    "range source": lambda folder, **bounds: sources.RangeDataSource(**bounds),
    "squares": lambda folder, length: Squares(length),
    "squares of many": lambda folder, length: SquaresOfMany(length),
    "deque": lambda folder, length: collections.deque(range(length)),
    "pieces": lambda folder, sizes: Pieces(sizes),
    "zarr": _zarr,
    "windows": _windows,
    "array_record": _array_record,
    "tfds": _tfds,
    "view": _view,
}
_SEVERAL = {"mix", "zip", "concatenate", "select", "interleave"}


def transform(text: str) -> Any:
    """The function, or transform, of a name."""
    if text.startswith("@Batch:"):
        return transforms.Batch(int(text.removeprefix("@Batch:")), drop_remainder=True)
    found = globals()[text.removeprefix("@")]
    return found() if isinstance(found, type) else found


def build(recipe: Recipe, folder: Path) -> Dataset:
    """The dataset of a recipe, over the stores in a folder."""
    dataset: Dataset = _started(recipe[0], folder)
    for name, arguments in recipe[1:]:
        given = {key: _argument(key, value) for key, value in arguments.items()}
        made: Dataset = getattr(dataset, name)(**given)
        dataset = made
    return dataset


def _started(step: list[Any], folder: Path) -> Any:
    name, arguments = step[0], dict(step[1])
    if name == "range":
        return MapDataset.range(**arguments)
    if name not in _SEVERAL:
        return MapDataset.source(SOURCES[name](folder, **arguments))
    parts: list[Any] = [build(part, folder) for part in step[2]]
    if name == "select":
        return MapDataset.select_from_datasets(parts, Zigzag(**arguments))
    kind: Any = MapDataset if isinstance(parts[0], MapDataset) else IterDataset
    if names := arguments.pop("names", None):
        parts_by_name = dict(zip(names, parts, strict=True))
        weights = dict(zip(names, arguments.pop("weights"), strict=True))
        return kind.mix(parts_by_name, weights)
    return getattr(kind, name)(parts, **arguments)


def _argument(key: str, value: Any) -> Any:
    if isinstance(value, str) and value.startswith("@"):
        return transform(value)
    if key == "transformations":
        return [transform(one) for one in value]
    if key == "read_options":
        return ReadOptions(**value)
    if key == "sl" and isinstance(value, dict):
        return slice(*value["slice"])
    return value
