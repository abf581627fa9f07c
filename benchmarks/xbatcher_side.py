"""xbatcher's side: its generator over xarray's view of the store, as a torch dataset, shuffled.

The sampler is torch's own; a worker process opens the store when it starts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
import xarray
import xbatcher
from xbatcher.loaders.torch import MapDataset

from benchmarks.job import Job, Options, Work

_AHEAD = 2


def options(job: Job) -> Options:
    """Worker processes."""
    return {"no workers": 0} if job.small else {"no workers": 0, "2 workers": 2}


def fields(job: Job, workers: int) -> Work:
    """A window per sample, put together to batches by torch."""
    size = job.windows.size[0]

    def opened() -> Iterator[Any]:
        store = xarray.open_zarr(job.data.path("fields"), chunks=None, consolidated=False)
        field = store["field"]
        # Dimensions that are not named would become one, of samples.
        windows = xbatcher.BatchGenerator(
            field,
            input_dims={**dict(field.sizes), "time": size},
            input_overlap={"time": size - 1},
        )
        loader = torch.utils.data.DataLoader(
            MapDataset(windows),
            job.batch_size,
            shuffle=True,
            num_workers=workers,
            prefetch_factor=_AHEAD if workers else None,
            # A forked child of a process whose threads read could wait for ever.
            multiprocessing_context="forkserver" if workers else None,
            persistent_workers=workers > 0,
        )
        return itertools.chain.from_iterable(itertools.repeat(loader, job.epochs))

    return Work(opened, workers=workers > 0)
