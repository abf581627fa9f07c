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

Encoder: TypeAlias = Callable[[Any], bytes]
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
    """Return the encoders of the chunks of an array; errors as for `encoder`."""
    encoders = [encoder(codec, array) for codec in codecs]
    if encoders and native() is not None:
        return [_core_step(json.dumps(codecs))]
    return [functools.partial(_each, encode) for encode in encoders]


def _each(encode: Encoder, chunks: Sequence[Any]) -> list[bytes]:
    return [encode(data) for data in chunks]


@functools.lru_cache
def _core_step(codecs: str) -> Step:
    """Return the native core's encoder by codecs of `encoder`, as JSON; it keeps its memory."""
    core: Any = native()
    step: Step = core.ChunkEncoder(list(map(_for_core, json.loads(codecs)))).encode
    return step


def _for_core(codec: Mapping[str, Any]) -> tuple[str, list[int]]:
    settings = codec.get("configuration") or {}
    match codec["name"]:
        case "zstd":
            return "zstd", [settings["level"], int(settings.get("checksum", False))]
        case "gzip":
            return "gzip", [settings["level"]]
        case "blosc":
            numbers = (settings[name] for name in ("typesize", "blocksize"))
            shuffle = _SHUFFLES[settings["shuffle"]]
            return f"blosc:{settings['cname']}", [settings["clevel"], shuffle, *numbers]
    return "crc32c", []


def encoder(codec: Mapping[str, Any], array: str) -> Encoder:
    """Return the encoder of a chunk of an array without the core; ArgumentError if there is none."""
    match codec:
        case {"name": "zstd", "configuration": {"level": int(level), **rest}} if (
            not set(rest) - {"checksum"} and level <= zstandard.MAX_COMPRESSION_LEVEL
        ):
            return functools.partial(_zstd, level, bool(rest.get("checksum", False)))
        case {"name": "gzip", "configuration": {"level": int(level), **rest}} if (
            not rest and 0 <= level <= 9
        ):
            return functools.partial(_gzip, level)
        case {"name": "blosc", "configuration": dict(settings)} if (
            set(settings) == {"cname", "clevel", "shuffle", "typesize", "blocksize"}
            and settings["cname"] in _BLOSC
            and settings["clevel"] in range(10)
            and settings["shuffle"] in list(_SHUFFLES)
            and settings["typesize"] in range(1, 256)
            and settings["blocksize"] in range(1 << 31)
        ):
            return functools.partial(_blosc, settings)
        case {"name": "crc32c", **rest} if not rest.get("configuration"):
            return with_checksum
    raise ArgumentError(
        f"array {array!r}: codec {json.dumps(codec)} is not known; there are zstd (with"
        f" 'level', up to {zstandard.MAX_COMPRESSION_LEVEL}), gzip ('level', 0 to 9), blosc (with"
        f" 'cname', one of {', '.join(_BLOSC)}, 'clevel', 0 to 9, 'shuffle', 'typesize' and"
        " 'blocksize') and crc32c"
    )


def _zstd(level: int, checksum: bool, data: Any) -> bytes:
    return zstandard.ZstdCompressor(level=level, write_checksum=checksum).compress(data)


def _gzip(level: int, data: Any) -> bytes:
    deflater = zlib.compressobj(level, wbits=16 + zlib.MAX_WBITS)  # of no time and no name
    return deflater.compress(data) + deflater.flush()


def _blosc(settings: Mapping[str, Any], data: Any) -> bytes:
    from numcodecs import blosc  # it takes half as long to import as TensorStore

    # It takes the size of a value from the array, and shuffles no part of one.
    size = settings["typesize"]
    typed = np.frombuffer(data, f"V{size}" if len(data) % size == 0 else np.uint8)
    name, shuffle = settings["cname"].encode(), _SHUFFLES[settings["shuffle"]]
    found: bytes = blosc.compress(typed, name, settings["clevel"], shuffle, settings["blocksize"])
    return found


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
