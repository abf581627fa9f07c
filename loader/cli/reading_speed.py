"""Measures how quickly a chain reads a source in order, block-shuffled and globally shuffled.

Invariant: each order is a chain of its own over the same open source, read once from its beginning, for
one epoch at most. No order reuses records that another one has decoded. The operating system may
still have the files in memory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from windrow.core.machine import usable_cores
from windrow.errors import ArgumentError
from windrow.map_dataset import MapDataset
from windrow.sources.chunks import LaidOutSource
from windrow.verification.scan import ScanResult, bytes_of, scans_of
from windrow.verification.verify import run_tasks

ORDERS: Final = ("in_order", "block", "global")
_MOST_BATCH: Final = 256
# Most bytes of a default batch: 256 large records may be a gigabyte.
_BATCH_BYTES: Final = 16 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class OrderSpeed:
    """How quickly one order was read.

    Attributes:
        order: One of `ORDERS`.
        records: Records delivered.
        batches: Batches delivered.
        delivered_bytes: Decoded bytes of the delivered records.
        took_s: Seconds from the creation of the iterator to the last batch.
        first_batch_s: Seconds to the first batch; None without batches.
        stored_bytes_read: Stored bytes of the chunks that were read, also for batches that were not
            delivered; None if they are unknown.
        memory_growth_bytes: Peak memory of the process minus its memory before; None where the
            system does not report it.
        is_whole: Whether all records were delivered.
    """

    order: str
    records: int
    batches: int
    delivered_bytes: int
    took_s: float
    first_batch_s: float | None
    stored_bytes_read: int | None
    memory_growth_bytes: int | None
    is_whole: bool

    @property
    def records_per_s(self) -> float:
        """Records per second."""
        return self.records / self.took_s if self.took_s else 0.0

    @property
    def mb_per_s(self) -> float:
        """Decoded megabytes (10^6 bytes) per second."""
        return self.delivered_bytes / 1e6 / self.took_s if self.took_s else 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class ReadingSpeed:
    """How quickly a source was read.

    Attributes:
        records: Records of the source.
        batch_records: Records per batch.
        orders: The measured orders.
        decoding_mb_per_s: Megabytes per second of reading, decoding and dropping all chunks in order,
            on one thread per core. This is the limit set by the storage and the decoders. None for
            a remote or an empty source.
    """

    records: int
    batch_records: int
    orders: tuple[OrderSpeed, ...]
    decoding_mb_per_s: float | None

    def of_in_order(self, order: OrderSpeed) -> float | None:
        """Speed of `order` relative to reading in order; None if reading in order was not measured."""
        first = next((each for each in self.orders if each.order == ORDERS[0]), None)
        if first is None or not first.records_per_s:
            return None
        return order.records_per_s / first.records_per_s

    def of_decoding(self, order: OrderSpeed) -> float | None:
        """Speed of `order` relative to decoding alone; None if decoding was not measured."""
        return order.mb_per_s / self.decoding_mb_per_s if self.decoding_mb_per_s else None

    def to_json(self) -> dict[str, Any]:
        """Return plain values, with units in the keys."""
        return {
            "records": self.records,
            "batch_records": self.batch_records,
            "page_cache": "as found, and as each order leaves it for the next",
            "decoding_mb_per_s": self.decoding_mb_per_s,
            "orders": [
                {
                    **dataclasses.asdict(order),
                    "records_per_s": order.records_per_s,
                    "mb_per_s": order.mb_per_s,
                    "of_in_order": self.of_in_order(order),
                    "of_decoding": self.of_decoding(order),
                }
                for order in self.orders
            ],
        }


def reading_speed(
    source: LaidOutSource,
    *,
    orders: Sequence[str] = ORDERS,
    batch_records: int | None = None,
    seconds: float = 3.0,
    batches: int | None = None,
    block_records: int | None = None,
    seed: int = 0,
    say: Callable[[str], None] = lambda words: None,
) -> ReadingSpeed:
    """Read a source in several orders, one after the other.

    Args:
        source: The source to read.
        orders: Some of `ORDERS`; they are measured in this sequence.
        batch_records: Records per batch; None for 256, or fewer if these exceed 16 MiB.
        seconds: Time after which an order stops within its epoch. The batch under way still counts.
        batches: Most batches to read in each order.
        block_records: Records per block of the block shuffle; None for the source's own chunks.
        seed: Seed of the shuffles.
        say: Called with a line before each order.

    Raises:
        ArgumentError: If an argument is out of range.
        WindrowError: If the source cannot be read.
    """
    for name, value in (("seconds", seconds), ("batches", batches), ("batch", batch_records)):
        if value is not None and value <= 0:
            raise ArgumentError(f"bench: {name} must be more than 0, got {value}")
    if unknown := sorted(set(orders) - set(ORDERS)):
        raise ArgumentError(f"bench: order must be one of {', '.join(ORDERS)}, got {unknown[0]!r}")
    size = batch_records or _default_batch_records(source)
    found = []
    for order in orders:
        say(f"reading {len(source):,} records {_ORDER_NAMES[order]}, for up to {seconds:g} s")
        dataset = _with_order(MapDataset.source(source), order, seed, block_records).batch(size)
        found.append(_measure(dataset, order, source, size=size, seconds=seconds, batches=batches))
    decoding = None
    if len(source) and not getattr(source, "is_remote_source", False):
        say(f"decoding alone, for up to {seconds:g} s")
        decoding = _decoding_mb_per_s(source, seconds)
    return ReadingSpeed(len(source), size, tuple(found), decoding)


_ORDER_NAMES: Final = {
    "in_order": "in order",
    "block": "block-shuffled",
    "global": "globally shuffled",
}


def _default_batch_records(source: LaidOutSource) -> int:
    """Return the records of a default batch, which has at most `_BATCH_BYTES` if possible."""
    if not len(source):
        return _MOST_BATCH
    return max(1, min(_MOST_BATCH, _BATCH_BYTES // max(1, bytes_of(source[0]))))


def _with_order(
    dataset: MapDataset[Any], order: str, seed: int, block: int | None
) -> MapDataset[Any]:
    if order == "in_order":
        return dataset
    return dataset.shuffle(seed) if order == "global" else dataset.block_shuffle(seed, block=block)


def _measure(
    dataset: MapDataset[Any],
    order: str,
    source: LaidOutSource,
    *,
    size: int,
    seconds: float,
    batches: int | None,
) -> OrderSpeed:
    memory = _Memory()
    first_s: float | None = None
    begin = time.perf_counter()
    with iter(dataset) as iterator:
        for _ in itertools.islice(iterator, batches):
            now_s = time.perf_counter() - begin
            first_s = now_s if first_s is None else first_s
            if now_s > seconds:
                break
        took_s = time.perf_counter() - begin
        stats, growth = iterator.stats(), memory.growth_bytes()
    records = min(stats.elements * size, len(source))
    (costs,) = stats.sources
    stored = costs.stored_bytes
    return OrderSpeed(
        order=order,
        records=records,
        batches=stats.elements,
        delivered_bytes=stats.delivered_bytes,
        took_s=took_s,
        first_batch_s=first_s,
        stored_bytes_read=None if stored is None else round(stored.middle),
        memory_growth_bytes=growth,
        is_whole=records == len(source),
    )


def _decoding_mb_per_s(source: LaidOutSource, seconds: float) -> float:
    scans = scans_of(source, refuse_missing=False)
    # Alternate between arrays, since they may compress differently.
    tasks = itertools.chain.from_iterable(zip(*(scan.tasks() for scan in scans), strict=False))
    found = ScanResult()
    begin = time.perf_counter()
    in_time = itertools.takewhile(lambda _: time.perf_counter() - begin <= seconds, tasks)
    run_tasks(((task, found) for task in in_time), threads=usable_cores())
    return found.decoded_bytes / 1e6 / (time.perf_counter() - begin)


class _Memory:
    """Measures how far the peak memory of this process rises from now on."""

    def __init__(self) -> None:
        with contextlib.suppress(OSError):
            # Resets the kernel's peak to the current memory.
            Path("/proc/self/clear_refs").write_text("5")
        self._begin = self._most()

    @staticmethod
    def _most() -> int | None:
        """Return the peak resident memory of the process."""
        with contextlib.suppress(OSError, IndexError, ValueError):
            status = Path("/proc/self/status").read_text()
            return int(status.split("VmHWM:")[1].split()[0]) * 1024
        try:
            import resource  # not on Windows
        except ImportError:
            return None
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024

    def growth_bytes(self) -> int | None:
        """Return how far the peak has risen; None if it is unknown."""
        now = self._most()
        return None if now is None or self._begin is None else max(0, now - self._begin)
