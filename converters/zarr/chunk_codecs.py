"""Codecs of Zarr v3: of bytes, named by a short string, and of strings; and encoders of chunks.

The native core encodes by all of them without the GIL. Without it other packages do.

Strings of one length have NumPy's names, such as `<U3` and `|S3`, and are arrays of that dtype.
Strings of any length have Zarr's names, `string` and `variable_length_bytes`, and are objects.

Invariants: equal bytes are encoded to equal bytes, whatever the threads. A string is stored as it was;
text that is not UTF-8 keeps its bytes.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import google_crc32c
import numpy as np
import numpy.typing as npt
import zstandard

from windrow.core.native import native
from windrow.errors import ArgumentError, ConversionError

_BLOSC: Final = ("blosclz", "lz4", "lz4hc", "zlib", "zstd")
_SHUFFLES: Final = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}

# The name and the numbers of a codec, as the native core takes them.
Codec: TypeAlias = tuple[str, tuple[int, ...]]
# From the bytes of some chunks to encoded ones.
Step: TypeAlias = Callable[[Sequence[Any]], list[bytes]]


def zstd(level: int = 1) -> tuple[dict[str, Any], ...]:
    """The codecs of chunks compressed by zstd."""
    return ({"name": "zstd", "configuration": {"level": level, "checksum": False}},)


def codecs_of(text: str, *, itemsize: int = 1) -> tuple[dict[str, Any], ...]:
    """Return the codecs that a short string names: 'zstd:3', 'gzip', 'blosc:lz4:5', 'none', or JSON.

    `itemsize` is the number of bytes of a value, which blosc shuffles.

    Raises:
        ArgumentError: If it names none.
    """
    if not isinstance(text, str):
        raise ArgumentError(
            f"codecs must be a string such as 'zstd:3' or a string of JSON, got {text!r}"
        )
    name, *settings = text.split(":")
    match name, settings:
        case "none", []:
            return ()
        case "zstd" | "gzip", [] | [_]:
            level = _level(text, settings, 1 if name == "zstd" else 5)
            if name == "zstd":
                return zstd(level)
            return ({"name": "gzip", "configuration": {"level": level}},)
        case "blosc", [] | [_] | [_, _]:
            found = {"cname": (settings or ["lz4"])[0], "clevel": _level(text, settings[1:], 5)}
            more = {"shuffle": "shuffle", "typesize": itemsize, "blocksize": 0}
            return ({"name": "blosc", "configuration": {**found, **more}},)
    if text.startswith(("[", "{")):
        with contextlib.suppress(ValueError):
            value = json.loads(text)
            return tuple(value) if isinstance(value, list) else (value,)
    raise ArgumentError(
        f"codecs {text!r} are not known; name one such as 'zstd:3', 'gzip:5', 'blosc:lz4:5' or"
        " 'none', or give codecs of Zarr v3 as JSON"
    )


def _level(text: str, settings: Sequence[str], default: int) -> int:
    if not settings:
        return default
    try:
        return int(settings[0])
    except ValueError as error:
        raise ArgumentError(f"codecs {text!r}: {settings[0]!r} is not a level") from error


def steps_of(codecs: Sequence[Mapping[str, Any]], array: str) -> list[Step]:
    """Return the encoders of the chunks of an array; errors as for `known_codec`."""
    found = tuple(known_codec(codec, array) for codec in codecs)
    if found and native() is not None:
        return [_core_step(found)]
    return [functools.partial(_each, *codec) for codec in found]


@functools.lru_cache
def _core_step(codecs: tuple[Codec, ...]) -> Step:
    """Return the native core's encoder, which keeps its memory."""
    core: Any = native()
    step: Step = core.ChunkEncoder([(name, list(numbers)) for name, numbers in codecs]).encode
    return step


def known_codec(codec: Mapping[str, Any], array: str) -> Codec:
    """Return a codec of the chunks of an array; ArgumentError if it is not known."""
    match codec:
        case {"name": "zstd", "configuration": {"level": int(level), **rest}} if (
            not set(rest) - {"checksum"} and level <= zstandard.MAX_COMPRESSION_LEVEL
        ):
            return "zstd", (level, int(bool(rest.get("checksum", False))))
        case {"name": "gzip", "configuration": {"level": int(level), **rest}} if (
            not rest and 0 <= level <= 9
        ):
            return "gzip", (level,)
        case {"name": "blosc", "configuration": dict(settings)} if (
            set(settings) == {"cname", "clevel", "shuffle", "typesize", "blocksize"}
            and settings["cname"] in _BLOSC
            and settings["clevel"] in range(10)
            and settings["shuffle"] in list(_SHUFFLES)
            and settings["typesize"] in range(1, 256)
            and settings["blocksize"] in range(1 << 31)
        ):
            shuffle = _SHUFFLES[settings["shuffle"]]
            sizes = settings["typesize"], settings["blocksize"]
            return f"blosc:{settings['cname']}", (settings["clevel"], shuffle, *sizes)
        case {"name": "crc32c", **rest} if not rest.get("configuration"):
            return "crc32c", ()
    raise ArgumentError(
        f"array {array!r}: codec {json.dumps(codec)} is not known; there are zstd (with"
        f" 'level', up to {zstandard.MAX_COMPRESSION_LEVEL}), gzip ('level', 0 to 9), blosc (with"
        f" 'cname', one of {', '.join(_BLOSC)}, 'clevel', 0 to 9, 'shuffle', 'typesize' and"
        " 'blocksize') and crc32c"
    )


