"""Places in a stream: between Grain's nested states and the integers of Windrow's positions.

Both libraries keep the same facts, in another order: Grain's state of a node holds the states of its
parents, and Windrow's position of a node follows those of its parents.

Invariant: where both directions exist, one undoes the other up to states that give the same rest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from windrow.errors import ArgumentError, StateError
from windrow.grain_api import grain_nodes
from windrow.grain_api.loader_state import in_place
from windrow.iterator import DatasetIterator
from windrow.map_dataset import MapDataset
from windrow.state import check_reach

if TYPE_CHECKING:
    from windrow.grain_api.from_grain import Conversion


def resumed(to: Conversion, iterator: Any) -> DatasetIterator[Any]:
    """Windrow's iterator at the place of an iterator of Grain.

    Raises:
        PlanError: If a node has no counterpart.
        StateError: If the place has none.
    """
    stream = grain_nodes.with_options(to.of(iterator), iterator._ctx.dataset_options)
    found: DatasetIterator[Any] = iter(stream)
    position = _integers(iterator, iterator.get_state())
    if any(position):
        found.set_state(in_place(found, position))
    return found


def to_grain_state(iterator: DatasetIterator[Any], dataset: Any) -> Any:
    """The state that an iterator of Grain has at the place of Windrow's: the way back from `from_grain`.

    Args:
        iterator: An iterator of what `from_grain(dataset)` returned.
        dataset: The dataset of Grain.

    Returns:
        What `set_state` of `iter(dataset)` takes.

    Raises:
        ArgumentError: If `iterator` is not Windrow's, or of another chain.
        StateError: If Grain cannot continue at that place: inside a batch, or after a `cache`.

    Example:
        >>> import grain, windrow
        >>> theirs = grain.MapDataset.range(10).shuffle(seed=1).to_iter_dataset().batch(2)
        >>> ours = iter(windrow.from_grain(theirs))
        >>> _ = next(ours), next(ours)
        >>> again = iter(theirs)
        >>> again.set_state(windrow.to_grain_state(ours, theirs))
        >>> next(again).tolist() == next(ours).tolist()
        True
    """
    from windrow.grain_api.from_grain import Conversion

    if not isinstance(iterator, DatasetIterator):
        raise ArgumentError(
            f"to_grain_state: needs an iterator of Windrow, got a {type(iterator).__name__}"
        )
    named = iterator._named()
    made = Conversion(True, {}).of(dataset)
    if iter(made)._named().fingerprint != named.fingerprint:
        raise ArgumentError(
            f"to_grain_state: the iterator is of another chain\n  iterator: {named.chain}\n  dataset:"
            f"  {made!r}\nGive the dataset of Grain that from_grain was called with."
        )
    found = named.position(iterator.get_state())
    check_reach(named.tail, found)
    position, lead = named.tail.position_of(found)
    if lead:
        raise StateError(
            "to_grain_state: the place is inside a batch, where Grain has no state; take it at the"
            " begin of a batch"
        )
    (lane,) = found.lanes
    if not named.tail.is_indexed:
        position = [*(lane or ()), *found.after]  # without the count of rows
    if isinstance(made, MapDataset):
        return {"next_index": position[0]}
    return _theirs(dataset, position)


# --- the states of nodes -------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class _Rule:
    """How the state of a kind of node, with one parent, relates to integers.

    Args:
        own: The number of its own integers.
        integers: Its own integers, of its state.
        state: Its state, of the state of its parent and its own integers.
        parent: The state of its parent, of its state.
    """

    own: int
    integers: Callable[[Any], list[int]]
    state: Callable[[Any, Sequence[int]], Any]
    parent: Callable[[Any], Any]


def _counting(*keys: str, parent: str = "parent") -> _Rule:
    """The rule of a state that has the parent's state, and integers under these keys."""
    return _Rule(
        len(keys),
        lambda state: [state[key] for key in keys],
        lambda inner, own: {parent: inner, **dict(zip(keys, own, strict=True))},
        lambda state: state[parent],
    )


_SAME: Final = _Rule(0, lambda state: [], lambda inner, own: inner, lambda state: state)
_RULES: Final[Mapping[str, _Rule]] = {
    "RandomMapIterDataset": _counting("index_for_rng"),
    "MapWithIndexIterDataset": _counting("counter"),
    "LimitIterDataset": _counting("count_elements_read"),
    "RepeatIterDataset": _counting("epoch"),
    "RebatchIterDataset": _counting("batch_idx"),
    "FlatMapIterDataset": _counting("next_index_in_buffer"),
    "WindowShuffleIterDataset": _counting(
        "window_index", "pos_in_window", parent="parent_window_start_state"
    ),
    "FirstFitPackIterDataset": _Rule(
        2,
        lambda state: [state["counter"] - state["next_row"], state["next_row"]],
        lambda inner, own: {"parent": inner, "next_row": own[1], "counter": sum(own)},
        lambda state: state["parent"],
    ),
}


