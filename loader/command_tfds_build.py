"""`windrow tfds-build`: `tfds build` of any dataset, with Zarr beside it where that is wanted.

Invariant: flags that are not named here go to tfds as they are.
"""

from __future__ import annotations

from typing import Final

import click

from windrow.commands import examples
from windrow.converters.tfds_build import build
from windrow.errors import ArgumentError

_ALSO: Final = ("zarr",)
_NOT_WRITTEN: Final = "parquet"


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": True},
    epilog=examples(
        "windrow tfds-build mnist --also zarr",
        "windrow tfds-build my_dataset/ --data_dir data --overwrite",
    ),
)
@click.argument("arguments", nargs=-1, metavar="[DATASET]... [FLAGS OF tfds build]...")
@click.option(
    "--also", type=click.Choice(_ALSO), help="Write zarr/SPLIT into the folder of the dataset."
)
def command(arguments: tuple[str, ...], *, also: str | None) -> None:
    """Build datasets as `tfds build` does; ArrayRecord is the default format.

    Takes all flags of `tfds build` (`tfds build --help` lists them): names of datasets or folders of
    builders, --data_dir, --config, --beam_pipeline_options, ... With --also zarr every split becomes
    a Zarr group too, and both appear together or, if one of them fails, neither. Needs windrow[tfds].
    """
    if any(_NOT_WRITTEN in text for text in arguments if text.endswith(_NOT_WRITTEN)):
        raise ArgumentError(
            "--file_format=parquet: the parquet files of tfds lack most of the records; write"
            " array_record"
        )
    build(arguments, also_zarr=also is not None)
