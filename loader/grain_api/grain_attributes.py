"""What Grain's nodes have, most of it in private attributes of Grain 0.2.

Iterators of Grain have the same attributes as the datasets that make them, but for the names of their
parents.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final


def name_of(node: Any) -> str | None:
    """The name of Grain's own class of a node; None for a class of a user."""
    kind = type(node)
    return kind.__name__ if kind.__module__.partition(".")[0] == "grain" else None


def parent_of(node: Any) -> Any:
    """The one parent of a dataset or an iterator of Grain."""
    for name in ("_map_parent", "_maybe_nonnative_parent", "_iter_parent"):
        if name in node.__dict__:
            return node.__dict__[name]
    return node._parents[0]


def interleaved_parts(node: Any) -> list[Any]:
    """The datasets that an interleaving reads; they may be elements of a dataset."""
    return [node._datasets[index] for index in range(len(node._datasets))]


def function_of(node: Any) -> Any:
    """The function of a node, as an object of a transform where the node keeps it."""
    return node._transform if "_transform" in node.__dict__ else node._map_fn


def batch_fn_of(node: Any) -> Callable[..., Any] | None:
    """The function that makes batches; None for Grain's own."""
    from grain._src.python.dataset.transformations import batch

    function = node._batch_fn
    inner = function.func if isinstance(function, functools.partial) else function
    own = getattr(batch, "_MakeBatchParallel", ())
    return None if inner is batch.make_batch or isinstance(inner, own) else function


def part_names(node: Any) -> list[str]:
    """The names of the parts of a mixture, in Grain's order: sorted, where JAX is installed."""
    from grain._src.core import tree_lib

    named = node._parents_structure
    return [str(name) for name in tree_lib.flatten({name: name for name in named})]


_OTHER_MAKERS: Final[Mapping[str, str]] = {
    "PackingDatasetIterator": "FirstFitPackIterDataset",
    "_InMemoryCacheDatasetIterator": "CacheIterDataset",
    # Files: their iterators have rows of their own in the table of nodes.
    "_ParquetDatasetIterator": "_ParquetDatasetIterator",
    "_TFRecordDatasetIterator": "_TFRecordDatasetIterator",
}


def kind_of(node: Any) -> str | None:
    """The name of the dataset that a node is, or that makes an iterator; None for a class of a user."""
    name = name_of(node)
    if name is None or not name.endswith("DatasetIterator"):
        return name
    maker = name.removeprefix("_").replace("DatasetIterator", "IterDataset")
    return _OTHER_MAKERS.get(name, maker)


# --- workers --------------------------------------------------------------------------------------


def are_workers(parts: Sequence[Any]) -> bool:
    """Whether an interleaving of these datasets is `mp_prefetch`."""
    return bool(parts) and all(name_of(part) == "ProcessPrefetchIterDataset" for part in parts)


def whole_of(part: Any) -> Any:
    """The dataset that workers share."""
    while name_of(part) in _WORKER_NODES:
        part = part._parents[0]
    return part


def worker_init(part: Any) -> Callable[[int, int], None] | None:
    """The function of the user that begins each worker, if there is one."""
    given: Any = getattr(part._worker_init_fn, "args", ())
    return given[0][1].func if given and len(given[0]) > 1 else None


def is_sequential(part: Any) -> bool:
    """Whether a worker has a part of each source in one piece."""
    while name_of(part) != "_LazyWorkerSliceIterDataset":
        part = part._parents[0]
    return bool(part._sequential_slice)


# --- does the order depend on workers? -----------------------------------------------------------

_WORKER_NODES: Final = frozenset(
    {"ProcessPrefetchIterDataset", "_MpContextIterDataset", "_LazyWorkerSliceIterDataset"}
)
_EACH_ALONE: Final = frozenset(
    {"MapIterDataset", "RandomMapIterDataset", "WithOptionsIterDataset", "_WithSeedIterDataset"}
)
_NEVER_ABSENT: Final = frozenset({"RangeMapDataset", "SourceMapDataset", "ZipMapDataset"})
_ORDERS: Final = frozenset(
    {"ShuffleMapDataset", "WindowShuffleMapDataset", "SliceMapDataset", "RepeatMapDataset"}
    | {"_WithSeedMapDataset", "MixedMapDataset", "ConcatenateMapDataset"}
)


def is_alike(node: Any) -> bool:
    """Whether a stream has one order for any number of workers of Grain.

    Each worker takes every nth element of the chain with random access, and what they make is given in
    turn. So a node that puts elements together, or an element that may be absent, changes the order.
    """
    while name_of(node) in _EACH_ALONE:
        node = parent_of(node)
    if name_of(node) != "PrefetchIterDataset":
        return False
    return bool(node._allow_nones) or _is_always_there(parent_of(node))


def _is_always_there(node: Any) -> bool:
    name = name_of(node)
    if name == "BatchMapDataset":
        return batch_fn_of(node) is None
    if name in _ORDERS:
        return all(map(_is_always_there, node._parents))
    return name in _NEVER_ABSENT  # a function may return None
