"""What an inspection tells: plain values, as JSON and as tables.

Invariant: nothing is read here; every value can be printed, compared, pickled and made JSON.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

_UNITS: Final = ("bytes", "KB", "MB", "GB", "TB", "PB")
_NAMES: Final = {
    "array_record": "ArrayRecord",
    "zarr": "Zarr",
    "n5": "N5",
    "precomputed": "Neuroglancer precomputed",
    "tfrecord": "TFRecord",
    "tfds": "tfds folder",
    "netcdf": "NetCDF",
    "unfinished": "unfinished conversion",
}
_SHOWN_CHARACTERS: Final = 72
_SHOWN_ATTRIBUTES: Final = 12
_ABSENT: Final = "-"


@dataclasses.dataclass(frozen=True, slots=True)
class ArrayFacts:
    """What the metadata of an array say.

    Args:
        name: Nested names are joined by `/`; a single array's name is ''.
        shape: Its shape.
        dtype: As NumPy or the format names it.
        dims: Names of the axes; () where there are none.
        chunks: Shape of what is decoded as one; None where it is not told.
        shards: Shape of what one stored object holds, where that is more than a chunk.
        codecs: As they are applied when it is written.
        decoded_bytes: Bytes in memory; None of values without a fixed size.
        stored_bytes: Bytes of its chunks as stored; None where they were not counted.
        holds_records: Whether its first axis counts records; False for coordinates.
        attributes: As stored.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    dims: tuple[str | None, ...]
    chunks: tuple[int, ...] | None
    shards: tuple[int, ...] | None
    codecs: tuple[str, ...]
    decoded_bytes: int | None
    stored_bytes: int | None
    holds_records: bool
    attributes: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class FeatureFacts:
    """A feature of a tf.train.Example: `values` values of `kind`, and what they look like."""

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
        looks_like: The same for people.
        features: Those of an Example.
    """

    kind: str
    size_bytes: int
    looks_like: str
    features: tuple[FeatureFacts, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class SampleFacts:
    """Sizes of records, of the few that were read."""

    records: int
    least_bytes: int
    median_bytes: float
    most_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class RecordFiles:
    """Files of records: all of them, or those of a split.

    Args:
        name: Of the split; '' where there is none.
        files: How many.
        records: How many; None where counting would read all that there is.
        estimated_records: As the first records have it, where they were not counted.
        stored_bytes: Sizes of the files.
        decoded_bytes: Bytes of all records in memory; None where nothing tells.
        group_records: Records per group (what is stored and decoded as one), those of the file with
            the least and of the file with the most; None without groups.
        options: Options of the writers, each once.
        sample: Sizes of some records; None where there are none, or none were read.
        first: The first record; None where there is none, or it was not read.
    """

    name: str
    files: int
    records: int | None
    estimated_records: int | None
    stored_bytes: int
    decoded_bytes: int | None
    group_records: tuple[int, int] | None
    options: tuple[str, ...]
    sample: SampleFacts | None
    first: Content | None


@dataclasses.dataclass(frozen=True, slots=True)
class ManifestFacts:
    """What the manifest of a conversion says; of a conversion under way, what its marker says.

    Counts are None where it does not say them; `resume` is the command that goes on.
    """

    windrow: str | None
    format: str | None
    records: int | None
    skipped_records: int | None
    inputs: int | None
    input_bytes: int | None
    files: int | None
    file_bytes: int | None
    settings: Mapping[str, Any]
    resume: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Inspection:
    """What is at a path or URL.

    Args:
        url: Where, without credentials.
        format: 'array_record', 'zarr', 'n5', 'precomputed', 'tfrecord', 'tfds', 'netcdf' or
            'unfinished'.
        variant: Which kind of it, in a word or two, such as 'v3 group'.
        records: How many; None where that is not one number, or not known.
        stored_bytes: Bytes as stored; None where they were not counted.
        decoded_bytes: Bytes in memory; None where nothing tells.
        arrays: Arrays, coordinates among them.
        files: Files of records, one entry per split.
        attributes: Of the group, or what describes the whole otherwise.
        manifest: That of the conversion that wrote it, or is writing it; None of others' data.
        finished: False for a folder that a conversion has begun and not finished.
    """

    url: str
    format: str
    variant: str
    records: int | None
    stored_bytes: int | None
    decoded_bytes: int | None
    arrays: tuple[ArrayFacts, ...] = ()
    files: tuple[RecordFiles, ...] = ()
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    manifest: ManifestFacts | None = None
    finished: bool = True

    @property
    def summary(self) -> str:
        """Format, counts and sizes in one line."""
        told = [f"{_NAMES.get(self.format, self.format)} {self.variant}".rstrip()]
        if self.records is not None:
            told.append(counted(self.records, "record"))
        if self.arrays:
            told.append(counted(len(self.arrays), "array"))
        if self.files:
            told.append(counted(sum(files.files for files in self.files), "file"))
        if self.stored_bytes is not None:
            told.append(f"{in_units(self.stored_bytes)} stored")
        if self.decoded_bytes is not None:
            told.append(f"{in_units(self.decoded_bytes)} decoded")
        ratio = _ratio(self.stored_bytes, self.decoded_bytes)
        return ", ".join(told) + (f" (ratio {ratio})" if ratio != _ABSENT else "")

    def to_json(self) -> dict[str, Any]:
        """All of it, as values that `json.dumps` takes."""
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self), default=str))
        return plain

    def __str__(self) -> str:
        parts = [f"{self.url}\n{self.summary}"]
        parts += [f"{table.title}\n{table.to_text()}" for table in tables(self)]
        return "\n\n".join(parts)


class Table(NamedTuple):
    """Rows of texts under headers; no headers for names and values."""

    title: str
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]

    def to_text(self) -> str:
        """For a terminal, each line indented by two."""
        text = self._formatted("simple" if self.headers else "plain")
        return "\n".join(f"  {line}".rstrip() for line in text.splitlines())

    def to_html(self) -> str:
        """An HTML table; texts are escaped."""
        return self._formatted("html")

    def _formatted(self, style: str) -> str:
        from tabulate import tabulate

        # Texts stay as they are: a name such as 1e5 is no number.
        return tabulate(self.rows, self.headers, tablefmt=style, disable_numparse=True)


def tables(inspection: Inspection) -> Iterator[Table]:
    """The tables of an inspection; those without rows are left out."""
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
        yield Table("attributes", (), _pairs(described))
    if inspection.manifest is not None:
        title = "manifest" if inspection.finished else "what the conversion is to write"
        yield Table(title, (), _manifest(inspection.manifest))


def in_units(count: int | None) -> str:
    """A number of bytes for people."""
    if count is None:
        return _ABSENT
    size, unit = float(count), 0
    while size >= 999.5 and unit + 1 < len(_UNITS):
        size, unit = size / 1000, unit + 1
    return f"{size:.3g} {_UNITS[unit]}" if unit else f"{count} bytes"


def counted(count: int, what: str) -> str:
    """A number of things for people."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def shortened(text: str, characters: int = _SHOWN_CHARACTERS) -> str:
    """`text` on one line, cut where it is longer."""
    line = " ".join(text.split())
    return line if len(line) <= characters else line[: characters - 3] + "..."


