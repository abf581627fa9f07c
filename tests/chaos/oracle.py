"""Every batch that must come, and the comparison of each step with it.

The oracle reads the undisturbed local files in a plain loop: without a network, workers, shards, cache
and restarts. A global batch has the rows of all processes, one after the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import windrow
from windrow.errors import StateError

Batch = Mapping[str, npt.NDArray[Any]]


class DisturbedError(Exception):
    """The faults have changed what training sees, or have left something behind."""


def checksum(batch: Batch) -> str:
    """A digest of names, types, shapes and bytes."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(batch):
        array = np.ascontiguousarray(batch[name])
        digest.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


class Oracle:
    """The global batches of a run, and the state after each."""

    def __init__(
        self, iterator: Any, check: Callable[[Batch], None], ignored: Sequence[str] = ()
    ) -> None:
        """Read nothing yet.

        Args:
            iterator: Gives global batches, and has `get_state`.
            check: Raises for a batch that its records cannot make.
            ignored: Keys of states that may differ.
        """
        self._iterator, self._check, self._ignored = iterator, check, ignored
        self._batches: list[Batch] = []
        self._states: list[dict[str, Any]] = [iterator.get_state()]

    def expected(self, step: int, index: int, count: int) -> str:
        """The checksum of the rows of process `index` of `count` at a step."""
        self._read(step + 1)
        return checksum(
            {name: np.split(rows, count)[index] for name, rows in self._batches[step].items()}
        )

    def check_states(self, step: int, states: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """The state of all processes before a step, joined."""
        self._read(step)
        try:
            merged = windrow.merge_states(states)
        except StateError as error:
            raise DisturbedError(
                f"the states before step {step} cannot be merged: {error}"
            ) from error
        wanted = self._states[step]
        differ = [
            key for key in wanted if key not in self._ignored and merged.get(key) != wanted[key]
        ]
        if differ:
            raise DisturbedError(f"the state before step {step} is {merged}, and must be {wanted}")
        return merged

    def _read(self, steps: int) -> None:
        while len(self._batches) < steps:
            batch = next(self._iterator)
            self._check(batch)
            self._batches.append(batch)
            self._states.append(self._iterator.get_state())

    def close(self) -> None:
        """Close the iterator."""
        self._iterator.close()


class Steps:
    """The steps of one process of one incarnation, compared as they come."""

    def __init__(self, oracle: Oracle, first: int, index: int, count: int) -> None:
        self._oracle, self._index, self._count = oracle, index, count
        self.first = self.next = first

    def compare(self, step: int, found: str) -> None:
        """A step has come with this checksum."""
        name = f"process {self._index} of {self._count}"
        if step != self.next:
            what = "twice" if step < self.next else f"and step {self.next} was lost"
            raise DisturbedError(f"{name}: step {step} came {what}")
        if found != self._oracle.expected(step, self._index, self._count):
            raise DisturbedError(f"{name}: step {step} has a wrong batch{self._which(found)}")
        self.next += 1

    def _which(self, found: str) -> str:
        for other in self._near():
            if found == self._oracle.expected(other, self._index, self._count):
                return f", the batch of step {other}"
        return ""

    def _near(self) -> Iterator[int]:
        yield from range(max(0, self.next - 50), self.next + 50)
