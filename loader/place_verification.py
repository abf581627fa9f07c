"""Verification of what lies at a path or URL: a dataset of any format, with its manifest if it has one.

What can not be opened (a file that is cut off, an array whose metadata is damaged) is told as bad, and
the rest is read all the same.

Invariants: every array of a group is read, also those that no source takes for records, but for what
the report names; the checksums of a converted folder's files and the decoding of what is in them go
abreast, so that a file of a local disk that fits into memory is fetched from the disk once.
"""

from __future__ import annotations

import dataclasses
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from windrow.converters.checking import BadFile, CheckReport, FolderCheck
from windrow.converters.manifest import OutputFile
from windrow.converters.tfrecord import read_batches
from windrow.errors import NotFoundError, ReadError, SourceError
from windrow.findings import Report
from windrow.inspection_arrays import array_names, find_arrays
from windrow.inspection_place import Place, place_of
from windrow.opening import Contents, contents_of, kind_of_name
from windrow.progress import ShowProgress
from windrow.sources import ArrayRecordDataSource, LaidOutSource, ZarrDataSource
from windrow.sources.secrets import shown_url
from windrow.sources.tfds_splits import AddedSplits
from windrow.sources.zarr_names import Found as FoundArray
from windrow.sources.zarr_names import arrays_of
from windrow.sources.zarr_python_metadata import of_any_length
from windrow.verification import Missing, check_arguments, report_of, run_walks
from windrow.walks import Bad, Found, Placing, Task, Walk, walks_of

