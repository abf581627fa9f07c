"""`windrow verify`: everything at a path or URL is read once, and every bad piece is told.

Invariant: the report goes to stdout whole, whatever is bad; the exit code tells whether anything is.
"""

from __future__ import annotations

from typing import Any

import click

from windrow.commands import (
    BAD_DATA,
    echo_json,
    examples,
    json_option,
    quiet_option,
    storage_option,
)


@click.command(
    "verify",
    epilog=examples(
        "windrow verify digits",
        "windrow verify era5.zarr --missing error",
        "windrow verify 'train-*.tfrecord' --json > report.json",
        "windrow verify s3://bucket/digits --storage-option anon=true --files-only",
    ),
)
@click.argument("url")
@click.option(
    "--missing",
    type=click.Choice(["fill", "error"]),
    default="fill",
    show_default=True,
    help="What chunks of Zarr that are not stored are: the fill value, or bad.",
)
@click.option(
    "--files-only",
    is_flag=True,
    help="Compare the files of a converted folder with its manifest, and decode nothing: half of"
    " the traffic where the folder is far away.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    help="How many read side by side. [as many as cores; 8 at least over a network]",
)
@storage_option
@json_option
@quiet_option
@click.pass_context
def command(
    context: click.Context,
    url: str,
    missing: str,
    files_only: bool,
    threads: int | None,
    storage_options: dict[str, Any],
    as_json: bool,
    quiet: bool,
) -> None:
    """Read everything at URL once, and report every bad piece.

    URL is an ArrayRecord or TFRecord file, a glob or a folder of them, or a Zarr array or group. All
    checksums are checked and all chunks are decoded. Of a folder that a conversion wrote every file is
    compared with the manifest too: size, CRC-32C and number of records, and that nothing is beside
    them that would be read with the rest.

    Exit codes: 0 all is good, 1 bad data or an unfinished folder, 2 bad arguments.
    """
    from windrow.place_verification import verify_place

    report = verify_place(
        url,
        storage_options=storage_options or None,
        missing="error" if missing == "error" else "fill",
        threads=threads,
        decode=not files_only,
        progress=not quiet,
    )
    if as_json:
        echo_json(report.to_json())
    else:
        click.echo(str(report))
    if not report.ok:
        context.exit(BAD_DATA)
