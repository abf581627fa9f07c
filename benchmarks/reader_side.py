"""The ArrayRecord reader alone: `read` of a list of records, in a loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks import floor, stores, timing
from benchmarks.job import Job, Metrics, Options, Work


def options(job: Job) -> Options:
    """Records per call, with and without the reader's own reading ahead."""
    sizes = (job.batch_size, 4 * job.batch_size)
    if job.layout == "array_record_direct":
        names = ("a batch a call", "4 batches a call")
        return {n: (size, stores.NO_READ_AHEAD) for n, size in zip(names, sizes, strict=True)}
    return {
        f"{size:,} a call{name}": (size, text)
        for size in sizes
        for name, text in (("", stores.NO_READ_AHEAD), (", reading ahead", ""))
    }


def array_record(job: Job, setting: tuple[int, str]) -> Work:
    """Lists of records as bytes; a global shuffle, whatever the order of the case is, of groups."""
    size, text = setting
    order = "global shuffle" if job.layout == "array_record_groups" else job.order
    epoch = job.data.order(job.layout, order)
    parts = [epoch[first : first + size].tolist() for first in range(0, len(epoch), size)]

    def opened() -> Iterator[Any]:
        reader = stores.array_record(job.path, text)
        return (reader.read(part) for part in parts)

    return Work(opened)


def verify(job: Job) -> Metrics:
    """Files read and summed on two threads, then all records of each read and thrown away."""

    def whole() -> int:
        floor.summed(job.path)
        return sum(1 for _ in stores.folder_reader(job.path))

    return timing.of_whole(whole, job)


array_record_direct = array_record_groups = array_record