def _integers(node: Any, state: Any) -> list[int]:
    """The position of Windrow at the place of a state of Grain.

    Raises:
        StateError: If there is none.
    """
    kind = grain_nodes.kind_of(node)
    if kind in _SEVERAL:
        return _SEVERAL[kind].integers(node, state)
    if kind is None or kind in _SOURCES:
        raise StateError(f"from_grain: a state of {node} has no counterpart in Windrow")
    rule = _rule_of(kind)
    own = rule.integers(state)
    return [*_integers(grain_nodes.parent_of(node), rule.parent(state)), *own]


def _theirs(node: Any, position: Sequence[int]) -> Any:
    """Grain's state at the place of a position of Windrow.

    Raises:
        StateError: If there is none.
    """
    kind = grain_nodes.kind_of(node)
    if kind in _SEVERAL:
        return _SEVERAL[kind].state(node, list(position))
    if kind is None or kind in _SOURCES or kind == "CacheIterDataset":
        raise StateError(f"to_grain_state: this place of {node} has no state of Grain")
    rule = _rule_of(kind)
    split = len(position) - rule.own
    return rule.state(_theirs(grain_nodes.parent_of(node), position[:split]), position[split:])


def _width(node: Any) -> int:
    """The integers that a position of Windrow has for a stream of Grain."""
    kind = grain_nodes.kind_of(node)
    if kind in _SEVERAL:
        return _SEVERAL[kind].width(node)
    return _rule_of(str(kind)).own + _width(grain_nodes.parent_of(node))


def _rule_of(kind: str) -> _Rule:
    return _RULES["FirstFitPackIterDataset"] if kind in _FIT_PACKS else _RULES.get(kind, _SAME)


_FIT_PACKS: Final = ("FirstFitPackIterDataset", "BestFitPackIterDataset")
_SOURCES: Final = ("ParquetIterDataset", "TFRecordIterDataset")


# --- nodes with no parent, or with several ---------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class _NodeRule:
    """How the whole state of a kind of node relates to the whole position."""

    width: Callable[[Any], int]
    integers: Callable[[Any, Any], list[int]]
    state: Callable[[Any, list[int]], Any]


def _split(parts: Sequence[Any], position: Sequence[int]) -> list[Any]:
    """The states of parents, whose positions come first in a position."""
    found, start = [], 0
    for part in parts:
        stop = start + _width(part)
        found.append(_theirs(part, position[start:stop]))
        start = stop
    return found


def _joined(parts: Sequence[Any], states: Sequence[Any]) -> list[int]:
    return [n for part, state in zip(parts, states, strict=True) for n in _integers(part, state)]


def _mix_integers(node: Any, state: Any) -> list[int]:
    parents = state["parents"]
    if isinstance(node._parents_structure, Mapping):
        parents = [parents[name] for name in grain_nodes.part_names(node)]
    # A mixture that has ended has counted the element that it lacks.
    return [*_joined(node._parents, parents), state["index"] - bool(state["stop"])]


def _mix_state(node: Any, position: list[int]) -> Any:
    parents: Any = _split(node._parents, position)
    if isinstance(node._parents_structure, Mapping):
        parents = dict(zip(grain_nodes.part_names(node), parents, strict=True))
    return {"parents": parents, "index": position[-1], "stop": False}


def _cut_integers(node: Any, state: Any) -> list[int]:
    slices = state["remainder_slices"]
    begins = [slices[name][0] for name in _cut_features(node)]
    own = [*begins, state["elements_from_buffer_after_checkpoint"]]
    return [*_integers(grain_nodes.parent_of(node), state["parent_state"]), *own]


def _cut_features(node: Any) -> list[str]:
    config = node._config
    return [name for name in config.length_struct if name not in config.meta_features]


def _cut_state(node: Any, position: list[int]) -> Any:
    if any(position[-1 - len(_cut_features(node)) : -1]):
        raise StateError(
            "to_grain_state: the place is inside a sequence, and where that ends is not known before"
            " it is read"
        )
    inner = _theirs(grain_nodes.parent_of(node), position[: -1 - len(_cut_features(node))])
    return {
        "parent_state": inner,
        "remainder_slices": dict.fromkeys(_cut_features(node), (0, 0)),
        "elements_from_buffer_after_checkpoint": position[-1],
    }


