"""np.memmap's side: a raw file of the same tokens, mapped, and a loop over batches of slices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.grids import DTYPES
from benchmarks.job import Job, Options, Work


def options(_: Job) -> Options:
    """There is nothing to choose."""
    return {}


def tokens_cached(job: Job) -> Work:
    """The windows of a batch stacked."""
    size = job.windows.size[0]
    batches = [(batch * size).tolist() for batch in job.batches]

    def opened() -> Iterator[Any]:
        mapped = np.memmap(job.data.path("tokens_raw"), DTYPES["tokens"], "r")
        return (np.stack([mapped[at : at + size] for at in batch]) for batch in batches)

    return Work(opened, warm=True, mapped=True)
