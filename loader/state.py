"""State: what an iterator needs to resume, and how a state of another chain is recognized.

A state is JSON: rows and positions (a few integers), the chain's fingerprint, and a description of
the chain for the message that refuses the state elsewhere. It holds no data and no count of threads,
workers, shards or hosts.

Invariant: under 1 kB without lanes, and some 20 bytes more per lane and stateful node, and 40 per named
part of a mixture; the same for
the same row of the same chain and data, whatever its last batch.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from windrow.errors import ArgumentError, StateError, StateIndexError
from windrow.transforms.nodes import (
    Node,
    RowPosition,
    Tail,
    as_chain,
    chains_of,
    described,
    earlier_source,
    function_names,
    named_mixture,
    parents_first,
    source_of,
    tail_of,
)
from windrow.transforms.nodes.base import split_position
from windrow.transforms.nodes.following import JoinsLanes

if TYPE_CHECKING:
    from windrow.mixture_state import NamedParts

VERSION = 2
_WORDS = 500  # characters of JSON, of the chain's description that a state keeps
_NEEDED = ("version", "rows", "lanes", "fingerprint")


@dataclasses.dataclass(frozen=True, slots=True)
class Identity:
    """What makes a state belong to a chain: its nodes and data, and the names of its functions."""

    tail: Tail
    fingerprint: str
    functions: str
    chain: str
    parts: NamedParts | None = None

    @classmethod
    def of(cls, node: Node) -> Identity:
        """The identity of a chain."""
        names = hashlib.sha256("\n".join(function_names(node)).encode()).hexdigest()[:8]
        tail = tail_of(node)
        return cls(tail, tail.fingerprint(), names, _shortened(described(node)), _parts_of(tail))

    def state(self, at: RowPosition) -> dict[str, Any]:
        """The state of an iterator at a position."""
        after: dict[str, Any] = {"after": at.after} if any(at.after) else {}
        if at.own:
            after["own"] = dict(at.own)
        if self.parts is not None:
            after["mixture"] = self.parts.to_json()
        return {
            "version": VERSION,
            "rows": at.rows,
            "lanes": at.lanes,
            **after,
            "fingerprint": self.fingerprint,
            "functions": self.functions,
            "chain": self.chain,
        }

    def position(self, state: Any) -> RowPosition:
        """Return the position in a state of this chain, or in Grain's state of an equal chain.

        Raises:
            StateError: If the state is invalid, or belongs to another chain or other data.
        """
        state = _parsed(state)
        if set(state) == {"next_index"} and self.tail.node.width == 1:
            number = state["next_index"]
            if type(number) is int and number < 0:
                raise StateIndexError(f"state is at element {number}; Grain counts them from 0")
            found = self.at([number])
            if self.tail.is_indexed:  # the last batch may be shorter, so rows alone do not show it
                _check_length(number, chains_of(self.tail.node)[0].parent.length)
            return found
        _check_keys(state)
        if state["fingerprint"] != self.fingerprint and not self._has_grown(state):
            taken = self.parts.taken_over(state) if self.parts is not None else None
            if taken is not None:
                return self._row_position(taken)
            raise StateError(
                "the state was taken over another chain or other data\n"
                f"  state:    {state.get('chain', '?')} [{state['fingerprint']}]\n"
                f"  this run: {self.chain} [{self.fingerprint}]\n"
                f"{_hint(self.tail.node, str(state.get('chain')))}"
            )
        if state.get("functions") != self.functions:
            warnings.warn(
                "functions of the chain have other names than when the state was taken; the"
                " stream resumes at the same place, with the functions of this run",
                stacklevel=3,
            )
        return self._row_position(state)

    def at(self, position: Sequence[int]) -> RowPosition:
        """What a state holds of a position of the chain as it was written, which counts no rows.

        Raises:
            StateError: If it is not a position of this chain.
        """
        return self.tail.rows_at(_checked(position, self.tail.node.width))

    def _has_grown(self, state: dict[str, Any]) -> bool:
        """Whether a state is of this chain over a source with fewer records, which it takes the first of."""
        return bool(state["fingerprint"] == self.tail.fingerprint(earlier=True))

    def _row_position(self, state: dict[str, Any]) -> RowPosition:
        width, after = self.tail.lane_width, self.tail.after
        lanes = state["lanes"]
        if not isinstance(lanes, list) or len(lanes) != self.tail.lanes:
            raise StateError(
                f"state has lanes {str(lanes)[:80]}; this chain has {self.tail.lanes}. The state is"
                " damaged: restore another one."
            )
        missing = _missing_lanes(self.tail, lanes)
        if missing:
            raise StateError(
                f"the state has no position of lanes {_listed(missing)}, which this iterator runs: it"
                " is the state of one shard; merge the states of all shards of that step with"
                " windrow.merge_states, and restore the result"
            )
        found: list[list[Any] | None] = [
            None if lane is None else _checked(_with_zeros(self.tail, lane), width)
            for lane in lanes
        ]
        given = state.get("after", [0] * after)
        (rows,) = _checked([state["rows"]], 1)
        if self.tail.is_indexed and found != [[rows]]:
            raise StateError(
                f"state is at row {rows} with lanes {found}, which must be the same here. The state"
                " is damaged: restore another one."
            )
        own = state.get("own", {})
        if not isinstance(own, dict):
            raise StateError(f"state has own {own!r}, which must be a dict. It is damaged.")
        return RowPosition(rows, found, _checked(given, after), own)


def _missing_lanes(tail: Tail, lanes: Sequence[Any]) -> list[int]:
    """The lanes that an iterator runs, and a state does not have."""
    missing = {lane for lane in tail.own_lanes if lanes[lane] is None}
    for position in lanes if tail.joined else ():
        for lane, places, is_run in tail.joined:
            if (
                is_run
                and isinstance(position, list)
                and None in position[places.start : places.stop]
            ):
                missing.add(lane)
    return sorted(missing)


def _with_zeros(tail: Tail, position: Any) -> Any:
    """A position with zeros for lanes that others run, which an earlier batch joins."""
    if not isinstance(position, list) or None not in position:
        return position
    of_lanes = {n for each in tail.joined for n in each.places}
    return [0 if n is None and k in of_lanes else n for k, n in enumerate(position)]


def has_lanes(tail: Tail, lanes: Any) -> bool:
    """Whether the lanes of a state are all that an iterator runs, or it is damaged."""
    if not isinstance(lanes, list) or len(lanes) != tail.lanes:
        return True  # `set_state` says what is wrong with it
    return not _missing_lanes(tail, lanes)


def _parts_of(tail: Tail) -> NamedParts | None:
    """The parts of the named mixture that a stream ends with, if it does."""
    mixture = named_mixture(tail.node)
    if mixture is None:
        return None
    from windrow.mixture_state import NamedParts  # few chains have one

    return NamedParts.of(tail, mixture)


def merge_states(states: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The state of the whole stream, of the states of its shards at one step.

    The result restores any shard of any number of shards, and the plain iterator. Equal states count
    once, so the states of all processes may be given, in any order.

    Args:
        states: States as `get_state` returned them, or after a round trip through JSON; at least one.

    Returns:
        A state with the positions of all lanes.

    Raises:
        ArgumentError: If there is no state.
        StateError: If a state is invalid, states are of different chains or steps, or the position
            of a lane is in none of them.

    Example:
        >>> import windrow
        >>> stream = windrow.MapDataset.range(100).to_iter_dataset(lanes=2).filter(bool).repeat()
        >>> shards = [iter(stream.batch(4).shard(number, 2)) for number in range(2)]
        >>> [next(shard).tolist() for shard in shards]
        [[2, 4], [1, 3]]
        >>> state = windrow.merge_states([shard.get_state() for shard in shards])
        >>> whole = iter(stream.batch(8)).set_state(state)
        >>> next(whole).tolist()
        [6, 8, 10, 12, 5, 7, 9, 11]
    """
    found = [_parsed(state) for state in states]
    if not found:
        raise ArgumentError("merge_states: needs at least one state, got none")
    first, *others = found
    for state in found:
        _check_keys(state)
    if all(state == first for state in others):
        merged = first
    else:
        merged = _merged(found)
    lanes = merged.get("lanes", [])
    missing = [lane for lane, position in enumerate(lanes) if position is None]
    if any(position and None in position for position in lanes):
        raise StateError(
            f"merge_states: the {len(found)} states have no position of some lanes that a batch joins;"
            " give the states of all shards of the step"
        )
    if missing:
        raise StateError(
            f"merge_states: the {len(found)} states have no position of lanes {_listed(missing)} of"
            f" {len(lanes)}; give the states of all shards of the step"
        )
    return merged


