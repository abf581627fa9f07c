"""Building TensorFlow datasets with Windrow's formats: the mixin and `windrow tfds-build`."""

from windrow.converters.tfds.builder import (
    FOLDER,
    TESTED,
    AlsoZarr,
    check_builder,
    check_exported,
    check_version,
    export,
    read_split,
    tfds_to_zarr,
    wanted_of,
)

__all__ = [
    "FOLDER",
    "TESTED",
    "AlsoZarr",
    "check_builder",
    "check_exported",
    "check_version",
    "export",
    "read_split",
    "tfds_to_zarr",
    "wanted_of",
]
