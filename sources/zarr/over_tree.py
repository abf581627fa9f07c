"""What the sources of the arrays of a tree have in common."""

from __future__ import annotations

from functools import partial
from typing import Any

from windrow.core.process import refuse_forked
from windrow.sources.base import Columns, IntArray, checked_indices
from windrow.sources.chunks import LaidOutSource
from windrow.sources.remote.request_counts import RemoteStats
from windrow.sources.zarr.in_flight import side_by_side
from windrow.sources.zarr.open_array import LIBRARY, OpenArray
from windrow.sources.zarr.tree import ArrayTree


class OverTree(LaidOutSource):
    """A source of the arrays of a tree: what it says of the reads of all of them."""

    _tree: ArrayTree

    def _open_tree(self) -> tuple[OpenArray, ...]:
        """The open arrays. Raises ReadError in a fork of a process that had used TensorStore."""
        refuse_forked(LIBRARY, type(self).__name__)
        return self._tree.open()

    def read(self, indices: IntArray) -> Columns:
        """Read the records at `indices`, in that order, in new memory.

        Raises:
            ReadError: If a chunk cannot be read; the message names array, file and records. Or
                if this process was forked from a process that had used TensorStore.
        """
        wanted = checked_indices(indices, len(self), type(self).__name__)
        reads = [partial(part.read, wanted) for part in self.parts]
        return self.assembled(side_by_side(reads, wait=self.is_remote_source), wanted)

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
