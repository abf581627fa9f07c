"""`windrow inspect`: what is at a path or URL, as tables, as JSON, and as pictures.

Invariant: an unfinished folder is shown as far as its marker tells, and is bad data.
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
    say,
    storage_option,
)


@click.command(
    "inspect",
    epilog=examples(
        "windrow inspect era5.zarr",
        "windrow inspect 'digits/*.array_record' --json",
        "windrow inspect s3://bucket/era5.zarr --storage-option anon=true --sizes",
        "windrow inspect era5.zarr --sheet era5.png --records 0,100,200",
        "windrow inspect digits --sheet digits.html --field image",
    ),
)
@click.argument("url")
@click.option("--sheet", metavar="FILE", help="Draw some records: FILE is a .png or a .html.")
@click.option("--records", metavar="N,N,...", help="Which records to draw [16, evenly spread].")
@click.option("--field", metavar="NAME", help="Which array or feature to draw [the first fit].")
@click.option(
    "--sizes/--no-sizes",
    default=None,
    help="Count the bytes that arrays take as stored, which lists a store far away."
    " [on a local disk, or where a manifest has them]",
)
@storage_option
@json_option
@quiet_option
@click.pass_context
def command(
    context: click.Context,
    url: str,
    sheet: str | None,
    records: str | None,
    field: str | None,
    sizes: bool | None,
    storage_options: dict[str, Any],
    as_json: bool,
    quiet: bool,
) -> None:
    """Show what is at URL: a path, a glob or a URL.

    Format, records, shapes, dtypes, chunks, compression, sizes, attributes and the manifest of a
    conversion; of files of records, what the first one looks like. Only metadata and a few records
    are read. A folder whose conversion has not finished is bad data (exit code 1).
    """
    from windrow.contact_sheet import check_request, draw

    wanted = check_request(sheet, records, field)
    from windrow.inspection import inspect

    found = inspect(url, storage_options=storage_options or None, sizes=sizes)
    if as_json:
        echo_json(found.to_json())
    else:
        click.echo(str(found))
    if not found.finished:
        resume = found.manifest.resume if found.manifest is not None else None
        way = resume or "run the conversion that writes it again, with the same arguments"
        say(f"windrow inspect: {found.url} is unfinished; to go on: {way}")
        context.exit(BAD_DATA)
    if wanted is not None:
        drawn = draw(found, url, wanted, storage_options=storage_options or None)
        if not quiet:
            say(f"windrow inspect: {drawn}")