def _each(name: str, numbers: Sequence[int], chunks: Sequence[Any]) -> list[bytes]:
    """Encode chunks by a codec without the core."""
    return [_encoded(name, numbers, data) for data in chunks]


def _encoded(name: str, numbers: Sequence[int], data: Any) -> bytes:
    match name.partition(":"), numbers:
        case ("zstd", *_), (level, checksum):
            return zstandard.ZstdCompressor(level=level, write_checksum=bool(checksum)).compress(
                data
            )
        case ("gzip", *_), (level,):
            deflater = zlib.compressobj(level, wbits=16 + zlib.MAX_WBITS)  # of no time and no name
            return deflater.compress(data) + deflater.flush()
        case ("blosc", _, compressor), (level, shuffle, size, block_bytes):
            from numcodecs import blosc  # it takes half as long to import as TensorStore

            # It takes the size of a value from the array, and shuffles no part of one.
            typed = np.frombuffer(data, f"V{size}" if len(data) % size == 0 else np.uint8)
            found: bytes = blosc.compress(typed, compressor.encode(), level, shuffle, block_bytes)
            return found
    return with_checksum(data)


def with_checksum(data: Any) -> bytes:
    """Return `data` with its CRC-32C appended."""
    raw = bytes(data)
    checksum: int = google_crc32c.value(raw)
    return raw + checksum.to_bytes(4, "little")


# Strings: their types, and the bytes of strings of any length.


TEXT: Final = "string"
RAW: Final = "variable_length_bytes"
# What a string of any length counts as, where memory is planned.
ASSUMED_BYTES: Final = 256
_CODECS: Final = {TEXT: "vlen-utf8", RAW: "vlen-bytes"}
_FIXED: Final = {"U": "fixed_length_utf32", "S": "null_terminated_bytes"}


def is_string(name: str) -> bool:
    """Whether a dtype of an array to write is one of strings."""
    return name in _CODECS or re.fullmatch(r"<U[1-9]\d*|\|S[1-9]\d*", name) is not None


def string_dtype(name: str) -> np.dtype[Any]:
    """The dtype in memory."""
    return np.dtype(object if name in _CODECS else name)


def data_type(name: str) -> Any:
    """The data type in metadata."""
    if name in _CODECS:
        return name
    dtype = np.dtype(name)
    return {"name": _FIXED[dtype.kind], "configuration": {"length_bytes": dtype.itemsize}}


def bytes_codec(name: str) -> dict[str, Any]:
    """The codec from values to bytes in metadata."""
    if name in _CODECS:
        return {"name": _CODECS[name], "configuration": {}}
    return {"name": "bytes", "configuration": {"endian": "little"}}


def of_metadata(meta: Mapping[str, Any]) -> str | None:
    """`TEXT` or `RAW` of an array of any length, by its own metadata; None of other objects."""
    if meta.get("dtype") == "|O":
        filters = meta.get("filters")
        named = {item.get("id") for item in filters or [] if isinstance(item, dict)}
        return next((name for name, codec in _CODECS.items() if codec in named), None)
    return {TEXT: TEXT, RAW: RAW, "bytes": RAW}.get(str(meta.get("data_type")))


def encoded(values: npt.NDArray[Any], array: str) -> npt.NDArray[np.uint8]:
    """The bytes of strings of any length, as the codecs `vlen-utf8` and `vlen-bytes` have them.

    Raises:
        ConversionError: If a value is not a string.
    """
    raw = [_raw(value, array) for value in values.ravel().tolist()]
    parts = [struct.pack("<I", len(raw))]
    for data in raw:
        parts += [struct.pack("<I", len(data)), data]
    return np.frombuffer(b"".join(parts), np.uint8)


def _raw(value: object, array: str) -> bytes:
    if isinstance(value, str):
        return value.encode(errors="surrogateescape")
    if isinstance(value, bytes) or value is None:
        return value or b""
    raise ConversionError(
        f"array {array!r}: {value!r:.80} is not a string, as its other values are"
    )
