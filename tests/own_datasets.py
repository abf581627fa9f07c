"""Subclasses of datasets as users write them, with one body over Windrow and over Grain."""

from __future__ import annotations

import types
from typing import Any

import numpy as np


def of(library: Any) -> types.SimpleNamespace:
    """The classes over a library: `windrow` or `grain`."""

    class UnbatchIterator(library.DatasetIterator):  # type: ignore[misc]
        def __init__(self, parent: Any) -> None:
            super().__init__(parent)
            self._batch: Any = None
            self._next, self._before = 0, parent.get_state()

        def __next__(self) -> Any:
            while self._batch is None or self._next == len(self._batch):
                self._before = self._parent.get_state()
                self._batch, self._next = next(self._parent), 0
            self._next += 1
            return self._batch[self._next - 1]

        def get_state(self) -> Any:
            return {"before": self._before, "next": self._next}

        def set_state(self, state: Any) -> None:
            self._parent.set_state(state["before"])
            self._before, self._batch, self._next = state["before"], None, state["next"]
            if self._next:
                self._batch = next(self._parent)

    class Unbatch(library.IterDataset):  # type: ignore[misc]
        def __init__(self, parent: Any) -> None:
            super().__init__(parent)

        def __iter__(self) -> Any:
            return UnbatchIterator(self._parent.__iter__())

    class RampIterator(library.DatasetIterator):  # type: ignore[misc]
        def __init__(self, parent: Any, most: int) -> None:
            super().__init__(parent)
            self._size, self._most = 1, most

        def __next__(self) -> Any:
            rows: list[Any] = []
            for _ in range(self._size):
                try:
                    rows.append(next(self._parent))
                except StopIteration:
                    break
            if not rows:
                raise StopIteration
            self._size = min(self._most, self._size + 1)
            return np.stack(rows)

        def get_state(self) -> Any:
            return [self._parent.get_state(), self._size]

        def set_state(self, state: Any) -> None:
            self._parent.set_state(state[0])
            self._size = state[1]

    class Ramp(library.IterDataset):  # type: ignore[misc]
        def __init__(self, parent: Any, most: int) -> None:
            super().__init__(parent)
            self._most = most

        def __iter__(self) -> Any:
            return RampIterator(iter(self._parent), self._most)

    class Padded(library.MapDataset):  # type: ignore[misc]
        def __init__(self, parent: Any, length: int) -> None:
            super().__init__(parent)
            self._length = length

        def __len__(self) -> int:
            return self._length

        def __getitem__(self, index: Any) -> Any:
            if isinstance(index, slice):
                return self.slice(index)
            epoch, at = divmod(index, self._length)
            own = len(self._parent)
            return self._parent[epoch * own + at] if at < own else -1

    class Doubled(library.MapDataset):  # type: ignore[misc]
        def __init__(self, *parents: Any) -> None:
            super().__init__(parents)

        def __len__(self) -> int:
            return 2 * len(self._parents[0])

        def __getitem__(self, index: Any) -> Any:
            if isinstance(index, slice):
                return self.slice(index)
            return self._parents[0][index // 2]

    return types.SimpleNamespace(Unbatch=Unbatch, Ramp=Ramp, Padded=Padded, Doubled=Doubled)