def _merged(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    # States of 0.2 have counts of bad records, which are not used.
    states = [{key: value for key, value in state.items() if key != "bad"} for state in states]
    first = states[0]
    for number, state in enumerate(states):
        for key, what in (("fingerprint", "chains or data"), ("rows", "steps")):
            if state[key] != first[key]:
                raise StateError(
                    f"merge_states: states are of different {what}: {key} is {first[key]!r} in state"
                    f" 0 and {state[key]!r} in state {number}; give the states of one step of one"
                    " run"
                )
        rest = {key: value for key, value in state.items() if key != "lanes"}
        differ = [key for key, value in rest.items() if first.get(key) != value]
        if differ and set(differ) - {"chain", "functions"}:
            raise StateError(
                f"merge_states: states 0 and {number} differ in {', '.join(differ)}; give the states"
                " of one step of one run"
            )
    lanes = list(first["lanes"])
    for number, state in enumerate(states):
        if len(state["lanes"]) != len(lanes):
            raise StateError(f"merge_states: state {number} has another number of lanes")
        for lane, position in enumerate(state["lanes"]):
            both = _merged_position(lanes[lane], position)
            if both is not None or position is None:
                lanes[lane] = both
            else:
                raise StateError(
                    f"merge_states: lane {lane} is at {lanes[lane]} and, in state {number}, at"
                    f" {position}; give the states of one step of one run"
                )
    return {**first, "lanes": lanes}


def _merged_position(one: Any, other: Any) -> Any:
    """The integers that one of two positions of a lane has; None if they differ."""
    if one is None or other is None:
        return other if one is None else one
    pairs = list(zip(one, other, strict=False))
    if len(one) != len(other) or any(None not in pair and pair[0] != pair[1] for pair in pairs):
        return None
    return [b if a is None else a for a, b in pairs]


def _hint(node: Node, taken_over: str) -> str:
    """What to do with a state of another chain, whose description is `taken_over`."""
    grown = []
    # Ragged rows have one offset more.
    lengths = {int(n) - more for n in re.findall(r"\d{1,18}", taken_over) for more in (0, 1)}
    for reading in parents_first(node):
        for length in sorted(lengths, reverse=True) if source_of(reading) is not None else ():
            before = earlier_source(reading, length)
            if before is not None and before in taken_over and reading.label not in taken_over:
                grown.append(f"from {length:,} records to {reading.length:,}: [:{length}]")
                break
    if not grown:
        return "Restore with the chain and data it was taken from, or start without a state."
    return (
        f"The data has grown since, {'; and '.join(grown)} right after that source restores on the"
        " old length. Or start without a state."
    )


def _listed(numbers: Sequence[int]) -> str:
    more = f" and {len(numbers) - 8} more" if len(numbers) > 8 else ""
    return ", ".join(map(str, numbers[:8])) + more


def _shortened(chain: str) -> str:
    """Leave out the middle of `chain` if it takes more than `_WORDS` characters of JSON."""
    kept, half = chain, _WORDS // 2
    while len(json.dumps(kept)) > _WORDS:
        kept = f"{chain[:half]} ... {chain[len(chain) - half :]}"
        half = half * 3 // 4
    return kept


def _parsed(state: Any) -> dict[str, Any]:
    if isinstance(state, (bytes, bytearray, str)):
        try:
            state = json.loads(state)
        except ValueError:
            raise StateError(f"state is not JSON: {state[:80]!r}") from None
    if not isinstance(state, dict):
        raise StateError(f"state must be a dict, as get_state() gives, got {type(state).__name__}")
    return state


def _check_keys(state: dict[str, Any]) -> None:
    version = state.get("version", VERSION)
    if type(version) is not int or version != VERSION:
        raise StateError(
            f"state has version {version!r}, which another Windrow wrote; this one reads version"
            f" {VERSION} alone. Start without a state and save anew, or restore it with the Windrow"
            " that wrote it."
        )
    if not set(_NEEDED) <= set(state):
        raise StateError(
            f"not a state of a Windrow iterator: it has the keys {sorted(map(str, state))}, but"
            f" needs {', '.join(_NEEDED[:-1])} and {_NEEDED[-1]}. Pass the value that"
            " get_state() returned. (A state of Grain, {'next_index': n}, is only for a chain whose"
            " position is one number.)"
        )


def _checked(position: Any, size: int) -> list[int]:
    whole = isinstance(position, (list, tuple)) and len(position) == size
    if not whole or not all(type(n) is int and 0 <= n < 2**63 for n in position):
        raise StateError(
            f"state has position {position!r}; a position of this chain is {size} integers of at"
            " least 0 and below 2**63. The state is damaged: restore another one."
        )
    return list(position)


def check_reach(tail: Tail, found: RowPosition) -> None:
    """Check that a position is inside the data.

    Raises:
        StateIndexError: If it is after their end.
    """
    for lane in found.lanes:
        if lane is not None and not tail.is_indexed:
            _check_inside(tail.row_node, [n or 0 for n in lane])
    chains = chains_of(tail.node)
    if tail.is_indexed:
        length = chains[0].parent.length if tail.batch is None else tail.batch.parent.length
        _check_length(found.rows, length)


def _check_inside(node: Node, position: Sequence[int]) -> None:
    chain = as_chain(node)
    if chain is not None:
        _check_length(position[0], chain.parent.length)
        return
    if isinstance(node, JoinsLanes):
        width = node.parent.width
        for start in range(0, len(position) - 1, width):
            _check_inside(node.parent, position[start : start + width])
        return
    *parts, _ = split_position(node, position)
    for parent, part in zip(node.parents, parts, strict=True):
        _check_inside(parent, part)


def _check_length(row: int, length: int) -> None:
    if row > length:
        raise StateIndexError(
            f"state is at element {row} of a dataset of {length}; it was"
            " taken over more data: restore with the dataset it was taken from"
        )
