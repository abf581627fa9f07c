"""Plain arrays: Zarr arrays that are simple enough for the native core to decode.

Invariant: an array is plain only if this module knows everything in its metadata, and each entry
has one meaning. Any other local array goes to TensorStore, with the reason as a message. Nothing that
is read is ever evaluated.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import re
from collections.abc import Sequence
from typing import Any, Final, Literal

import ml_dtypes
import numpy as np

from windrow.core.system_errors import says_unanswered, says_unsupported
from windrow.errors import ReadError
from windrow.sources.zarr.local.codecs import PLAIN_CODECS, Codec
from windrow.sources.zarr.local.presence import PresenceCheck, presence_of_file

_MOST_METADATA_BYTES: Final = 64 * 2**20
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


class _NotPlainError(Exception):
    """An array that TensorStore must read; the message says why."""


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
        codecs: From bytes to bytes, in the order in which the writer applied them.
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
    codecs: tuple[Codec, ...]
    prefix: str
    separator: str
    index_codecs: tuple[Codec, ...] = ()
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
    def row_bytes(self) -> int:
        """Bytes of one row in memory."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize


@dataclasses.dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PlainArray(PlainLayout):
    """A local array that the native core decodes.

    Args:
        folder: The folder of its metadata; an absolute path.
        presence: Checks whether the array is still there.
        name: Name of the array in the source, for messages.
    """

    folder: str
    presence: PresenceCheck
    name: str = ""


def plain_layout(metadata: dict[str, Any]) -> PlainLayout | None:
    """The layout of an array with these metadata; None if the native core does not decode it."""
    try:
        fields = (_parse_v2 if metadata.get("zarr_format") == 2 else _parse_v3)(metadata)
        _check_sizes(fields)
        return PlainLayout(**fields)
    except (_NotPlainError, ValueError, RecursionError):
        return None


def plain_array(folder: str, name: str = "") -> PlainArray | str:
    """The array in a local `folder`, or a string with the reason why TensorStore must read it."""
    try:
        for file, parse in (("zarr.json", _parse_v3), (".zarray", _parse_v2)):
            path = os.path.join(folder, file)
            if os.path.isfile(path):
                if os.path.getsize(path) > _MOST_METADATA_BYTES:
                    raise _NotPlainError("its metadata is very large")
                presence = presence_of_file(path)
                fields = parse(presence.metadata)
                _check_sizes(fields)
                fields["presence"] = _with_fill(presence, fields)
                return PlainArray(folder=folder, name=name, **fields)
        raise _NotPlainError("it has neither zarr.json nor .zarray")
    except _NotPlainError as error:
        return str(error)
    except (OSError, ValueError, RecursionError) as error:
        return f"its metadata cannot be read ({error})"


def damaged(
    name: str,
    where: str,
    held: str,
    why: str,
    *,
    file: str | None = None,
    offset: int | None = None,
    records: tuple[int, int] | None = None,
    unanswered: bool = False,
    unsupported: bool = False,
) -> ReadError:
    """The error for a chunk that cannot be read.

    Args:
        name: Name of the array in the source.
        where: Place of the array.
        held: The records in the chunk, as `held_records` writes them.
        why: The reason, with the file.
        file: The file, if it is known.
        offset: The byte of the file at which the chunk begins.
        records: The rows `[first, stop)` in the chunk.
        unanswered: Whether the reason is known not to be the data; `why` may say it too.
        unsupported: Whether the chunk is known to be whole; `why` may say it too.
    """
    named = f"array {name!r}" if name else "the array"
    unsupported = unsupported or says_unsupported(why)
    unanswered = unanswered or says_unanswered(why)
    ending = _UNSUPPORTED if unsupported else _UNANSWERED if unanswered else _DAMAGED
    return ReadError(
        f"{named} in {where}: the chunk that holds {held} cannot be read: {why}. {ending}",
        file=file,
        offset=offset,
        records=records,
        why=why.removeprefix(file or "").lstrip(",: "),
        is_unanswered=unanswered or unsupported,
    )


_DAMAGED: Final = (
    "If the file is damaged, copy it again or write these records again; a chain leaves them out by"
    ' .on_bad("skip")'
)
_UNSUPPORTED: Final = (
    "Chunks of this kind are not supported. They are not damaged, so that on_bad does not leave them out:"
    " write the array again without them"
)
_UNANSWERED: Final = "The reason is the machine or its file system, and not the data"


def held_records(first: int, stop: int) -> str:
    """Records `[first, stop)`, for a message."""
    return f"record {first}" if stop - first <= 1 else f"records {first} to {stop - 1}"


def held_cells(spans: Sequence[tuple[int, int]]) -> str:
    """Cells `[first, stop)` along each axis, for a message."""
    return f"cells [{', '.join(f'{first}:{stop}' for first, stop in spans)}]"


