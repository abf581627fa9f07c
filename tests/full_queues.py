"""Loops that are slower than their loader: they go on when the queue is full."""

from __future__ import annotations

import threading
from collections.abc import Set
from typing import Any
from unittest import mock

from tests.teams import until
from windrow import DatasetIterator, IterDataset, MapDataset, Stats
from windrow.stats import profiler

# The name of the thread that works ahead of a loop.
_THREAD = "windrow-ahead"
# Elements at each of which the loop waits: blocks are of few elements at first.
_FIRST = 40


def counted(dataset: MapDataset[Any] | IterDataset[Any], every: int = 8) -> Stats:
    """The stats of an epoch whose loop waits for a full queue, later at every so many elements.

    Memory is measured after every block, however quickly blocks come.
    """
    others = set(threading.enumerate())  # iterators that earlier tests have left, too
    with mock.patch.object(profiler, "_LEAST_S", 0.0), iter(dataset) as iterator:
        for number, _ in enumerate(iterator):
            if number < _FIRST or number % every == 0:
                _wait_for_full_queue(iterator, others)
        return iterator.stats()


def _wait_for_full_queue(iterator: DatasetIterator[Any], others: Set[threading.Thread]) -> None:
    """Until the loader waits for room, or has made all there is, or makes nothing ahead."""
    before_s = iterator.stats().blocked_s
    full = until(lambda: iterator.stats().blocked_s > before_s or not _is_made(others))
    assert full, f"the queue did not get full: {iterator.stats()}"


def _is_made(others: Set[threading.Thread]) -> bool:
    return any(thread.name == _THREAD for thread in set(threading.enumerate()) - others)
