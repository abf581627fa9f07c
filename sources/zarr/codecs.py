"""What zarr-python may decode: codecs and dtypes from lists of known ones, and the sizes of chunks.

`check` passes metadata. `COMPRESSORS` bounds what zarr-python decompresses: 2 KB of bz2 can hold 2 GiB, so
the decompressed size is counted first, with little of it in memory at a time.

Invariant: no codec or dtype that passes unpickles or evaluates anything, or makes Python objects other
than strings and bytes.
"""

from __future__ import annotations

import base64
import bz2
import lzma
import math
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import ml_dtypes
import numpy as np
import zstandard

from windrow.sources.zarr.metadata import (
    OF_TENSORSTORE,
    SHARDING,
    V3_NAMED,
    V3_STRINGS,
    chunks_of,
    codecs_of,
    is_v3,
    named,
    of_any_length,
    sizes_of,
    version_of,
)

# Dtypes that TensorStore reads and zarr-python lacks.
_SMALL: Final = (
    *(
        "bfloat16",
        "int2",
        "int4",
        "float4_e2m1fn",
        "float8_e3m4",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
    ),
    *("float8_e4m3b11fnuz", "float8_e5m2", "float8_e5m2fnuz"),
)
# Without pickle, and without json2 and msgpack2, which make any objects.
_NUMCODECS: Final = {
    *("adler32", "astype", "base64", "bitround", "blosc", "bz2", "categorize", "crc32", "crc32c"),
    *("delta", "fixedscaleoffset", "fletcher32", "gzip", "jenkins_lookup3", "lz4", "lzma"),
    *("packbits", "quantize", "shuffle", "vlen-bytes", "vlen-utf8", "zlib", "zstd"),
}
_OBJECT_CODECS: Final = ("vlen-utf8", "vlen-bytes")
_LITTLE: Final = {"name": "bytes", "configuration": {"endian": "little"}}
_INDEX_CODECS: Final = ([_LITTLE], [_LITTLE, {"name": "crc32c"}])
_DTYPE_SETTINGS: Final = ("dtype", "astype", "encode_dtype", "decode_dtype")
_NUMBER_TYPE: Final = r"[|<>=]?(?:b1|\?|[iu][1248]|f[248]|c(?:8|16)|[SU][1-9]\d{0,5})"
_NUMBER_NAME: Final = r"bool|u?int(?:8|16|32|64)|float(?:16|32|64)|complex(?:64|128)"
_TIME_TYPE: Final = r"[<>][mM]8\[\d*[a-zA-Z]+\]"
# Filters may store values that are wider than the array's.
_WIDEST: Final = 8
_MOST_STRING_BYTES: Final = 2**30
_MEASURE_BYTES: Final = 2**20
# The dictionary of a writer's highest preset has 64 MiB.
_LZMA_BYTES: Final = 2**28


class RefusedError(Exception):
    """Metadata that zarr-python does not get; the message says why."""


class ChunkDamageError(Exception):
    """Stored bytes that are not a whole chunk; the message has the reason."""


def stand_in(meta: Any) -> tuple[np.dtype[Any] | None, Any]:
    """The dtype of an array that zarr-python lacks, with metadata of integers of its size in its place.

    Without such a dtype, None and the metadata as they are.
    """
    key = "data_type" if isinstance(meta, dict) and is_v3(meta) else "dtype"
    name = meta.get(key) if isinstance(meta, dict) else None
    if name not in _SMALL:
        return None, meta
    dtype = np.dtype(getattr(ml_dtypes, name))
    bits = np.dtype(f"<u{dtype.itemsize}")
    as_bits = bits.str if key == "dtype" else bits.name
    return dtype, {**meta, key: as_bits, "fill_value": _bits(meta.get("fill_value"), dtype, bits)}


def _bits(fill: Any, dtype: np.dtype[Any], bits: np.dtype[Any]) -> Any:
    """A fill value of `dtype` as an integer of its size; what is not understood is left as it is."""
    if isinstance(fill, str) and re.fullmatch(r"0x[0-9a-fA-F]{1,16}", fill):
        return int(fill, 16)
    if isinstance(fill, str) and fill.endswith("="):  # as TensorStore writes what JSON lacks
        return int.from_bytes(base64.b64decode(fill), "little")
    if not isinstance(fill, int | float) and fill not in ("NaN", "Infinity", "-Infinity"):
        return fill
    return int(np.array(float(fill)).astype(dtype).view(bits))


