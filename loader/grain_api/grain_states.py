"""Places in a stream: between Grain's nested states and the integers of Windrow's positions.

Both libraries keep the same facts, in another order: Grain's state of a node holds the states of its
parents, and Windrow's position of a node follows the positions of its parents.

Invariant: where both directions exist, one undoes the other up to states that give the same rest.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from windrow.core.text import with_article
from windrow.errors import ArgumentError, StateError
from windrow.grain_api import grain_attributes, grain_nodes
from windrow.grain_api.conversion import GraphConversion
from windrow.grain_api.loader_state import in_place
from windrow.iterator import DatasetIterator


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
    if not isinstance(iterator, DatasetIterator):
        raise ArgumentError(
            f"to_grain_state: needs an iterator of Windrow, got {with_article(type(iterator).__name__)}"
        )
    to = grain_nodes.conversion(strict=True)
    made, named = to.of(dataset), iterator._named()
    if iter(made)._named().fingerprint != named.fingerprint:
        raise ArgumentError(
            f"to_grain_state: the iterator is of another chain\n  iterator: {named.chain}\n  dataset:"
            f"  {made!r}\nGive the dataset of Grain that from_grain was called with."
        )
    position = _position(iterator)
    return _theirs(to, dataset, position)


def _position(iterator: DatasetIterator[Any]) -> list[int]:
    """The position of an iterator in its chain as the user wrote it."""
    named = iterator._named()
    found = named.position(iterator.get_state())
    position, lead = named.tail.position_of(found)
    if lead:
        raise StateError(
            "to_grain_state: the place is inside a batch, where Grain has no state; take it at the"
            " begin of a batch"
        )
    if named.tail.is_indexed:
        return position
    (lane,) = found.lanes
    return [*(lane or ()), *found.after]  # without the count of rows


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


def position_of(to: GraphConversion, node: Any, state: Any) -> list[int]:
    """The position of Windrow at the place of a state of Grain.

    Raises:
        StateError: If it has no counterpart.
    """
    kind = _kind(node)
    if kind in _SEVERAL:
        return _SEVERAL[kind].integers(to, node, state)
    if kind is None or kind in _SOURCES:
        raise StateError(f"from_grain: a state of {node} has no counterpart in Windrow")
    rule, inside = _rule_of(kind), to.inside(node)
    position = position_of(inside, grain_attributes.parent_of(node), rule.parent(state))
    position += rule.integers(state)
    if kind in _GROUPS:
        return _in_group(to, node, position, keeps=rule.own - 1)
    return position


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
        iterator.set_state(in_place(iterator, [*before, 0]))
        for _ in itertools.islice(iterator, given):
            pass
        found = _position(iterator)
    own = len(found) - 1 - keeps
    return [*found[:own], *before[own:], found[-1]]


def _theirs(to: GraphConversion, node: Any, position: Sequence[int]) -> Any:
    """Grain's state at the place of a position of Windrow.

    Raises:
        StateError: If it has no counterpart.
    """
    kind = _kind(node)
    if kind in _SEVERAL:
        return _SEVERAL[kind].state(to, node, list(position))
    if kind is None or kind in _SOURCES:
        raise StateError(f"to_grain_state: this place of {node} has no state of Grain")
    rule = _rule_of(kind)
    split = len(position) - rule.own
    inner = _theirs(to.inside(node), grain_attributes.parent_of(node), position[:split])
    return rule.state(inner, position[split:])


def _width(to: GraphConversion, node: Any) -> int:
    """The integers that a position of Windrow has for a stream of Grain."""
    kind = _kind(node)
    if kind in _SEVERAL:
        return _SEVERAL[kind].width(to, node)
    inner = _width(to.inside(node), grain_attributes.parent_of(node))
    return _rule_of(str(kind)).own + inner


def _kind(node: Any) -> str | None:
    """The row of the table; what has random access is a stream where a stream is made of it."""
    kind = grain_attributes.kind_of(node)
    return "PrefetchIterDataset" if str(kind).endswith("MapDataset") else kind


def _rule_of(kind: str) -> _Rule:
    return _RULES["FirstFitPackIterDataset"] if kind in _FIT_PACKS else _RULES.get(kind, _SAME)


_FIT_PACKS: Final = ("FirstFitPackIterDataset", "BestFitPackIterDataset")
_SOURCES: Final = ("ParquetIterDataset", "TFRecordIterDataset")


# --- nodes with no parent, or with several ---------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class _NodeRule:
    """How the whole state of a kind of node relates to the whole position."""

    width: Callable[[GraphConversion, Any], int]
    integers: Callable[[GraphConversion, Any, Any], list[int]]
    state: Callable[[GraphConversion, Any, list[int]], Any]


def _joined(to: GraphConversion, parts: Sequence[Any], states: Sequence[Any]) -> list[int]:
    """The positions of parents."""
    return [
        n for part, state in zip(parts, states, strict=True) for n in position_of(to, part, state)
    ]


def _split(to: GraphConversion, parts: Sequence[Any], position: Sequence[int]) -> list[Any]:
    """The states of parents, whose positions come first in a position."""
    found, start = [], 0
    for part in parts:
        stop = start + _width(to, part)
        found.append(_theirs(to, part, position[start:stop]))
        start = stop
    return found


def _widths(to: GraphConversion, parts: Sequence[Any]) -> int:
    return sum(_width(to, part) for part in parts)


def _mix_integers(to: GraphConversion, node: Any, state: Any) -> list[int]:
    parents = state["parents"]
    if isinstance(node._parents_structure, Mapping):
        parents = [parents[name] for name in grain_attributes.part_names(node)]
    # A mixture that has ended has counted the element that it lacks.
    return [*_joined(to, node._parents, parents), state["index"] - bool(state["stop"])]


def _mix_state(to: GraphConversion, node: Any, position: list[int]) -> Any:
    parents: Any = _split(to, node._parents, position)
    if isinstance(node._parents_structure, Mapping):
        parents = dict(zip(grain_attributes.part_names(node), parents, strict=True))
    return {"parents": parents, "index": position[-1], "stop": False}


def _cut_features(node: Any) -> list[str]:
    config = node._config
    return [name for name in config.length_struct if name not in config.meta_features]


def _cut_width(to: GraphConversion, node: Any) -> int:
    return _width(to, grain_attributes.parent_of(node)) + len(_cut_features(node)) + 1


def _cut_integers(to: GraphConversion, node: Any, state: Any) -> list[int]:
    slices = state["remainder_slices"]
    begins = [max(0, slices[name][0]) for name in _cut_features(node)]  # -1 for none
    inner = position_of(to, grain_attributes.parent_of(node), state["parent_state"])
    given = state["elements_from_buffer_after_checkpoint"]
    return _in_group(to, node, [*inner, *begins, given])


def _cut_state(to: GraphConversion, node: Any, position: list[int]) -> Any:
    split = len(position) - len(_cut_features(node)) - 1
    if any(position[split:-1]):
        raise StateError(
            "to_grain_state: the place is inside a sequence, and where that ends is not known before"
            " it is read"
        )
    return {
        "parent_state": _theirs(to, grain_attributes.parent_of(node), position[:split]),
        "remainder_slices": dict.fromkeys(_cut_features(node), (-1, -1)),
        "elements_from_buffer_after_checkpoint": position[-1],
    }


def _cached_integers(to: GraphConversion, node: Any, state: Any) -> list[int]:
    if state["cache_filled"]:
        raise StateError(
            "from_grain: the cache of this iterator is filled, and its state does not say where in"
            " the parent it is; take over a state of the first epoch"
        )
    return position_of(to, grain_attributes.parent_of(node), state["parent"])


def _cached_state(to: GraphConversion, node: Any, position: list[int]) -> Any:
    if any(position):
        raise StateError(
            f"to_grain_state: a place of {node} has no state of Grain without its elements"
        )
    inner = _theirs(to, grain_attributes.parent_of(node), position)
    return {"parent": inner, "position": 0, "cache_filled": False}


# --- interleaving, and workers -------------------------------------------------------------------


def _turn_parts(to: GraphConversion, node: Any) -> tuple[list[Any], Any, GraphConversion]:
    """The datasets in turn, or the one that workers share if its order does not depend on them."""
    parts = grain_attributes.interleaved_parts(node)
    if not grain_attributes.are_workers(parts):
        return parts[to.every()], None, to.whole()
    whole = grain_attributes.whole_of(parts[0])
    is_one = len(parts) == 1 or grain_attributes.is_alike(whole)
    return parts, whole if is_one else None, to


def _turn_width(to: GraphConversion, node: Any) -> int:
    parts, whole, inside = _turn_parts(to, node)
    if whole is not None:
        return _width(inside, whole)
    places: int = min(node._cycle_length, len(parts))
    return _widths(inside, parts) + places + 2


def _turn_integers(to: GraphConversion, node: Any, state: Any) -> list[int]:
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


def _turn_state(to: GraphConversion, node: Any, position: list[int]) -> Any:
    parts, whole, inside = _turn_parts(to, node)
    count = len(parts)
    if whole is not None:
        # Each worker has taken every nth element: all integers count elements.
        shares = [[-(-(n - worker) // count) for n in position] for worker in range(count)]
        states = [_theirs(inside, whole, share) for share in shares]
        turn = position[0] % count if count > 1 else 0
        return _turn(turn, count, list(range(count)), states)
    places = min(node._cycle_length, count)
    states = _split(inside, parts, position)
    turn, begun, *streams = position[-places - 2 :]
    return _turn(
        turn,
        begun,
        [max(0, stream - 1) for stream in streams],
        [states[stream - 1] if stream else None for stream in streams],
    )


def _turn(turn: int, begun: int, streams: list[int], states: list[Any]) -> dict[str, Any]:
    return {
        "next_index_in_cycle": turn,
        "next_index_in_datasets": begun,
        "iterators_in_use_indices": streams,
        "iterators_in_use_states": states,
        "exhausted": [0] * len(streams),
        "future_states": {},
    }


_SEVERAL: Final[Mapping[str | None, _NodeRule]] = {
    "PrefetchIterDataset": _NodeRule(
        lambda to, node: 1,
        lambda to, node, state: [state["next_index"]],
        lambda to, node, position: {"next_index": position[0]},
    ),
    "ZipIterDataset": _NodeRule(
        lambda to, node: _widths(to, node._parents),
        lambda to, node, state: _joined(to, node._parents, state["parents"]),
        lambda to, node, position: {"parents": _split(to, node._parents, position)},
    ),
    "MixedIterDataset": _NodeRule(
        lambda to, node: _widths(to, node._parents) + 1, _mix_integers, _mix_state
    ),
    "InterleaveIterDataset": _NodeRule(_turn_width, _turn_integers, _turn_state),
    "ConcatThenSplitIterDataset": _NodeRule(_cut_width, _cut_integers, _cut_state),
    "CacheIterDataset": _NodeRule(
        lambda to, node: _width(to, grain_attributes.parent_of(node)),
        _cached_integers,
        _cached_state,
    ),
}
