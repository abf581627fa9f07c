"""Writing ArrayRecord files many records at a time, without the GIL for most of it.

ArrayRecordWriter takes one record per call and compresses it while it holds the GIL. Here some MB of
records are compressed, hashed and laid out together. The file is a stream of chunks, each a header
of 40 bytes and data. A header of 24 bytes is inserted wherever a block of 65,536 bytes begins.
`windrow.sources.array_record.chunks` reads the same format.

Invariant: ArrayRecordWriter writes the same bytes for the same records and options, if both
compress alike.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import zstandard

from windrow.sources.array_record.chunks import (
    BLOCK,
    BLOCK_HEADER,
    CHUNK_HEADER,
    FIRST_CHUNK,
    MAGIC,
    SIGNATURE,
    SIMPLE,
    USABLE,
    Buffer,
    Ints,
    varint,
)
from windrow.sources.array_record.decode import PLAIN, ZSTD
from windrow.sources.array_record.highway_hash import hashes

# Records that are compressed together: as many as stay in the cache of a core.
HELD_BYTES: Final = 1 << 20
# Chunks whose entries of the index are made at a time.
_ENTRIES: Final = 1 << 16
# Larger groups would take several times their bytes of memory here; the package takes them once.
_MOST_GROUP: Final = 1 << 12
# The most buffers of one system call: IOV_MAX of Linux and macOS.
_PARTS: Final = 1024
_PADDING: Final = ord("p")
_NO_HEADER: Final = bytes(CHUNK_HEADER)
_MANY_AT_ONCE: Final = "multi_compress_to_buffer" in zstandard.backend_features
_KNOWN_LEADS: Final = 1 << 12
_OPTION: Final = re.compile(
    r"group_size:(?P<group>[1-9][0-9]{0,8})|zstd(:(?P<level>-?[0-9]{1,6}))?|(?P<plain>uncompressed)"
    r"|window_log:(?P<window>[0-9]{1,2})"
)


class Options(NamedTuple):
    """Options for writing a file.

    Args:
        group: Records in a chunk.
        level: The level of zstd; None for plain chunks.
        window_log: The base-2 logarithm of the bytes that zstd looks back.
    """

    group: int
    level: int | None
    window_log: int

    @property
    def text(self) -> str:
        """The options as ArrayRecordWriter writes them into the index."""
        packing = "uncompressed"
        if self.level is not None:
            packing = f"zstd:{self.level},window_log:{self.window_log}"
        return (
            f"group_size:{self.group},transpose:false,pad_to_block_boundary:false,{packing}"
            ",max_parallelism:1"
        )


def options_of(writer_options: str) -> Options | None:
    """Return the options in ArrayRecordWriter's string; None for those that only it can write."""
    found: dict[str, str | None] = {}
    for text in filter(None, writer_options.split(",")):
        match = _OPTION.fullmatch(text)
        if match is None:
            return None
        name = match.lastgroup or ("level" if text.startswith("zstd") else "")
        given = {"packing" if name in ("level", "plain") else name: match[name]}
        if given.keys() & found:
            return None
        found |= given
    if int(found.get("group") or 1) > _MOST_GROUP:
        return None
    packing = found.get("packing")
    plain = packing == "uncompressed"
    if plain and "window" in found:
        return None
    return Options(
        group=int(found.get("group") or 1),
        level=None if plain else int(packing or 3),
        window_log=int(found.get("window") or 20),
    )


