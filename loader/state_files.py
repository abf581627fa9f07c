"""States of iterators in the files of a checkpoint, one file for each JAX process.

Every process writes the state of its own iterator as JSON, `process_<i>-of-<n>.json`. Reading takes the
file of this process, and the files of all others where it has not all lanes. So any number of
processes can restore what another number saved.

Invariant: the names of the files are Grain's, so either library reads the other's where the state
itself means the same.
"""

from __future__ import annotations

import asyncio
import json
import pathlib
from collections.abc import Callable, Coroutine
from typing import Any

from windrow.core.process import jax_process
from windrow.errors import NotFoundError, StateError
from windrow.state import merge_states


def file_name() -> str:
    """The name of this process's file."""
    process, count = jax_process()
    return f"process_{process}-of-{count}.json"


async def written(directory: Any, text: str) -> None:
    """Write the state of this process once the directory is there, in a thread.

    Args:
        directory: What Orbax passes to a checkpointable: its `await_creation()` returns the path.
        text: The state, as JSON.
    """
    path = pathlib.Path(await directory.await_creation())
    await asyncio.to_thread((path / file_name()).write_text, text)


async def read_then(
    directory: Any, suits: Callable[[Any], bool], restore: Callable[[Any], object]
) -> None:
    """Read the state that `saved` returns in a thread, and then restore it."""
    restore(await asyncio.to_thread(saved, pathlib.Path(directory), suits))


Pending = Coroutine[Any, Any, None]
"""What remains to be done of a save or a load, for Orbax to await in the background."""


def saved(directory: pathlib.Path, suits: Callable[[Any], bool]) -> Any:
    """The state of this process, or of all processes together where its own does not suit.

    Raises:
        NotFoundError: If there is no state.
        StateError: If the states of the processes are of different steps or lack lanes.
    """
    own = directory / file_name()
    if own.exists():
        state = json.loads(own.read_text())
        if suits(state):
            return state
    paths = sorted(directory.glob("process_*-of-*.json"))
    if not paths:
        raise NotFoundError(
            f"no state of an iterator in {directory}; was this item saved with"
            " windrow.checkpoint.CheckpointSave?"
        )
    states = [json.loads(path.read_text()) for path in paths]
    if suits(states[0]) and all(state == states[0] for state in states):
        return states[0]
    try:
        return merge_states(states)
    except StateError as error:
        raise StateError(
            f"the {len(paths)} states in {directory}, of other processes than the"
            f" {jax_process()[1]} of this run, cannot be joined: {error}\nRestore with as many"
            " processes as saved it, or save shards of one chain: dataset.shard(index, count)"
        ) from error
