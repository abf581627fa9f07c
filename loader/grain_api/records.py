"""Records as a sampler and a data loader pass them on: what is known of a record, and its data."""

from __future__ import annotations

import dataclasses
from typing import Generic, TypeVar

import numpy as np

T = TypeVar("T")


@dataclasses.dataclass(slots=True)
class RecordMetadata:
    """What a sampler says of an element.

    Args:
        index: Its number in the order of all shards together.
        record_key: The index of the record that it is made of.
        rng: The generator for random transforms of it.
    """

    index: int
    record_key: int | None = None
    rng: np.random.Generator | None = None

    def remove_record_key(self) -> RecordMetadata:
        """The same without `record_key`: for what is no longer one record."""
        return self if self.record_key is None else dataclasses.replace(self, record_key=None)


@dataclasses.dataclass(slots=True)
class Record(Generic[T]):
    """An element on its way through a `DataLoader`, and what is known of it."""

    metadata: RecordMetadata
    data: T
