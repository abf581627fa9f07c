"""`windrow tfds-build`: runs `tfds build` for any dataset, and writes Zarr copies if wanted.

Invariant: flags that are not named here go to tfds unchanged.
"""

from __future__ import annotations

import traceback
from typing import Final

import click

from windrow.cli.main import examples
from windrow.converters.tfds.build import build
from windrow.errors import ConversionError, WindrowError

_ALSO: Final = ("zarr",)


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": True},
    epilog=examples(
        "windrow tfds-build mnist --also zarr --images",
        "windrow tfds-build my_dataset/ --data_dir data --overwrite",
    ),
)
@click.argument("arguments", nargs=-1, metavar="[DATASET]... [FLAGS OF tfds build]...")
@click.option(
    "--also", type=click.Choice(_ALSO), help="Also write zarr/SPLIT into the folder of the dataset."
)
@click.option(
    "--images",
    is_flag=True,
    help="Decode the images in Zarr; by default they stay encoded. Needs windrow-data[images].",
)
def command(arguments: tuple[str, ...], *, also: str | None, images: bool) -> None:
    """Build datasets as `tfds build` does; ArrayRecord is the default format.

    Takes all arguments of `tfds build` (`tfds build --help` lists them): names of datasets or folders
    of builders, --data_dir, --config, --beam_pipeline_options, ... With --also zarr every split is
    also written as a Zarr group. If one of the two fails, neither is kept. Needs windrow-data[tfds].
    """
    if images and also is None:
        raise click.UsageError("--images applies to what --also zarr writes; give both")
    try:
        build(arguments, also_zarr=also is not None, images=images)
    except (WindrowError, OSError, click.ClickException):
        raise
    except Exception as error:
        # The error comes from tfds or from a builder, whose author needs to know where.
        at = traceback.extract_tb(error.__traceback__)[-1]
        raise ConversionError(
            f"tfds could not build it: {type(error).__name__}: {error} (in {at.filename}, line"
            f" {at.lineno})"
        ) from error
