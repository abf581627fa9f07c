"""Metadata of Zarr arrays: sizes, axes, codecs and dtypes, and which library may read an array.

`local.metadata` parses what the native core decodes. This module is for all other arrays: TensorStore
reads most of them, and zarr-python those with a filter, codec or dtype that TensorStore lacks.

Invariant: `check` passes only codecs and dtypes from lists of known ones. None of these unpickles
or evaluates anything, or makes Python objects other than strings and bytes.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import ml_dtypes
import numpy as np

from windrow.sources.zarr.local.codecs import COMPRESSORS

SHARDING: Final = "sharding_indexed"
"""The codec of arrays in shards."""

# The codecs that TensorStore decodes, by version, as metadata name them.
_OF_TENSORSTORE: Final = {
    2: ("blosc", "bz2", "zlib", "gzip", "zstd"),
    3: ("bytes", "transpose", SHARDING, "blosc", "gzip", "zstd", "crc32c"),
}
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
_V3_STRINGS: Final = ("string", "variable_length_bytes", "bytes")
_V3_NAMED: Final = (
    *("numpy.datetime64", "numpy.timedelta64", "fixed_length_utf32", "null_terminated_bytes"),
)


# Filters may store values that are wider than the array's.
_WIDEST: Final = 8
_MOST_STRING_BYTES: Final = 2**30


class RefusedError(Exception):
    """Metadata that zarr-python does not get; the message says why."""


# --- arrays and groups ---------------------------------------------------------------------------


def version_of(meta: Mapping[str, Any]) -> int:
    """The version of the Zarr format; 0 if the metadata do not say."""
    version = meta.get("zarr_format")
    return version if isinstance(version, int) else 0


def sizes_of(value: Any) -> tuple[int, ...] | None:
    """`value` as sizes, if it is a list of integers; else None."""
    if isinstance(value, list) and all(type(size) is int for size in value):
        return tuple(value)
    return None


def axis_names(value: Any, rank: int) -> tuple[str | None, ...]:
    """Names of `rank` axes as metadata give them; () if they do not fit this array.

    Records do not depend on names, so names that do not fit are ignored.
    """
    if not isinstance(value, list | tuple) or len(value) != rank:
        return ()
    if any(not isinstance(name, str | None) for name in value):
        return ()
    names = tuple(name or None for name in value)
    return names if any(names) else ()


def is_v3(meta: Mapping[str, Any]) -> bool:
    """Whether the metadata of a node are of Zarr v3."""
    return "node_type" in meta


def attributes_of(meta: Mapping[str, Any], zattrs: Any) -> dict[str, Any]:
    """The attributes of a node; `zattrs` are the attributes of v2, which have their own file."""
    attributes = meta.get("attributes") if is_v3(meta) else zattrs
    return attributes if isinstance(attributes, dict) else {}


def dims_of(meta: Mapping[str, Any], attributes: Mapping[str, Any]) -> tuple[str | None, ...]:
    """Names of an array's axes, as `axis_names` returns them.

    The format names the axes of v3. xarray's convention names the axes of v2.
    """
    shape = sizes_of(meta.get("shape"))
    names = meta.get("dimension_names") if is_v3(meta) else attributes.get("_ARRAY_DIMENSIONS")
    return axis_names(names, -1 if shape is None else len(shape))


def keys_of(meta: Mapping[str, Any]) -> tuple[str, str] | None:
    """The beginning of the keys of chunks, and what stands between coordinates; None if unknown."""
    if version_of(meta) == 2:
        prefix, separator = "", meta.get("dimension_separator", ".")
    else:
        name, settings = _named(meta.get("chunk_key_encoding"))
        separator = settings.get("separator", "/" if name == "default" else ".")
        prefix = f"c{separator}" if name == "default" else ""
        if name not in ("default", "v2"):
            return None
    return (prefix, separator) if separator in ("/", ".") else None


def chunks_of(
    meta: Mapping[str, Any],
) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """Shapes of a chunk and of what one stored object holds; None for what is not a list of sizes."""
    if not is_v3(meta):
        chunk = sizes_of(meta.get("chunks"))
        return chunk, chunk
    _, settings = _named(meta.get("chunk_grid"))
    chunk = stored = sizes_of(settings.get("chunk_shape"))
    for _, name, inner in codecs_of(meta):
        if name == SHARDING:
            chunk = sizes_of(inner.get("chunk_shape"))
    return chunk, stored


def is_sharded(meta: Mapping[str, Any]) -> bool:
    """Whether an array lies in shards."""
    return is_v3(meta) and any(name == SHARDING for _, name, _ in codecs_of(meta))


# --- codecs and dtypes ---------------------------------------------------------------------------


def why_python(meta: Mapping[str, Any]) -> str:
    """The reason why TensorStore cannot read an array with these metadata; '' if it can."""
    version = version_of(meta)
    for what, name, _ in codecs_of(meta):
        if what == "filter" or name not in _OF_TENSORSTORE.get(version, (name,)):
            return f"{what} {name!r}"
    dtype = meta.get("dtype" if version == 2 else "data_type")
    if version == 2 and isinstance(dtype, str) and re.fullmatch(r"[|<>][SUOmM].*", dtype):
        return f"dtype {dtype!r}"
    if version == 3 and isinstance(dtype, dict) and dtype.get("name") in _V3_NAMED:
        return f"dtype {dtype['name']!r}"
    if version == 3 and dtype in _V3_STRINGS:
        return f"dtype {dtype!r}"
    dims = meta.get("dimension_names")
    names = [str(name) for name in dims if name] if isinstance(dims, list) else []
    if len(set(names)) < len(names):
        return "two axes have one name"
    return ""


def of_any_length(meta: Mapping[str, Any]) -> bool:
    """Whether values are strings or bytes of any length, which are objects in memory."""
    return meta.get("dtype") == "|O" or meta.get("data_type") in _V3_STRINGS


def codecs_of(meta: Mapping[str, Any]) -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
    """Kind, name and settings of each codec, including those inside shards."""
    if version_of(meta) == 2:
        filters = meta.get("filters") or []
        for what, item in (
            *(("filter", item) for item in (filters if isinstance(filters, list) else [filters])),
            ("compressor", meta.get("compressor")),
        ):
            if isinstance(item, dict):
                yield what, item.get("id"), {k: v for k, v in item.items() if k != "id"}
            elif item is not None:
                yield what, item, {}
        return
    yield from _codecs_v3(meta.get("codecs"), 0)


def _codecs_v3(chain: Any, depth: int) -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
    if not isinstance(chain, list) or depth > 2:
        yield "codec", None, {}
        return
    for name, settings in map(_named, chain):
        yield "codec", name, settings
        if name == SHARDING:
            for inner in ("codecs", "index_codecs"):
                yield from _codecs_v3(settings.get(inner), depth + 1)


def _named(item: Any) -> tuple[Any, Mapping[str, Any]]:
    """Name and settings of an extension point of v3, such as a codec; no name if it is not understood."""
    if not isinstance(item, dict):
        return item, {}
    settings = item.get("configuration") or {}
    return (item.get("name"), settings) if isinstance(settings, dict) else (None, {})


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
    if version not in _OF_TENSORSTORE:
        raise RefusedError(f"zarr_format {meta.get('zarr_format')!r}")
    names = []
    for what, name, settings in codecs_of(meta):
        plain = name.removeprefix("numcodecs.") if isinstance(name, str) else None
        known = plain in _NUMCODECS
        if not known and not (version == 3 and name in _OF_TENSORSTORE[3]):
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
        if dtype.get("name") not in _V3_NAMED:
            raise RefusedError(f"dtype {dtype.get('name')!r}")
    elif not is_plain_type(dtype) and dtype not in _V3_STRINGS:
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
        chain = [*map(_named, meta["codecs"])]
        shards = [settings for name, settings in chain if name == SHARDING]
        if shards:
            if len(chain) > 1 or shards[0].get("index_codecs") not in _INDEX_CODECS:
                raise RefusedError(f"codec {SHARDING!r} with others around it")
            chain = [*map(_named, shards[0]["codecs"])]
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


# --- sizes ---------------------------------------------------------------------------------------


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
