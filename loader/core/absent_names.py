"""Names that are asked of the wrong object, and names of Grain that Windrow lacks: what to use instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_SHARED = (
    "workers get arrays through shared memory already; pass a list or arrays to MapDataset.source:"
    " see 'Memory' in docs/workers.md"
)
ABSENT: Final = {
    "BatchOperation": "use windrow.transforms.Batch: see docs/grain.md",
    "FilterOperation": "use windrow.transforms.Filter: see docs/grain.md",
    "InMemoryDataSource": _SHARED,
    "MapOperation": "use windrow.transforms.Map: see docs/grain.md",
    "Operation": "write it as a transform of windrow.transforms: see docs/grain.md",
    "PackAndBatchOperation": (
        "use IterDataset.pack and batch, after a chain in place of a DataLoader: see 'Packing a stream' in"
        " docs/packing.md"
    ),
    "RandomMapOperation": "use windrow.transforms.RandomMap: see docs/grain.md",
    "SharedMemoryArray": _SHARED,
    "SharedMemoryArrayMetadata": _SHARED,
    "SharedMemoryDataSource": _SHARED,
    "config": "pass options to ReadOptions, MultiprocessingOptions or DatasetOptions: see docs/chain.md",
    "monitoring": "use DatasetIterator.stats and on_stats: see docs/stats.md",
    "proto": "nothing of Windrow needs it: results of explain() and stats() have to_json()",
}
"""A sentence for each name, without the name."""


OF_STREAMS: Final = {
    "block_shuffle": "shuffle before to_iter_dataset(), or use window_shuffle",
    "concatenate": "concatenate before to_iter_dataset()",
    "read": "a stream has no random access; read before to_iter_dataset(), or iterate",
    "shuffle": "a stream has no global shuffle; shuffle before to_iter_dataset(), or use window_shuffle",
    "slice": "slice before to_iter_dataset(), or use limit",
}
"""For methods that only a `MapDataset` has, what to do with a stream."""

OF_MAPS: Final = {
    "cache": "write to_iter_dataset().cache()",
    "limit": "write ds[:n], or to_iter_dataset().limit(n)",
    "rebatch": "write to_iter_dataset().rebatch(n)",
}
"""For methods that only a stream has, what to do with a `MapDataset`."""

NO_INDEX: Final = (
    "a stream has no random access: index or slice the MapDataset before to_iter_dataset(); of a stream,"
    " next(iter(stream)) is the first element, and stream.limit(n) has the first n"
)
"""For what an index does with a `MapDataset` alone."""


OF_ITERATORS: Final = (
    *("close", "get_state", "has_lanes_of", "load", "load_state_dict", "metrics", "on_stats"),
    *("records_of_last", "save", "seek", "set_state", "skip", "start_prefetch", "state_dict"),
    "stats",
)
"""Methods that iterators have and datasets have not."""

_OF_ITERATORS: Final = dict.fromkeys(
    OF_ITERATORS, "an iterator has it: write iterator = iter(dataset), and use that one in the loop"
)

OF_DATASETS: Final = (
    *("apply", "batch", "cache", "element_spec", "explain", "filter", "flat_map", "limit", "map"),
    *(
        "map_with_index",
        "mp_prefetch",
        "pack",
        "pipe",
        "random_map",
        "read",
        "read_spec",
        "rebatch",
    ),
    *("repeat", "seed", "shard", "shuffle", "slice", "to_iter_dataset", "to_jax", "window_shuffle"),
)
"""Steps of a chain, which an iterator has not."""


def of_map(kind: str, name: str) -> AttributeError:
    """The error for an attribute that a `MapDataset`, of the class `kind`, does not have."""
    return _without(kind, name, OF_MAPS | _OF_ITERATORS)


def of_stream(kind: str, name: str) -> AttributeError:
    """The error for an attribute that a stream, of the class `kind`, does not have."""
    return _without(kind, name, OF_STREAMS | _OF_ITERATORS)


def of_iterator(kind: str, name: str) -> AttributeError:
    """The error for an attribute that an iterator, of the class `kind`, does not have."""
    hint = f"a dataset has it: write dataset.{name} before iter(dataset)"
    return _without(kind, name, dict.fromkeys(OF_DATASETS, hint))


def _without(kind: str, name: str, hints: Mapping[str, str]) -> AttributeError:
    found = hints.get(name)
    text = f"{kind!r} object has no attribute {name!r}"
    # Without a name, Python sets it with the object, and so finds names that are near.
    return AttributeError(text) if found is None else AttributeError(f"{text}: {found}", name=name)


def absent(module: str, name: str) -> AttributeError:
    """The error for a name that a module does not have; of a name of Grain it says what to use."""
    found = ABSENT.get(name)
    if found is None:
        return AttributeError(f"module {module!r} has no attribute {name!r}")
    return AttributeError(f"{module} has no {name}, which Grain has: {found}")