def _with_fill(presence: PresenceCheck, fields: dict[str, Any]) -> PresenceCheck:
    fill = np.asarray(fields["fill"], fields["dtype"]).tobytes()
    return dataclasses.replace(presence, fill=fill)


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
    if meta.get("filters"):
        raise _NotPlainError("it has filters")
    shape, stored = _sizes(meta.get("shape"), 0), _v2_dtype(meta.get("dtype"))
    separator, order = meta.get("dimension_separator", "."), meta.get("order")
    if separator not in (".", "/"):
        raise _NotPlainError(f"dimension_separator {separator!r}")
    if order not in ("C", "F"):
        raise _NotPlainError(f"order {order!r}")
    codecs: tuple[Codec, ...] = ()
    compressor = meta.get("compressor")
    if compressor is not None:
        if not isinstance(compressor, dict):
            raise _NotPlainError("its compressor is not an object")
        settings = {key: value for key, value in compressor.items() if key != "id"}
        codecs = (_codec(compressor.get("id"), settings, 2),)
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
        "codecs": codecs,
        "prefix": "",
        "separator": separator,
    }


def _parse_v3(meta: dict[str, Any]) -> dict[str, Any]:
    _known_keys(meta, _V3_KEYS)
    if meta.get("zarr_format") != 3 or meta.get("node_type") != "array":
        raise _NotPlainError("it is not an array of Zarr v3")
    if meta.get("storage_transformers"):
        raise _NotPlainError("it has storage transformers")
    shape = _sizes(meta.get("shape"), 0)
    name, settings = _named(meta.get("chunk_grid"), "chunk_grid")
    if name != "regular" or set(settings) != {"chunk_shape"}:
        raise _NotPlainError(f"chunk_grid {name!r}")
    outer = _sizes(settings["chunk_shape"], 1)
    prefix, separator = _v3_keys(meta.get("chunk_key_encoding"))
    data_type = meta.get("data_type")
    if not isinstance(data_type, str) or data_type not in (*_V3_TYPES, *_SMALL_FLOATS):
        raise _NotPlainError(f"data_type {data_type!r}")
    dtype = _SMALL_FLOATS[data_type] if data_type in _SMALL_FLOATS else np.dtype(data_type)
    chain = _chain(meta.get("codecs"), "codecs")
    inner, shard_shape = outer, None
    index: dict[str, Any] = {}
    if len(chain) == 1 and chain[0][0] == "sharding_indexed":
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
        "prefix": prefix,
        "separator": separator,
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


def _named(value: Any, what: str) -> tuple[str, dict[str, Any]]:
    """Name and settings of an extension point of Zarr v3."""
    if isinstance(value, str):
        return value, {}
    if isinstance(value, dict) and set(value) <= {"name", "configuration"}:
        name, settings = value.get("name"), value.get("configuration", {})
        if isinstance(name, str) and isinstance(settings, dict):
            return name, settings
    raise _NotPlainError(f"its {what} is not understood")


def _v3_keys(value: Any) -> tuple[str, str]:
    name, settings = _named(value, "chunk_key_encoding")
    separator = settings.get("separator", "/" if name == "default" else ".")
    if (
        name not in ("default", "v2")
        or separator not in ("/", ".")
        or not set(settings) <= {"separator"}
    ):
        raise _NotPlainError(f"chunk_key_encoding {name!r}")
    return f"c{separator}" if name == "default" else "", separator


def _chain(value: Any, what: str) -> list[tuple[str, dict[str, Any]]]:
    if not isinstance(value, list) or not value:
        raise _NotPlainError(f"its {what} are not a list")
    return [_named(item, what) for item in value]


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
        "index_codecs": tuple(Codec(name, found) for name, found in names[1:]),
    }
    return _sizes(settings.get("chunk_shape"), 1), _chain(settings.get("codecs"), "codecs"), index


def _steps(
    chain: list[tuple[str, dict[str, Any]]], rank: int, dtype: np.dtype[Any]
) -> tuple[tuple[int, ...], Literal["<", ">"], tuple[Codec, ...]]:
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
    if sum(codec.name != "crc32c" for codec in codecs) > 1:
        raise _NotPlainError("it is compressed twice")
    return axes, ">" if endian == "big" else "<", codecs


def _codec(name: Any, settings: dict[str, Any], version: int) -> Codec:
    known = PLAIN_CODECS.get(name) if isinstance(name, str) else None
    if known is None or version not in known.versions:
        raise _NotPlainError(f"codec {name!r}")
    for key in settings:
        if key not in known.settings:
            raise _NotPlainError(f"codec {name!r} with {key!r}")
    return Codec(name, settings)


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