WHAT: Final = "verify"
_FIXED_TEXT: Final = r"r\d+|[|<>]?[SUVO]\d*"
# What a task that reads a file in blocks holds of it.
_HELD_BYTES: Final = 16 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class PlaceReport:
    """What was found at a path or URL.

    Attributes:
        url: Where, without secrets.
        kind: 'array_record', 'tfrecord' or 'zarr'; '' where a folder holds neither.
        data: What reading and decoding found.
        unopened: Files and arrays that could not be opened, and why.
        left_out: Arrays that are not read, and why: those of texts, or of no axes.
        folder: What checking against the manifest found; None where no conversion wrote the folder.
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
        """The report as plain values."""
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
        lines += [f"bad: {piece}" for piece in self.data.bad]
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
    """Read all that lies at a path or URL, once, and report everything that is bad.

    Args:
        url: A file, a folder, a glob, a Zarr array or group.
        storage_options: Settings of fsspec for URLs.
        missing: As for `windrow.verify`.
        threads: As for `windrow.verify`.
        decode: Whether records are read; else the files of a converted folder are checked, and no
            more.
        progress: As for `windrow.verify`.

    Raises:
        ArgumentError: If an argument is wrong, or the format is none that is verified.
        NotFoundError: If there is nothing, or no manifest where `decode` is false.
        ConversionError: If the folder is unfinished.
        ReadError: If the manifest is damaged, or names a file outside its folder.
        SourceError: If there is nothing that can be opened.
    """
    check_arguments(missing, threads)
    begin = time.monotonic()
    place = place_of(url, storage_options, what=WHAT)
    check = _check_of(place)
    if check is None and not decode:
        raise NotFoundError(
            f"{WHAT}: {place.shown} has no manifest of a conversion, and there is nothing else to do"
            " without decoding"
        )
    opened = _opened(place, check) if decode else _Opened("")
    data = [w for s in opened.sources for w in walks_of(s, refuse_missing=missing == "error")]
    data += opened.walks
    files = None if check is None else _FileWalk(check)
    lanes: list[list[Walk]] = [data] if files is None else [[files], data]
    found = run_walks(lanes, threads=threads, progress=progress)
    took_s = time.monotonic() - begin
    counted = None if opened.walks else opened.records
    report = report_of(data, found[len(found) - len(data) :], records=counted, elapsed_s=took_s)
    return PlaceReport(
        url=place.shown,
        kind=opened.kind,
        data=report,
        unopened=tuple(opened.bad),
        left_out=tuple(opened.left_out),
        folder=files.report(took_s) if files is not None else None,
    )


@dataclasses.dataclass(slots=True)
class _Opened:
    """What is to be read at a place."""

    kind: str
    sources: list[LaidOutSource] = dataclasses.field(default_factory=list)
    walks: list[Walk] = dataclasses.field(default_factory=list)
    bad: list[BadFile] = dataclasses.field(default_factory=list)
    left_out: list[tuple[str, str]] = dataclasses.field(default_factory=list)

    @property
    def records(self) -> int:
        """Records of the dataset: those of files end to end, or rows of the arrays."""
        lengths = [len(source) for source in self.sources]
        return max(lengths, default=0) if self.kind == "zarr" else sum(lengths)


def _check_of(place: Place) -> FolderCheck | None:
    """The check of a folder that a conversion wrote; None for anything else."""
    if place.is_local:
        folder = os.path.isdir(place.path)
    else:
        folder = kind_of_name(place.name) is None and not re.search(r"[*?\[]", place.name)
    if not folder:
        return None
    return FolderCheck.of(place.path, storage_options=place.storage_options, what=WHAT)


def _opened(place: Place, check: FolderCheck | None) -> _Opened:
    if check is None:
        contents = contents_of(place, what=WHAT)
        if contents.kind == "zarr":
            return _arrays(place)
        return _tfrecords(contents) if contents.kind == "tfrecord" else _records(contents)
    paths = check.record_files
    if paths or check.holds_records:
        opened = _Opened("array_record")
        opened.sources, opened.bad = _each([place.at(path) for path in paths])
        return opened
    if not check.files:
        return _Opened("")  # a conversion of nothing
    try:
        return _arrays(place, array_names([file.name for file in check.files]))
    except (SourceError, ReadError, NotFoundError) as error:
        return _Opened("zarr", bad=[BadFile("", str(error))])


def _records(contents: Contents) -> _Opened:
    place, options = contents.place, contents.place.storage_options
    opened = _Opened("array_record")
    paths: Any = place.path  # by the folder, so that a missing shard is found
    try:
        if contents.dataset is not None:
            paths = contents.dataset.instructions(AddedSplits(tuple(contents.dataset.splits)))
        opened.sources = [ArrayRecordDataSource(paths, storage_options=options)]
    except (SourceError, ReadError, NotFoundError) as error:
        opened.sources, opened.bad = _each(contents.files)
        if isinstance(error, NotFoundError):
            opened.bad.append(BadFile("", str(error)))
        elif not opened.sources:
            raise
    return opened


def _each(files: Sequence[Place]) -> tuple[list[LaidOutSource], list[BadFile]]:
    """A source of all files; where one can not be opened, one of each, and what is wrong."""
    if not files:
        return [], []
    options = files[0].storage_options
    try:
        paths = [file.path for file in files]
        return [ArrayRecordDataSource(paths, storage_options=options)], []
    except (SourceError, ReadError, NotFoundError):
        pass
    sources: list[LaidOutSource] = []
    bad = []
    for file in files:
        try:
            sources.append(ArrayRecordDataSource([file.path], storage_options=options))
        except (SourceError, ReadError, NotFoundError) as error:
            bad.append(BadFile(file.shown, str(error)))
    return sources, bad


def _arrays(place: Place, names: Sequence[str] = ()) -> _Opened:
    """The arrays at a place; `names` are theirs, where they are known and may not be listed."""
    opened = _Opened("zarr")
    by_length: dict[int | None, list[str]] = {}
    for array in arrays_of(find_arrays(place, names)):
        if (why := _why_left_out(array)) is not None:
            opened.left_out.append((array.name, why))
        else:
            by_length.setdefault(array.shape[0] if array.shape else None, []).append(array.name)
    # A source has arrays of one length.
    for together in by_length.values():
        sources, bad = _each_array(place, together)
        opened.sources += sources
        opened.bad += bad
    return opened


def _each_array(place: Place, names: Sequence[str]) -> tuple[list[LaidOutSource], list[BadFile]]:
    """A source of arrays of one length; where one can not be opened, one of each, and what is wrong."""
    try:
        only = [name for name in names if name] or None
        return [ZarrDataSource(place.path, names=only, storage_options=place.storage_options)], []
    except (SourceError, ReadError, NotFoundError) as error:
        if len(names) == 1:
            return [], [BadFile(names[0] or place.shown, str(error))]
    sources: list[LaidOutSource] = []
    bad = []
    for name in names:
        source, wrong = _each_array(place, [name])
        sources += source
        bad += wrong
    return sources, bad


def _why_left_out(array: FoundArray) -> str | None:
    """Why an array is not read although nothing is wrong with it; None if it is."""
    meta = array.metadata or {}
    dtype = meta.get("dtype", meta.get("data_type"))
    if array.shape == ():
        return "it has shape ()"
    if of_any_length(meta) or (isinstance(dtype, str) and re.fullmatch(_FIXED_TEXT, dtype)):
        return f"its values are texts or objects, of dtype {dtype}"
    return None


def _tfrecords(contents: Contents) -> _Opened:
    return _Opened("tfrecord", walks=[_TFRecordWalk(file) for file in contents.files])


class _FileWalk(Walk):
    """The files of a converted folder, each read once for its checksum."""

    def __init__(self, check: FolderCheck) -> None:
        self._check = check
        self._bad: dict[str, BadFile] = {}

    @property
    def waits(self) -> bool:
        return not self._check.is_local

    @property
    def total_bytes(self) -> int:
        return self._check.total_bytes

    def tasks(self) -> Iterator[Task]:
        for file in self._check.files:
            held = min(file.size_bytes, _HELD_BYTES)
            yield Task(held, file.size_bytes, partial(self._run, file))

    def _run(self, file: OutputFile, _: object) -> Found:
        bad = self._check.file(file)
        if bad is not None:
            self._bad[file.name] = bad
        return Found()

    def places(self, bad: Sequence[Bad]) -> list[Placing]:
        return []  # what is wrong is told by files

    def report(self, elapsed_s: float) -> CheckReport:
        """What was found, in the order of the manifest."""
        bad = [self._bad[file.name] for file in self._check.files if file.name in self._bad]
        return self._check.report(bad, elapsed_s=elapsed_s)


class _TFRecordWalk(Walk):
    """A TFRecord file; its pieces are its records."""

    def __init__(self, file: Place) -> None:
        self._file = file
        self._bytes = file.size_bytes()

    @property
    def waits(self) -> bool:
        return not self._file.is_local

    @property
    def total_bytes(self) -> int:
        return self._bytes

    def tasks(self) -> Iterator[Task]:
        yield Task(min(self._bytes, _HELD_BYTES), self._bytes, self._run)

    def _run(self, stopped: Any) -> Found:
        found = Found()
        options = self._file.storage_options
        try:
            for batch in read_batches(self._file.path, skip_bad=True, storage_options=options):
                found.pieces += len(batch.records) + len(batch.bad)
                found.decoded_bytes += sum(map(len, batch.records))
                for error in batch.bad:
                    self._refuse(found, error)
                if stopped():
                    break
        except ReadError as error:  # behind it nothing can be found
            found.pieces += 1
            self._refuse(found, error)
        return found

    def _refuse(self, found: Found, error: ReadError) -> None:
        found.refuse(error.records[0] if error.records else 0, error)

    def places(self, bad: Sequence[Bad]) -> list[Placing]:
        shown = shown_url(self._file.path)
        return [Placing(one.number, one.number + 1, shown, one.offset) for one in bad]