def _arrays(arrays: Sequence[ArrayFacts]) -> Table:
    # Columns that say nothing of any array are left out.
    columns: list[tuple[str, list[str]]] = [
        ("array", [array.name or "(the array)" for array in arrays]),
        ("shape", [_shape(array.shape) for array in arrays]),
        ("dtype", [array.dtype for array in arrays]),
        ("dimensions", [", ".join(d or _ABSENT for d in array.dims) for array in arrays]),
        ("chunks", [_shape(array.chunks) for array in arrays]),
        ("shards", ["" if a.shards is None else _shape(a.shards) for a in arrays]),
        ("codecs", [", ".join(array.codecs) or "none" for array in arrays]),
        ("decoded", [in_units(array.decoded_bytes) for array in arrays]),
        ("stored", [in_units(array.stored_bytes) for array in arrays]),
        ("ratio", [_ratio(array.stored_bytes, array.decoded_bytes) for array in arrays]),
        ("", ["" if array.holds_records else "no records" for array in arrays]),
    ]
    kept = [(name, texts) for name, texts in columns if any(t not in ("", _ABSENT) for t in texts)]
    rows = list(zip(*(texts for _, texts in kept), strict=True))
    return Table("arrays", [name for name, _ in kept], rows)


def _files(files: Sequence[RecordFiles]) -> Table:
    """A column per split, since there are few of them."""

    def records(item: RecordFiles) -> str:
        if item.records is not None:
            return f"{item.records:,}"
        about = item.estimated_records
        return "not counted" if about is None else f"about {about:,}"

    def groups(item: RecordFiles) -> str:
        return "" if item.group_records is None else _span(item.group_records)

    def options(item: RecordFiles) -> str:
        kept = (_plain_options(text) for text in item.options)
        return "; ".join(dict.fromkeys(text for text in kept if text))

    def sizes(item: RecordFiles) -> str:
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
    kept = [[name, *texts] for name, texts in rows if any(t not in ("", _ABSENT) for t in texts)]
    named = any(item.name for item in files)
    return Table("files", ["split", *(item.name for item in files)] if named else (), kept)


