"""Scan targets: the sources and scans that `windrow verify` reads for each format.

Files and arrays that cannot be opened are kept as bad, and the rest is read.

Invariant: every array of a group is read, even if no source takes it for records, except the arrays in
`left_out`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

from windrow.converters.job.check import BadFile
from windrow.converters.records.tfrecord import read_batches
from windrow.core.redaction import shown_url
from windrow.errors import NotFoundError, ReadError, SourceError
from windrow.inspection.arrays import find_arrays
from windrow.sources import signatures
from windrow.sources.array_record.source import ArrayRecordDataSource
from windrow.sources.chunks import LaidOutSource
from windrow.sources.detection import Contents
from windrow.sources.location import Location
from windrow.sources.tfds.splits import AddedSplits
from windrow.sources.zarr.metadata import of_any_length
from windrow.sources.zarr.names import Found, arrays_of
from windrow.sources.zarr.ragged import RaggedDataSource, records_in
from windrow.sources.zarr.source import ZarrDataSource
from windrow.verification.scan import Damage, Scan, ScanResult, ScanTask

UNOPENED: Final = (SourceError, ReadError, NotFoundError)
"""Errors of data that cannot be opened."""
BLOCK_BYTES: Final = 16 << 20
"""Memory of a task that reads a file in blocks."""
_FIXED_TEXT: Final = r"r\d+|[|<>]?[SUVO]\d*"

_Item = TypeVar("_Item")


@dataclasses.dataclass(slots=True)
class ScanTargets:
    """Everything that one verification reads.

    Args:
        stored_as: The format of the files; '' for a folder without files.
        sources: Sources to read whole.
        scans: Scans of files that no source reads.
        bad: Files and arrays that could not be opened, and why.
        left_out: Arrays that are not read, and why.
        rows: Records of arrays that hold records, by name; coordinates and offsets of rows hold none.
    """

    stored_as: str
    sources: list[LaidOutSource] = dataclasses.field(default_factory=list)
    scans: list[Scan] = dataclasses.field(default_factory=list)
    bad: list[BadFile] = dataclasses.field(default_factory=list)
    left_out: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    rows: dict[str, int] = dataclasses.field(default_factory=dict)

    @property
    def records(self) -> int | None:
        """Records of all files, or of the arrays; None if only `scans` count them."""
        if self.scans:
            return None
        if self.stored_as != "zarr":
            return sum(map(len, self.sources))
        names = (part.name for source in self.sources for part in source.parts)
        return max((self.rows.get(name, 0) for name in names), default=0)


def scan_array_record(contents: Contents, paths: Any = None) -> ScanTargets:
    """Target all records of ArrayRecord files.

    Args:
        contents: The files, or the folder with them.
        paths: What `ArrayRecordDataSource` takes; None for the location itself.

    Raises:
        WindrowError: If no file can be opened.
    """
    # Open a listed folder as a folder, so that a missing shard is found.
    place = contents.location
    given = place.path if paths is None else paths
    try:
        source = ArrayRecordDataSource(given, storage_options=place.storage_options)
    except UNOPENED as error:
        return _scan_each(contents, error)
    return ScanTargets("array_record", [source])


def scan_tfds(contents: Contents) -> ScanTargets:
    """Target all records of a dataset of tfds.

    Raises:
        WindrowError: As `scan_array_record` raises it.
    """
    if contents.stored_as == signatures.TFRECORD.name or contents.dataset is None:
        return scan_tfrecord(contents)
    splits = AddedSplits(tuple(contents.dataset.splits))
    try:
        paths: Any = contents.dataset.instructions(splits)
    except UNOPENED as error:
        return _scan_each(contents, error)
    return scan_array_record(contents, paths)


def scan_tfrecord(contents: Contents) -> ScanTargets:
    """Target all records of TFRecord files."""
    return ScanTargets("tfrecord", scans=[_TFRecordScan(file) for file in contents.files])


def scan_arrays_at(location: Location, names: Sequence[str] = ()) -> ScanTargets:
    """Target all arrays at a location; `names` are their names, if known, where listing may fail.

    Raises:
        WindrowError: If no array is found.
    """
    targets = ScanTargets("zarr")
    by_length: dict[int | None, list[str]] = {}
    tree = find_arrays(location, names)
    arrays, groups = records_in(tree)
    targets.rows = {**arrays, **groups}
    rows = {group: _rows_at(location, group) for group, count in groups.items() if count}
    ragged = {group: source for group, source in rows.items() if source is not None}
    targets.sources += ragged.values()
    for array in arrays_of(tree):
        if array.name.rpartition("/")[0] in ragged:
            continue
        if (reason := _reason_left_out(array)) is not None:
            targets.left_out.append((array.name, reason))
        else:
            by_length.setdefault(array.shape[0] if array.shape else None, []).append(array.name)

    def opened(some: Sequence[str]) -> LaidOutSource:
        only = [name for name in some if name] or None
        return ZarrDataSource(location.path, names=only, storage_options=location.storage_options)

    # A source has arrays of one length.
    for together in by_length.values():
        sources, bad = _each(together, opened, lambda name: name or location.shown)
        targets.sources += sources
        targets.bad += bad
    return targets


def _rows_at(location: Location, group: str) -> LaidOutSource | None:
    """Open a group of rows that differ in length; None if that fails, and its arrays are read one by one."""
    only, options = [group] if group else None, location.storage_options
    try:
        return RaggedDataSource(location.path, names=only, storage_options=options)
    except UNOPENED:
        return None


def scan_files(files: Sequence[Location]) -> ScanTargets:
    """Target all records of ArrayRecord files, each opened by its own path."""

    def opened(some: Sequence[Location]) -> LaidOutSource:
        options = some[0].storage_options
        return ArrayRecordDataSource([file.path for file in some], storage_options=options)

    sources, bad = _each(files, opened, lambda file: file.shown)
    return ScanTargets("array_record", sources, bad=bad)


def _scan_each(contents: Contents, error: Exception) -> ScanTargets:
    """Open the files one by one after `error` kept them from being opened together."""
    targets = scan_files(contents.files)
    if isinstance(error, NotFoundError):
        targets.bad.append(BadFile("", str(error)))
    elif not targets.sources:
        raise error
    return targets


def _each(
    items: Sequence[_Item],
    opened: Callable[[Sequence[_Item]], LaidOutSource],
    shown: Callable[[_Item], str],
) -> tuple[list[LaidOutSource], list[BadFile]]:
    """Open one source of all items or, if that fails, one per item; return sources and bad items."""
    if not items:
        return [], []
    try:
        return [opened(items)], []
    except UNOPENED as error:
        if len(items) == 1:
            return [], [BadFile(shown(items[0]), str(error))]
    pairs = [_each([item], opened, shown) for item in items]
    return [source for some, _ in pairs for source in some], [
        one for _, bad in pairs for one in bad
    ]


def _reason_left_out(array: Found) -> str | None:
    """Return why a good array is not read; None if it is read."""
    meta = array.metadata or {}
    dtype = meta.get("dtype", meta.get("data_type"))
    if array.shape == ():
        return "it has shape ()"
    if of_any_length(meta) or (isinstance(dtype, str) and re.fullmatch(_FIXED_TEXT, dtype)):
        return f"its values are strings or objects, of dtype {dtype}"
    return None


class _TFRecordScan(Scan):
    """Scans a TFRecord file; its chunks are its records."""

    def __init__(self, file: Location) -> None:
        self._file = file
        self._bytes = file.size_bytes()
        self.waits = not file.is_local

    @property
    def total_bytes(self) -> int:
        return self._bytes

    def tasks(self) -> Iterator[ScanTask]:
        yield ScanTask(min(self._bytes, BLOCK_BYTES), self._bytes, self._run)

    def _run(self, stopped: Any) -> ScanResult:
        found = ScanResult()
        options = self._file.storage_options
        try:
            for batch in read_batches(self._file.path, skip_bad=True, storage_options=options):
                found.chunks += len(batch.records) + len(batch.bad)
                found.decoded_bytes += sum(map(len, batch.records))
                for error in batch.bad:
                    self._refuse(found, error)
                if stopped():
                    break
        except ReadError as error:  # no record after it can be found
            found.chunks += 1
            self._refuse(found, error)
        return found

    def _refuse(self, found: ScanResult, error: ReadError) -> None:
        found.refuse(error.records[0] if error.records else 0, error)

    def located(self, bad: Sequence[Damage]) -> Sequence[Damage]:
        shown = shown_url(self._file.path)
        return [dataclasses.replace(each, file=shown) for each in bad]
