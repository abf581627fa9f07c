"""What a side is asked to do, and what it answers: the terms that all sides share.

A side is a module of this folder with a function for every layout that it can read. The function
gets a `Job` and returns a `Work`: what it does before is preparation, and is not timed.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from benchmarks import far
from benchmarks.data import Data, InMemory
from benchmarks.grids import DTYPES, Grid

Metrics: TypeAlias = dict[str, float]
Options: TypeAlias = dict[str, Any]

STORED = {
    "array_record_direct": "far_records",
    "checkpoint": "array_record",
    "tokens_cached": "tokens",
    "zarr_workers": "zarr",
}
"""The store of a layout that is named after another way to read it."""

WHOLE = ("checkpoint", "far_files", "verify", "verify_zarr")
"""Layouts whose sides time what they do themselves, and answer with figures, not with a `Work`."""

_CACHE_BYTES = 256 * 2**20


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """One side of one case.

    Args:
        data: The stores.
        layout: Which store is read; also the name of the function of the side.
        order: One of `data.ORDERS`.
        module: The module of this folder that is the side.
        option: Name of one of the settings that the module's `options` gives.
        resident_share: What part of the decoded store may stay in memory; None for the default.
        small: Whether this is a tiny run.
        watched: Whether memory is looked at from outside, for all processes together.
        limit_s: When an epoch ends though it is not done; None for what the layout has.
    """

    data: Data
    layout: str
    order: str
    module: str
    option: str = ""
    resident_share: float | None = None
    small: bool = False
    watched: bool = False
    limit_s: float | None = None

    def dumps(self) -> str:
        """The job as JSON."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def loads(cls, text: str) -> Job:
        """The job that `dumps` wrote."""
        fields = json.loads(text)
        return cls(**{**fields, "data": Data.of(fields["data"])})

    @property
    def path(self) -> str:
        """The store that is read; where it is a group, the array in it."""
        return self.data.array_path(self.stored_layout)

    @property
    def server(self) -> far.Server:
        """The server of the stores, a process of its own, which waits before each answer."""
        return far.serving(self.data.folder, self.data.far.latency_ms)

    @property
    def is_remote_source(self) -> bool:
        """Whether it is read over HTTP."""
        return self.layout.startswith("far_")

    @property
    def url(self) -> str:
        """The store that is read, remote."""
        return f"{self.server.url}/{self.stored_layout}"

    @property
    def stored_layout(self) -> str:
        """The layout of that store: some are read in two ways."""
        return STORED.get(self.layout, self.layout)

    @property
    def windows(self) -> Grid:
        """Where the windows lie, for a side that reads these."""
        grid = self.data.grid(self.layout)
        if grid is None:
            raise ValueError(f"benchmark: {self.layout} has no windows")
        return grid

    @property
    def epochs(self) -> int:
        """How often a store is read."""
        if self.is_cached:
            return self.data.cached_epochs
        grid = self.data.grid(self.layout)
        return 1 if grid is None else grid.epochs

    @property
    def is_cached(self) -> bool:
        """Whether the store is to be in memory when the clock starts."""
        return self.layout == "tokens_cached"

    @property
    def in_memory(self) -> InMemory | None:
        """The records in memory that are read; None where there is a store, or nothing to read."""
        data = self.data
        kept = {
            "slow": data.slow,
            "start": data.slow,
            "large": data.large,
            "compact": data.compact,
        }
        return kept.get(self.layout)

    @property
    def kept(self) -> InMemory:
        """The records in memory, for a side that reads these."""
        if self.in_memory is None:
            raise ValueError(f"benchmark: {self.layout} is not in memory")
        return self.in_memory

    @property
    def batch_size(self) -> int:
        """Records of a batch."""
        kept = self.in_memory or self.data.grid(self.layout) or self.data
        return kept.batch_size

    @property
    def warm_batches(self) -> int:
        """Batches before the clock starts: with worker processes, and where data is to be cached."""
        if self.is_cached:
            return -(-self.records // self.epochs // self.batch_size)
        return 1 if self.in_memory is None else self.in_memory.warm_batches

    @property
    def records(self) -> int:
        """Records of all epochs."""
        if self.in_memory is not None:
            return self.in_memory.delivered
        data = self.data
        counts = {"numbers": data.elements, "calls": data.calls, "elements": data.calls}
        return counts.get(self.layout, data.count(self.layout) * self.epochs)

    @property
    def record_bytes(self) -> int:
        """Bytes of a delivered record."""
        if self.in_memory is not None:
            return self.in_memory.record_bytes
        if self.layout in ("numbers", "calls", "elements"):
            return 8
        grid = self.data.grid(self.layout)
        if grid is None:
            return self.data.record_bytes
        return grid.cells * np.dtype(DTYPES[self.layout.partition("_")[0]]).itemsize

    @property
    def resident_bytes(self) -> int | None:
        """Bytes of decoded data that may stay in memory; None for the default."""
        if self.resident_share is None:
            return None
        return int(self.resident_share * self.decoded_bytes)

    @property
    def decoded_bytes(self) -> int:
        """Bytes of the whole store in memory."""
        grid = self.data.grid(self.layout)
        if grid is None:
            return self.records * self.record_bytes
        return math.prod(grid.shape) * self.record_bytes // grid.cells

    @property
    def cache_bytes(self) -> int:
        """Bytes of a peer's cache: by default more than a store of the usual size."""
        return self.resident_bytes or _CACHE_BYTES

    @property
    def epoch(self) -> npt.NDArray[np.int64]:
        """The records of one epoch in this order, ready-made."""
        return np.concatenate([self.data.order(self.layout, self.order)] * self.epochs)

    @property
    def batches(self) -> list[npt.NDArray[np.int64]]:
        """The records of each batch of one epoch in this order, ready-made."""
        order, size = self.epoch, self.batch_size
        return [order[first : first + size] for first in range(0, len(order), size)]


@dataclasses.dataclass(frozen=True, slots=True)
class Work:
    """What is timed.

    Args:
        open: Opens the store anew, with nothing cached, and returns one epoch. Every iterator of it
            is a new one.
        batched: Whether elements are batches.
        workers: Whether there are worker processes, whose start is not part of the rate.
        warm: Whether `Job.warm_batches` come before the clock starts, without worker processes too.
        mapped: Whether data comes from mapped files or from memory: what was read is then unknown.
        extra: Further figures, asked for after the epoch.
        server: What is read over a network; it then counts requests and bytes.
    """

    open: Callable[[], Iterable[Any]]
    batched: bool = True
    workers: bool = False
    warm: bool = False
    mapped: bool = False
    extra: Callable[[], Metrics] | None = None
    server: far.Server | None = None
