"""`windrow tfds-build`: `tfds build` of any dataset, with Zarr beside it where that is wanted.

Invariant: flags that are not named here go to tfds as they are.
"""

from __future__ import annotations

import traceback
from typing import Final

import click

from windrow.commands import examples
from windrow.converters.tfds_build import build
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
    "--also", type=click.Choice(_ALSO), help="Write zarr/SPLIT into the folder of the dataset."
)
@click.option(
    "--images",
    is_flag=True,
    help="Decode images in Zarr, which stay encoded else; needs windrow[images].",
)
def command(arguments: tuple[str, ...], *, also: str | None, images: bool) -> None:
    """Build datasets as `tfds build` does; ArrayRecord is the default format.

    Takes all flags of `tfds build` (`tfds build --help` lists them): names of datasets or folders of
    builders, --data_dir, --config, --beam_pipeline_options, ... With --also zarr every split becomes
    a Zarr group too, and both appear together or, if one of them fails, neither. Needs windrow[tfds].
    """
    if images and also is None:
        raise click.UsageError("--images is of what --also zarr writes; give both")
    try:
        build(arguments, also_zarr=also is not None, images=images)
    except (WindrowError, OSError, click.ClickException):
        raise
    except Exception as error:
        # tfds', or of a builder: where it is, is what its author asks.
        at = traceback.extract_tb(error.__traceback__)[-1]
        raise ConversionError(
            f"tfds could not build it: {type(error).__name__}: {error} (in {at.filename}, line"
            f" {at.lineno})"
        ) from error
