"""`windrow verify`: read everything at a path or URL once, and report every bad chunk.

Invariant: the whole report goes to stdout; the exit code says whether anything is bad.
"""

from __future__ import annotations

from typing import Any

import click

from windrow.cli.main import BAD_DATA, examples, shared_options, show


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
    help="How to treat chunks of arrays that are not stored: as the fill value, or as bad.",
)
@click.option(
    "--files-only",
    is_flag=True,
    help="Only compare the files of a converted folder with its manifest, without decoding; this"
    " halves the traffic of a remote folder.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    help="Number of reading threads. [one per core; over a network at least 8]",
)
@shared_options
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
    """Read everything at URL once, and report every bad chunk.

    URL is an ArrayRecord or TFRecord file, a glob or a folder of them, or a Zarr array or group. It
    checks all checksums and decodes all chunks. In a folder that a conversion wrote it also compares
    every file with the manifest: size, CRC-32C and number of records. There it also reports files
    that are not in the manifest but would be read as data.

    Exit codes: 0 all good, 1 bad data or an unfinished folder, 2 bad arguments.
    """
    from windrow.formats.verify import verify_place

    report = verify_place(
        url,
        storage_options=storage_options or None,
        missing="error" if missing == "error" else "fill",
        threads=threads,
        decode=not files_only,
        progress=not quiet,
    )
    show(report, as_json=as_json)
    if not report.ok:
        context.exit(BAD_DATA)
