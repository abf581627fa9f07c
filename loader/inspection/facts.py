"""The result of an inspection: plain values, as JSON and as tables.

Invariant: this module reads no data; every value can be printed, compared, pickled and made JSON.
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from windrow.core.text import (
    ABSENT,
    TextTable,
    counted,
    in_range,
    in_units,
    notebook_html,
    shortened,
)
from windrow.sources.windows.cf import shown_fill

_NAMES: Final = {
    "array_record": "ArrayRecord",
    "zarr": "Zarr",
    "n5": "N5",
    "precomputed": "Neuroglancer precomputed",
    "tfrecord": "TFRecord",
    "tfds": "tfds folder",
    "netcdf": "NetCDF",
    "json_lines": "JSON Lines",
    "parquet": "Parquet",
    "unfinished": "unfinished conversion",
}
_SHOWN_ATTRIBUTES: Final = 12


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ArrayFacts:
    """The metadata of an array.

    Args:
        name: Its name, with nested names joined by `/`; '' for a single array.
        shape: Its shape.
        dtype: Its dtype, as NumPy or the format names it.
        dims: Names of the axes; () if they have no names.
        chunks: Shape of a chunk; None if unknown.
        shards: Shape of a shard, the array part in one stored object; None if that is one chunk.
        codecs: The codecs, in the order in which a writer applies them.
        decoded_bytes: Bytes in memory; None for values without a fixed size.
        stored_bytes: Stored bytes of its chunks; None if they were not counted.
        holds_records: Whether its first axis counts records; False for coordinates.
        attributes: Its attributes, as stored.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    dims: tuple[str | None, ...]
    chunks: tuple[int, ...] | None
    shards: tuple[int, ...] | None = None
    codecs: tuple[str, ...]
    decoded_bytes: int | None
    stored_bytes: int | None = None
    holds_records: bool = False
    attributes: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class FeatureFacts:
    """A feature of a tf.train.Example: its number of `values` of a `kind`, and what they look like."""

    name: str
    kind: str
    values: int
    size_bytes: int
    looks_like: str


@dataclasses.dataclass(frozen=True, slots=True)
class Content:
    """What a record looks like.

    Args:
        kind: 'example' (tf.train.Example), 'picture', 'text', 'bytes' or 'empty'.
        size_bytes: Its size.
        looks_like: Description for people.
        features: The features of an Example.
    """

    kind: str
    size_bytes: int
    looks_like: str
    features: tuple[FeatureFacts, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class SampleFacts:
    """Sizes of the few records that were read."""

    records: int
    least_bytes: int
    median_bytes: float
    most_bytes: int

    @classmethod
    def of(cls, records: Sequence[bytes]) -> SampleFacts | None:
        """Return the sizes of some records; None for no records."""
        sizes = [len(record) for record in records]
        if not sizes:
            return None
        return cls(len(sizes), min(sizes), float(statistics.median(sizes)), max(sizes))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RecordFileFacts:
    """All files of records, or the files of a split.

    Args:
        name: Name of the split; '' without splits.
        files: Number of files.
        records: Number of records; None if counting them would read everything.
        estimated_records: Estimate from the first records, if they were not counted.
        stored_bytes: Bytes of all files.
        decoded_bytes: Bytes of all records in memory; None if unknown.
        group_records: The least and the most records per group (what is stored and decoded as one)
            that a file has; None without groups.
        options: Options of the writers, each once.
        sample: Sizes of some records; None if no record was read.
        first: The first record; None if it was not read or does not exist.
    """

    name: str = ""
    files: int
    records: int | None = None
    estimated_records: int | None = None
    stored_bytes: int
    decoded_bytes: int | None = None
    group_records: tuple[int, int] | None = None
    options: tuple[str, ...] = ()
    sample: SampleFacts | None = None
    first: Content | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class ManifestFacts:
    """The content of a conversion's manifest, or of the marker of an unfinished conversion.

    Counts that it does not have are None; `resume` is the command that resumes the conversion.
    """

    windrow: str | None = None
    format: str | None = None
    records: int | None = None
    skipped_records: int | None = None
    inputs: int | None = None
    input_bytes: int | None = None
    files: int | None = None
    file_bytes: int | None = None
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    resume: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Inspection:
    """The data at a path or URL.

    Args:
        url: The path or URL, without credentials.
        format: 'array_record', 'zarr', 'n5', 'precomputed', 'tfrecord', 'tfds', 'netcdf',
            'json_lines', 'parquet' or 'unfinished'.
        variant: Variant of the format, such as 'v3 group'.
        records: Number of records; None if arrays differ in it, or it is unknown.
        stored_bytes: Stored bytes; None if they were not counted.
        decoded_bytes: Bytes in memory; None if unknown.
        arrays: Arrays, including coordinates.
        files: Files of records, one entry per split.
        attributes: Attributes of the group, or another description of the whole.
        manifest: Manifest of the conversion that wrote or is writing it; None for other data.
        finished: False for a folder whose conversion has not finished.
    """

    url: str
    format: str
    variant: str
    records: int | None
    stored_bytes: int | None
    decoded_bytes: int | None
    arrays: tuple[ArrayFacts, ...] = ()
    files: tuple[RecordFileFacts, ...] = ()
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    manifest: ManifestFacts | None = None
    finished: bool = True

    @property
    def summary(self) -> str:
        """Format, counts and sizes in one line."""
        words = [f"{_NAMES.get(self.format, self.format)} {self.variant}".rstrip()]
        if self.records is not None:
            words.append(counted(self.records, "record"))
        if self.arrays:
            words.append(counted(len(self.arrays), "array"))
        if self.files:
            words.append(counted(sum(files.files for files in self.files), "file"))
        if self.stored_bytes is not None:
            words.append(f"{in_units(self.stored_bytes)} stored")
        if self.decoded_bytes is not None:
            words.append(f"{in_units(self.decoded_bytes)} decoded")
        ratio = _ratio(self.stored_bytes, self.decoded_bytes)
        return ", ".join(words) + (f" (ratio {ratio})" if ratio != ABSENT else "")

    def to_json(self) -> dict[str, Any]:
        """Return everything as values that `json.dumps` takes."""
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self), default=str))
        return plain

    def _repr_html_(self) -> str:
        return notebook_html(f"{self.url}: {self.summary}", tables(self))

    def __str__(self) -> str:
        parts = [f"{self.url}\n{self.summary}"]
        parts += [f"{table.title}\n{table.to_text()}" for table in tables(self)]
        return "\n\n".join(parts)


