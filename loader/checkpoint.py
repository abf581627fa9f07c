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
from typing import Any, Protocol, runtime_checkable

from windrow import state_files
from windrow.core.text import with_article
from windrow.errors import ArgumentError, missing_extra
from windrow.iterator import DatasetIterator

try:
    import jax  # noqa: F401 - its processes name the files
    import orbax.checkpoint as ocp
except ImportError as error:
    raise missing_extra("windrow.checkpoint", "jax") from error


@runtime_checkable
class Stateful(Protocol):
    """An iterator with a state: of a dataset, or of a `windrow.DataLoader`."""

    def get_state(self) -> Any:
        """The state, as JSON or as bytes of JSON."""
        ...

    def set_state(self, state: Any) -> Any:
        """Resume from a state."""
        ...

    def start_prefetch(self) -> None:
        """Start making elements ahead."""
        ...


class CheckpointHandler(ocp.CheckpointHandler):
    """Saves and restores the state of an iterator."""

    def save(
        self, directory: pathlib.Path, item: Any = None, args: CheckpointSave | None = None
    ) -> None:
        """Write the state of this process's iterator."""
        state = _item(item, args).get_state()
        text = state.decode() if isinstance(state, bytes) else json.dumps(state)
        (directory / state_files.file_name()).write_text(text)

    def restore(
        self, directory: pathlib.Path, item: Any = None, args: CheckpointRestore | None = None
    ) -> Any:
        """Set this process's iterator to the step that was saved.

        Raises:
            NotFoundError: If the checkpoint has no state of an iterator.
            StateError: If the states of the processes are of different steps or lack lanes, or they
                are of another chain or other data.
        """
        iterator = _item(item, args)
        if isinstance(iterator, DatasetIterator):
            iterator.set_state(state_files.saved(directory, iterator.has_lanes_of))
        else:
            state = state_files.saved(directory, lambda state: True)
            as_bytes = isinstance(iterator.get_state(), bytes)
            iterator.set_state(json.dumps(state).encode() if as_bytes else state)
        return iterator


def _item(item: Any, args: CheckpointSave | CheckpointRestore | None) -> Any:
    given = item if args is None else args
    found = given.item if isinstance(given, (CheckpointSave, CheckpointRestore)) else given
    _check_item(found, "CheckpointHandler")
    return found


def _check_item(item: object, who: str) -> None:
    if not isinstance(item, Stateful):
        raise ArgumentError(
            f"{who}: needs an iterator, got {with_article(type(item).__name__)}; pass iter(dataset), the one"
            " that the training loop takes its batches from"
        )


@ocp.args.register_with_handler(CheckpointHandler, for_save=True)
@dataclasses.dataclass
class CheckpointSave(ocp.args.CheckpointArgs):
    """Save the state of `item`, the iterator of a dataset or of a `DataLoader`."""

    item: Any

    def __post_init__(self) -> None:
        _check_item(self.item, type(self).__name__)


@ocp.args.register_with_handler(CheckpointHandler, for_restore=True)
@dataclasses.dataclass
class CheckpointRestore(ocp.args.CheckpointArgs):
    """Restore the state of `item`, an iterator of the same kind, in place."""

    item: Any

    def __post_init__(self) -> None:
        _check_item(self.item, type(self).__name__)
