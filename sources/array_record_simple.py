"""Simple chunks of ArrayRecord files: their records, where they are plain or of zstd.

The data of such a chunk is a byte for the compression, the sizes of the records, and the records
end to end; the two are compressed apart, each after its length in memory.

Invariant: no more is decompressed than the chunk's header counts, and what does not add up is a
`DamageError` that says what.
"""

from __future__ import annotations

import itertools
import threading
from typing import Final

import numpy as np
import zstandard

from windrow.sources.array_record_chunks import Buffer, Ints, leading_varint, varints

PLAIN: Final = 0
ZSTD: Final = ord("z")
BROTLI: Final = ord("b")
SNAPPY: Final = ord("s")
# The format's own limit of a window. Pages of it that are not used take no memory.
_MOST_WINDOW: Final = 1 << 31
# A zstd block is 128 KiB of at least 4 bytes.
_EXPANSION_BITS: Final = 15
_SPARE_BYTES: Final = 1 << 16
# A count of a record's bytes takes at most so many.
_COUNT_BYTES: Final = 10


class DamageError(Exception):
    """What is wrong with a chunk, in words that follow its name."""


class _Decompressors(threading.local):
    def __init__(self) -> None:
        self._one: zstandard.ZstdDecompressor | None = None

    def get(self) -> zstandard.ZstdDecompressor:
        if self._one is None:
            self._one = zstandard.ZstdDecompressor(max_window_size=_MOST_WINDOW)
        return self._one


_decompressors: Final = _Decompressors()


def decompressor() -> zstandard.ZstdDecompressor:
    """This thread's own."""
    return _decompressors.get()


def unpacked(stream: Buffer, size: int) -> bytes:
    """The `size` bytes that a zstd frame stands for.

    Raises:
        DamageError: If it is no such frame.
    """
    try:
        # The frame may promise any size, and so much memory is taken for it.
        promised = zstandard.frame_content_size(stream)
        if promised not in (-1, size):
            raise DamageError(f"zstd: a frame of {promised:,} bytes where {size:,} were promised")
        found = decompressor().decompress(
            stream, max_output_size=max(1, size), allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise DamageError(f"zstd: {error}") from error
    except MemoryError as error:
        raise DamageError(f"zstd: no memory for a frame of {size:,} bytes") from error
    if len(found) != size:
        raise DamageError(f"zstd: {len(found):,} bytes where {size:,} were promised")
    return found


def parts(data: Buffer, records: int, decoded_bytes: int) -> tuple[Ints, Buffer]:
    """Where the records of a plain or zstd chunk end, and the records end to end.

    Args:
        data: The chunk's data.
        records: How many records its header counts.
        decoded_bytes: How many bytes of them its header counts.

    Returns:
        int64 `(records,)`, the last `decoded_bytes`; and so many bytes.

    Raises:
        DamageError: If it does not hold what its header counts.
    """
    packed = data[0] == ZSTD if len(data) else False
    lead = leading_varint(data, 1)
    if lead is None or sum(lead) > len(data):
        raise DamageError("its data is cut off within the sizes of its records")
    stop = sum(lead)
    stored, values = data[lead[1] : stop], data[stop:]
    if packed:
        stored = _inner(stored, records * _COUNT_BYTES, "sizes")
        values = _inner(values, decoded_bytes, "records")
    sizes = varints(np.frombuffer(stored, np.uint8), records)
    if sizes is None:
        raise DamageError(f"its sizes are not those of {records:,} records")
    # Each alone first: the sum of absurd ones might come out right.
    if records and int(sizes.max()) > decoded_bytes:
        raise DamageError("one of its records is larger than all of them")
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if records else 0
    if total != decoded_bytes or len(values) != decoded_bytes:
        raise DamageError(
            f"its sizes add up to {total:,} bytes, it holds {len(values):,}, and its header"
            f" counts {decoded_bytes:,}"
        )
    return ends, values


def split(data: Buffer, records: int, decoded_bytes: int) -> list[bytes]:
    """The records of a plain or zstd chunk; arguments and errors as of `parts`."""
    ends, values = parts(data, records, decoded_bytes)
    whole = bytes(values)
    if records == 1:
        return [whole]
    return [whole[a:b] for a, b in itertools.pairwise([0, *ends.tolist()])]


def _inner(stream: Buffer, most: int, of: str) -> bytes:
    lead = leading_varint(stream, 0)
    reached = (len(stream) << _EXPANSION_BITS) + _SPARE_BYTES
    if lead is None or lead[0] > min(most, reached):
        raise DamageError(f"the length of its {of} is damaged, or more than its header counts")
    return unpacked(stream[lead[1] :], lead[0])
