"""Names and arguments of other loaders that Windrow does not have: what to use instead."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from windrow.core.text import listing
from windrow.errors import ArgumentError

_SHARED = (
    "workers get arrays through shared memory already; pass a list or arrays to MapDataset.source:"
    " see 'Memory' in docs/workers.md"
)
ABSENT: Final = {
    "InMemoryDataSource": _SHARED,
    "PackAndBatchOperation": (
        "use IterDataset.pack and batch, after a chain in place of a DataLoader: see 'Packing a stream' in"
        " docs/packing.md"
    ),
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

_OF_BOTH: Final = dict.fromkeys(
    OF_ITERATORS, "an iterator has it: write iterator = iter(dataset), and use that one in the loop"
) | {
    "collate": "batch(n, batch_fn=...) takes a function of a list of elements",
    "enumerate": "map_with_index(f) gives f the index and the element",
    "interleave": "interleave streams: IterDataset.interleave([...], cycle_length=n)",
    "prefetch_to_device": "to_jax(sharding) puts batches on devices ahead of time",
    "split": "take slices, such as ds[:900] and ds[900:], before to_iter_dataset()",
    "unbatch": "write to_iter_dataset().flat_map(f), where f lists the rows of a batch",
}

_OF_MAPS: Final = _OF_BOTH | {
    "cache": "write to_iter_dataset().cache()",
    "limit": "write ds[:n], or to_iter_dataset().limit(n)",
    "prefetch": "elements are read ahead anyway; for worker processes write mp_prefetch(n)",
    "rebatch": "write to_iter_dataset().rebatch(n)",
    "skip": "write ds[n:]",
    "take": "write ds[:n]",
}
"""For methods of other loaders, or of streams, what to do with a `MapDataset`."""

_OF_STREAMS_OF_OTHERS: Final = _OF_BOTH | {
    "skip": "slice before to_iter_dataset(), or call skip(n) of the iterator",
    "take": "write limit(n)",
}


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

_WORKERS: Final = "the number of workers comes first: write mp_prefetch(2)"
_FOR_CALLS: Final[Mapping[str, Mapping[str, str]]] = {
    "DataLoader": {
        "otherwise": (
            "it is called as Grain's: DataLoader(data_source=source, sampler=sampler, operations=[...]);"
            " in place of torch's write MapDataset.source(source).shuffle(seed=0).batch(n)"
        )
    },
    "batch": {
        "collate_fn": "write batch(n, batch_fn=f); f takes the list of elements",
        "drop_last": "write batch(n, drop_remainder=True)",
    },
    "mp_prefetch": {"num_workers": _WORKERS, "worker_count": _WORKERS},
    "shuffle": {
        "buffer_size": (
            "shuffle(seed) takes the whole epoch and needs no buffer; window_shuffle(n, seed) shuffles"
            " inside windows of n elements"
        ),
        "reshuffle_each_iteration": "each epoch of shuffle(seed).repeat() has an order of its own",
    },
    "to_jax": {
        "sharding": (
            "write to_jax(jax.sharding.SingleDeviceSharding(jax.devices()[0])) for one device, or"
            " to_jax(jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec('data'))) for a mesh"
        )
    },
}
"""For arguments of other loaders, and those that are missing, what to write. `otherwise` is for all others."""


def of_map(kind: str, name: str) -> AttributeError:
    """The error for an attribute that a `MapDataset`, of the class `kind`, does not have."""
    return _of_dataset(kind, name, _OF_MAPS)


def of_stream(kind: str, name: str) -> AttributeError:
    """The error for an attribute that a stream, of the class `kind`, does not have."""
    return _of_dataset(kind, name, OF_STREAMS | _OF_STREAMS_OF_OTHERS)


def of_iterator(kind: str, name: str) -> AttributeError:
    """The error for an attribute that an iterator, of the class `kind`, does not have."""
    hint = f"a dataset has it: write dataset.{name} before iter(dataset)"
    return _of_dataset(kind, name, dict.fromkeys(OF_DATASETS, hint))


def misfit(method: Callable[..., Any], text: str) -> ArgumentError:
    """The error for a call of a method with other arguments than it takes; `text` is Python's own."""
    called, _, what = text.partition("() ")
    what = what.partition(". Did you mean")[0]  # Python 3.13 and later; the hint says more
    who = called.removesuffix(".__init__").rpartition(".")[2]
    hints = _FOR_CALLS.get(who, {})
    names = [name for name in inspect.signature(method).parameters if name != "self"]
    argument = re.search(r"'(\w+)'", what)
    otherwise = hints.get("otherwise", f"it takes {listing(names, 20)}")
    hint = otherwise if argument is None else hints.get(argument[1], otherwise)
    return ArgumentError(f"{who}: {what}; {hint}")


def _of_dataset(kind: str, name: str, hints: Mapping[str, str]) -> AttributeError:
    found = hints.get(name)
    text = f"{kind!r} object has no attribute {name!r}"
    # Without a name, Python sets it with the object, and so finds names that are near.
    return AttributeError(text) if found is None else AttributeError(f"{text}: {found}", name=name)


def found(module: str, places: Mapping[str, str], name: str) -> Any:
    """What a name of a module stands for, imported now.

    Args:
        module: The module that is asked.
        places: For each of its names the module that has it, and after a colon its name there.
        name: The name.

    Raises:
        AttributeError: If the module has no such name.
    """
    if name not in places:
        raise absent(module, name)
    place, _, other = places[name].partition(":")
    return getattr(importlib.import_module(place), other or name)


def absent(module: str, name: str) -> AttributeError:
    """The error for a name that a module does not have; of a name of Grain it says what to use."""
    found = ABSENT.get(name)
    if found is None:
        return AttributeError(f"module {module!r} has no attribute {name!r}")
    return AttributeError(f"{module} has no {name}, which Grain has: {found}")