def tables(inspection: Inspection) -> Iterator[TextTable]:
    """Yield the tables of an inspection that have rows."""
    if inspection.arrays:
        yield _arrays(inspection.arrays)
    if inspection.files:
        yield _files(inspection.files)
    for files in inspection.files:
        if files.first is not None:
            of = f" of {files.name}" if files.name else ""
            yield _first(f"first record{of}", files.first)
    described = dict(_described(inspection))
    if described:
        yield TextTable("attributes", (), _pairs(described))
    if inspection.manifest is not None:
        title = "manifest" if inspection.finished else "unfinished conversion"
        yield TextTable(title, (), _manifest(inspection.manifest))


def _arrays(arrays: Sequence[ArrayFacts]) -> TextTable:
    # Columns that are empty for all arrays are left out.
    holds = ["records" if array.holds_records else "no records" for array in arrays]
    columns: list[tuple[str, list[str]]] = [
        ("array", [array.name or "(the array)" for array in arrays]),
        ("shape", [_shape(array.shape) for array in arrays]),
        ("dtype", [array.dtype for array in arrays]),
        ("dimensions", [", ".join(d or ABSENT for d in array.dims) for array in arrays]),
        ("chunks", [_shape(array.chunks) for array in arrays]),
        ("shards", ["" if a.shards is None else _shape(a.shards) for a in arrays]),
        ("codecs", [", ".join(array.codecs) or "none" for array in arrays]),
        ("decoded", [in_units(array.decoded_bytes) for array in arrays]),
        ("stored", [in_units(array.stored_bytes) for array in arrays]),
        ("ratio", [_ratio(array.stored_bytes, array.decoded_bytes) for array in arrays]),
        ("holds", holds if "no records" in holds else [""] * len(arrays)),
    ]
    kept = [(name, texts) for name, texts in columns if any(t not in ("", ABSENT) for t in texts)]
    rows = list(zip(*(texts for _, texts in kept), strict=True))
    return TextTable("arrays", [name for name, _ in kept], rows)


