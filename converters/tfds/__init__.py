"""Building TensorFlow datasets with Windrow's formats: the mixin and `windrow tfds-build`."""

from windrow.converters.tfds.build import AlsoZarr
from windrow.converters.tfds.conversions import read_split, tfds_to_zarr

__all__ = ["AlsoZarr", "read_split", "tfds_to_zarr"]
