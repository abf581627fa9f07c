"""`windrow report`: a page about the chain of a program.

Invariant: the page is written whole or not at all; its path goes to stdout.
"""

from __future__ import annotations

import click

from windrow.cli.main import examples
from windrow.cli.named import dataset_named


@click.command(
    "report",
    epilog=examples(
        "windrow report train:dataset chain.html",
        "windrow report my_package.data:make_dataset chain.html --elements 0",
    ),
)
@click.argument("dataset", metavar="MODULE:NAME")
@click.argument("path", metavar="FILE.html")
@click.option("--title", help="The heading of the page.")
@click.option(
    "--elements",
    type=click.IntRange(min=0),
    default=8,
    show_default=True,
    help="How many of the first elements to show; with 0 nothing is read.",
)
def command(dataset: str, path: str, title: str | None, elements: int) -> None:
    """Write a page about a dataset of your program: plan, costs, order and first elements.

    MODULE:NAME is as for `windrow explain`. The page is one file that needs no network.

    Exit codes: 0 done, 1 bad data, 2 bad arguments.
    """
    import windrow

    click.echo(windrow.report(dataset_named(dataset), path, title=title, elements=elements))
