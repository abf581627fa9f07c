"""torch's side: DataLoader over a map-style dataset that fetches a whole batch at a time.

The dataset is what one would write with care: `__getitems__` makes one read for a batch and returns
the array, so that nothing is split and collated again. The sampler gives the order, ready-made.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks import functions, stores
from benchmarks.job import Job, Options, Work

_AHEAD = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """How a loader over memory runs: worker processes, what each makes ahead, how batches come."""

    workers: int
    ahead: int | None = None
    collate: Callable[[Any], torch.Tensor] = torch.as_tensor


def in_shared_memory(rows: Any) -> torch.Tensor:
    """The batch copied to where workers hand it over from, as torch's own collation does."""
    found = torch.as_tensor(rows)
    storage: Any = found.untyped_storage()
    shared = storage._new_shared(found.nbytes)
    out = found.new_empty(0).set_(shared, 0, found.shape, found.stride())
    return out.copy_(found)


_IN_MEMORY: Options = {
    "2 workers": Setting(2, _AHEAD),
    "2 workers, 8 ahead": Setting(2, 8),
    "2 workers, collated in shared memory": Setting(2, _AHEAD, in_shared_memory),
    "2 workers, collated in shared memory, 8 ahead": Setting(2, 8, in_shared_memory),
}


def options(job: Job) -> Options:
    """Worker processes; none is quickest where reading uses threads of its own."""
    if job.in_memory is not None:
        if job.small:
            return {"no workers": Setting(0)}
        return {"2 workers": _IN_MEMORY["2 workers"]} if job.layout == "start" else _IN_MEMORY
    return {"no workers": 0} if job.small else {"no workers": 0, "2 workers": 2}


class Rows:
    """A batch of rows per fetch. Opened on first use: in a worker, that is in the worker."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._store: Any = None

    def __len__(self) -> int:
        return self._job.records

    def __getitems__(self, indices: Sequence[int]) -> Any:
        if self._store is None:
            self._store = self._open()
        if self._job.layout.startswith("array_record"):
            return functions.decode_many(self._store.read(list(indices)))
        if self._job.layout == "tokens":
            size = self._job.windows.size[0]
            reads = [self._store[i * size : (i + 1) * size].read() for i in indices]
            return np.stack([read.result() for read in reads])
        if indices[-1] - indices[0] == len(indices) - 1 and self._job.order == "in order":
            return self._store[indices[0] : indices[-1] + 1].read().result()
        return self._store.oindex[np.sort(indices)].read().result()

    def _open(self) -> Any:
        if self._job.layout.startswith("array_record"):
            return stores.array_record(self._job.path)
        return stores.zarr(self._job.path, self._job.cache_bytes)


class Kept:
    """A batch of rows in memory per fetch; worker processes that are forked share them."""

    def __init__(self, job: Job) -> None:
        self._layout, self._rows = job.layout, job.kept.rows()

    def __getitems__(self, indices: Sequence[int]) -> Any:
        at = indices[0] % len(self._rows)
        batch = self._rows[at : at + len(indices)]
        if self._layout == "slow":
            return np.stack([functions.one_ms(row) for row in batch])
        if self._layout == "start":
            return np.stack([functions.scaled(row) for row in batch])
        return functions.same(batch)


def _in_memory(job: Job, setting: Setting) -> Work:
    rows: Any = Kept(job)

    def opened() -> torch.utils.data.DataLoader[Any]:
        return torch.utils.data.DataLoader(
            rows,
            job.batch_size,
            sampler=range(job.records),
            num_workers=setting.workers,
            collate_fn=setting.collate,
            prefetch_factor=setting.ahead,
            multiprocessing_context="fork" if setting.workers else None,
        )

    return Work(opened, workers=setting.workers > 0)


slow = start = large = compact = _in_memory


def _work(job: Job, workers: int) -> Work:
    order = job.epoch.tolist()

    def opened() -> torch.utils.data.DataLoader[Any]:
        rows: Any = Rows(job)
        return torch.utils.data.DataLoader(
            rows,
            job.batch_size,
            sampler=order,
            num_workers=workers,
            collate_fn=torch.as_tensor,
            prefetch_factor=_AHEAD if workers else None,
            # A forked child of a process that has used TensorStore cannot use it.
            multiprocessing_context="forkserver" if workers else None,
        )

    return Work(opened, workers=workers > 0)


array_record = array_record_groups = zarr = zarr_raw = zarr_shards = tokens = _work
