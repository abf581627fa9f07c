"""Checkpoints with Orbax: parameters and the iterator in one CheckpointManager step.

Every process writes the state of its own iterator as JSON, `process_<i>-of-<n>.json`. States
have no host counts, so if all processes had the same state, any number of processes can restore it.

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
        """Set this process's iterator to the state saved by the process of the same number.

        Raises:
            NotFoundError: If the checkpoint has no state of an iterator.
            StateError: If another number of processes saved states that differ from each other, or
                the state is of another chain or other data.
        """
        args.item.set_state(json.loads(_saved(directory)))
        return args.item


def _check_item(item: object, who: str) -> None:
    if not isinstance(item, DatasetIterator):
        raise ArgumentError(
            f"{who}: needs an iterator, got a {type(item).__name__}; pass iter(dataset), the one"
            " that the training loop takes its batches from"
        )


def _file_name(process: int, count: int) -> str:
    return f"process_{process}-of-{count}.json"


def _saved(directory: pathlib.Path) -> str:
    own = directory / _file_name(jax.process_index(), jax.process_count())
    if own.exists():
        return str(own.read_text())
    states = {str(path.read_text()) for path in directory.glob("process_*-of-*.json")}
    if not states:
        raise NotFoundError(
            f"no state of an iterator in {directory}; was this item saved with"
            " windrow.checkpoint.CheckpointSave?"
        )
    if len(states) > 1:
        raise StateError(
            f"{directory} holds {len(states)} different states, saved by another number of processes"
            f" than the {jax.process_count()} of this run; restore with as many processes as saved"
            " it"
        )
    return states.pop()


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
