"""Building TensorFlow datasets with Windrow's formats: the mixin and `windrow tfds-build`."""

from windrow.converters.tfds.builder import AlsoZarr
from windrow.converters.tfds.to_zarr import read_split, tfds_to_zarr

__all__ = ["AlsoZarr", "read_split", "tfds_to_zarr"]
