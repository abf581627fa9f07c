"""Chains for tests: drawn as plain data, built with Windrow or with Grain.

A recipe is nested tuples, `(operation, parents, arguments)`, so that a failing one can be read and
pasted, and so that a process of its own can build the same chain. Elements are trees of integers;
functions change leaves and keep trees, so that any node may follow any other.

Invariant: a recipe that `chains()` draws builds with both libraries and means the same in both,
unless `ours` is asked for, which adds what Grain lacks or gets wrong.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import grain
import numpy as np
import numpy.typing as npt
from grain import experimental as grain_more
from hypothesis import strategies as st

import windrow
from windrow.sources.base import BatchedSource, IntArray
from windrow.transforms.lengths import RecordLengths
from windrow.transforms.nodes import Node, sources_of
from windrow.transforms.nodes.metadata import known_lengths
from windrow.transforms.positions import Positions

Recipe: TypeAlias = tuple[str, tuple[Any, ...], tuple[Any, ...]]
Library: TypeAlias = Literal["windrow", "grain"]

SYNCHRONOUS = windrow.ReadOptions(num_threads=0, prefetch_buffer_size=0)
READ_OPTIONS = [
    windrow.ReadOptions(num_threads=threads, prefetch_buffer_size=buffer, memory_bytes=size)
    for threads in (0, 1, 3)
    for buffer in (0, 1, 500)
    for size in (1, 2**33)
]
# Lengths of chains whose elements are all looked at.
FEW = (1, 2, 3, 5, 7, 10, 13, 64, 97)


class Pair(NamedTuple):
    """An element with named fields."""

    left: Any
    right: Any


# --- functions of users --------------------------------------------------------------------------


def on_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """`tree` with `function` applied to each leaf, in order; a None in it stays."""
    if tree is None:
        return None
    if isinstance(tree, dict):
        return {key: on_leaves(function, value) for key, value in tree.items()}
    if isinstance(tree, tuple) and getattr(type(tree), "_fields", None) is not None:
        return type(tree)(*(on_leaves(function, value) for value in tree))
    if isinstance(tree, (list, tuple)):
        return type(tree)([on_leaves(function, value) for value in tree])
    return function(tree)


def leaf_sum(tree: Any) -> int:
    """The sum of all numbers in a tree."""
    found = [0]
    on_leaves(lambda leaf: found.append(int(np.sum(leaf))), tree)
    return sum(found)


@dataclasses.dataclass(frozen=True)
class Bump:
    """Each leaf times 3, plus `by`; of one element or of columns alike."""

    by: int

    def __call__(self, element: Any) -> Any:
        return on_leaves(lambda leaf: leaf * 3 + self.by, element)


def add_index(index: int, element: Any) -> Any:
    return on_leaves(lambda leaf: leaf + index % 1009, element)


def add_noise(element: Any, rng: np.random.Generator) -> Any:
    return on_leaves(lambda leaf: leaf + int(rng.integers(1000)), element)


@dataclasses.dataclass(frozen=True)
class NotDivisible:
    """Keeps elements whose numbers do not sum up to a multiple of `by`."""

    by: int

    def __call__(self, element: Any) -> bool:
        return leaf_sum(element) % self.by != 0


def total(elements: Sequence[Any]) -> int:
    """A batch_fn: one number for the batch."""
    return sum((i + 1) * leaf_sum(element) for i, element in enumerate(elements))


class Zigzag(windrow.transforms.DatasetSelectionMap):
    """Each dataset in turn, with keys that run over several epochs."""

    def __init__(self, datasets: int, length: int) -> None:
        self._datasets, self._length = datasets, length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index % self._datasets, index * 5 % 1000


class Squares:
    """A source that others wrote: no batched read."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> int:
        return int(index) ** 2


