"""The table of formats: how Windrow inspects, opens and verifies each of them.

The table has one row per format. `windrow.inspect`, `windrow verify`, `windrow bench` and `windrow
convert` detect the format at a location (`windrow.sources.detection`) and call the operations of its
row.

Invariant: no command compares names of formats to decide what it does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Final

from windrow.core.text import listing
from windrow.errors import ArgumentError, SourceError, WindrowError
from windrow.inspection.arrays import inspect_contents as inspect_arrays
from windrow.inspection.facts import Inspection
from windrow.inspection.netcdf import inspect_netcdf
from windrow.inspection.records import (
    inspect_array_record,
    inspect_json_lines,
    inspect_parquet,
    inspect_tfrecord,
)
from windrow.inspection.tfds import inspect_tfds
from windrow.sources import signatures
from windrow.sources.array_record.source import ArrayRecordDataSource
from windrow.sources.chunks import LaidOutSource
from windrow.sources.detection import TFDS, Contents, detect
from windrow.sources.location import Location
from windrow.sources.tfds.source import TFDSDataSource
from windrow.sources.zarr.source import ZarrDataSource
from windrow.verification.targets import (
    ScanTargets,
    scan_array_record,
    scan_arrays_at,
    scan_tfds,
    scan_tfrecord,
)

Inspect = Callable[[Contents, bool | None], Inspection]
"""Inspects contents; the flag is the argument `sizes` of `windrow.inspect`."""
Scan = Callable[[Contents], ScanTargets]
"""Opens everything that `windrow verify` reads of contents."""


@dataclasses.dataclass(frozen=True, slots=True)
class Format:
    """A format and its operations.

    Args:
        name: Its name; equal to the name of its signature, if it has one.
        signature: How to recognise it; None if detection recognises it by other means.
        inspect: Called by `windrow.inspect`.
        open: Makes the source of its records from a path or URL, `storage_options` and the arguments
            in `takes`; None if the format has no random access.
        takes: Which of 'names' (of arrays or features) and 'split' the source takes.
        scan: Called by `windrow verify`; None if the format is not read record by record.
        instead: What a user can do if an operation is None, as the end of a message.
    """

    name: str
    signature: signatures.Signature | None
    inspect: Inspect
    open: Callable[..., LaidOutSource] | None = None
    takes: frozenset[str] = frozenset()
    scan: Scan | None = None
    instead: str = "is not read record by record"


def inspect_contents(contents: Contents, sizes: bool | None) -> Inspection:
    """Inspect contents by the operation of their format.

    Raises:
        WindrowError: As the operation of the format raises it.
    """
    return _FORMATS[contents.format].inspect(contents, sizes)


def open_source(
    location: Location, *, names: Sequence[str] = (), split: str | None = None
) -> LaidOutSource:
    """Open a source of the records at a location, or of the examples of a tfds folder.

    Args:
        location: As `detect` takes it.
        names: Arrays of a group, or features of a dataset, to take; empty for all.
        split: Split of a folder that tfds wrote: a name, or a part such as 'train[:80%]'.

    Raises:
        ArgumentError: If the format has no random access, or does not know `names` or `split`.
        WindrowError: As `detect`, or the source itself, raises it.
    """
    contents = detect(location)
    format = _FORMATS[contents.format]
    if format.open is None:
        raise _refusal(contents)
    if split is not None and "split" not in format.takes:
        raise ArgumentError(f"{location.caller}: --split is for folders that tfds wrote")
    if names and "names" not in format.takes:
        raise ArgumentError(
            f"{location.caller}: --array is for Zarr groups, and {location.shown} is not a Zarr group"
        )
    given = {"names": list(names) or None, "split": split}
    place = contents.location
    return format.open(
        place.path,
        storage_options=place.storage_options,
        **{name: value for name, value in given.items() if name in format.takes},
    )


def scan_contents(contents: Contents) -> ScanTargets:
    """Open everything that `windrow verify` reads of contents.

    Raises:
        ArgumentError: If Windrow does not verify the format.
        WindrowError: If nothing can be opened.
    """
    operation = _FORMATS[contents.format].scan
    if operation is None:
        raise _refusal(contents)
    return operation(contents)


def conversion_source(location: Location) -> str:
    """Return the name of the input format of a conversion of the data at a location.

    Raises:
        SourceError: If it is a folder of a format that is converted file by file.
        WindrowError: As `detect` raises it.
    """
    contents = detect(location)
    format = _FORMATS[contents.format]
    takes_folders = format.signature is not None and bool(format.signature.marks)
    if contents.names is not None and format.scan is None and not takes_folders:
        raise _refusal(contents)
    return contents.format


def _refusal(contents: Contents) -> WindrowError:
    """Make the error for an operation that the format of `contents` does not have."""
    format, place = _FORMATS[contents.format], contents.location
    if contents.names is None or format.scan is not None:
        return ArgumentError(f"{place.caller}: {place.shown} {format.instead}")
    held = [file.name for file in contents.files]
    title = format.name if format.signature is None else format.signature.title
    return SourceError(
        f"{place.caller}: {place.shown} holds {len(held)} {title} files: {listing(held)}; name one"
    )


_ROWS: Final = (
    Format(
        "array_record",
        signatures.ARRAY_RECORD,
        inspect=inspect_array_record,
        open=ArrayRecordDataSource,
        takes=frozenset({"split"}),
        scan=scan_array_record,
    ),
    Format(
        "tfrecord",
        signatures.TFRECORD,
        inspect=inspect_tfrecord,
        scan=scan_tfrecord,
        instead="is TFRecord, which has no random access; convert it first: windrow convert SRC DST"
        " --to array_record",
    ),
    Format(
        "zarr",
        signatures.ZARR,
        inspect=inspect_arrays,
        open=ZarrDataSource,
        takes=frozenset({"names"}),
        scan=lambda contents: scan_arrays_at(contents.location),
    ),
    Format(
        TFDS,
        None,
        inspect=inspect_tfds,
        open=TFDSDataSource,
        takes=frozenset({"names", "split"}),
        scan=scan_tfds,
    ),
    Format(
        "netcdf",
        signatures.NETCDF,
        inspect=inspect_netcdf,
        instead="is of format netcdf, which is not read record by record; convert it first: windrow"
        " convert SRC DST --to zarr",
    ),
    Format(
        "json_lines",
        signatures.JSON_LINES,
        inspect=inspect_json_lines,
        instead="is JSON Lines, which has no random access; convert it first: windrow convert SRC DST"
        " --to array_record",
    ),
    Format(
        "parquet",
        signatures.PARQUET,
        inspect=inspect_parquet,
        instead="is Parquet, which has no random access to rows; convert it first: windrow convert SRC"
        " DST --to zarr",
    ),
)
_FORMATS: Final[dict[str, Format]] = {row.name: row for row in _ROWS}
