"""Windrow's datasets for PyTorch: tensors over the memory of batches, and states that torchdata keeps.

Invariant: the elements are the elements of the dataset, in its order; only their arrays become tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from windrow.base import Dataset
from windrow.errors import ArgumentError, PlanError, missing_package
from windrow.transforms.columns import children_of, rebuilt

try:
    import torch
    import torch.utils.data
except ImportError as error:
    raise missing_package("windrow.torch", "torch") from error


class IterableDataset(torch.utils.data.IterableDataset):  # type: ignore[misc]
    """A dataset for `torch.utils.data.DataLoader(..., batch_size=None)`, whose arrays are tensors.

    The tensors share the memory of the arrays; what PyTorch cannot share is copied: read-only arrays,
    reversed ones, and other byte orders. Strings, and arrays of a dtype that PyTorch does not have, stay
    as they are. `iter` begins anew; the iterator has `state_dict` and `load_state_dict`, so
    torchdata's `StatefulDataLoader` keeps its place.

    Example:
        With PyTorch installed::

            dataset = windrow.MapDataset.source(source).shuffle(seed=1).repeat().batch(64)
            batches = windrow.torch.IterableDataset(dataset)
            loader = StatefulDataLoader(batches, batch_size=None, num_workers=0)
    """

    def __init__(self, dataset: Any) -> None:
        """Take a `MapDataset` or an `IterDataset`.

        Raises:
            ArgumentError: If it is neither.
        """
        if not isinstance(dataset, Dataset):
            raise ArgumentError(
                "windrow.torch.IterableDataset: dataset must be a MapDataset or an IterDataset, got"
                f" {dataset!r}"
            )
        self._dataset = dataset

    def __iter__(self) -> TensorIterator:
        """Begin anew.

        Raises:
            PlanError: In one of several workers of a DataLoader, which would give the same elements.
        """
        worker = torch.utils.data.get_worker_info()
        if worker is not None and worker.num_workers > 1:
            raise PlanError(
                f"windrow.torch.IterableDataset: num_workers={worker.num_workers} would give each"
                " element as often; write num_workers=0 (Windrow's own threads read ahead), and"
                " mp_prefetch in the chain for functions that are slow"
            )
        return TensorIterator(iter(self._dataset))


class TensorIterator(Iterator[Any]):
    """The iterator of an `IterableDataset`."""

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator

    def __next__(self) -> Any:
        return _with_tensors(next(self._iterator))

    def state_dict(self) -> dict[str, Any]:
        """The state after the element given last: see `DatasetIterator.get_state`."""
        state: dict[str, Any] = self._iterator.get_state()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a state: see `DatasetIterator.set_state`.

        Raises:
            StateError: If the state is invalid, or belongs to another chain or other data.
            ClosedError: If the iterator was closed.
        """
        self._iterator.set_state(state)

    def close(self) -> None:
        """End the threads and workers of the iterator."""
        self._iterator.close()


def _with_tensors(tree: Any) -> Any:
    children = children_of(tree)
    if children is not None:
        return rebuilt(tree, [_with_tensors(child) for child in children])
    if not isinstance(tree, (np.ndarray, np.generic)):
        return tree
    array = np.asarray(tree)
    if not _shareable(array):
        array = np.array(array, array.dtype.newbyteorder("="), order="C")
    try:
        return torch.from_numpy(array)
    except TypeError:
        return tree  # strings, objects, and what else PyTorch has no dtype for


def _shareable(array: npt.NDArray[Any]) -> bool:
    """Whether PyTorch takes the memory as it is: no byte order, direction or protection of its own."""
    native = array.dtype.isnative
    return native and array.flags.writeable and all(stride >= 0 for stride in array.strides)