class BatchWriter:
    """Writes one local file.

    Args:
        path: The file, which is written anew.
        options: Its options.

    Raises:
        OSError: From every method, if the file cannot be written.
    """

    def __init__(self, path: str, options: Options) -> None:
        self._group, self._text = options.group, options.text
        self._packing: _Packing = _Plain() if options.level is None else _Zstd(options)
        self._file = open(path, "wb", buffering=0)  # noqa: SIM115, `close` or `abandon` ends it
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._entries: list[tuple[Ints, Ints, Ints]] = []
        # The signature is written with what follows it.
        self._at = FIRST_CHUNK

    def write(self, records: Sequence[bytes]) -> None:
        """Add records, in their order."""
        self._held += records
        self._held_bytes += sum(map(len, records))
        if self._held_bytes >= HELD_BYTES and len(self._held) >= self._group:
            self._write_groups(len(self._held) // self._group * self._group)

    def close(self) -> None:
        """Write the held records and the index, which make it a file of ArrayRecord."""
        with self._file:
            self._write_groups(len(self._held))
            self._write_end()

    def abandon(self) -> None:
        """Leave the file as it is, unfinished."""
        self._file.close()

    def _write_groups(self, stop: int) -> None:
        records, self._held = self._held[:stop], self._held[stop:]
        self._held_bytes = sum(map(len, self._held))
        if not records:
            return
        sizes = _lengths(records)
        firsts = np.arange(0, stop, self._group)
        decoded = np.add.reduceat(sizes, firsts)
        counts = np.minimum(stop - firsts, self._group)
        if self._group == 1:
            values: Sequence[Buffer] = records
            leads = self._packing.leads_of_one(sizes.tolist())
        else:
            values = [b"".join(records[at : at + self._group]) for at in firsts.tolist()]
            leads = self._packing.leads(_cut_varints(sizes, firsts), decoded.tolist())
        begins = self._add(SIMPLE, leads, self._packing.packed(values), counts, decoded)
        self._entries.append((begins, decoded, counts))

    def _add(
        self,
        kind: int,
        leads: Sequence[bytes],
        bodies: Iterable[Any],
        counts: Ints,
        decoded: Ints,
    ) -> Ints:
        """Write chunks; return where they begin in the file.

        Args:
            kind: Their type byte.
            leads: The first bytes of the data of each chunk.
            bodies: The rest of the data of each chunk.
            counts: The number of records of each chunk.
            decoded: The bytes of the records of each chunk.
        """
        parts: list[Any] = [_NO_HEADER] * (3 * len(leads))
        parts[1::3], parts[2::3] = leads, bodies
        data_bytes = _lengths(parts[1::3]) + _lengths(parts[2::3])
        starts, stops = self._places(CHUNK_HEADER + data_bytes, counts)
        spare = stops - starts - CHUNK_HEADER - data_bytes
        for at in np.flatnonzero(spare).tolist():
            parts[3 * at + 2] = bytes(parts[3 * at + 2]) + bytes(int(spare[at]))
        stream = bytearray().join(parts)
        raw, first = np.frombuffer(stream, np.uint8), int(starts[0])
        headers = np.empty((len(starts), CHUNK_HEADER // 8), np.uint64)
        begins = starts - first
        headers[:, 1] = data_bytes
        headers[:, 2] = hashes(raw, begins + CHUNK_HEADER, begins + CHUNK_HEADER + data_bytes)
        headers[:, 3] = counts << 8 | kind
        headers[:, 4] = decoded
        _set_hashes(headers)
        # One item per byte of the stream, so that a header may begin anywhere.
        every: Any = np.ndarray(
            (len(stream) - CHUNK_HEADER + 1,), f"V{CHUNK_HEADER}", stream, strides=(1,)
        )
        every[begins] = headers.view(f"V{CHUNK_HEADER}")[:, 0]
        self._write_stream(stream, starts, stops)
        found: Ints = _file_place(starts)
        return found

    def _places(self, sizes: Ints, counts: Ints) -> tuple[Ints, Ints]:
        """Where chunks begin and end in the stream, which is the file without block headers."""
        first = _stream_place(self._at)
        if bool((counts <= sizes).all()):
            stops = first + np.cumsum(sizes)
            return stops - sizes, stops
        # A chunk takes a byte of the file per record at least, up to where one can begin.
        found = []
        for size, count in zip(sizes.tolist(), counts.tolist(), strict=True):
            least = int(_file_place(np.int64(first))) + count
            least += max(0, -least % BLOCK - (USABLE - 1))
            stop = max(first + size, _stream_place(least))
            found.append((first, stop))
            first = stop
        starts, stops = np.array(found, np.int64).T
        return starts, stops

    def _write_stream(self, stream: bytearray, starts: Ints, stops: Ints) -> None:
        first, last = int(starts[0]), int(stops[-1])
        blocks = np.arange(-(-first // USABLE), -(-last // USABLE), dtype=np.int64)
        at = np.searchsorted(starts, blocks * USABLE, side="right") - 1
        headers = np.empty((len(blocks), BLOCK_HEADER // 8), np.uint64)
        headers[:, 1] = blocks * BLOCK - _file_place(starts[at])
        headers[:, 2] = _file_place(stops[at]) - blocks * BLOCK
        _set_hashes(headers)
        view, cut = memoryview(stream), 0
        parts: list[Buffer] = [SIGNATURE] if self._at == FIRST_CHUNK else []
        for place, header in zip((blocks * USABLE - first).tolist(), headers, strict=True):
            parts += view[cut:place], header.tobytes()
            cut = place
        _write_all(self._file.fileno(), [*parts, view[cut:]])
        self._at = int(_file_place(np.int64(last)))

    def _write_end(self) -> None:
        offsets, decoded, counts = (
            np.concatenate([np.empty(0, np.int64), *column])
            for column in (zip(*self._entries, strict=True) if self._entries else [()] * 3)
        )
        text = self._text.encode()
        about = b"\x08\x01\x10" + varint(len(offsets)) + b"\x18" + varint(int(counts.sum()))
        about += b"\x22" + varint(len(text)) + text
        records = [b"\x0a" + varint(len(about)) + about]
        sizes = [np.array([len(records[0])])]
        for first in range(0, len(offsets), _ENTRIES):
            cut = slice(first, first + _ENTRIES)
            fields = (0x08, offsets[cut], 0x10, decoded[cut], 0x18, counts[cut])
            made, lengths = _varints(np.stack(np.broadcast_arrays(*fields), axis=1))
            records.append(made)
            sizes.append(lengths.sum(axis=1))
        footer_at = self._at
        self._add_one(self._packing, np.concatenate(sizes), b"".join(records))
        self._pad()
        postscript = b"\x08" + varint(footer_at) + b"\x10" + varint(MAGIC)
        self._add_one(_Plain(), np.full(3, len(postscript)), postscript * 3)
        self._pad()

    def _add_one(self, packing: _Packing, sizes: Ints, values: bytes) -> None:
        """Add a chunk of records of these sizes, which lie end to end."""
        (lead,) = packing.leads([_varints(sizes[:, None])[0]], [len(values)])
        one = np.array([len(values)])
        self._add(SIMPLE, [lead], packing.packed([values]), np.array([len(sizes)]), one)

    def _pad(self) -> None:
        """Add an empty chunk up to the end of the block."""
        room = -self._at % BLOCK
        if room:
            stop = self._at + room + (BLOCK if room < CHUNK_HEADER else 0)
            size = _stream_place(stop) - _stream_place(self._at) - CHUNK_HEADER
            none = np.zeros(1, np.int64)
            self._add(_PADDING, [b""], [bytes(size)], none, none)


class _Plain:
    """Chunks whose records are not compressed."""

    def leads(self, sizes: Sequence[bytes], decoded: Sequence[int]) -> list[bytes]:
        """Return the start of the data of each chunk: the packing, and the sizes of records.

        Args:
            sizes: The sizes of the records of each chunk, as varints.
            decoded: The bytes of all records of each chunk.
        """
        return [bytes([PLAIN]) + varint(len(one)) + one for one in sizes]

    def leads_of_one(self, sizes: Sequence[int]) -> list[bytes]:
        """Return the same for chunks of one record each."""
        return self.leads([varint(size) for size in sizes], sizes)

    def packed(self, values: Sequence[Buffer]) -> Iterable[Any]:
        """Return the rest of each chunk: its records."""
        return values


class _Zstd:
    """Chunks whose records and sizes are compressed; it has the methods of `_Plain`."""

    def __init__(self, options: Options) -> None:
        parameters = zstandard.ZstdCompressionParameters(
            compression_level=options.level or 0, window_log=options.window_log
        )
        self._compressor = zstandard.ZstdCompressor(compression_params=parameters)
        self._known: dict[int, bytes] = {}

    def leads(self, sizes: Sequence[bytes], decoded: Sequence[int]) -> list[bytes]:
        return [self._lead(one, total) for one, total in zip(sizes, decoded, strict=True)]

    def leads_of_one(self, sizes: Sequence[int]) -> list[bytes]:
        known = self._known
        if len(known) > _KNOWN_LEADS:
            known.clear()
        for size in set(sizes) - known.keys():
            known[size] = self._lead(varint(size), size)
        return [known[size] for size in sizes]

    def packed(self, values: Sequence[Buffer]) -> Iterable[Any]:
        if not _MANY_AT_ONCE or not all(values):
            return [self._compressor.compress(one) for one in values]
        found: Any = self._compressor.multi_compress_to_buffer(list(values))
        return list(found)

    def _lead(self, sizes: bytes, decoded: int) -> bytes:
        packed = varint(len(sizes)) + self._compressor.compress(sizes)
        return bytes([ZSTD]) + varint(len(packed)) + packed + varint(decoded)


_Packing = _Plain | _Zstd


def _write_all(descriptor: int, parts: list[Buffer]) -> None:
    """Write the parts one after the other, without a copy if the system takes all of them."""
    for first in range(0, len(parts), _PARTS):
        some = parts[first : first + _PARTS]
        written, size = os.writev(descriptor, some), sum(map(len, some))
        if written < size:  # a disk that is nearly full, or a signal
            rest = memoryview(b"".join(some))[written:]
            while len(rest):
                rest = rest[os.write(descriptor, rest) :]


def _lengths(parts: Sequence[Any]) -> Ints:
    return np.fromiter(map(len, parts), np.int64, len(parts))


def _stream_place(place: int) -> int:
    """Return the place in the stream of a chunk's start or end at `place` of the file."""
    return place - BLOCK_HEADER * -(-place // BLOCK)


def _file_place(place: Any) -> Any:
    """Return the place in the file of a chunk's start or end at `place` of the stream."""
    inside = place % USABLE
    return place // USABLE * BLOCK + np.where(inside > 0, inside + BLOCK_HEADER, 0)


def _set_hashes(headers: npt.NDArray[np.uint64]) -> None:
    """Set the first number of each row to the hash of the others."""
    width = headers.shape[1] * 8
    starts = np.arange(len(headers), dtype=np.int64) * width + 8
    headers[:, 0] = hashes(headers.view(np.uint8).reshape(-1), starts, starts + width - 8)


def _varints(values: npt.NDArray[Any]) -> tuple[bytes, Ints]:
    """Return all `values`, row by row, as varints, and the number of bytes of each."""
    values = values.astype(np.int64)
    lengths = np.ones(values.shape, np.int64)
    for bits in range(7, 63, 7):
        lengths += values >= 1 << bits
    shifts = np.arange(int(lengths.max(initial=1)))
    bytes_ = (values[..., None] >> 7 * shifts & 0x7F).astype(np.uint8)
    bytes_ |= np.where(shifts < lengths[..., None] - 1, np.uint8(0x80), np.uint8(0))
    return bytes_[shifts < lengths[..., None]].tobytes(), lengths


def _cut_varints(values: Ints, firsts: Ints) -> list[bytes]:
    """Return `values` as varints, cut before the values numbered `firsts`."""
    made, lengths = _varints(values)
    ends = np.append(np.cumsum(lengths) - lengths, len(made))
    bounds = [*ends[firsts].tolist(), len(made)]
    return [made[start:stop] for start, stop in itertools.pairwise(bounds)]
