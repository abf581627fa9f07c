"""`windrow bench`: measures how quickly the data at a path or URL are read in three orders.

Invariant: the output is one table or one JSON object, and holds only measurements of this run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from windrow.cli.main import echo_json, examples, say, shared_options
from windrow.core.text import TextTable

if TYPE_CHECKING:
    from windrow.cli.reading_speed import ReadingSpeed

# In less time than this, starting weighs as much as reading.
_ENOUGH_S = 0.5
_HEAD = (
    "order", "records/s", "MB/s", "vs in order", "vs decoding", "first batch ms", "read MB",
    "memory MB", "records",
)  # fmt: skip


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
    type=click.Choice(["in_order", "block", "global"]),
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
    "memory MB" is how far the peak memory rose above the memory at the start.
    """
    from windrow.cli.reading_speed import ORDERS, reading_speed
    from windrow.formats.table import open_source
    from windrow.sources.location import location_of

    location = location_of(url, storage_options or None, caller="bench")
    source = open_source(location, names=arrays, split=split)
    found = reading_speed(
        source,
        orders=orders or ORDERS,
        **how,
        say=(lambda words: None) if quiet else (lambda words: say(f"windrow bench: {words}")),
    )
    short = [order for order in found.orders if order.took_s < _ENOUGH_S and order.is_whole]
    if short and not quiet:
        say(
            f"windrow bench: reading everything took {short[0].took_s:.2g} s: too little to compare"
            " orders by, since this includes starting the threads and the first batch"
        )
    if as_json:
        echo_json({"url": location.shown, **found.to_json()})
    else:
        click.echo(_table(location.shown, found))


def _table(shown: str, found: ReadingSpeed) -> str:
    rows = []
    for order in found.orders:
        growth, read = order.memory_growth_bytes, order.stored_bytes_read
        first = order.first_batch_s
        rows.append(
            (
                order.order.replace("_", " "),
                _number(order.records_per_s),
                _number(order.mb_per_s),
                _number(found.of_in_order(order)),
                _number(found.of_decoding(order)),
                _number(None if first is None else first * 1e3),
                _number(None if read is None else read / 1e6),
                _number(None if growth is None else growth / 1e6),
                f"{order.records:,}" + ("" if order.is_whole else " of them"),
            )
        )
    table = TextTable("", _HEAD, rows, is_of_numbers=True).to_text()
    head = f"{shown}: {found.records:,} records, batches of {found.batch_records:,}"
    if found.decoding_mb_per_s is not None:
        head += f"; reading and decoding alone: {_number(found.decoding_mb_per_s)} MB/s"
    return f"{head}\n\n{table}"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