def check(meta: Mapping[str, Any]) -> None:
    """Check that zarr-python may see these metadata.

    Raises:
        RefusedError: If they name an unknown codec or dtype.
    """
    version = version_of(meta)
    if version not in OF_TENSORSTORE:
        raise RefusedError(f"zarr_format {meta.get('zarr_format')!r}")
    names = []
    for what, name, settings in codecs_of(meta):
        plain = name.removeprefix("numcodecs.") if isinstance(name, str) else None
        known = plain in _NUMCODECS
        if not known and not (version == 3 and name in OF_TENSORSTORE[3]):
            raise RefusedError(f"{what} {name!r}")
        for key in _DTYPE_SETTINGS:
            value = settings.get(key)
            if value is not None and not is_plain_type(value):
                raise RefusedError(f"{what} {name!r} with {key} {value!r}")
        if plain == "lzma" and settings.get("format", 1) not in (0, 1, 2):
            raise RefusedError(f"{what} 'lzma' with format {settings.get('format')!r}")
        names.append(plain)
    dtype = meta.get("dtype" if version == 2 else "data_type")
    if version == 2:
        objects = dtype == "|O" and sum(name in _OBJECT_CODECS for name in names) == 1
        if not objects and not is_plain_type(dtype):
            raise RefusedError(f"dtype {dtype!r}")
    elif isinstance(dtype, dict):
        if dtype.get("name") not in V3_NAMED:
            raise RefusedError(f"dtype {dtype.get('name')!r}")
    elif not is_plain_type(dtype) and dtype not in V3_STRINGS:
        raise RefusedError(f"dtype {dtype!r}")


def compressor_of(meta: Mapping[str, Any]) -> str | None:
    """The codec that decompresses a stored chunk; None if chunks are not compressed.

    Raises:
        RefusedError: If several codecs compress, or another codec decodes first: the decompressed
            size could then not be bounded.
    """
    if version_of(meta) == 2:
        names = [str(name) for _, name, _ in codecs_of(meta)]
    else:
        chain = [*map(named, meta["codecs"])]
        shards = [settings for name, settings in chain if name == SHARDING]
        if shards:
            if len(chain) > 1 or shards[0].get("index_codecs") not in _INDEX_CODECS:
                raise RefusedError(f"codec {SHARDING!r} with others around it")
            chain = [*map(named, shards[0]["codecs"])]
        names = [str(name) for name, _ in chain]
        if SHARDING in names:
            raise RefusedError(f"codec {SHARDING!r} in shards")
        while names and names[-1] == "crc32c":  # checksums follow the stored data
            names.pop()
    plain = [name.removeprefix("numcodecs.") for name in names]
    packed = [k for k, name in enumerate(plain) if name in COMPRESSORS]
    if not packed:
        return None
    if packed != [len(plain) - 1]:
        raise RefusedError("it is compressed twice, or encoded further after that")
    return plain[-1]


def is_plain_type(value: Any) -> bool:
    """Whether `value` names numbers, times, or strings of one length: no objects, no fields."""
    return isinstance(value, str) and any(
        re.fullmatch(pattern, value) for pattern in (_NUMBER_TYPE, _NUMBER_NAME, _TIME_TYPE)
    )


def index_of_shards(meta: Mapping[str, Any]) -> dict[str, bool]:
    """The place of a shard's index and whether it has a checksum, for `CheckedStore.sharded`."""
    settings = next(s for _, name, s in codecs_of(meta) if name == SHARDING)
    return {
        "at_end": settings.get("index_location", "end") == "end",
        "checksum": len(settings["index_codecs"]) > 1,
    }


