"""Nodes of Grain that have no counterpart, as nodes of users in a chain of Windrow.

Invariant: a stream's own iterator runs as Grain wrote it, over parents that Windrow reads.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from windrow.errors import missing_extra
from windrow.grain_api.datasets import ForwardingIterator
from windrow.iter_dataset import IterDataset
from windrow.iterator import DatasetIterator
from windrow.map_dataset import MapDataset

try:
    import grain
except ImportError as error:
    raise missing_extra("windrow.from_grain(strict=False)", "grain") from error


class GrainMapNode(MapDataset[Any]):
    """A `MapDataset` of Grain, and what is before it, read element by element."""

    def __init__(self, dataset: Any) -> None:
        super().__init__(())
        self._dataset, self._length = dataset, len(dataset)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        return self.slice(index) if isinstance(index, slice) else self._dataset[int(index)]


class GrainStreamNode(IterDataset[Any]):
    """An `IterDataset` of Grain over parents of Windrow."""

    def __init__(
        self,
        dataset: Any,
        parents: Sequence[Any],
        part: tuple[int, int] | None,
        process: tuple[int, int],
    ) -> None:
        super().__init__(parents)
        self._dataset, self._process = dataset, process
        if part is not None and (callable(getattr(dataset, "set_slice", None)) or not parents):
            self._dataset = _sliced(dataset, part)

    def __iter__(self) -> Any:
        from grain._src.python.dataset import base

        dataset = copy.copy(self._dataset)
        if self._parents:
            dataset._parents = tuple(map(_fed, self._parents))
        iterator = iter(dataset)
        index, count = self._process
        if count > 1:
            iterator._ctx.mp_context = base.MultiprocessingContext(
                process_index=index, process_count=count
            )
        return _Iterator(iterator)


def _sliced(dataset: Any, part: tuple[int, int]) -> Any:
    """A copy for a worker of Grain, with its part of the data."""
    from grain._src.python.dataset.transformations import prefetch

    own = copy.deepcopy(dataset)
    prefetch._set_slice_iter_dataset(own, slice(part[0], None, part[1]))
    return own


class _Iterator(ForwardingIterator):
    """An iterator of Grain as an iterator of a user."""

    def get_state(self) -> Any:
        return _plain(self._iterator.get_state())


def _plain(state: Any) -> Any:
    """A state with the numbers of Python, which JSON has."""
    if isinstance(state, dict):
        return {key: _plain(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return [_plain(value) for value in state]
    return state.item() if isinstance(state, np.generic) else state


# --- parents of Windrow, as Grain sees them --------------------------------------------------------


def _fed(parent: Any) -> Any:
    return _FedMapDataset(parent) if isinstance(parent, MapDataset) else _FedIterDataset(parent)


class _FedMapDataset(grain.MapDataset):  # type: ignore[misc]
    def __init__(self, ours: MapDataset[Any]) -> None:
        super().__init__()
        self._ours = ours

    def __len__(self) -> int:
        return len(self._ours)

    def __getitem__(self, index: Any) -> Any:
        return self.slice(index) if isinstance(index, slice) else self._ours[index]


class _FedIterDataset(grain.IterDataset):  # type: ignore[misc]
    def __init__(self, ours: IterDataset[Any]) -> None:
        super().__init__()
        self._ours = ours

    def __iter__(self) -> Any:
        return _FedIterator(iter(self._ours))


class _FedIterator(grain.DatasetIterator):  # type: ignore[misc]
    def __init__(self, ours: DatasetIterator[Any]) -> None:
        super().__init__()
        self._ours = ours

    def __next__(self) -> Any:
        return next(self._ours)

    def get_state(self) -> Any:
        return self._ours.get_state()

    def set_state(self, state: Any) -> None:
        self._ours.set_state(state)

    def close(self) -> None:
        self._ours.close()
