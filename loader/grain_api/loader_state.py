"""States of Grain's data loader: which element of ours they stand before."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from windrow.errors import StateError
from windrow.state import check_reach

if TYPE_CHECKING:
    from windrow.iterator import DatasetIterator

_KEYS: Final = {"last_seen_indices", "last_worker_index", "worker_count", "sampler", "data_source"}


def elements_before(
    state: Any, sampler: Any, source: Any, shard: tuple[int, int], *, validate: bool, parts: int
) -> Any:
    """A state for `DatasetIterator.set_state`: the given one, or what a state of Grain says.

    A loader with `parts` of its records, which take turns, has a place in each: see `resume`.

    Args:
        state: A state, usually bytes.
        sampler: The sampler of the loader.
        source: The source of the loader.
        shard: The number of the shard, and of shards.
        validate: Whether a state of Grain must name an equal sampler.
        parts: The workers of Grain whose order the loader has; 1 for that without workers.

    Raises:
        StateError: If it is not JSON, or is a state of Grain of another sampler, or of a step that
            this loader does not have.
    """
    if isinstance(state, (bytes, bytearray, str)):
        try:
            state = json.loads(state)
        except ValueError:
            raise StateError(f"state is not JSON: {state[:80]!r}") from None
    if not isinstance(state, dict) or "last_seen_indices" not in state:
        return state
    if not set(state) >= _KEYS or state.get("version") != 2:
        raise StateError(
            f"a state of Grain's DataLoader needs version 2 and {', '.join(sorted(_KEYS))}; it has"
            f" version {state.get('version')!r} and the keys {sorted(map(str, state))}"
        )
    if validate:
        _check_same(state, sampler, source)
    taken = _taken_by_workers(state, shard)
    if parts == 1:
        return {"next_index": _records_taken(taken)}
    if len(taken) != parts:
        raise StateError(
            f"state was taken with {len(taken)} workers of Grain, and this loader has the order of"
            f" {parts}: give it worker_count={len(taken)}"
        )
    turn = (state["last_worker_index"] + 1) % parts
    return {"position": [*taken, turn, parts, *range(1, parts + 1)]}


def resume(iterator: DatasetIterator[Any], position: Sequence[int]) -> None:
    """Continue at a position of the chain as its user wrote it.

    Raises:
        StateError: If it is not a position of this chain, or beyond the end of the data.
        ClosedError: If the iterator was closed.
    """
    iterator._check_open()
    found = iterator._named().at(position)
    check_reach(iterator._tail, found)
    iterator._resume(found)


def _check_same(state: dict[str, Any], sampler: Any, source: Any) -> None:
    if state["sampler"] != repr(sampler):
        raise StateError(
            "the state was taken with another sampler\n"
            f"  state:    {state['sampler']}\n"
            f"  this run: {sampler!r}\n"
            "Restore with the sampler that it was taken with."
        )
    in_memory = isinstance(source, (list, tuple, np.ndarray))
    own = str(type(source)) if in_memory else repr(source)
    if state["data_source"] != own:
        warnings.warn(
            "cannot check that this state of Grain belongs to these records: its source is"
            f" {state['data_source']}, and this run reads {own}",
            stacklevel=4,
        )


def _taken_by_workers(state: dict[str, Any], shard: tuple[int, int]) -> list[int]:
    """The records of the shard that each of Grain's workers has taken.

    Worker `w` of `n` takes the records `w, w + n, ...` of the shard, and the state has the last of
    them, as a number among the records of all shards.
    """
    index, shards = shard
    workers: int = max(1, state["worker_count"])
    last, rows = state["last_seen_indices"], []
    for worker in range(workers):
        seen = last.get(str(worker))
        if type(seen) is not int:
            raise StateError(f"state has no last seen index of worker {worker}: {last!r}")
        taken, rest = divmod(seen - index - worker * shards, workers * shards)
        if rest or taken < -1:
            raise StateError(
                f"state was taken by another shard than {index} of {shards}, or is damaged: worker"
                f" {worker} has last seen element {seen}"
            )
        rows.append(taken + 1)
    return rows


def _records_taken(rows: Sequence[int]) -> int:
    """The records that all workers have taken, if those are the first ones."""
    taken, workers = sum(rows), len(rows)
    whole, more = divmod(taken, workers)
    if list(rows) != [whole + (worker < more) for worker in range(workers)]:
        raise StateError(
            f"state was taken between the batches of {workers} workers of Grain, which have taken"
            f" {', '.join(map(str, rows))} records: these are not consecutive. Restore a step whose"
            f" number is a multiple of {workers}."
        )
    return taken
