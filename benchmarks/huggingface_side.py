"""Hugging Face datasets' side: a memory-mapped Arrow file with the records of the raw store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import datasets
import numpy as np

from benchmarks.job import Job, Options, Work

datasets.disable_progress_bars()


def options(_: Job) -> Options:
    """How rows come out of Arrow."""
    return {"numpy": "numpy", "arrow": "arrow"}


def zarr_raw(job: Job, form: str) -> Work:
    """A fetch of a batch of rows at a time."""
    batches = [batch.tolist() for batch in job.batches]

    def opened() -> Iterator[Any]:
        # Without a dtype every integer would become one of 64 bits.
        dtype = {"dtype": np.uint8} if form == "numpy" else {}
        dataset = datasets.Dataset.from_file(job.data.path("arrow")).with_format(form, **dtype)

        def rows() -> Iterator[Any]:
            for batch in batches:
                column = dataset[batch]["row"]
                if form == "arrow":
                    column = column.combine_chunks().flatten().to_numpy().reshape(len(batch), -1)
                yield column

        return rows()

    return Work(opened, mapped=True)