def _files(files: Sequence[RecordFileFacts]) -> TextTable:
    """Make a table with a column per split, since there are few splits."""

    def records(item: RecordFileFacts) -> str:
        if item.records is not None:
            return f"{item.records:,}"
        about = item.estimated_records
        return "not counted" if about is None else f"about {about:,}"

    def groups(item: RecordFileFacts) -> str:
        return (
            ""
            if item.group_records is None
            else in_range(*(f"{bound:,}" for bound in item.group_records))
        )

    def options(item: RecordFileFacts) -> str:
        kept = (_plain_options(text) for text in item.options)
        return "; ".join(dict.fromkeys(text for text in kept if text))

    def sizes(item: RecordFileFacts) -> str:
        found = item.sample
        if found is None:
            return ""
        span = f"{found.least_bytes:,} / {found.median_bytes:,.0f} / {found.most_bytes:,} bytes"
        return f"{span} (least / median / most of {found.records:,})"

    rows = [
        ("files", [f"{item.files:,}" for item in files]),
        ("records", [records(item) for item in files]),
        ("records per group", [groups(item) for item in files]),
        ("written with", [options(item) for item in files]),
        ("stored", [in_units(item.stored_bytes) for item in files]),
        ("decoded", [in_units(item.decoded_bytes) for item in files]),
        ("ratio", [_ratio(item.stored_bytes, item.decoded_bytes) for item in files]),
        ("a record", [sizes(item) for item in files]),
    ]
    kept = [[name, *texts] for name, texts in rows if any(t not in ("", ABSENT) for t in texts)]
    named = any(item.name for item in files)
    return TextTable("files", ["split", *(item.name for item in files)] if named else (), kept)


def _plain_options(text: str) -> str:
    """Return a writer's options without defaults, and without those that do not affect the output."""
    parts = text.split(",")
    return ", ".join(
        part
        for part in parts
        if not part.endswith(":false") and not part.startswith(("window_log:", "max_parallelism:"))
    )


def _first(title: str, first: Content) -> TextTable:
    size = in_units(first.size_bytes)
    if not first.features:
        return TextTable(title, (), [(first.looks_like, size)])
    rows = [
        (f.name, f.kind, f"{f.values:,}", in_units(f.size_bytes), f.looks_like)
        for f in first.features
    ]
    headers = ("feature", "kind", "values", "size", "looks like")
    return TextTable(f"{title}: {first.looks_like}, {size}", headers, rows)


def _described(inspection: Inspection) -> Iterator[tuple[str, Any]]:
    for key, value in inspection.attributes.items():
        if key == "features" and isinstance(value, Mapping):
            yield from ((f"feature {name}", words) for name, words in value.items())
        else:
            yield key, value
    for array in inspection.arrays:
        if array.holds_records:
            named = f"{array.name}: " if array.name else ""
            for key, value in array.attributes.items():
                shown = shown_fill(value, array.dtype) if key == "_FillValue" else value
                yield f"{named}{key}", shown


def _pairs(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    shown = list(values.items())[:_SHOWN_ATTRIBUTES]
    rows = [(shortened(key), shortened(_text(value))) for key, value in shown]
    if len(values) > len(shown):
        rows.append((f"and {len(values) - len(shown):,} more", "see --json"))
    return rows


def _manifest(manifest: ManifestFacts) -> list[tuple[str, str]]:
    def files(count: int | None, size_bytes: int | None) -> str | None:
        return None if count is None else f"{counted(count, 'file')}, {in_units(size_bytes)}"

    words = {
        "format": manifest.format,
        "written by": None if manifest.windrow is None else f"windrow {manifest.windrow}",
        "records": None if manifest.records is None else f"{manifest.records:,}",
        "skipped records": manifest.skipped_records or None,
        "inputs": files(manifest.inputs, manifest.input_bytes),
        "files": files(manifest.files, manifest.file_bytes),
        "to resume": manifest.resume,
    }
    rows = [(key, str(value)) for key, value in words.items() if value is not None]
    given = {key: value for key, value in manifest.settings.items() if value not in (None, {})}
    return rows + [(key, shortened(_text(value))) for key, value in given.items()]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _shape(shape: Sequence[int] | None) -> str:
    if shape is None:
        return ABSENT
    return " x ".join(f"{size}" for size in shape) or "()"


def _ratio(stored: int | None, decoded: int | None) -> str:
    """Return decoded bytes divided by stored bytes."""
    if not stored or decoded is None or not math.isfinite(decoded / stored):
        return ABSENT
    return f"{decoded / stored:.2f}"
