"""`windrow cache`: shows, checks and clears the folder that keeps what was read over a network.

Invariant: without `--verify` and `--clear` nothing is deleted.
"""

from __future__ import annotations

import click

from windrow.cli.main import BAD_DATA, examples, json_option, show


@click.command(
    "cache",
    epilog=examples(
        "windrow cache /scratch/windrow",
        "windrow cache /scratch/windrow --verify",
        "windrow cache /scratch/windrow --clear",
    ),
)
@click.argument("folder", metavar="DIR")
@click.option(
    "--verify",
    is_flag=True,
    help="Compare all bytes with their checksums, and delete what is damaged; it is fetched again.",
)
@click.option("--clear", is_flag=True, help="Delete everything that is kept.")
@json_option
@click.pass_context
def command(context: click.Context, folder: str, verify: bool, clear: bool, as_json: bool) -> None:
    """Show what the cache in DIR keeps: byte ranges and bytes of each URL.

    DIR is the cache_dir of windrow.sources.RemoteOptions. Runs that use the cache continue: what is
    deleted is fetched again.

    Exit codes: 0 all good, 1 something was damaged, 2 bad arguments.
    """
    from windrow.sources.remote.cache_folder import cache_report

    report = cache_report(folder, verify=verify, clear=clear)
    show(report, as_json=as_json)
    if report.damaged:
        context.exit(BAD_DATA)