# --- interleaving, and workers -----------------------------------------------------------------------


def _alike(parts: Sequence[Any]) -> Any:
    """The dataset of which workers have parts, if its order does not depend on them; else None."""
    if not parts or any(grain_nodes.name_of(p) != "ProcessPrefetchIterDataset" for p in parts):
        return None
    whole = grain_nodes.whole_of(parts[0])
    return whole if len(parts) == 1 or grain_nodes.is_alike(whole) else None


def _turn_width(node: Any) -> int:
    parts = grain_nodes.interleaved_parts(node)
    whole = _alike(parts)
    if whole is not None:
        return _width(whole)
    return sum(map(_width, parts)) + min(node._cycle_length, len(parts)) + 2


def _turn_integers(node: Any, state: Any) -> list[int]:
    parts = grain_nodes.interleaved_parts(node)
    if state.get("future_states"):
        raise StateError("from_grain: Grain has changed the shards of this state; restore it there")
    streams, states = state["iterators_in_use_indices"], state["iterators_in_use_states"]
    whole = _alike(parts)
    if whole is not None:
        taken = [[0] * _width(whole)] * len(parts)
        for stream, inner in zip(streams, states, strict=True):
            taken[stream] = taken[stream] if inner is None else _integers(whole, inner)
        return taken[0] if len(parts) == 1 else [sum(each) for each in zip(*taken, strict=True)]
    begun, places = [[0] * _width(part) for part in parts], []
    for stream, inner, over in zip(streams, states, state["exhausted"], strict=True):
        is_open = inner is not None and not over
        places.append(stream + 1 if is_open else 0)
        if is_open:
            begun[stream] = _integers(parts[stream], inner)
    own = [state["next_index_in_cycle"], state["next_index_in_datasets"], *places]
    return [*(n for each in begun for n in each), *own]


def _turn_state(node: Any, position: list[int]) -> Any:
    parts = grain_nodes.interleaved_parts(node)
    whole, places = _alike(parts), min(node._cycle_length, len(parts))
    if whole is not None:
        count = len(parts)
        shares = [[-(-(n - worker) // count) for n in position] for worker in range(count)]
        return _turn(
            position[0] % count if count > 1 else 0,
            count,
            list(range(count)),
            [_theirs(whole, share) for share in shares],
        )
    states = _split(parts, position)
    next_place, begun, *streams = position[-places - 2 :]
    return _turn(
        next_place,
        begun,
        [max(0, stream - 1) for stream in streams],
        [states[stream - 1] if stream else None for stream in streams],
    )


def _turn(place: int, begun: int, streams: list[int], states: list[Any]) -> dict[str, Any]:
    return {
        "next_index_in_cycle": place,
        "next_index_in_datasets": begun,
        "iterators_in_use_indices": streams,
        "iterators_in_use_states": states,
        "exhausted": [0] * len(streams),
        "future_states": {},
    }


def _cached_integers(node: Any, state: Any) -> list[int]:
    if state["cache_filled"]:
        raise StateError(
            "from_grain: the cache of this iterator is filled, and its state does not say where in"
            " the parent it is; take over a state of the first epoch"
        )
    return _integers(grain_nodes.parent_of(node), state["parent"])


_SEVERAL: Final[Mapping[str | None, _NodeRule]] = {
    "PrefetchIterDataset": _NodeRule(
        lambda node: 1,
        lambda node, state: [state["next_index"]],
        lambda node, position: {"next_index": position[0]},
    ),
    "ZipIterDataset": _NodeRule(
        lambda node: sum(map(_width, node._parents)),
        lambda node, state: _joined(node._parents, state["parents"]),
        lambda node, position: {"parents": _split(node._parents, position)},
    ),
    "MixedIterDataset": _NodeRule(
        lambda node: sum(map(_width, node._parents)) + 1, _mix_integers, _mix_state
    ),
    "InterleaveIterDataset": _NodeRule(_turn_width, _turn_integers, _turn_state),
    "ConcatThenSplitIterDataset": _NodeRule(
        lambda node: _width(grain_nodes.parent_of(node)) + len(_cut_features(node)) + 1,
        _cut_integers,
        _cut_state,
    ),
    "CacheIterDataset": _NodeRule(
        lambda node: _width(grain_nodes.parent_of(node)),
        _cached_integers,
        lambda node, position: _no_cache(node),
    ),
}


def _no_cache(node: Any) -> Any:
    raise StateError(f"to_grain_state: a place of {node} has no state of Grain without its elements")
