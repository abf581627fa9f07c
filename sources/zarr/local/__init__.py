"""Local Zarr arrays that the native core reads: metadata, presence, codecs and chunks."""
