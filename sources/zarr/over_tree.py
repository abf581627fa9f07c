"""What the sources of the arrays of a tree have in common."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

from windrow.sources.chunks import Part
from windrow.sources.remote.coming_reads import ComingReads
from windrow.sources.remote.request_counts import RemoteStats
from windrow.sources.zarr.tree import ArrayTree


class OverTree(abc.ABC):
    """A source of the arrays of a tree: what it says of the reads of all of them."""

    _tree: ArrayTree

    @property
    @abc.abstractmethod
    def parts(self) -> Sequence[Part]:
        """As for `LaidOutSource`."""

    @property
    def is_remote_source(self) -> bool:
        """Whether an array is read over a network."""
        return self._tree.is_remote_source

    def stats(self) -> dict[str, Any]:
        """Counts of this process's requests to networks: `requests`, `retries`, `bytes`, `faults`.

        TensorStore does not report its requests. For an array that it reads, `requests` counts the
        reads that were started, of a chunk or of adjacent chunks, `bytes` the bytes of the values,
        and `faults` the reads that failed for good. TensorStore's own counts are for the whole
        process: `tensorstore.experimental_collect_matching_metrics("/tensorstore/http/")`.

        Once a request was answered also `p50_s`, `p95_s` and `p99_s`: seconds that the last 1,024 requests
        took, by percentile. `hedged` is the number of second requests, and `outage_s` the seconds in which
        requests waited for a store that was away, if there were any; TensorStore makes no second requests.
        """
        return self.remote_stats.counts()

    @property
    def remote_stats(self) -> RemoteStats:
        """The counts of requests to networks."""
        return self._tree.remote_stats

    def foresee(self, coming: ComingReads) -> None:
        """Evict from the cache on disk what a stream needs last."""
        self._tree.foresee(coming, lambda: self.parts)
