"""Grain's nested states as the integers of Windrow's positions.

Both libraries keep the same facts, in another order: Grain's state of a node holds the states of its
parents, and Windrow's position of a node follows the positions of its parents. States of Grain are read, and
not written.

Invariant: after the position come the elements that Grain gives after the state.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from windrow.errors import StateError
from windrow.grain_api import grain_attributes, grain_nodes
from windrow.grain_api.conversion import GraphConversion
from windrow.grain_api.loader_state import resume
from windrow.iterator import DatasetIterator
from windrow.map_dataset import MapDataset


def resumed(to: GraphConversion, iterator: Any) -> DatasetIterator[Any]:
    """Windrow's iterator at the place of an iterator of Grain.

    Raises:
        PlanError: If a node has no counterpart.
        StateError: If the place has none.
    """
    stream = grain_nodes.with_options(to.of(iterator), iterator._ctx.dataset_options)
    found: DatasetIterator[Any] = iter(stream)
    position = position_of(to, iterator, iterator.get_state())
    if any(position):
        resume(found, position)
    return found


def position_of(to: GraphConversion, node: Any, state: Any) -> list[int]:
    """The position of Windrow at the place of a state of Grain.

    Raises:
        StateError: If it has no counterpart.
    """
    kind = _kind(node)
    if kind in _SEVERAL:
        return _SEVERAL[kind](to, node, state)
    if kind is None or kind in _SOURCES:
        raise StateError(f"from_grain: a state of {node} has no counterpart in Windrow")
    own, rest = _parted(kind, state)
    before = position_of(to.inside(node), grain_attributes.parent_of(node), rest)
    if kind in _GROUPS:
        return _in_group(to, node, [*before, *own], keeps=len(own) - 1)
    return [*before, *own]


def _kind(node: Any) -> str | None:
    """The row of the table; what has random access is a stream where a stream is made of it."""
    kind = grain_attributes.kind_of(node)
    return "PrefetchIterDataset" if str(kind).endswith("MapDataset") else kind


_FIT_PACKS: Final = ("FirstFitPackIterDataset", "BestFitPackIterDataset")
_SOURCES: Final = ("ParquetIterDataset", "TFRecordIterDataset")


# --- nodes with one parent -------------------------------------------------------------------------

_INTEGERS: Final[Mapping[str, tuple[str, ...]]] = {
    "RandomMapIterDataset": ("index_for_rng",),
    "MapWithIndexIterDataset": ("counter",),
    "LimitIterDataset": ("count_elements_read",),
    "RepeatIterDataset": ("epoch",),
    "RebatchIterDataset": ("batch_idx",),
    "FlatMapIterDataset": ("next_index_in_buffer",),
    "WindowShuffleIterDataset": ("window_index", "pos_in_window"),
    "FirstFitPackIterDataset": ("counter", "next_row"),
    "BestFitPackIterDataset": ("counter", "next_row"),
}
"""The keys of a node's own integers in its state. Nodes that are not here have the state of their parent."""


def _parted(kind: str, state: Any) -> tuple[list[int], Any]:
    """The integers of a node, and the state of its parent."""
    if kind not in _INTEGERS:
        return [], state
    own = [state[key] for key in _INTEGERS[kind]]
    if kind in _FIT_PACKS:
        own[0] -= own[1]
    is_window = kind == "WindowShuffleIterDataset"
    return own, state["parent_window_start_state" if is_window else "parent"]


_GROUPS: Final = ("RebatchIterDataset", "FlatMapIterDataset", "WindowShuffleIterDataset")
"""Nodes that give out groups, whose last integer is what they have given of one."""


def _in_group(to: GraphConversion, node: Any, position: list[int], keeps: int = 0) -> list[int]:
    """The position after the elements of a group that its last integer counts.

    Grain keeps the begin of a group until the next one begins. Windrow does not, and only the group
    itself shows whether it has been given out. The `keeps` integers before the last one are right.
    """
    *before, given = position
    if not given:
        return position
    is_rebatch = _kind(node) == "RebatchIterDataset"
    stream = to.parent(node).rebatch(1) if is_rebatch else to.of(node)
    with iter(stream) as iterator:
        resume(iterator, [*before, 0])
        for _ in itertools.islice(iterator, given):
            pass
        found = _position(iterator)
    own = len(found) - 1 - keeps
    return [*found[:own], *before[own:], found[-1]]


