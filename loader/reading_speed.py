"""Reading speed: how quickly a chain reads a source in order, block-shuffled and globally shuffled.

Invariant: each order is a chain of its own over the same open source, read once from its beginning, for
one epoch at most: no order finds records that another one has decoded. What the operating system
keeps of files it does find.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import itertools
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from windrow.dataset import MapDataset
from windrow.errors import ArgumentError
from windrow.sources import LaidOutSource
from windrow.sources.process import cores
from windrow.walks import Found, bytes_of, bytes_of_records, walks_of

ORDERS: Final = ("in_order", "block", "global")
_MOST_BATCH: Final = 256
# Batches of so many bytes, where records are large: the default of 256 records may be a gigabyte.
_BATCH_BYTES: Final = 16 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class OrderSpeed:
    """How quickly one order was read.

    Attributes:
        order: One of `ORDERS`.
        records: Records that came.
        batches: Batches that came.
        delivered_bytes: Bytes of the records that came, decoded.
        took_s: From the making of the iterator to the last batch.
        first_batch_s: To the first batch; None if none came.
        stored_bytes_read: What was read from files or from a network, also for batches that did not
            come any more; None where files are mapped into memory, or nobody counts it.
        memory_growth_bytes: The most memory that the process had, over what it had before; None where
            the system does not tell.
        is_whole: Whether all records came.
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
        batch_records: Records of a batch.
        orders: Each order that was asked for.
        decoding_mb_per_s: Megabytes per second of reading and decoding all pieces in order and
            dropping them, on as many threads as there are cores: what the storage and the decoders
            give. None of what is far away, or empty.
    """

    records: int
    batch_records: int
    orders: tuple[OrderSpeed, ...]
    decoding_mb_per_s: float | None

    def of_in_order(self, order: OrderSpeed) -> float | None:
        """Its pace, with that of reading in order as 1; None where that was not measured."""
        first = next((each for each in self.orders if each.order == ORDERS[0]), None)
        if first is None or not first.records_per_s:
            return None
        return order.records_per_s / first.records_per_s

    def of_decoding(self, order: OrderSpeed) -> float | None:
        """Its pace, with that of decoding alone as 1."""
        return order.mb_per_s / self.decoding_mb_per_s if self.decoding_mb_per_s else None

    def to_json(self) -> dict[str, Any]:
        """Plain values, units in the keys."""
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
        source: What is read.
        orders: Some of `ORDERS`, in which they are measured.
        batch_records: Records of a batch; None for 256, or fewer that have 16 MiB.
        seconds: When an order ends though its epoch is not done. What has begun by then still counts.
        batches: Batches of an order at most.
        block_records: Records of a block of the block shuffle; None for the source's own pieces.
        seed: Of the shuffles.
        say: Gets a line before each order.

    Raises:
        ArgumentError: If an argument is out of range.
        WindrowError: If the source can not be read.
    """
    for name, value in (("seconds", seconds), ("batches", batches), ("batch", batch_records)):
        if value is not None and value <= 0:
            raise ArgumentError(f"bench: {name} must be more than 0, got {value}")
    if unknown := sorted(set(orders) - set(ORDERS)):
        raise ArgumentError(f"bench: order must be one of {', '.join(ORDERS)}, got {unknown[0]!r}")
    size = batch_records or _fitting(source)
    found = []
    for order in orders:
        say(f"reading {len(source):,} records {_WORDS[order]}, for up to {seconds:g} s")
        dataset = _ordered(MapDataset.source(source), order, seed, block_records).batch(size)
        found.append(_measured(dataset, order, source, seconds=seconds, batches=batches))
    decoding = None
    if len(source) and not getattr(source, "is_far", False):
        say(f"decoding alone, for up to {seconds:g} s")
        decoding = _decoding_mb_per_s(source, seconds)
    return ReadingSpeed(len(source), size, tuple(found), decoding)


_WORDS: Final = {"in_order": "in order", "block": "block-shuffled", "global": "globally shuffled"}


