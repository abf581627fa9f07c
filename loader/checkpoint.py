"""Checkpoints with Orbax: parameters and the iterator in one CheckpointManager step.

Every process writes the state of its own iterator as JSON, `process_<i>-of-<n>.json`. A restore reads
its own file, and the files of all others where it needs lanes that its own does not hold. So any
number of processes can restore what another number saved, if they iterate shards of one chain
(`IterDataset.shard`) or the same chain.

Example:
    >>> import tempfile
    >>> import orbax.checkpoint as ocp
    >>> import windrow
    >>> from windrow.checkpoint import CheckpointRestore, CheckpointSave
    >>> iterator = iter(windrow.MapDataset.range(10).shuffle(seed=42))
    >>> next(iterator)
    8
    >>> with ocp.CheckpointManager(tempfile.mkdtemp()) as manager:
    ...     args = ocp.args.Composite(data=CheckpointSave(iterator))
    ...     saved = manager.save(0, args=args)
    ...     manager.wait_until_finished()
    ...     again = iter(windrow.MapDataset.range(10).shuffle(seed=42))
    ...     restored = manager.restore(0, args=ocp.args.Composite(data=CheckpointRestore(again)))
    >>> next(again) == next(iterator)
    True
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

from windrow.errors import ArgumentError, NotFoundError, StateError, missing_extra
from windrow.iterator import DatasetIterator
from windrow.state import merge_states

try:
    import jax
    import orbax.checkpoint as ocp
except ImportError as error:
    raise missing_extra("windrow.checkpoint", "jax") from error


class CheckpointHandler(ocp.CheckpointHandler):
    """Saves and restores the state of a `DatasetIterator`."""

    def save(self, directory: pathlib.Path, args: CheckpointSave) -> None:
        """Write the state of this process's iterator."""
        path = directory / _file_name(jax.process_index(), jax.process_count())
        path.write_text(json.dumps(args.item.get_state()))

    def restore(self, directory: pathlib.Path, args: CheckpointRestore) -> DatasetIterator[Any]:
        """Set this process's iterator to the step that was saved.

        Raises:
            NotFoundError: If the checkpoint has no state of an iterator.
            StateError: If the states of the processes are of different steps or lack lanes, or they
                are of another chain or other data.
        """
        args.item.set_state(_saved(directory, args.item))
        return args.item


def _check_item(item: object, who: str) -> None:
    if not isinstance(item, DatasetIterator):
        raise ArgumentError(
            f"{who}: needs an iterator, got a {type(item).__name__}; pass iter(dataset), the one"
            " that the training loop takes its batches from"
        )


def _file_name(process: int, count: int) -> str:
    return f"process_{process}-of-{count}.json"


def _saved(directory: pathlib.Path, iterator: DatasetIterator[Any]) -> dict[str, Any]:
    """The state that an iterator needs: of this process, or of all of them together."""
    own = directory / _file_name(jax.process_index(), jax.process_count())
    if own.exists():
        state: dict[str, Any] = json.loads(own.read_text())
        if iterator.has_lanes_of(state):
            return state
    paths = sorted(directory.glob("process_*-of-*.json"))
    if not paths:
        raise NotFoundError(
            f"no state of an iterator in {directory}; was this item saved with"
            " windrow.checkpoint.CheckpointSave?"
        )
    try:
        return merge_states(json.loads(path.read_text()) for path in paths)
    except StateError as error:
        raise StateError(
            f"the {len(paths)} states in {directory}, of other processes than the"
            f" {jax.process_count()} of this run, cannot be joined: {error}\nRestore with as many"
            " processes as saved it, or save shards of one chain: dataset.shard(index, count)"
        ) from error


@ocp.args.register_with_handler(CheckpointHandler, for_save=True)
@dataclasses.dataclass
class CheckpointSave(ocp.args.CheckpointArgs):
    """Save the state of `item`, a `DatasetIterator`."""

    item: DatasetIterator[Any]

    def __post_init__(self) -> None:
        _check_item(self.item, type(self).__name__)


@ocp.args.register_with_handler(CheckpointHandler, for_restore=True)
@dataclasses.dataclass
class CheckpointRestore(ocp.args.CheckpointArgs):
    """Restore the state of `item`, a `DatasetIterator`, in place."""

    item: DatasetIterator[Any]

    def __post_init__(self) -> None:
        _check_item(self.item, type(self).__name__)