def _position(iterator: DatasetIterator[Any]) -> list[int]:
    """The position of an iterator in its chain as the user wrote it."""
    found = iterator._named().position(iterator.get_state())
    (lane,) = found.lanes
    return [*(lane or ()), *found.after]  # without the count of rows


# --- nodes with no parent, or with several ---------------------------------------------------------


def _joined(to: GraphConversion, parts: Sequence[Any], states: Sequence[Any]) -> list[int]:
    """The positions of parents."""
    return [
        n for part, state in zip(parts, states, strict=True) for n in position_of(to, part, state)
    ]


def _in_mixture(to: GraphConversion, node: Any, state: Any) -> list[int]:
    parents = state["parents"]
    if isinstance(node._parents_structure, Mapping):
        parents = [parents[name] for name in grain_attributes.part_names(node)]
    # A mixture that has ended has counted the element that it lacks.
    return [*_joined(to, node._parents, parents), state["index"] - bool(state["stop"])]


def _in_cuts(to: GraphConversion, node: Any, state: Any) -> list[int]:
    config, slices = node._config, state["remainder_slices"]
    features = [name for name in config.length_struct if name not in config.meta_features]
    begins = [max(0, slices[name][0]) for name in features]  # -1 for none
    inner = position_of(to, grain_attributes.parent_of(node), state["parent_state"])
    given = state["elements_from_buffer_after_checkpoint"]
    return _in_group(to, node, [*inner, *begins, given])


def _in_cache(to: GraphConversion, node: Any, state: Any) -> list[int]:
    if state["cache_filled"]:
        raise StateError(
            "from_grain: the cache of this iterator is filled, and its state does not say where in"
            " the parent it is; take over a state of the first epoch"
        )
    return position_of(to, grain_attributes.parent_of(node), state["parent"])


# --- interleaving, and workers -------------------------------------------------------------------


def _in_turn(to: GraphConversion, node: Any, state: Any) -> list[int]:
    parts, whole, inside = _turn_parts(to, node)
    if state.get("future_states"):
        raise StateError("from_grain: Grain has changed the shards of this state; restore it there")
    begun = [[0] * _width(inside, whole if whole is not None else part) for part in parts]
    places = []
    for stream, inner, over in zip(
        state["iterators_in_use_indices"],
        state["iterators_in_use_states"],
        state["exhausted"],
        strict=True,
    ):
        is_open = inner is not None and not over
        places.append(stream + 1 if is_open else 0)
        if whole is not None and inner is not None:
            begun[stream] = position_of(inside, whole, inner)
        elif is_open:
            begun[stream] = position_of(inside, parts[stream], inner)
    if whole is not None:
        return begun[0] if len(parts) == 1 else [sum(each) for each in zip(*begun, strict=True)]
    own = [state["next_index_in_cycle"], state["next_index_in_datasets"], *places]
    return [*(n for each in begun for n in each), *own]


def _turn_parts(to: GraphConversion, node: Any) -> tuple[list[Any], Any, GraphConversion]:
    """The datasets in turn, or the one that workers share if its order does not depend on them."""
    parts = grain_attributes.interleaved_parts(node)
    if not grain_attributes.are_workers(parts):
        return parts[to.every()], None, to.whole()
    whole = grain_attributes.whole_of(parts[0])
    is_one = len(parts) == 1 or grain_attributes.is_alike(whole)
    return parts, whole if is_one else None, to


def _width(to: GraphConversion, node: Any) -> int:
    """The integers that a position of Windrow has for a stream of Grain."""
    found = to.of(node)
    stream = found.to_iter_dataset() if isinstance(found, MapDataset) else found
    width: int = stream._node.width
    return width


_SEVERAL: Final[Mapping[str | None, Callable[[GraphConversion, Any, Any], list[int]]]] = {
    "PrefetchIterDataset": lambda to, node, state: [state["next_index"]],
    "ZipIterDataset": lambda to, node, state: _joined(to, node._parents, state["parents"]),
    "MixedIterDataset": _in_mixture,
    "InterleaveIterDataset": _in_turn,
    "ConcatThenSplitIterDataset": _in_cuts,
    "CacheIterDataset": _in_cache,
}
