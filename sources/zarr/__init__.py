"""Zarr arrays and groups as sources."""

from windrow.sources.zarr.source import ZarrDataSource

__all__ = ["ZarrDataSource"]
