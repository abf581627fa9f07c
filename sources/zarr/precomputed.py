"""Where the chunks of a scale of a precomputed volume lie, and chunk files that were compressed once more.

CloudVolume writes `x.gz` for the chunk `x` to a local disk, and can write other endings. TensorStore looks
for `x` alone, and reads what it does not find as zeros.

Invariant: nothing is read here that is larger than one chunk.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import importlib
import io
import lzma
import os
import re
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import tensorstore as ts
import zstandard

from windrow.errors import SourceError, missing_package
from windrow.sources.zarr.codecs import ChunkDamageError
from windrow.sources.zarr.names import Found
from windrow.sources.zarr.presence import is_whole
from windrow.sources.zarr.stores import side_by_side

Cells = tuple[int, ...]

ENDINGS: Final = (".gz", ".br", ".zst", ".zstd", ".xz", ".lzma", ".bz2")
_NAME: Final = r"-?\d+--?\d+_-?\d+--?\d+_-?\d+--?\d+"
_SHARD: Final = r"[0-9a-f]+\.(shard|index|data)"
_LIKE_A_CHUNK: Final = r"-?\d|[0-9a-f]+\."
_SHOWN: Final = 3


class PrecomputedChunks:
    """The chunk files of the scale of an array that was found and opened. Thread-safe."""

    def __init__(self, found: Found, store: Any) -> None:
        """Read nothing yet."""
        self._found, self._objects = found, found.objects()
        self.first = tuple(map(int, store.domain.inclusive_min))
        self.shape = tuple(map(int, store.shape))
        self.chunk_shape = tuple(map(int, store.chunk_layout.read_chunk.shape))
        self.grid = tuple(-(-n // c) for n, c in zip(self.shape, self.chunk_shape, strict=True))
        self._folder = str(found.attributes["key"])
        self._is_sharded = found.attributes.get("sharding") is not None
        self._shards = self._opened_shards() if self._is_sharded else None
        self._endings: tuple[str, ...] = ("",)

    @property
    def knows_stored(self) -> bool:
        """Whether `holds` has an answer."""
        return not self._is_sharded or self._shards is not None

    def _opened_shards(self) -> Any:
        """The chunks in shards; None if the store is one that a user opened, which has no JSON."""
        if not isinstance(self._found.spec, dict):
            return None
        base, sharding = self._found.spec["kvstore"], self._found.attributes["sharding"]
        path = f"{base.get('path', '')}{self._folder}/"
        access = self._found.access
        return ts.KvStore.open(
            {
                "driver": "neuroglancer_uint64_sharded",
                "base": {**base, "path": path},
                "metadata": sharding,
            },
            context=ts.Context() if access is None else access.context,
        ).result()

    def key(self, at: Sequence[int]) -> str:
        """The key of the chunk at coordinates `at`, without an ending."""
        axes = zip(at[:3], self.first, self.shape, self.chunk_shape, strict=False)
        bounds = [(f + k * c, f + min((k + 1) * c, n)) for k, f, n, c in axes]
        return f"{self._folder}/" + "_".join(f"{begin}-{end}" for begin, end in bounds)

    def file(self, at: Sequence[int]) -> str | None:
        """The local file of a chunk; None if it lies elsewhere, or in a shard."""
        return None if self._is_sharded else self._objects.file(self.key(at))

    def holds(self, at: Sequence[int]) -> bool:
        """Whether a chunk is stored, under any ending. Waits.

        Raises:
            OSError, ValueError, RuntimeError: If the store cannot be asked.
        """
        if self._shards is not None:
            key = _morton(at[:3], self.grid[:3]).to_bytes(8, "big")
            if self._found.access is None:
                return bool(self._shards.read(key).result().state == "value")
            return self._found.access.read(self._shards, key) is not None  # type: ignore[arg-type]
        return any(self._objects.tail(self.key(at) + end, 1) is not None for end in self._endings)

    def whole(self, at: Sequence[int], most_bytes: int) -> bytes | None:
        """The bytes of a chunk as TensorStore decodes them; None if it is not stored. Waits.

        Raises:
            ChunkDamageError: If a file cannot be decompressed, or has more than `most_bytes` then.
            OSError, ValueError, RuntimeError: If the store cannot be asked.
        """
        for end in self._endings:
            raw = self._objects.whole(self.key(at) + end)
            if raw is not None:
                return _decompressed(raw, self.key(at) + end, most_bytes) if end else raw
        return None

    def ending(self) -> str:
        """As `_found_ending`; from then on, chunks are looked for under every ending if there is one."""
        found = self._found_ending()
        if found:  # as CloudVolume does, before the plain names
            others = (end for end in ENDINGS if end != found)
            self._endings = (found, "", *others)
        return found

    def _found_ending(self) -> str:
        """The ending of compressed chunk files; '' if no file has one. Waits.

        A local folder is listed once. A remote one is asked for the first chunk and the middle one.

        Raises:
            SourceError: If there are files, and none is a chunk or a shard.
        """
        folder = self._objects.file(self._folder)
        if folder is None:
            return "" if self._is_sharded else self._ending_of_some()
        try:
            names = os.listdir(folder)
        except OSError:
            return ""  # nothing is stored
        pattern = _SHARD if self._is_sharded else _NAME
        if not self._is_sharded:
            for end in ENDINGS:
                if any(name.endswith(end) and re.match(_NAME, name) for name in names):
                    return end
        others = sorted(n for n in names if re.match(_LIKE_A_CHUNK, n) and is_whole(n))
        if others and not any(re.fullmatch(pattern, name) for name in names):
            raise self._misplaced(folder, others)
        return ""

    def _misplaced(self, folder: str, others: Sequence[str]) -> SourceError:
        found = self._found
        wanted = "shards (x.shard)" if self._is_sharded else self.key((0, 0, 0))
        return SourceError(
            f"{found.what}: no chunk of the volume in {found.where} lies where its metadata say"
            f" ({wanted}), though {folder} holds {', '.join(others[:_SHOWN])} and so on, so that all"
            " cells would read as 0. Correct the chunk size, the offset or the sharding in 'info', or"
            " the names of the files"
        )

    def _ending_of_some(self) -> str:
        places = dict.fromkeys([(0, 0, 0), tuple(n // 2 for n in self.grid[:3])])
        if any(self._is_there(self.key(at)) for at in places):
            return ""
        keys = [(self.key(at) + end, end) for at in places for end in ENDINGS]
        there = side_by_side([partial(self._is_there, key) for key, _ in keys], wait=True)
        return next((end for (_, end), is_there in zip(keys, there, strict=True) if is_there), "")

    def _is_there(self, key: str) -> bool:
        # A store may refuse to say that an object is absent.
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            return self._objects.tail(key, 1) is not None
        return False


def _morton(at: Sequence[int], grid: Sequence[int]) -> int:
    """The number of a chunk in shards: the bits of its coordinates in turns, as far as axes have them."""
    bits = [(n - 1).bit_length() for n in grid]
    number = place = 0
    for bit in range(max(bits, default=0)):
        for k, count in zip(at, bits, strict=True):
            if bit < count:
                number |= (k >> bit & 1) << place
                place += 1
    return number


def check_ending(found: Found, ending: str) -> None:
    """Check that files with an ending can be decompressed.

    Raises:
        MissingExtraError: If a package is not installed.
    """
    if ending == ".br":
        try:
            importlib.import_module("brotli")
        except ImportError:
            what = f"{found.what}: {found.where}, whose chunk files end in .br,"
            raise missing_package(what, "brotli") from None


def _decompressed(raw: bytes, key: str, most_bytes: int) -> bytes:
    opened: dict[str, Any] = {
        ".gz": partial(gzip.GzipFile, None, "rb", 9),
        ".bz2": bz2.BZ2File,
        ".xz": lzma.LZMAFile,
        ".lzma": lzma.LZMAFile,
    }
    ending = key[key.rindex(".") :]
    try:
        if ending == ".br":
            found: bytes = importlib.import_module("brotli").decompress(raw)
        elif ending in (".zst", ".zstd"):
            stream = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(raw))
            found = stream.read(most_bytes + 1)
        else:
            found = opened[ending](io.BytesIO(raw)).read(most_bytes + 1)
    except MemoryError:
        raise
    except Exception as error:  # each library has errors of its own
        raise ChunkDamageError(f"{key} cannot be decompressed: {error}") from error
    if len(found) > most_bytes:
        raise ChunkDamageError(f"{key} has more than {most_bytes:,} bytes, decompressed")
    return found
