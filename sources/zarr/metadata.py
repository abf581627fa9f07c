"""Metadata of Zarr arrays: sizes, axes, keys, codecs, and which library can read an array.

An array is plain if it is simple enough for the native core to decode: `plain_layout` knows everything in
its metadata, and each entry has one meaning. TensorStore reads most other arrays, and zarr-python those
with a filter, codec or dtype that TensorStore lacks; `codecs.py` says what zarr-python may see.

Invariant: nothing that is read is ever evaluated.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import ml_dtypes
import numpy as np

SHARDING: Final = "sharding_indexed"
"""The codec of arrays in shards."""

OF_TENSORSTORE: Final = {
    2: ("blosc", "bz2", "zlib", "gzip", "zstd"),
    3: ("bytes", "transpose", SHARDING, "blosc", "gzip", "zstd", "crc32c"),
}
"""The codecs that TensorStore decodes, by version, as metadata name them."""
V3_STRINGS: Final = ("string", "variable_length_bytes", "bytes")
"""The dtypes of Zarr v3 for strings of any length."""
V3_NAMED: Final = (
    *("numpy.datetime64", "numpy.timedelta64", "fixed_length_utf32", "null_terminated_bytes"),
)
"""The dtypes of Zarr v3 with settings, which only zarr-python reads."""
# The most that the decompressors take in one call.
_MOST_CHUNK_BYTES: Final = 2**31 - 2**16
_MOST_AXES: Final = 32
# A table has one number per shard.
_MOST_SHARDS: Final = 2**28
_V2_TYPE: Final = r"\|b1|[|<>](?:[iu]1)|[<>](?:[iu][248]|f[248]|c(?:8|16))"
_V3_TYPES: Final = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
_SMALL_FLOATS: Final[dict[str, np.dtype[Any]]] = {
    name: np.dtype(getattr(ml_dtypes, name))
    for name in (
        "bfloat16",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e4m3b11fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
    )
}
_SPECIAL: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_V2_KEYS: Final = {
    *("zarr_format", "shape", "chunks", "dtype", "compressor", "fill_value", "order", "filters"),
    "dimension_separator",
}
_V3_KEYS: Final = {
    *("zarr_format", "node_type", "shape", "data_type", "chunk_grid", "chunk_key_encoding"),
    *("fill_value", "codecs", "attributes", "dimension_names", "storage_transformers"),
}


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
        name, settings = named(meta.get("chunk_key_encoding"))
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
    _, settings = named(meta.get("chunk_grid"))
    chunk = stored = sizes_of(settings.get("chunk_shape"))
    for _, name, inner in codecs_of(meta):
        if name == SHARDING:
            chunk = sizes_of(inner.get("chunk_shape"))
    return chunk, stored


def is_sharded(meta: Mapping[str, Any]) -> bool:
    """Whether an array lies in shards."""
    return is_v3(meta) and any(name == SHARDING for _, name, _ in codecs_of(meta))


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
    for name, settings in map(named, chain):
        yield "codec", name, settings
        if name == SHARDING:
            for inner in ("codecs", "index_codecs"):
                yield from _codecs_v3(settings.get(inner), depth + 1)


def named(item: Any) -> tuple[Any, Mapping[str, Any]]:
    """Name and settings of an extension point of v3, such as a codec; no name if it is not understood."""
    if not isinstance(item, dict):
        return item, {}
    settings = item.get("configuration") or {}
    return (item.get("name"), settings) if isinstance(settings, dict) else (None, {})


def why_python(meta: Mapping[str, Any]) -> str:
    """The reason why TensorStore cannot read an array with these metadata; '' if it can."""
    version = version_of(meta)
    for what, name, _ in codecs_of(meta):
        if what == "filter" or name not in OF_TENSORSTORE.get(version, (name,)):
            return f"{what} {name!r}"
    dtype = meta.get("dtype" if version == 2 else "data_type")
    if version == 2 and isinstance(dtype, str) and re.fullmatch(r"[|<>][SUOmM].*", dtype):
        return f"dtype {dtype!r}"
    if version == 3 and isinstance(dtype, dict) and dtype.get("name") in V3_NAMED:
        return f"dtype {dtype['name']!r}"
    if version == 3 and dtype in V3_STRINGS:
        return f"dtype {dtype!r}"
    dims = meta.get("dimension_names")
    names = [str(name) for name in dims if name] if isinstance(dims, list) else []
    if len(set(names)) < len(names):
        return "two axes have one name"
    return ""


def of_any_length(meta: Mapping[str, Any]) -> bool:
    """Whether values are strings or bytes of any length, which are objects in memory."""
    return meta.get("dtype") == "|O" or meta.get("data_type") in V3_STRINGS


def has_unequal_chunks(meta: Mapping[str, Any]) -> bool:
    """Whether an array has the rectilinear chunk grid."""
    grid = meta.get("chunk_grid")
    return isinstance(grid, dict) and grid.get("name") == "rectilinear"


# --- plain arrays: what the native core decodes --------------------------------------------------


class _NotPlainError(Exception):
    """An array that TensorStore must read; the message says why."""


@dataclasses.dataclass(frozen=True, slots=True)
class PlainCodec:
    """A codec of arrays that the native core reads.

    Args:
        settings: The settings that it may have. An unknown one could change what its bytes mean.
        versions: The versions of the Zarr format that have it.
    """

    settings: tuple[str, ...]
    versions: tuple[int, ...]


PLAIN_CODECS: Final[dict[str, PlainCodec]] = {
    "zstd": PlainCodec(("level", "checksum"), (2, 3)),
    "blosc": PlainCodec(("cname", "clevel", "shuffle", "typesize", "blocksize"), (2, 3)),
    "lz4": PlainCodec(("acceleration",), (2,)),
    "gzip": PlainCodec(("level",), (2, 3)),
    "zlib": PlainCodec(("level",), (2,)),
    "crc32c": PlainCodec((), (3,)),
}
"""By name, the codecs of arrays that the core decodes. A new codec is a row of this table."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class PlainLayout:
    """How the native core decodes an array, as its metadata describe it.

    Args:
        shape: Rows first; at least one axis.
        stored_dtype: With the byte order in storage.
        dtype: As delivered, in this machine's byte order.
        fill: The value of cells that are not stored; a scalar of `dtype`.
        chunk_shape: Shape of the cells that are decoded together: the inner chunk of a sharded
            array.
        shard_shape: Shape of one stored object of a sharded array; else None.
        axes: Axis `k` of a stored chunk is axis `axes[k]` of the array.
        codecs: Names of those from bytes to bytes, in the order in which the writer applied them.
        prefix: The beginning of the keys of stored objects.
        separator: Between the coordinates in a key.
        index_codecs: Codecs of a shard's index, little-endian uint64 `(*grid of the shard, 2)`.
        index_location: 'start' or 'end' of a shard; '' where the array is not sharded.
    """

    shape: tuple[int, ...]
    stored_dtype: np.dtype[Any]
    dtype: np.dtype[Any]
    fill: Any
    chunk_shape: tuple[int, ...]
    shard_shape: tuple[int, ...] | None
    axes: tuple[int, ...]
    codecs: tuple[str, ...]
    prefix: str
    separator: str
    index_codecs: tuple[str, ...] = ()
    index_location: str = ""

    def key(self, coords: Sequence[int]) -> str:
        """Path, in the array's folder, of the stored object at `coords` of the grid of objects."""
        return self.prefix + self.separator.join(map(str, coords))

    @functools.cached_property
    def grid(self) -> tuple[int, ...]:
        """Chunks along each axis; inner chunks if the array is sharded."""
        return tuple(-(-n // c) for n, c in zip(self.shape, self.chunk_shape, strict=True))

    @functools.cached_property
    def shard_grid(self) -> tuple[int, ...]:
        """Chunks along each axis of one shard; all 1 if the array is not sharded."""
        whole = self.shard_shape or self.chunk_shape
        return tuple(n // c for n, c in zip(whole, self.chunk_shape, strict=True))

    @property
    def chunk_bytes(self) -> int:
        """Bytes of one decoded chunk, which is a whole chunk even at the array's end."""
        return math.prod(self.chunk_shape) * self.dtype.itemsize

    @property
    def fill_bytes(self) -> bytes:
        """The bytes of a cell that is not stored."""
        return np.asarray(self.fill, self.dtype).tobytes()

    @property
    def row_bytes(self) -> int:
        """Bytes of one row in memory."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize


def plain_layout(metadata: dict[str, Any], version: int) -> PlainLayout | str:
    """The layout of an array of a Zarr version; or the reason why the native core does not decode it."""
    try:
        fields = (_parse_v2 if version == 2 else _parse_v3)(metadata)
        _check_sizes(fields)
        return PlainLayout(**fields)
    except _NotPlainError as error:
        return str(error)
    except (ValueError, RecursionError) as error:
        return f"its metadata cannot be read ({error})"


def _check_sizes(fields: dict[str, Any]) -> None:
    shape, chunk, shard = fields["shape"], fields["chunk_shape"], fields["shard_shape"]
    itemsize = fields["dtype"].itemsize
    if len(chunk) != len(shape):
        raise _NotPlainError("its chunks have another number of axes than its shape")
    if math.prod(chunk) * itemsize > _MOST_CHUNK_BYTES:
        raise _NotPlainError("its chunks are larger than 2 GiB")
    # NumPy counts the cells of the other axes even if one axis has length 0.
    if math.prod(max(1, size) for size in shape) * itemsize >= 2**62 or max(shape) >= 2**62:
        raise _NotPlainError("its shape is absurdly large")
    if shard is None:
        return
    if len(shard) != len(shape) or any(s % c for s, c in zip(shard, chunk, strict=True)):
        raise _NotPlainError("its shards are not a whole number of chunks")
    if math.prod(s // c for s, c in zip(shard, chunk, strict=True)) * 16 > _MOST_CHUNK_BYTES:
        raise _NotPlainError("the indices of its shards are larger than 2 GiB")
    if math.prod(-(-n // s) for n, s in zip(shape, shard, strict=True)) > _MOST_SHARDS:
        raise _NotPlainError(f"it has more than {_MOST_SHARDS:,} shards")


def _parse_v2(meta: dict[str, Any]) -> dict[str, Any]:
    _known_keys(meta, _V2_KEYS)
    if meta.get("zarr_format") != 2:
        raise _NotPlainError(f"zarr_format {meta.get('zarr_format')!r}")
    meta = {**meta, "zarr_format": 2}  # it may be written as 2.0
    if meta.get("filters"):
        raise _NotPlainError("it has filters")
    shape, stored = _sizes(meta.get("shape"), 0), _v2_dtype(meta.get("dtype"))
    keys, order = keys_of(meta), meta.get("order")
    if keys is None:
        raise _NotPlainError(f"dimension_separator {meta.get('dimension_separator')!r}")
    if order not in ("C", "F"):
        raise _NotPlainError(f"order {order!r}")
    if not isinstance(meta.get("compressor"), dict | None):
        raise _NotPlainError("its compressor is not an object")
    dtype = stored.newbyteorder("=")
    fill = meta.get("fill_value")
    return {
        "shape": shape,
        "stored_dtype": stored,
        "dtype": dtype,
        "fill": np.zeros((), dtype)[()] if fill is None else _fill(fill, dtype, bits=False),
        "chunk_shape": _sizes(meta.get("chunks"), 1),
        "shard_shape": None,
        "axes": tuple(range(len(shape)))[:: 1 if order == "C" else -1],
        "codecs": tuple(_codec(name, given, 2) for _, name, given in codecs_of(meta)),
        "prefix": keys[0],
        "separator": keys[1],
    }


def _parse_v3(meta: dict[str, Any]) -> dict[str, Any]:
    _known_keys(meta, _V3_KEYS)
    if meta.get("zarr_format") != 3 or meta.get("node_type") != "array":
        raise _NotPlainError("it is not an array of Zarr v3")
    if meta.get("storage_transformers"):
        raise _NotPlainError("it has storage transformers")
    shape = _sizes(meta.get("shape"), 0)
    name, settings = _checked(meta.get("chunk_grid"), "chunk_grid")
    if name != "regular" or set(settings) != {"chunk_shape"}:
        raise _NotPlainError(f"chunk_grid {name!r}")
    outer = _sizes(settings["chunk_shape"], 1)
    name, settings = _checked(meta.get("chunk_key_encoding"), "chunk_key_encoding")
    keys = keys_of(meta)
    if keys is None or not set(settings) <= {"separator"}:
        raise _NotPlainError(f"chunk_key_encoding {name!r}")
    data_type = meta.get("data_type")
    if not isinstance(data_type, str) or data_type not in (*_V3_TYPES, *_SMALL_FLOATS):
        raise _NotPlainError(f"data_type {data_type!r}")
    dtype = _SMALL_FLOATS[data_type] if data_type in _SMALL_FLOATS else np.dtype(data_type)
    chain = _chain(meta.get("codecs"), "codecs")
    inner, shard_shape = outer, None
    index: dict[str, Any] = {}
    if len(chain) == 1 and chain[0][0] == SHARDING:
        inner, chain, index = _sharding(chain[0][1])
        shard_shape = outer
    axes, order, codecs = _steps(chain, len(shape), dtype)
    return {
        "shape": shape,
        "stored_dtype": dtype.newbyteorder(order),
        "dtype": dtype,
        "fill": _fill(meta.get("fill_value"), dtype, bits=True),
        "chunk_shape": inner,
        "shard_shape": shard_shape,
        "axes": axes,
        "codecs": codecs,
        "prefix": keys[0],
        "separator": keys[1],
        **index,
    }


def _known_keys(meta: dict[str, Any], known: set[str]) -> None:
    for key, value in meta.items():
        optional = isinstance(value, dict) and value.get("must_understand") is False
        if key not in known and not optional:
            raise _NotPlainError(f"it has {key!r} in its metadata")


def _sizes(value: Any, least: int) -> tuple[int, ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= _MOST_AXES:
        raise _NotPlainError("its shape or chunks are not a list of 1 to 32 sizes")
    if any(type(n) is not int or n < least for n in value):
        raise _NotPlainError(f"a size in its shape or chunks is not an integer of at least {least}")
    return tuple(value)


def _v2_dtype(value: Any) -> np.dtype[Any]:
    if isinstance(value, str) and value in _SMALL_FLOATS:
        return _SMALL_FLOATS[value]
    if isinstance(value, str) and re.fullmatch(_V2_TYPE, value):
        return np.dtype(value)
    raise _NotPlainError(f"dtype {value!r}")


def _checked(value: Any, what: str) -> tuple[str, dict[str, Any]]:
    """Name and settings of an extension point of Zarr v3."""
    if isinstance(value, str):
        return value, {}
    if isinstance(value, dict) and set(value) <= {"name", "configuration"}:
        name, settings = value.get("name"), value.get("configuration", {})
        if isinstance(name, str) and isinstance(settings, dict):
            return name, settings
    raise _NotPlainError(f"its {what} is not understood")


def _chain(value: Any, what: str) -> list[tuple[str, dict[str, Any]]]:
    if not isinstance(value, list) or not value:
        raise _NotPlainError(f"its {what} are not a list")
    return [_checked(item, what) for item in value]


def _sharding(
    settings: dict[str, Any],
) -> tuple[tuple[int, ...], list[tuple[str, dict[str, Any]]], dict[str, Any]]:
    """Inner chunk, inner codecs, and the fields that describe the index."""
    if not set(settings) <= {"chunk_shape", "codecs", "index_codecs", "index_location"}:
        raise _NotPlainError("its sharding has unknown settings")
    location = settings.get("index_location", "end")
    if location not in ("start", "end"):
        raise _NotPlainError(f"index_location {location!r}")
    names = _chain(settings.get("index_codecs"), "index_codecs")
    if names[0] != ("bytes", {"endian": "little"}) or names[1:] not in ([], [("crc32c", {})]):
        raise _NotPlainError("the index of its shards has other codecs than bytes and crc32c")
    index = {
        "index_location": location,
        "index_codecs": tuple(name for name, _ in names[1:]),
    }
    return _sizes(settings.get("chunk_shape"), 1), _chain(settings.get("codecs"), "codecs"), index


def _steps(
    chain: list[tuple[str, dict[str, Any]]], rank: int, dtype: np.dtype[Any]
) -> tuple[tuple[int, ...], Literal["<", ">"], tuple[str, ...]]:
    """Order of axes, byte order and byte codecs."""
    axes = tuple(range(rank))
    at = 0
    while at < len(chain) and chain[at][0] == "transpose":
        order = chain[at][1].get("order")
        if not isinstance(order, list) or sorted(map(repr, order)) != sorted(
            map(repr, range(rank))
        ):
            raise _NotPlainError(f"transpose to {order!r}")
        axes = tuple(axes[k] for k in order)
        at += 1
    if at == len(chain) or chain[at][0] != "bytes":
        raise _NotPlainError(f"codec {chain[min(at, len(chain) - 1)][0]!r}")
    endian = chain[at][1].get("endian")
    if any(set(settings) - {"order", "endian"} for _, settings in chain[: at + 1]):
        raise _NotPlainError("codec 'bytes' or 'transpose' with unknown settings")
    if endian not in ("little", "big") and (endian is not None or dtype.itemsize > 1):
        raise _NotPlainError(f"endian {endian!r}")
    codecs = tuple(_codec(name, settings, 3) for name, settings in chain[at + 1 :])
    if sum(codec != "crc32c" for codec in codecs) > 1:
        raise _NotPlainError("it is compressed twice")
    return axes, ">" if endian == "big" else "<", codecs


def _codec(name: Any, settings: Mapping[str, Any], version: int) -> str:
    known = PLAIN_CODECS.get(name) if isinstance(name, str) else None
    if known is None or version not in known.versions:
        raise _NotPlainError(f"codec {name!r}")
    for key in settings:
        if key not in known.settings:
            raise _NotPlainError(f"codec {name!r} with {key!r}")
    return str(name)


def _fill(value: Any, dtype: np.dtype[Any], *, bits: bool) -> Any:
    """The fill value as a scalar; with `bits`, a float may be given by its bits in hexadecimal."""
    kind = "f" if dtype in _SMALL_FLOATS.values() else dtype.kind
    if kind == "b" and isinstance(value, bool):
        return np.bool_(value)
    if kind in "iu" and type(value) is int:
        info = np.iinfo(dtype)
        if info.min <= value <= info.max:
            return dtype.type(value)
    if kind == "f":
        return _float(value, dtype, bits=bits)
    if kind == "c" and isinstance(value, list) and len(value) == 2:
        part = np.dtype(f"f{dtype.itemsize // 2}")
        return np.array([_float(item, part, bits=bits) for item in value], part).view(dtype)[0]
    raise _NotPlainError(f"fill_value {json.dumps(value)[:80]}")


def _float(value: Any, dtype: np.dtype[Any], *, bits: bool) -> Any:
    if isinstance(value, str) and value in _SPECIAL:
        found = np.array(_SPECIAL[value]).astype(dtype)[()]
        if repr(float(found)) == repr(_SPECIAL[value]):
            return found
    digits = 2 * dtype.itemsize
    if bits and isinstance(value, str) and re.fullmatch(rf"0x[0-9a-fA-F]{{{digits}}}", value):
        pattern = np.dtype(f"u{dtype.itemsize}")
        return np.array([int(value, 16)], pattern).view(dtype)[0]
    if type(value) is float or (type(value) is int and abs(value) < 2**63):
        with np.errstate(all="ignore"):
            found = np.array(float(value)).astype(dtype)[()]
        # Libraries round to the small floats in different ways.
        if math.isfinite(float(found)) and (dtype.itemsize >= 4 or float(found) == value):
            return found
    raise _NotPlainError(f"fill_value {value!r}"[:100])
