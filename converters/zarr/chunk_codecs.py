"""Codecs of Zarr v3, named by a short string, and encoders of the bytes of chunks.

The native core encodes by all of them without the GIL. Without it other packages do.

Invariant: equal bytes are encoded to equal bytes, whatever the threads.
"""

from __future__ import annotations

import contextlib
import functools
import json
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import google_crc32c
import numpy as np
import zstandard

from windrow.core.native import native
from windrow.errors import ArgumentError

_MANY: Final = "multi_compress_to_buffer"
_BLOSC: Final = ("blosclz", "lz4", "lz4hc", "zlib", "zstd")
_SHUFFLES: Final = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}

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


class _ThreadCompressors(threading.local):
    """Compressors that each thread reuses: making one costs as much as compressing 100 KB."""

    def __init__(self) -> None:
        self.zstd: dict[tuple[int, bool], zstandard.ZstdCompressor] = {}


_of_thread = _ThreadCompressors()


def steps_of(codecs: Sequence[Mapping[str, Any]], array: str) -> list[Step]:
    """Return the encoders of the chunks of an array; errors as for `encoder`."""
    steps = [encoder(codec, array) for codec in codecs]
    return [_core_step(json.dumps(codecs))] if steps and native() is not None else steps


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


def encoder(codec: Mapping[str, Any], array: str) -> Step:
    """Return the encoder of the chunks of an array; ArgumentError if there is no such codec."""
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
            return _crc32c
    raise ArgumentError(
        f"array {array!r}: codec {json.dumps(codec)} is not known; there are zstd (with"
        f" 'level', up to {zstandard.MAX_COMPRESSION_LEVEL}), gzip ('level', 0 to 9), blosc (with"
        f" 'cname', one of {', '.join(_BLOSC)}, 'clevel', 0 to 9, 'shuffle', 'typesize' and"
        " 'blocksize') and crc32c"
    )


def _zstd(level: int, checksum: bool, chunks: Sequence[Any]) -> list[bytes]:
    held = _of_thread.zstd.get((level, checksum))
    if held is None:
        held = zstandard.ZstdCompressor(level=level, write_checksum=checksum)
        _of_thread.zstd[level, checksum] = held
    if _MANY not in zstandard.backend_features:
        return [held.compress(data) for data in chunks]
    # One call without the GIL: with a call for each 4 KB, most of the time was waiting for the GIL.
    many = held.multi_compress_to_buffer(list(chunks))
    return [many[k].tobytes() for k in range(len(chunks))]


def _gzip(level: int, chunks: Sequence[Any]) -> list[bytes]:
    out = []
    for data in chunks:
        deflater = zlib.compressobj(level, wbits=16 + zlib.MAX_WBITS)  # of no time and no name
        out.append(deflater.compress(data) + deflater.flush())
    return out


def _blosc(settings: Mapping[str, Any], chunks: Sequence[Any]) -> list[bytes]:
    from numcodecs import blosc  # it takes half as long to import as TensorStore

    name, level, shuffle = settings["cname"], settings["clevel"], _SHUFFLES[settings["shuffle"]]
    out = []
    for data in chunks:
        # It takes the size of a value from the array, and shuffles no part of one.
        size = settings["typesize"]
        typed = np.frombuffer(data, f"V{size}" if len(data) % size == 0 else np.uint8)
        out.append(blosc.compress(typed, name.encode(), level, shuffle, settings["blocksize"]))
    return out


def _crc32c(chunks: Sequence[Any]) -> list[bytes]:
    return [with_checksum(bytes(raw)) for raw in chunks]


def with_checksum(data: bytes) -> bytes:
    """Return `data` with its CRC-32C appended."""
    checksum: int = google_crc32c.value(data)
    return data + checksum.to_bytes(4, "little")