def _fitting(source: LaidOutSource) -> int:
    """Records of a batch that has not too many bytes."""
    if not len(source):
        return _MOST_BATCH
    return max(1, min(_MOST_BATCH, _BATCH_BYTES // max(1, bytes_of(source[0]))))


def _ordered(dataset: MapDataset[Any], order: str, seed: int, block: int | None) -> MapDataset[Any]:
    if order == "in_order":
        return dataset
    return dataset.shuffle(seed) if order == "global" else dataset.block_shuffle(seed, block=block)


def _measured(
    dataset: MapDataset[Any],
    order: str,
    source: LaidOutSource,
    *,
    seconds: float,
    batches: int | None,
) -> OrderSpeed:
    memory, read = _Memory(), _Read(source)
    records = count = delivered = 0
    first_s: float | None = None
    begin = time.perf_counter()
    iterator = iter(dataset)
    with iterator:
        for batch in itertools.islice(iterator, batches):
            now_s = time.perf_counter() - begin
            first_s = now_s if first_s is None else first_s
            count += 1
            held, size = _counted(batch)
            records, delivered = records + held, delivered + size
            if now_s > seconds:
                break
        took_s = time.perf_counter() - begin
        growth, stored = memory.growth_bytes(), read.bytes()
    whole = records == len(source)
    return OrderSpeed(
        order, records, count, delivered, took_s, first_s, stored, growth, is_whole=whole
    )


def _counted(batch: Any) -> tuple[int, int]:
    """Records and bytes of a batch."""
    if isinstance(batch, list):
        return len(batch), bytes_of_records(batch)
    column = batch
    while isinstance(column, dict):
        column = next(iter(column.values()))
    return len(column), bytes_of(batch)


def _decoding_mb_per_s(source: LaidOutSource, seconds: float) -> float:
    walks = walks_of(source, refuse_missing=False)
    # Of several arrays some of each: they may compress unlike one another.
    tasks = itertools.chain.from_iterable(zip(*(walk.tasks() for walk in walks), strict=False))
    threads, decoded = cores(), 0
    running: set[concurrent.futures.Future[Found]] = set()
    begin = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(threads, "windrow-bench") as pool:
        for task in tasks:
            if time.perf_counter() - begin > seconds:
                break
            running.add(pool.submit(task.run, lambda: False))
            if len(running) >= 2 * threads:
                done, running = concurrent.futures.wait(running, return_when="FIRST_COMPLETED")
                decoded += sum(future.result().decoded_bytes for future in done)
        decoded += sum(future.result().decoded_bytes for future in running)
    return decoded / 1e6 / (time.perf_counter() - begin)


class _Read:
    """What is read from now on, as far as it is counted."""

    def __init__(self, source: LaidOutSource) -> None:
        self._source = source
        self._begin = self._now()

    def _now(self) -> int | None:
        if getattr(self._source, "is_far", False):
            return int(self._source.stats()["bytes"])  # type: ignore[attr-defined]
        try:
            # Bytes that calls of this process have read; what is mapped is not among them.
            return int(Path("/proc/self/io").read_text().split("rchar:")[1].split()[0])
        except (OSError, IndexError, ValueError):
            return None

    def bytes(self) -> int | None:
        """Bytes since then; None where they are not known, or none were read by calls."""
        now = self._now()
        if now is None or self._begin is None:
            return None
        # The looking itself is some hundred bytes.
        return now - self._begin if now - self._begin > 4096 else None


class _Memory:
    """The memory of this process, from now on."""

    def __init__(self) -> None:
        with contextlib.suppress(OSError):
            # Sets the kernel's mark of the most memory back to what there is now.
            Path("/proc/self/clear_refs").write_text("5")
        self._begin = self._most()

    @staticmethod
    def _most() -> int | None:
        """The most memory that the process had resident."""
        try:
            return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024
        except (OSError, IndexError, ValueError):
            pass
        try:
            import resource  # not on Windows
        except ImportError:
            return None
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024

    def growth_bytes(self) -> int | None:
        """How much more it had at most."""
        now = self._most()
        return None if now is None or self._begin is None else max(0, now - self._begin)
