"""`windrow bench`: measures how quickly the data at a path or URL are read in three orders.

Invariant: each order is a chain of its own over the same open source, read once from its beginning, for
one epoch at most. No order reuses records that another one has decoded. The operating system may
still have the files in memory.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from windrow.cli.main import echo_json, examples, say, shared_options
from windrow.core.machine import usable_cores
from windrow.core.text import TextTable
from windrow.formats.table import open_source
from windrow.map_dataset import MapDataset
from windrow.sources.chunks import LaidOutSource
from windrow.sources.location import location_of
from windrow.verification.scan import ScanResult, bytes_of, scans_of
from windrow.verification.verify import run_tasks

_ORDERS: Final = {
    "in_order": "in order",
    "block": "block-shuffled",
    "global": "globally shuffled",
}
_MOST_BATCH: Final = 256
# Most bytes of a default batch: 256 large records may be a gigabyte.
_BATCH_BYTES: Final = 16 << 20
# In less time than this, starting weighs as much as reading.
_ENOUGH_S: Final = 0.5
# The head of a column, its key in the JSON of an order, and its unit.
_COLUMNS: Final = (
    ("records/s", "records_per_s", 1.0),
    ("MB/s", "mb_per_s", 1.0),
    ("vs in order", "of_in_order", 1.0),
    ("vs decoding", "of_decoding", 1.0),
    ("first batch ms", "first_batch_s", 1e-3),
    ("read MB", "stored_bytes_read", 1e6),
    ("memory MB", "peak_buffers_bytes", 1e6),
)


@click.command(
    "bench",
    epilog=examples(
        "windrow bench digits",
        "windrow bench era5.zarr --batch 8 --seconds 10",
        "windrow bench s3://bucket/digits --order in_order --order block --block 256",
        "windrow bench digits --json > speed.json",
    ),
)
@click.argument("url")
@click.option(
    "--order",
    "orders",
    multiple=True,
    type=click.Choice(list(_ORDERS)),
    help="An order to measure; may be repeated. [all three]",
)
@click.option(
    "--batch",
    "batch_records",
    type=click.IntRange(min=1),
    help="Records per batch. [256, or fewer if these exceed 16 MiB]",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=3.0,
    show_default=True,
    help="Stop an order after this time, even if it has not read everything once.",
)
@click.option("--batches", type=click.IntRange(min=1), help="Most batches to read in each order.")
@click.option(
    "--block",
    "block_records",
    type=click.IntRange(min=1),
    help="Records per block of the block shuffle. [as many as a chunk or record group has]",
)
@click.option(
    "--seed", type=click.IntRange(0, 2**32 - 1), default=0, help="Seed of the shuffles. [0]"
)
@click.option(
    "--array",
    "arrays",
    multiple=True,
    metavar="NAME",
    help="An array of a Zarr group, or a feature of a tfds folder; may be repeated. [all]",
)
@click.option(
    "--split", help="Split of a folder that tfds wrote: train, or a part such as train[:80%]."
)
@shared_options
def command(
    url: str,
    orders: Sequence[str],
    arrays: Sequence[str],
    split: str | None,
    storage_options: dict[str, Any],
    as_json: bool,
    quiet: bool,
    **how: Any,
) -> None:
    """Measure how quickly the records at URL are read: in order, block-shuffled, globally shuffled.

    URL is an ArrayRecord file, a glob or a folder of them, a folder that tfds wrote, or a Zarr array
    or group. Each order is a chain with default options. It is read once from its beginning, for a
    few seconds. The operating system may already have the files in memory, and after the first order
    it usually does. Only the first order of a first run shows the speed of the disk.

    "vs in order" is the speed relative to reading in order. "vs decoding" is the speed relative to
    reading and decoding alone. "read MB" counts the stored bytes of the chunks that were read.
    "memory MB" is the most that Windrow's buffers held.
    """
    location = location_of(url, storage_options or None, caller="bench")
    source = open_source(location, names=arrays, split=split)
    found = measured(source, orders or list(_ORDERS), **how, quiet=quiet)
    short = [each for each in found["orders"] if each["took_s"] < _ENOUGH_S and each["is_whole"]]
    if short and not quiet:
        say(
            f"windrow bench: reading everything took {short[0]['took_s']:.2g} s: too little to compare"
            " orders by, since this includes starting the threads and the first batch"
        )
    if as_json:
        echo_json({"url": location.shown, **found})
    else:
        click.echo(_table(location.shown, found))


def measured(
    source: LaidOutSource,
    orders: Sequence[str],
    *,
    batch_records: int | None = None,
    seconds: float = 3.0,
    batches: int | None = None,
    block_records: int | None = None,
    seed: int = 0,
    quiet: bool = True,
) -> dict[str, Any]:
    """Read a source in several orders, one after the other, and return what `--json` prints.

    Args:
        source: The source to read.
        orders: Some of `_ORDERS`; they are measured in this sequence.
        batch_records: Records per batch; None for 256, or fewer if these exceed 16 MiB.
        seconds: Time after which an order stops within its epoch. The batch under way still counts.
        batches: Most batches to read in each order.
        block_records: Records per block of the block shuffle; None for the source's own chunks.
        seed: Seed of the shuffles.
        quiet: Whether to say nothing before each order.

    Raises:
        WindrowError: If the source cannot be read.
    """
    size = batch_records or _default_batch_records(source)
    found = []
    for order in orders:
        if not quiet:
            say(
                f"windrow bench: reading {len(source):,} records {_ORDERS[order]}, for up to {seconds:g} s"
            )
        dataset: MapDataset[Any] = MapDataset.source(source)
        if order == "block":
            dataset = dataset.block_shuffle(seed, block=block_records)
        elif order == "global":
            dataset = dataset.shuffle(seed)
        speed = _speed(dataset.batch(size), len(source), size, seconds=seconds, batches=batches)
        found.append({"order": order, **speed})
    decoding = None
    if len(source) and not getattr(source, "is_remote_source", False):
        if not quiet:
            say(f"windrow bench: decoding alone, for up to {seconds:g} s")
        decoding = _decoding_mb_per_s(source, seconds)
    in_order = next((each["records_per_s"] for each in found if each["order"] == "in_order"), 0)
    for each in found:
        each["of_in_order"] = each["records_per_s"] / in_order if in_order else None
        each["of_decoding"] = each["mb_per_s"] / decoding if decoding else None
    return {
        "records": len(source),
        "batch_records": size,
        "page_cache": "as found, and as each order leaves it for the next",
        "decoding_mb_per_s": decoding,
        "orders": found,
    }


def _default_batch_records(source: LaidOutSource) -> int:
    """Return the records of a default batch, which has at most `_BATCH_BYTES` if possible."""
    if not len(source):
        return _MOST_BATCH
    return max(1, min(_MOST_BATCH, _BATCH_BYTES // max(1, bytes_of(source[0]))))


def _speed(
    dataset: MapDataset[Any], length: int, size: int, *, seconds: float, batches: int | None
) -> dict[str, Any]:
    """Read batches of `size` of a source's `length` records, and return how quickly that went."""
    first_s: float | None = None
    begin = time.perf_counter()
    with iter(dataset) as iterator:
        for _ in itertools.islice(iterator, batches):
            now_s = time.perf_counter() - begin
            first_s = now_s if first_s is None else first_s
            if now_s > seconds:
                break
        took_s = time.perf_counter() - begin
        stats = iterator.stats()
    records = min(stats.elements * size, length)
    (costs,) = stats.sources
    stored = costs.stored_bytes
    return {
        "records": records,
        "batches": stats.elements,
        "delivered_bytes": stats.delivered_bytes,
        "took_s": took_s,
        "first_batch_s": first_s,
        "stored_bytes_read": None if stored is None else round(stored.middle),
        "peak_buffers_bytes": stats.peak_buffers_bytes,
        "is_whole": records == length,
        "records_per_s": records / took_s,
        "mb_per_s": stats.delivered_bytes / 1e6 / took_s,
    }


