"""`windrow bench`: how quickly what is at a path or URL is read, in three orders.

Invariant: one table, or one JSON object, of what was measured in this very run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from windrow.commands import (
    echo_json,
    examples,
    json_option,
    quiet_option,
    say,
    storage_option,
)

if TYPE_CHECKING:
    from windrow.reading_speed import ReadingSpeed

# Below it, starting weighs as much as reading.
_ENOUGH_S = 0.5
_HEAD = (
    "order", "records/s", "MB/s", "of in order", "of decoding", "first batch ms", "read MB",
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
    type=click.IntRange(min=1),
    help="Records of a batch. [256, or fewer that have 16 MiB]",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=3.0,
    show_default=True,
    help="When an order ends though it has not read everything once.",
)
@click.option("--batches", type=click.IntRange(min=1), help="Batches of an order at most.")
@click.option(
    "--block",
    type=click.IntRange(min=1),
    help="Records of a block of the block shuffle. [those of a chunk or record group]",
)
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, help="Of the shuffles. [0]")
@click.option(
    "--array",
    "arrays",
    multiple=True,
    metavar="NAME",
    help="An array of a Zarr group, or a feature of a tfds folder. [all]",
)
@click.option("--split", help="Of a folder that tfds wrote: train, or a part such as train[:80%].")
@storage_option
@json_option
@quiet_option
def command(
    url: str,
    orders: Sequence[str],
    batch: int | None,
    seconds: float,
    batches: int | None,
    block: int | None,
    seed: int,
    arrays: Sequence[str],
    split: str | None,
    storage_options: dict[str, Any],
    as_json: bool,
    quiet: bool,
) -> None:
    """Measure how quickly the records at URL are read: in order, block-shuffled, globally shuffled.

    URL is an ArrayRecord file, a glob or a folder of them, a folder that tfds wrote, or a Zarr array
    or group. Each order is a chain with default options, read once from its beginning, for a few
    seconds. Files may be in the memory of the machine, and are for the later orders: what a disk
    takes is seen in the first order of a first run.

    "of in order" is the pace with that of reading in order as 1, and "of decoding" that with reading
    and decoding alone as 1; "read MB" is what was read by calls ("-" where files are mapped into
    memory), and "memory MB" the most memory over that before.
    """
    from windrow.inspection_place import place_of
    from windrow.opening import open_source
    from windrow.reading_speed import ORDERS, reading_speed

    place = place_of(url, storage_options or None, what="bench")
    source = open_source(place, what="bench", names=arrays, split=split)
    found = reading_speed(
        source,
        orders=orders or ORDERS,
        batch_records=batch,
        seconds=seconds,
        batches=batches,
        block_records=block,
        seed=seed,
        say=(lambda words: None) if quiet else (lambda words: say(f"windrow bench: {words}")),
    )
    short = [order for order in found.orders if order.took_s < _ENOUGH_S and order.is_whole]
    if short and not quiet:
        say(
            f"windrow bench: all of it was read in {short[0].took_s:.2g} s: too little to compare"
            " orders by, since the first batch and the threads' start are a part of that"
        )
    if as_json:
        echo_json({"url": place.shown, **found.to_json()})
    else:
        click.echo(_table(place.shown, found))


def _table(shown: str, found: ReadingSpeed) -> str:
    from tabulate import tabulate

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
    align = ("left", *("right" for _ in _HEAD[1:]))
    table = tabulate(rows, _HEAD, tablefmt="simple", colalign=align, disable_numparse=True)
    head = f"{shown}: {found.records:,} records, batches of {found.batch_records:,}"
    if found.decoding_mb_per_s is not None:
        head += f"; reading and decoding alone: {_number(found.decoding_mb_per_s)} MB/s"
    return f"{head}\n\n{table}"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
