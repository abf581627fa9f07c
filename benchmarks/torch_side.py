"""torch's side: DataLoader over a map-style dataset that fetches a whole batch at a time.

The dataset is what one would write with care: `__getitems__` makes one read for a batch and returns
the array, so that nothing is split and collated again. The sampler gives the order, ready-made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from benchmarks import functions, stores
from benchmarks.job import Job, Options, Work

_AHEAD = 2


def options(job: Job) -> Options:
    """Worker processes; none is quickest where reading uses threads of its own."""
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
            size = self._job.data.window_tokens
            reads = [self._store[i * size : (i + 1) * size].read() for i in indices]
            return np.stack([read.result() for read in reads])
        if indices[-1] - indices[0] == len(indices) - 1 and self._job.order == "in order":
            return self._store[indices[0] : indices[-1] + 1].read().result()
        return self._store.oindex[np.sort(indices)].read().result()

    def _open(self) -> Any:
        if self._job.layout.startswith("array_record"):
            return stores.array_record(self._job.path)
        return stores.zarr(self._job.path, self._job.cache_bytes)


def _work(job: Job, workers: int) -> Work:
    order = job.epoch.tolist()

    def opened() -> torch.utils.data.DataLoader[Any]:
        rows: Any = Rows(job)
        return torch.utils.data.DataLoader(
            rows,
            job.data.batch_size,
            sampler=order,
            num_workers=workers,
            collate_fn=torch.as_tensor,
            prefetch_factor=_AHEAD if workers else None,
            # A forked child of a process that has used TensorStore can not use it.
            multiprocessing_context="forkserver" if workers else None,
        )

    return Work(opened, workers=workers > 0)


array_record = array_record_groups = zarr = zarr_raw = zarr_shards = tokens = _work
