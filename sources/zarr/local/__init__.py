"""Local Zarr arrays read without a library: metadata, presence, codecs, chunks and shards."""
