"""Verifies the data set at a path or URL, in any format, against its manifest if it has one.

A file or an array that cannot be opened (cut off, or with damaged metadata) is reported as bad, and
verification continues with the rest.

Invariant: the files of a converted folder are compared with its manifest first, and then decoded.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping
from typing import Any, Final

from windrow.converters.job.check import BadFile, CheckReport, FolderCheck
from windrow.core.progress import ShowProgress
from windrow.errors import NotFoundError
from windrow.formats.table import scan_contents
from windrow.inspection.arrays import array_names
from windrow.sources import signatures
from windrow.sources.detection import detect, is_glob, is_range
from windrow.sources.location import Location, location_of
from windrow.verification.report import Report
from windrow.verification.scan import scans_of
from windrow.verification.targets import (
    UNOPENED,
    ScanTargets,
    scan_arrays_at,
    scan_files,
)
from windrow.verification.verify import Missing, check_arguments, report_of, run_scans

CALLER: Final = "verify"


@dataclasses.dataclass(frozen=True, slots=True)
class PlaceReport:
    """What verification found at a path or URL.

    Attributes:
        url: The path or URL, without secrets.
        kind: 'array_record', 'tfrecord' or 'zarr'; '' where a folder holds neither.
        data: The report of reading and decoding.
        unopened: Files and arrays that could not be opened, and why.
        left_out: Arrays that are not read, and why: their values are strings, or they have no axes.
        folder: The report of the check against the manifest; None if no conversion wrote the folder.
    """

    url: str
    kind: str
    data: Report
    unopened: tuple[BadFile, ...]
    left_out: tuple[tuple[str, str], ...]
    folder: CheckReport | None

    @property
    def ok(self) -> bool:
        """Whether nothing is bad."""
        return self.data.ok and not self.unopened and (self.folder is None or self.folder.ok)

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return {
            "ok": self.ok,
            "url": self.url,
            "format": self.kind,
            **dataclasses.asdict(self.data),
            "unopened": [dataclasses.asdict(file) for file in self.unopened],
            "left_out": [{"array": name, "why": why} for name, why in self.left_out],
            "manifest": None if self.folder is None else self.folder.to_json(),
        }

    def __str__(self) -> str:
        lines = [f"{self.url}: {'good' if self.ok else 'bad'}", self.data.counts]
        if self.folder is not None:
            lines.append(f"manifest: {self.folder.counts}")
        lines += [f"bad: {chunk}" for chunk in self.data.bad]
        lines += [f"bad: {file}" for file in self.unopened]
        lines += [f"bad: {file}" for file in (self.folder.bad if self.folder is not None else ())]
        lines += [f"not read: array {name!r}: {why}" for name, why in self.left_out]
        return "\n".join(lines)


def verify_place(
    url: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    missing: Missing = "fill",
    threads: int | None = None,
    decode: bool = True,
    progress: ShowProgress = True,
) -> PlaceReport:
    """Read everything at a path or URL once, and report everything that is bad.

    Args:
        url: A file, a folder, a glob, a Zarr array or group.
        storage_options: Settings of fsspec for URLs.
        missing: As for `windrow.verify`.
        threads: As for `windrow.verify`.
        decode: Whether to read records; otherwise only the files of a converted folder are checked
            against its manifest.
        progress: As for `windrow.verify`.

    Raises:
        ArgumentError: If an argument is wrong, or Windrow does not verify the format.
        NotFoundError: If nothing is there, or `decode` is false and there is no manifest.
        ConversionError: If the folder is unfinished.
        ReadError: If the manifest is damaged, or names a file outside its folder.
        SourceError: If nothing can be opened.
    """
    check_arguments(missing, threads)
    begin = time.monotonic()
    location = location_of(url, storage_options, caller=CALLER)
    check = _check_of(location)
    if check is None and not decode:
        raise NotFoundError(
            f"{CALLER}: {location.shown} has no manifest of a conversion, and without decoding there is"
            " nothing else to check"
        )
    targets = _targets(location, check) if decode else ScanTargets("")
    refuse_missing = missing == "error"
    data = [one for s in targets.sources for one in scans_of(s, refuse_missing=refuse_missing)]
    data += targets.scans
    folder = None if check is None else check.checked(threads=threads, progress=progress)
    run_scans(data, threads=threads, progress=progress)
    took_s = time.monotonic() - begin
    report = report_of(data, records=targets.records, elapsed_s=took_s)
    return PlaceReport(
        url=location.shown,
        kind=targets.stored_as,
        data=report,
        unopened=tuple(targets.bad),
        left_out=tuple(targets.left_out),
        folder=folder,
    )


def _check_of(location: Location) -> FolderCheck | None:
    """Return the check of a folder that a conversion wrote; None for anything else."""
    if location.is_local:
        folder = os.path.isdir(location.path)
    elif "|" in location.path:  # only TensorStore opens it, such as a zip file
        folder = False
    else:
        folder = not (signatures.of_name(location.name) or is_glob(location) or is_range(location))
    if not folder:
        return None
    return FolderCheck.of(location.path, storage_options=location.storage_options, what=CALLER)


def _targets(location: Location, check: FolderCheck | None) -> ScanTargets:
    if check is None:
        return scan_contents(detect(location))
    paths = check.record_files
    if paths or check.holds_records:
        return scan_files([location.at(path) for path in paths])
    if not check.files:
        return ScanTargets("")  # a conversion of nothing
    try:
        return scan_arrays_at(location, array_names([file.name for file in check.files]))
    except UNOPENED as error:
        return ScanTargets("zarr", bad=[BadFile("", str(error))])
