"""Writing ArrayRecord files many records at a time, by the native core.

ArrayRecordWriter takes one record per call and compresses it while it holds the GIL. The core
compresses and hashes some MB of records on all cores without it, and writes them.

Invariant: ArrayRecordWriter writes the same bytes for the same records and options, if both
compress alike.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from windrow.core.native import native
from windrow.errors import ArgumentError

# Records that are compressed together: enough to be worth the threads, and few enough for caches.
HELD_BYTES: Final = 1 << 20
# Larger groups would take several times their bytes of memory here; the package takes them once.
_MOST_GROUP: Final = 1 << 12
_PLAIN: Final = "uncompressed"
_ZSTD: Final = "zstd"
_OPTION: Final = re.compile(
    r"group_size:(?P<group>[1-9][0-9]{0,8})|zstd(:(?P<level>-?[0-9]{1,6}))?"
    r"|(?P<other>uncompressed|snappy)|window_log:(?P<window>[0-9]{1,2})"
)


class Options(NamedTuple):
    """Options for writing a file.

    Args:
        group: Records in a chunk.
        codec: 'zstd', 'snappy' or 'uncompressed'.
        level: The level of zstd.
        window_log: The base-2 logarithm of the bytes that zstd looks back.
    """

    group: int
    codec: str = _ZSTD
    level: int = 3
    window_log: int = 20

    @property
    def text(self) -> str:
        """The options as ArrayRecordWriter writes them into the index."""
        packing = self.codec
        if packing == _ZSTD:
            packing = f"{packing}:{self.level},window_log:{self.window_log}"
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
        name = match.lastgroup or ("level" if text.startswith(_ZSTD) else "")
        given = {"packing" if name in ("level", "other") else name: match[name]}
        if given.keys() & found:
            return None
        found |= given
    group = int(found.get("group") or 1)
    packing = found.get("packing")
    other = packing in (_PLAIN, "snappy")
    if group > _MOST_GROUP or (other and "window" in found):
        return None
    if packing is not None and other:
        return Options(group, packing)
    return Options(group, _ZSTD, int(packing or 3), int(found.get("window") or 20))


class BatchWriter:
    """Writes one local file; it needs the native core.

    Args:
        path: The file, which is written anew.
        options: Its options.

    Raises:
        OSError, RuntimeError: From every method, if the file cannot be written.
    """

    def __init__(self, path: str, options: Options) -> None:
        core = native()
        if core is None:
            raise ArgumentError("BatchWriter: the native core is missing; build it")
        codec = "" if options.codec == _PLAIN else options.codec
        self._writer = core.ArrayRecordFileWriter(
            path,
            options.group,
            codec,
            options.level,
            options.window_log,
            options.text,
            HELD_BYTES,
        )

    def write(self, records: Sequence[bytes]) -> None:
        """Add records, in their order."""
        self._writer.write(records)

    def close(self) -> None:
        """Write the held records and the index, which make it a file of ArrayRecord."""
        self._writer.close()

    def abandon(self) -> None:
        """Leave the file as it is, unfinished."""
        self._writer.abandon()
