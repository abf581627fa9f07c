"""The codecs of Zarr arrays that the native core decodes, as zarr-python takes them, by name."""

from __future__ import annotations

from typing import Any

import numcodecs
from zarr import codecs

V2: dict[str, Any] = {
    "none": None,
    "zstd": numcodecs.Zstd(1),
    "gzip": numcodecs.GZip(1),
    "zlib": numcodecs.Zlib(1),
    "lz4": numcodecs.LZ4(),
    "blosc lz4": numcodecs.Blosc("lz4", 5, numcodecs.Blosc.SHUFFLE),
    "blosc zstd": numcodecs.Blosc("zstd", 3, numcodecs.Blosc.BITSHUFFLE),
    "blosc zlib": numcodecs.Blosc("zlib", 1, numcodecs.Blosc.NOSHUFFLE),
    "blosclz": numcodecs.Blosc("blosclz", 5, numcodecs.Blosc.SHUFFLE),
    "blosc lz4hc": numcodecs.Blosc("lz4hc", 5, numcodecs.Blosc.SHUFFLE),
}
V3: dict[str, list[Any]] = {
    "none": [],
    "zstd": [codecs.ZstdCodec(level=1)],
    "zstd, checked": [codecs.ZstdCodec(level=1, checksum=True)],
    "zstd, crc32c": [codecs.ZstdCodec(level=1), codecs.Crc32cCodec()],
    "crc32c, zstd": [codecs.Crc32cCodec(), codecs.ZstdCodec(level=1)],
    "crc32c": [codecs.Crc32cCodec()],
    "gzip": [codecs.GzipCodec(level=1)],
    "blosc": [codecs.BloscCodec(cname="lz4", clevel=3)],
}