def _decoding_mb_per_s(source: LaidOutSource, seconds: float) -> float:
    """Measure reading, decoding and dropping all chunks in order, on one thread per core.

    This is the limit set by the storage and the decoders.
    """
    scans = scans_of(source, refuse_missing=False)
    # Alternate between arrays, since they may compress differently.
    tasks = itertools.chain.from_iterable(zip(*(scan.tasks() for scan in scans), strict=False))
    found = ScanResult()
    begin = time.perf_counter()
    in_time = itertools.takewhile(lambda _: time.perf_counter() - begin <= seconds, tasks)
    run_tasks(((task, found) for task in in_time), threads=usable_cores())
    return found.decoded_bytes / 1e6 / (time.perf_counter() - begin)


def _table(shown: str, found: Mapping[str, Any]) -> str:
    rows = [
        (
            order["order"].replace("_", " "),
            *(_number(order[key], unit) for _, key, unit in _COLUMNS),
            f"{order['records']:,}" + ("" if order["is_whole"] else " of them"),
        )
        for order in found["orders"]
    ]
    heads = ("order", *(head for head, _, _ in _COLUMNS), "records")
    table = TextTable("", heads, rows, is_of_numbers=True).to_text()
    head = f"{shown}: {found['records']:,} records, batches of {found['batch_records']:,}"
    if found["decoding_mb_per_s"] is not None:
        head += f"; reading and decoding alone: {_number(found['decoding_mb_per_s'])} MB/s"
    return f"{head}\n\n{table}"


def _number(value: float | None, unit: float = 1.0) -> str:
    if value is None:
        return "-"
    return f"{value / unit:,.0f}" if abs(value) >= 100 * unit else f"{value / unit:.3g}"
