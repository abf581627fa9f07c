"""`windrow inspect`: shows the data at a path or URL as tables, JSON or pictures.

Invariant: an unfinished folder is shown as its marker describes it, and counts as bad data.
"""

from __future__ import annotations

from typing import Any

import click

from windrow.cli.main import BAD_DATA, examples, say, shared_options, show


@click.command(
    "inspect",
    epilog=examples(
        "windrow inspect era5.zarr",
        "windrow inspect 'digits/*.array_record' --json",
        "windrow inspect s3://bucket/era5.zarr --storage-option anon=true --sizes",
        "windrow inspect era5.zarr --picture era5.png --records 0,100,200",
        "windrow inspect digits --picture digits.png --field image",
    ),
)
@click.argument("url")
@click.option("--picture", metavar="FILE", help="Draw some records into FILE, a .png.")
@click.option("--records", metavar="N,N,...", help="Which records to draw [16, evenly spread].")
@click.option("--field", metavar="NAME", help="Which array or feature to draw [the first fit].")
@click.option(
    "--sizes/--no-sizes",
    default=None,
    help="Count the stored bytes of arrays; this lists a remote store."
    " [on a local disk, or where a manifest has them]",
)
@shared_options
@click.pass_context
def command(
    context: click.Context,
    url: str,
    picture: str | None,
    records: str | None,
    field: str | None,
    sizes: bool | None,
    storage_options: dict[str, Any],
    as_json: bool,
    quiet: bool,
) -> None:
    """Show what is at URL: a path, a glob or a URL.

    It shows format, records, shapes, dtypes, chunks, compression, sizes, attributes and the manifest
    of a conversion. For files of records it also shows what the first record looks like. It reads
    only metadata and a few records. An unfinished conversion is bad data (exit code 1).
    """
    from windrow.core.native import native
    from windrow.inspection.shown_records import check_request, draw
    from windrow.sources.location import location_of

    check_request(picture, records, field)
    from windrow.formats.inspect import inspect

    found = inspect(url, storage_options=storage_options or None, sizes=sizes)
    show(found, as_json=as_json)
    if not quiet and native() is None:
        say("windrow inspect: without Windrow's native core, so local data is read more slowly")
    if not found.finished:
        resume = found.manifest.resume if found.manifest is not None else None
        way = resume or "run the conversion again with the same arguments"
        say(f"windrow inspect: {found.url} is unfinished; to resume: {way}")
        context.exit(BAD_DATA)
    if picture is not None:
        location = location_of(url, storage_options or None, caller="inspect")
        drawn = draw(found, location, picture, records, field)
        if not quiet:
            say(f"windrow inspect: {drawn}")
