"""The expert's loops over windows once more, with TensorStore's cache of as much memory as ours has."""

from __future__ import annotations

from benchmarks import expert
from benchmarks.expert import Windows
from benchmarks.job import Job, Options

fields, patches = expert.fields, expert.patches


def options(job: Job) -> Options:
    """Batches under way at a time; where the whole store is to fit, what it takes to hold it."""
    # The cache counts what it needs for itself too.
    cache_bytes = job.resident_bytes or job.decoded_bytes + job.decoded_bytes // 8
    return {
        f"{depth} ahead, {cache_bytes / 2**20:.3g} MiB": Windows(depth, cache_bytes)
        for depth in (expert.DEPTHS[:1] if job.small else expert.DEPTHS)
    }