class Chunks(BatchedSource):
    """Records `base, base + 1, ...`, stored in chunks of the sizes given."""

    def __init__(self, sizes: Sequence[int], base: int = 0) -> None:
        self.base = base
        self._bounds = np.cumsum([0, *sizes])

    def __repr__(self) -> str:
        return f"Chunks({self.fingerprint})"

    def __len__(self) -> int:
        return int(self._bounds[-1])

    def read(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return indices + self.base

    def blocks(self) -> npt.NDArray[np.int64]:
        """Bounds of the chunks."""
        return self._bounds

    @property
    def fingerprint(self) -> str:
        return f"{self.base}:{len(self)}"


# --- from a recipe to a dataset ------------------------------------------------------------------


def build(recipe: Recipe, library: Library = "windrow") -> Any:
    """The dataset of a recipe, a MapDataset or, from `to_iter` upwards, an IterDataset."""
    name, parents, arguments = recipe
    datasets = [build(parent, library) for parent in parents]
    if name.startswith("stream_"):
        return _built_stream(name.removeprefix("stream_"), datasets, arguments, library)
    maker: Any = windrow.MapDataset if library == "windrow" else grain.MapDataset
    match name:
        case "range":
            return maker.range(*arguments)
        case "array":
            return maker.source(np.arange(arguments[0]) * 7)
        case "squares":
            return maker.source(Squares(*arguments))
        case "columns":
            return maker.source(records(*arguments))
        case "chunks":
            return maker.source(Chunks(arguments))
        case "mix":
            return maker.mix(datasets, arguments[0])
        case "select":
            return maker.select_from_datasets(datasets, Zigzag(len(datasets), *arguments))
        case "concatenate":
            return maker.concatenate(datasets)
        case "zip" if library == "windrow":
            return maker.zip(datasets)
        case "zip":
            return grain_more.ZipMapDataset(datasets)
        case "window_shuffle" if library == "grain":
            return grain_more.WindowShuffleMapDataset(
                datasets[0], window_size=arguments[0], seed=arguments[1]
            )
        case "repeat":
            return datasets[0].repeat(arguments[0], reseed_each_epoch=arguments[1])
        case "slice":
            return datasets[0].slice(slice(*arguments))
        case "block_shuffle":
            seed, block, window_blocks = arguments
            return datasets[0].block_shuffle(seed, block=block, window_blocks=window_blocks)
        case "reindex":
            return datasets[0].slice(list(arguments))
        case "to_iter":
            options = SYNCHRONOUS if library == "windrow" else grain.ReadOptions(0, 0)
            return datasets[0].to_iter_dataset(options, allow_nones=arguments[0])
        case _:
            return _built_alike(name, datasets[0], arguments)


def _built_stream(name: str, datasets: list[Any], arguments: tuple[Any, ...], lib: Library) -> Any:
    ours = lib == "windrow"
    match name:
        case "mix":
            maker: Any = windrow.IterDataset if ours else grain.IterDataset
            return maker.mix(datasets, arguments[0])
        case "zip" if ours:
            return windrow.IterDataset.zip(datasets, strict=False)
        case "zip":
            return grain_more.ZipIterDataset(datasets, strict=False)
        case "window_shuffle" if not ours:
            return grain_more.WindowShuffleIterDataset(
                datasets[0], window_size=arguments[0], seed=arguments[1]
            )
        case "repeat" if ours:
            return datasets[0].repeat(*arguments)
        case "repeat":
            return grain_more.RepeatIterDataset(datasets[0], *arguments)
        case "limit" if ours:
            return datasets[0].limit(*arguments)
        case "limit":
            return grain_more.LimitIterDataset(datasets[0], *arguments)
        case _:
            return _built_alike(name, datasets[0], arguments)


def _built_alike(name: str, dataset: Any, arguments: tuple[Any, ...]) -> Any:
    match name:
        case "seed":
            return dataset.seed(*arguments)
        case "shuffle":
            return dataset.shuffle(*arguments)
        case "window_shuffle":
            return dataset.window_shuffle(*arguments)
        case "map":
            return dataset.map(Bump(*arguments))
        case "batched_map":
            return dataset.map(Bump(*arguments), batched=True)
        case "map_with_index":
            return dataset.map_with_index(add_index)
        case "random_map":
            return dataset.random_map(add_noise, seed=arguments[0])
        case "filter":
            return dataset.filter(NotDivisible(*arguments))
        case "batch":
            size, drop, own = arguments
            return dataset.batch(size, drop_remainder=drop, batch_fn=total if own else None)
        case _:
            raise ValueError(name)


def records(length: int) -> dict[str, Any]:
    """Columns for a source in memory."""
    numbers = np.arange(length)
    return {"x": np.stack([numbers, numbers + 1], axis=1).astype(np.int32), "y": numbers}


def names_of(recipe: Recipe) -> set[str]:
    """The operations of a recipe."""
    found = {recipe[0].removeprefix("stream_")}
    return found.union(*(names_of(parent) for parent in recipe[1]))


def is_endless(recipe: Recipe) -> bool:
    """Whether there is an endless repeat in it."""
    name, parents, arguments = recipe
    return (name == "repeat" and arguments[0] is None) or any(map(is_endless, parents))


def places(
    drawn: Drawn, *, negative: bool = True, epochs: bool = True
) -> st.SearchStrategy[list[int]]:
    """Indices of several epochs, or of one."""
    # A mixture counts in 64 bits.
    n = drawn.length
    epochs = epochs and not (is_endless(drawn.recipe) and "mix" in names_of(drawn.recipe))
    below = -2 * n if epochs and negative else 0
    stop = 3 * n if epochs else n - 1
    many = st.integers(max(below, -(10**9)), min(stop, 10**9))
    few = st.integers(max(below, -3), min(n - 1, 20))
    return st.lists(few | many, max_size=6)


# --- drawing recipes -----------------------------------------------------------------------------

LENGTHS = (0, 1, 2, 3, 5, 7, 10, 13, 31, 64, 97, 1009, 65536, 65537, 70001, 1_000_000)
LARGEST_WINDOW = 1000
# Through these a source's chunks can be seen.
CLEAR = {"chunks", "seed", "map", "batched_map", "map_with_index", "random_map", "filter"}
CLEAR |= {"slice", "reindex", "repeat", "concatenate", "batch"}


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A recipe with what decides which nodes may follow."""

    recipe: Recipe
    length: int
    tree: str  # of the element; "ragged" where elements may not stack
    seeded: bool = False
    filtered: bool = False

    def then(self, name: str, *arguments: Any, **changes: Any) -> Drawn:
        """With one more node."""
        recipe = (name, (self.recipe,), arguments)
        return dataclasses.replace(self, recipe=recipe, **changes)


SEEDS = st.integers(0, 2**32 - 1)


@st.composite
def leaves(draw: st.DrawFn, lengths: Sequence[int]) -> Drawn:
    """A source or a range."""
    kind = draw(st.sampled_from(["range", "array", "squares", "columns"]))
    length = draw(st.sampled_from(lengths))
    if kind == "range" and draw(st.booleans()):
        step = draw(st.sampled_from([-3, 1, 2]))
        start = draw(st.integers(-20, 20))
        return Drawn(("range", (), (start, start + length * step, step)), length, "leaf")
    if kind == "columns" and length > 1000:
        kind = "array"
    if kind == "columns":
        # Grain has no columns in memory; a map of the numbers makes the same records for both.
        return Drawn((kind, (), (length,)), length, "columns")
    return Drawn((kind, (), (length,)), length, "leaf")


def _loses_records(length: int) -> bool:
    """Whether Grain's shuffle of this length is no permutation."""
    return any(length == 4**bits + 1 for bits in range(8, 32))


@st.composite
def chains(
    draw: st.DrawFn,
    *,
    ours: bool = False,
    lengths: Sequence[int] = LENGTHS,
    most: int = 5,
    batches: bool = True,
    filters: bool = True,
) -> Drawn:
    """A chain of random access of up to `most` nodes above each leaf."""
    chain = draw(leaves(lengths))
    if ours and draw(st.integers(0, 4)) == 0:
        sizes = draw(st.lists(st.integers(1, 30), max_size=8))
        chain = Drawn(("chunks", (), tuple(sizes)), sum(sizes), "leaf")
    if chain.tree == "columns" and not ours:
        chain = Drawn(("array", (), chain.recipe[2]), chain.length, "leaf")
    for _ in range(draw(st.integers(0, most))):
        kinds = ["seed", "shuffle", "map", "map_with_index", "random_map", "slice", "repeat"]
        kinds += ["window_shuffle", "several"]
        kinds += ["batch"] if batches and not chain.filtered else []
        kinds += ["filter"] if filters else []
        kinds += ["batched_map", "reindex", "block_shuffle"] if ours else []
        kind = draw(st.sampled_from(kinds))
        if kind == "several":
            chain = draw(_several(chain, ours=ours, lengths=lengths))
        else:
            chain = draw(_one_more(chain, kind, ours=ours))
    return chain


@st.composite
def _one_more(draw: st.DrawFn, chain: Drawn, kind: str, *, ours: bool) -> Drawn:
    length = chain.length
    seed = draw(st.none() | SEEDS) if chain.seeded else draw(SEEDS)
    match kind:
        case "seed":
            return chain.then("seed", seed or 0, seeded=True)
        case "shuffle" if length >= sys.maxsize or (_loses_records(length) and not ours):
            return chain
        case "shuffle":
            return chain.then("shuffle", seed)
        case "window_shuffle":
            sizes = range(1, min(length, LARGEST_WINDOW) + 1)
            fitting = [n for n in sizes if ours or (length % n == 0)][:40]
            if not fitting or length >= sys.maxsize:
                return chain
            return chain.then("window_shuffle", draw(st.sampled_from(fitting)), draw(SEEDS) // 2)
        case "block_shuffle" if length > 10**7:
            return chain
        case "block_shuffle":
            clear = names_of(chain.recipe) <= CLEAR and not is_endless(chain.recipe)
            # Not too many blocks, and none too large.
            block = None if clear else draw(st.integers(1, 40)) + length // 1000
            return chain.then("block_shuffle", seed, block, draw(st.integers(1, 5)))
        case "map" | "batched_map":
            return chain.then(kind, draw(st.integers(0, 9)))
        case "map_with_index":
            return chain.then(kind)
        case "random_map":
            return chain.then(kind, seed)
        case "filter":
            return chain.then(kind, draw(st.integers(2, 4)), filtered=True)
        case "slice":
            bound = st.none() | st.integers(-min(length, 50) - 2, min(length, 50) + 2)
            step = draw(st.none() | st.sampled_from([-3, -2, -1, 1, 2, 3]))
            cut = slice(draw(bound), draw(bound), step)
            size = len(range(*cut.indices(length)))
            return chain.then("slice", cut.start, cut.stop, cut.step, length=size)
        case "reindex":
            if not length:
                return chain
            place = st.integers(max(-length, -100), min(length, 100) - 1)
            places = draw(st.lists(place, min_size=1, max_size=12))
            return chain.then("reindex", *places, length=len(places))
        case "repeat" if length >= sys.maxsize // 4:
            return chain
        case "repeat":
            # Endless epochs of batches that are all too short are refused.
            times = draw(st.none() | st.integers(1, 3) if length else st.integers(1, 3))
            size = sys.maxsize if times is None else times * length
            return chain.then("repeat", times, draw(st.booleans()), length=size)
        case _:
            return draw(batched(chain, "batch"))


@st.composite
def batched(draw: st.DrawFn, chain: Drawn, name: str) -> Drawn:
    """A batch, of a tree that stacks or with a function of its own."""
    size, drop = draw(st.integers(1, 4)), draw(st.booleans())
    own = "ragged" in chain.tree or draw(st.integers(0, 3)) == 0
    n = chain.length // size if drop else -(-chain.length // size)
    n = -1 if chain.length < 0 else n
    if chain.length >= 2**53:
        # Grain computes this length in floating point.
        return chain
    whole = drop or size == 1 or (chain.length >= 0 and chain.length % size == 0)
    tree = "leaf" if own else f"[{size if whole else 'ragged'}]{chain.tree}"
    return chain.then(name, size, drop, own, length=n, tree=tree)


@st.composite
def _several(draw: st.DrawFn, chain: Drawn, *, ours: bool, lengths: Sequence[int]) -> Drawn:
    kind = draw(st.sampled_from(["mix", "select", "concatenate", "zip"]))
    if kind == "zip" and 2**62 <= chain.length < sys.maxsize:
        return chain  # longer than a range of ours can be
    if kind == "zip":
        other = Drawn(("range", (), (chain.length,)), chain.length, "leaf")
        if chain.length >= sys.maxsize:
            other = Drawn(("repeat", (("range", (), (7,)),), (None, True)), chain.length, "leaf")
        if draw(st.booleans()):
            other = other.then("map", draw(st.integers(0, 9)))
        parts = [chain, other]
        tree = f"({chain.tree},{other.tree})"
        return dataclasses.replace(_over("zip", parts, (), chain.length), tree=tree)
    few = chains(ours=ours, lengths=lengths, most=2, batches=False, filters=not chain.filtered)
    parts = draw(st.permutations([chain, draw(few)]))
    if any(not part.length for part in parts) and kind != "concatenate":
        return chain
    if kind == "concatenate":
        if sum(part.length for part in parts) >= sys.maxsize:
            return chain
        return _over(kind, parts, (), sum(part.length for part in parts))
    if kind == "select":
        return _over(kind, parts, (draw(st.integers(1, 40)),), 0)
    weights = draw(st.sampled_from([None, (0.7, 0.3), (1, 3), (2.5, 1)]))
    return _over(kind, parts, (weights,), 0)


def _over(name: str, parts: Sequence[Drawn], arguments: tuple[Any, ...], length: int) -> Drawn:
    recipe: Recipe = (name, tuple(part.recipe for part in parts), arguments)
    return Drawn(
        recipe,
        length or len(build(recipe)),
        parts[0].tree if len({part.tree for part in parts}) == 1 else "ragged",
        all(part.seeded for part in parts),
        any(part.filtered for part in parts),
    )


SHORT = (0, 1, 2, 3, 5, 7, 10, 13, 23)


@st.composite
def streams(
    draw: st.DrawFn, *, ours: bool = False, lengths: Sequence[int] = SHORT, most: int = 4
) -> Drawn:
    """A stream over a chain, or over several."""
    below = draw(chains(ours=ours, lengths=lengths, most=2))
    if below.length > 100:
        below = below.then("slice", None, 20, None, length=20)
    chain = below.then("to_iter", False, length=-1)
    # A stream drops what is absent, but no tuple with a None in it, which Grain batches by other rules.
    chain = dataclasses.replace(chain, filtered=chain.filtered and "zip" in names_of(chain.recipe))
    for _ in range(draw(st.integers(0, most))):
        kinds = ["map", "map_with_index", "random_map", "filter", "window_shuffle"]
        kinds += ["repeat", "limit", "seed", "mix", "zip"] + (["batched_map"] if ours else [])
        kinds += ["batch"] if ours or not chain.filtered else []
        kind = draw(st.sampled_from(kinds))
        seed = draw(st.none() | SEEDS) if chain.seeded else draw(SEEDS)
        name = f"stream_{kind}"
        match kind:
            case "map" | "batched_map":
                chain = chain.then(name, draw(st.integers(0, 9)))
            case "map_with_index":
                chain = chain.then(name)
            case "random_map":
                chain = chain.then(name, seed)
            case "seed":
                chain = chain.then(name, seed or 0, seeded=True)
            case "filter":
                chain = chain.then(name, draw(st.integers(2, 4)))
            case "window_shuffle":
                chain = chain.then(name, draw(st.integers(1, 6)), draw(SEEDS) // 2)
            case "batch":
                chain = draw(batched(chain, name))
            case "repeat" | "limit":
                chain = chain.then(name, draw(st.integers(1, 9 if kind == "limit" else 3)))
            case _:
                chain = draw(_several_streams(chain, kind, ours=ours, lengths=lengths))
    return chain


@st.composite
def _several_streams(
    draw: st.DrawFn, chain: Drawn, kind: str, *, ours: bool, lengths: Sequence[int]
) -> Drawn:
    other = draw(streams(ours=ours, lengths=lengths, most=1))
    parts = draw(st.permutations([chain, other]))
    recipe_parts = tuple(part.recipe for part in parts)
    seeded = all(part.seeded for part in parts)
    filtered = any(part.filtered for part in parts)
    if kind == "zip":
        tree = f"({parts[0].tree},{parts[1].tree})"
        return Drawn(("stream_zip", recipe_parts, ()), -1, tree, seeded, filtered)
    weights = draw(st.sampled_from([None, (0.7, 0.3), (1, 3)]))
    tree = parts[0].tree if parts[0].tree == parts[1].tree else "ragged"
    return Drawn(("stream_mix", recipe_parts, (weights,)), -1, tree, seeded, filtered)


# --- comparing -----------------------------------------------------------------------------------


def same(one: Any, other: Any) -> bool:
    """Whether two elements are equal in trees, types, dtypes, shapes and values."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray):
        if one.dtype == object == other.dtype:
            return one.shape == other.shape and all(map(same, one.flat, other.flat))
        return one.dtype == other.dtype and np.array_equal(one, other)
    return bool(one == other)


def differences(ours: Iterable[Any], theirs: Iterable[Any]) -> list[str]:
    """The elements that differ, in words; empty where all are the same."""
    mine, others = list(ours), list(theirs)
    found = [] if len(mine) == len(others) else [f"{len(mine)} elements, not {len(others)}"]
    pairs = enumerate(zip(mine, others, strict=False))
    return found + [f"{i}: {a!r}, not {b!r}" for i, (a, b) in pairs if not same(a, b)]


def lengths_of(node: Node, at: Positions, given: Sequence[IntArray] | None = None) -> IntArray:
    """Lengths of the elements of a node at positions, of those that are given for records."""
    return known_lengths(node, at, RecordLengths(sources_of(node), given))