def _plain_options(text: str) -> str:
    """A writer's options without what is always so, or says nothing of what was written."""
    parts = text.split(",")
    return ", ".join(
        part
        for part in parts
        if not part.endswith(":false") and not part.startswith(("window_log:", "max_parallelism:"))
    )


def _first(title: str, first: Content) -> Table:
    size = in_units(first.size_bytes)
    if not first.features:
        return Table(title, (), [(first.looks_like, size)])
    rows = [
        (f.name, f.kind, f"{f.values:,}", in_units(f.size_bytes), f.looks_like)
        for f in first.features
    ]
    headers = ("feature", "kind", "values", "size", "looks like")
    return Table(f"{title}: {first.looks_like}, {size}", headers, rows)


def _described(inspection: Inspection) -> Iterator[tuple[str, Any]]:
    for key, value in inspection.attributes.items():
        if key == "features" and isinstance(value, Mapping):
            yield from ((f"feature {name}", told) for name, told in value.items())
        else:
            yield key, value
    for array in inspection.arrays:
        if array.holds_records:
            named = f"{array.name}: " if array.name else ""
            yield from ((f"{named}{key}", value) for key, value in array.attributes.items())


def _pairs(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    shown = list(values.items())[:_SHOWN_ATTRIBUTES]
    rows = [(shortened(key), shortened(_text(value))) for key, value in shown]
    if len(values) > len(shown):
        rows.append((f"and {len(values) - len(shown):,} more", "see --json"))
    return rows


def _manifest(manifest: ManifestFacts) -> list[tuple[str, str]]:
    def files(count: int | None, size_bytes: int | None) -> str | None:
        return None if count is None else f"{counted(count, 'file')}, {in_units(size_bytes)}"

    told = {
        "format": manifest.format,
        "written by": None if manifest.windrow is None else f"windrow {manifest.windrow}",
        "records": None if manifest.records is None else f"{manifest.records:,}",
        "skipped records": manifest.skipped_records or None,
        "inputs": files(manifest.inputs, manifest.input_bytes),
        "files": files(manifest.files, manifest.file_bytes),
        "to go on": manifest.resume,
    }
    rows = [(key, str(value)) for key, value in told.items() if value is not None]
    given = {key: value for key, value in manifest.settings.items() if value not in (None, {})}
    return rows + [(key, shortened(_text(value))) for key, value in given.items()]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _shape(shape: Sequence[int] | None) -> str:
    if shape is None:
        return _ABSENT
    return " x ".join(f"{size}" for size in shape) or "()"


def _span(bounds: tuple[int, int]) -> str:
    least, most = bounds
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def _ratio(stored: int | None, decoded: int | None) -> str:
    """How many times smaller it is stored than decoded."""
    if not stored or decoded is None or not math.isfinite(decoded / stored):
        return _ABSENT
    return f"{decoded / stored:.2f}"