def checked_sizes(
    meta: Mapping[str, Any],
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int]:
    """Shape of an array, of its chunks and of its shards, and bytes of a value.

    Without shards, what one object holds is a chunk. A string of any length counts as the bytes of
    the reference to it.

    Raises:
        RefusedError: If they are not sizes, or there is no first axis.
    """
    shape, (chunk, shard) = sizes_of(meta.get("shape")), chunks_of(meta)
    if shape is None or chunk is None or shard is None or not len(shape) == len(chunk):
        raise RefusedError("its shape and chunks are not lists of sizes of one length")
    if not shape:
        raise RefusedError("its shape is (), and the first axis counts records")
    if min(shape) < 0 or min(chunk) < 1 or min(shard) < 1:
        raise RefusedError("a size in its shape or chunks is too small")
    return shape, chunk, shard, _item_bytes(meta)


def most_chunk_bytes(meta: Mapping[str, Any], chunk: Sequence[int], item_bytes: int) -> int:
    """The most bytes that a chunk may decompress to."""
    if of_any_length(meta):
        return _MOST_STRING_BYTES
    return _WIDEST * math.prod(chunk) * max(8, item_bytes) + 2**16


def _item_bytes(meta: Mapping[str, Any]) -> int:
    dtype = meta.get("dtype", meta.get("data_type"))
    if isinstance(dtype, dict):
        length = dtype.get("configuration", {}).get("length_bytes", 8)
        if type(length) is not int or not 0 < length < 2**22:
            raise RefusedError(f"dtype of {length!r} bytes")
        return length
    if isinstance(dtype, str) and is_plain_type(dtype):
        return np.dtype(dtype).itemsize
    return 8


# --- the size of what zarr-python decompresses ---------------------------------------------------


def refuse_larger(codec: str, stored: bytes, most: int) -> None:
    """Refuse a chunk that decompresses to more than `most` bytes.

    The decompressor finds any other damage.

    Args:
        codec: One of `COMPRESSORS`.
        stored: The stored bytes of one chunk; bytes after its end are ignored.
        most: The most bytes that a chunk can have.

    Raises:
        ChunkDamageError: If it has more.
    """
    try:
        size = COMPRESSORS[codec](stored, most)
    except lzma.LZMAError as error:
        if "limit" in str(error):
            raise ChunkDamageError(
                "decompressing it takes far more memory than a chunk has"
            ) from error
        return
    except (OSError, EOFError, ValueError, zlib.error, zstandard.ZstdError):
        return
    if size > most:
        raise ChunkDamageError(
            f"it decompresses to more than {most:,} bytes, far more than a chunk has"
        )


def _streamed(begin: Callable[[], Any]) -> Callable[[bytes, int], int]:
    """Counts the bytes that consecutive streams decompress to, up to `most`."""

    def count(stored: bytes, most: int) -> int:
        total = 0
        while stored and total <= most:
            stream = begin()
            while not stream.eof and total <= most:
                # Only the first call has input; the later ones return what that input still holds.
                got = stream.decompress(stored, _MEASURE_BYTES)
                stored = getattr(stream, "unconsumed_tail", b"")
                total += len(got)
                if not got and not stored:
                    return total
            stored = stream.unused_data
        return total

    return count


def _zstd_size(stored: bytes, most: int) -> int:
    known = zstandard.frame_content_size(stored)
    if known >= 0:
        return known
    total = 0
    reader = zstandard.ZstdDecompressor(max_window_size=_LZMA_BYTES).stream_reader(stored)
    while total <= most and (got := reader.read(_MEASURE_BYTES)):
        total += len(got)
    return total


COMPRESSORS: Final[dict[str, Callable[[bytes, int], int]]] = {
    "zlib": _streamed(lambda: zlib.decompressobj(15)),
    "gzip": _streamed(lambda: zlib.decompressobj(31)),
    "bz2": _streamed(bz2.BZ2Decompressor),
    "lzma": _streamed(lambda: lzma.LZMADecompressor(memlimit=_LZMA_BYTES)),
    "zstd": _zstd_size,
    # The first bytes of these give the size, and they decode to no more.
    "blosc": lambda stored, most: int.from_bytes(stored[4:8], "little"),
    "lz4": lambda stored, most: int.from_bytes(stored[:4], "little"),
}
"""By name, a function that counts decompressed bytes, up to a given number."""
