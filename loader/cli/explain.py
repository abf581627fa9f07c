"""`windrow explain`: what the chain of a program will read, decode and hold.

Invariant: nothing is read but metadata, apart from what the program itself reads when it is imported.
"""

from __future__ import annotations

import click

from windrow.cli.main import examples, json_option, show
from windrow.cli.named import dataset_named


@click.command(
    "explain",
    epilog=examples(
        "windrow explain train:dataset",
        "windrow explain my_package.data:make_dataset --json",
    ),
)
@click.argument("dataset", metavar="MODULE:NAME")
@json_option
def command(dataset: str, as_json: bool) -> None:
    """Predict what a dataset of your program will read, decode and hold.

    MODULE:NAME is a variable with a MapDataset or an IterDataset, or a function that returns one and
    takes no argument. The module lies in this folder or is installed, and is imported: guard a
    training loop with `if __name__ == "__main__":`.

    Exit codes: 0 done, 1 bad data, 2 bad arguments.
    """
    show(dataset_named(dataset).explain(), as_json=as_json)
