"""Conversions to and from Zarr."""
