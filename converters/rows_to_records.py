"""Zarr to ArrayRecord: row `i` of all arrays becomes record `i`.

Invariant: records come in the order of the rows, each row in one record, and what the manifest says
of features and arrays is enough to write the same arrays again, bit for bit.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Unpack

import numpy as np

from windrow.converters.array_inputs import AnyArray, InputArray
from windrow.converters.example_encode import encode_examples
from windrow.converters.folder import OutputFolder, Part
from windrow.converters.job import RunOptions, carry_out
from windrow.converters.manifest import InputFile, Manifest, Plan
from windrow.converters.ragged import ATTRIBUTE, OFFSETS, VALUES
from windrow.converters.record_writing import (
    FORMAT,
    WRITER_OPTIONS,
    Steps,
    check_writer_options,
    records_bytes,
    shard_names,
    write_file,
)
from windrow.converters.reshard import MEMORY_BYTES, check_number, flags_of
from windrow.converters.stages import Conversion, Expected, Report, Stage
from windrow.converters.zarr_inputs import Inputs, find_arrays
from windrow.errors import ArgumentError, ConversionError, ReadError, SourceError, WindrowError
from windrow.sources.features import BYTES, Column, Feature, Ragged, features_to_json
from windrow.sources.process import cores

Encode = Callable[[dict[str, Any]], bytes]

# What the feature of an array without a group is called.
ALONE: Final = "value"
_FILE_BYTES: Final = 256 << 20
_AT_ONCE: Final = 2
# A block of rows is in memory as arrays, as records and in between.
_COPIES: Final = 4
_MOST_BLOCK_BYTES: Final = 32 << 20
_MOST_FILES: Final = 99_999


def zarr_to_array_record(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    arrays: Sequence[str] | None = None,
    files: int | None = None,
    records_per_file: int | None = None,
    encode: Encode | None = None,
    writer_options: str = WRITER_OPTIONS,
    memory_bytes: int = MEMORY_BYTES,
    engine: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    **run: Unpack[RunOptions],
) -> Manifest:
    """Write the rows of the arrays of a Zarr store as records of ArrayRecord files, in order.

    By default a record is a tf.train.Example with one feature per array: the bytes of its row. The
    manifest's settings then have all that `array_record_to_zarr` needs to write the arrays again:
    `features` (what `windrow.sources.features.features_from_json` takes), `arrays` (by name:
    `attributes`, `dimension_names`, `fill_value`, as Zarr v3 has them), `attributes` of the group
    and `group_attributes` of those in it, by name.

    Files are called `x.array_record-00000-of-00004` and so on, after the source `x.zarr`.

    Args:
        source: A path or URL of a Zarr array or group (v2 or v3), or of a file that xarray opens,
            such as NetCDF; its values are taken as they are stored.
        output: A folder or URL, new, empty, or of an earlier run.
        arrays: Names of arrays, of groups of them or of ragged features. None for all whose first
            axis counts records, their labels (such as times) too; what labels other axes, and
            scalars, are left out. Ragged features are one field each, named like their group; an
            array without a group is called "value".
        files: Number of files; by default so many that each has about 256 MB of values.
        records_per_file: Records of each file but the last, instead of `files`.
        encode: From a dict of the values of a row, by name, to the bytes of its record, instead of
            an Example. It is pickled by value, and must not depend on anything but the row.
        writer_options: Options of ArrayRecordWriter.
        memory_bytes: The most memory that a process takes, its libraries included, which need some
            250 MB of it; as long as chunks are no larger than an eighth of the rest. Where they are
            longer in records than that, each is decoded several times: give such stores to
            `zarr_to_zarr` first.
        engine: Of xarray, which then opens the source whatever its name ends in.
        storage_options: Settings of the source's file system, as in fsspec.
        **run: How it runs: `RunOptions`.

    Returns:
        The manifest, which also lies in the folder.

    Raises:
        NotFoundError: If there is nothing at `source`.
        SourceError: If an array is not of numbers or has no rows to count, or lengths differ.
        ArgumentError: If an argument is none, or out of range, or an array is not there.
        ReadError: If a chunk is damaged; the message names it.
        ConversionError: If `encode` fails, or `output` cannot be written or holds another
            conversion.
        MissingExtraError: If what is needed is not installed.
    """
    conversion = zarr_to_array_record_conversion(
        source,
        arrays=arrays,
        files=files,
        records_per_file=records_per_file,
        encode=encode,
        writer_options=writer_options,
        memory_bytes=memory_bytes,
        engine=engine,
        storage_options=storage_options,
    )
    return carry_out(conversion, output, **run)


def zarr_to_array_record_conversion(
    source: str | os.PathLike[str],
    *,
    arrays: Sequence[str] | None = None,
    files: int | None = None,
    records_per_file: int | None = None,
    encode: Encode | None = None,
    writer_options: str = WRITER_OPTIONS,
    memory_bytes: int = MEMORY_BYTES,
    engine: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Conversion:
    """The conversion that `zarr_to_array_record` carries out; arguments and errors as there."""
    check_writer_options(writer_options)
    check_number("files", files, 1, _MOST_FILES)
    check_number("records_per_file", records_per_file, 1, 1 << 62)
    check_number("memory_bytes", memory_bytes, 1 << 16, 1 << 62)
    if files is not None and records_per_file is not None:
        raise ArgumentError("files and records_per_file say the same; give one of them")
    if encode is not None and not callable(encode):
        raise ArgumentError(f"encode must be a function, got {encode!r}")
    names = None if arrays is None else _names(arrays)
    find = functools.partial(
        find_arrays,
        source,
        names=names,
        engine=engine,
        storage_options=storage_options,
        what="zarr_to_array_record",
    )
    inputs = find()
    fields = _fields(inputs, chosen=names is not None)
    rows = Rows(fields, encode, memory_bytes)
    starts = rows.cut(files, records_per_file)
    given: list[tuple[str, object, object]] = [("writer_options", writer_options, WRITER_OPTIONS)]
    given += [("files", files, None), ("records_per_file", records_per_file, None)]
    settings = {name: value for name, value, _ in given}
    settings |= {"encode": None} if encode is None else {"encode": encode_name(encode)}
    told = _told(inputs, fields) if encode is None else {}
    plan = Plan(FORMAT, (inputs.id,), {**settings, **told})
    given += [("memory_bytes", memory_bytes, MEMORY_BYTES)]
    simple = names is None and encode is None and engine is None
    tasks = _tasks(_stem(inputs.id.name), starts)
    stage = Stage(
        "convert",
        items=functools.partial(_given, tasks),
        work=functools.partial(_write_task, writer_options, rows),
        weigh=functools.partial(_task_bytes, rows),
        at_once=_AT_ONCE,
    )
    return Conversion(
        name="zarr_to_array_record",
        plan=plan,
        stages=(stage,),
        finish=functools.partial(_write_manifest, plan, rows.records, find),
        expected=Expected(rows.records, inputs.id.size_bytes, len(tasks), rows.nbytes),
        sources=(os.fspath(source),),
        flags=("--to", "array_record", *flags_of(given)) if simple else None,
    )


def _tasks(stem: str, starts: Sequence[int]) -> tuple[_Task, ...]:
    """One for each file."""
    names, spans = shard_names(stem, len(starts) - 1), itertools.pairwise(starts)
    return tuple(_Task(name, *span) for name, span in zip(names, spans, strict=True))


def _names(arrays: Sequence[str]) -> list[str]:
    if (
        isinstance(arrays, str)
        or not isinstance(arrays, Sequence)
        or not arrays
        or not all(isinstance(name, str) for name in arrays)
    ):
        raise ArgumentError(
            f'arrays must be a list of names such as ["image", "meta/id"], got {arrays!r}'
        )
    return [name.strip("/") for name in arrays]


def encode_name(encode: Encode) -> str:
    """What a function is known by."""
    return str(getattr(encode, "__qualname__", type(encode).__qualname__))


def _stem(name: str) -> str:
    stem = re.sub(r"[^\w.\-]+", "_", os.path.splitext(name)[0]).lstrip("._")
    return stem or "records"


# --- fields --------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Field:
    """A feature of the records: an array's rows, or those of values that `offsets` cut up."""

    name: str
    feature: Feature
    values: InputArray
    offsets: InputArray | None = None

    @property
    def records(self) -> int:
        """Its rows."""
        if self.offsets is None:
            return self.values.facts.shape[0]
        # Before the first row is written there may be no offsets at all.
        return max(0, self.offsets.facts.shape[0] - 1)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.values.facts.nbytes

    def read(self, start: int, stop: int, ends: Ends | None) -> Column:
        """Rows `[start, stop)`; of ragged ones, `ends` are the offsets of some that have these."""
        facts = self.values.facts
        if ends is None:
            return _read(self.values, start, stop)
        offsets = ends.offsets[start - ends.start : stop + 1 - ends.start]
        values = _read(self.values, int(offsets[0]), int(offsets[-1]))
        return Ragged(values.reshape(-1, *facts.shape[1:]), offsets - offsets[0])

    def ends(self, start: int, stop: int) -> Ends | None:
        """The offsets of rows `[start, stop)`; None if rows are all of one length.

        Raises:
            ReadError: If they make no sense.
        """
        if self.offsets is None or stop <= start:
            return None
        found = _read(self.offsets, start, stop + 1).astype(np.int64)
        items = self.values.facts.shape[0]
        if found[0] < 0 or found[-1] > items or bool(np.any(np.diff(found) < 0)):
            raise ReadError(
                f"{self.offsets.facts.where}: array {self.offsets.facts.name!r}: the offsets of rows"
                f" {start} to {stop - 1} do not rise from 0 to {items}: the store is damaged"
            )
        return Ends(start, found)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Ends:
    """Offsets of rows from `start` on, one more than there are rows."""

    start: int
    offsets: np.ndarray[Any, np.dtype[np.int64]]


def _read(array: InputArray, start: int, stop: int) -> AnyArray:
    facts = array.facts
    out = np.empty((stop - start, *facts.shape[1:]), facts.dtype)
    array.read((start, *(0 for _ in facts.shape[1:])), out, decoders=cores())
    return out


def _fields(inputs: Inputs, *, chosen: bool) -> tuple[Field, ...]:
    """The fields of the records, all of one length; SourceError if there are none."""
    arrays = dict(inputs.arrays)
    fields = []
    for name, told in _ragged(inputs.attributes).items():
        values, offsets = (arrays.pop(f"{name}/{what}", None) for what in (VALUES, OFFSETS))
        if values is not None and offsets is not None:
            fields.append(Field(name, _ragged_feature(values, told), values, offsets))
    if not chosen:
        arrays = _of_records(arrays, inputs.attributes, [field.records for field in fields])
    for name, array in arrays.items():
        facts = array.facts
        if not facts.shape:
            raise SourceError(
                f"{facts.where}: array {name!r} has shape (), and the first axis counts records;"
                " leave it out: arrays=[...]"
            )
        feature = Feature(facts.dtype.name, facts.shape[1:], raw=True)
        fields.append(Field(name or ALONE, feature, array))
    if not fields:
        raise SourceError(f"{inputs.id.name}: has no array whose first axis could count records")
    if len({field.records for field in fields}) > 1:
        shown = "\n".join(f"  {field.name}: {field.records:,}" for field in fields)
        raise SourceError(
            f"{inputs.id.name}: the arrays differ in length\n{shown}\n"
            "The first axis counts records: choose arrays of one length by arrays=[...]."
        )
    return tuple(sorted(fields, key=lambda field: field.name))


def _ragged(attributes: Mapping[str, Any]) -> dict[str, Any]:
    found = attributes.get(ATTRIBUTE)
    return found if isinstance(found, dict) else {}


def _ragged_feature(values: InputArray, told: Any) -> Feature:
    facts = values.facts
    if isinstance(told, dict) and told.get("dtype") == BYTES and facts.shape[1:] == ():
        return Feature(BYTES)
    return Feature(facts.dtype.name, (None, *facts.shape[1:]), raw=True)


def _of_records(
    arrays: Mapping[str, InputArray], attributes: Mapping[str, Any], counts: Sequence[int]
) -> dict[str, InputArray]:
    """The arrays whose first axis counts records: all that are no labels, and the records' labels."""
    told = [attributes, *(array.facts.attributes for array in arrays.values())]
    listed = {
        name
        for one in told
        if isinstance(text := one.get("coordinates"), str)
        for name in text.split()
    }
    data = {
        name: array
        for name, array in arrays.items()
        if array.facts.shape and name not in listed and array.facts.dims != (name,)
    }
    if not data and not counts:
        return {name: array for name, array in arrays.items() if array.facts.shape}
    axes = {(array.facts.shape[0], (array.facts.dims or (None,))[0]) for array in data.values()}
    labels = {
        name: array
        for name, array in arrays.items()
        if name not in data
        and len(array.facts.shape) == 1
        and (array.facts.shape[0], (array.facts.dims or (None,))[0]) in axes
    }
    return {**data, **labels}


def _told(inputs: Inputs, fields: Sequence[Field]) -> dict[str, Any]:
    """What the manifest says of the arrays, so that they can be written again."""
    arrays = [
        array for field in fields for array in (field.values, field.offsets) if array is not None
    ]
    told = {
        array.facts.name or ALONE: {
            "attributes": dict(array.facts.attributes),
            "dimension_names": list(array.facts.dims) or None,
            "fill_value": array.facts.fill_value,
        }
        for array in arrays
    }
    attributes = {key: value for key, value in inputs.attributes.items() if key != ATTRIBUTE}
    return {
        "features": features_to_json({field.name: field.feature for field in fields}),
        "arrays": told,
        "attributes": attributes,
        "group_attributes": {name: dict(one) for name, one in inputs.group_attributes.items()},
    }


# --- rows ----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The rows of the fields, and how they become records. Picklable."""

    fields: tuple[Field, ...]
    encode: Encode | None
    memory_bytes: int

    @property
    def records(self) -> int:
        """All of them."""
        return self.fields[0].records

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return sum(field.nbytes for field in self.fields)

    def share(self, start: int, stop: int) -> int:
        """Bytes of rows `[start, stop)`, as if all were alike; all add up to `nbytes`."""
        records, nbytes = self.records, self.nbytes
        if stop == records:  # also of no rows at all
            return nbytes - (nbytes * start // records if records else 0)
        return nbytes * stop // records - nbytes * start // records

    def cut(self, files: int | None, records_per_file: int | None) -> list[int]:
        """The rows at which files begin, and where the last one ends."""
        records = self.records
        if files is None and records_per_file is None:
            wanted = max(1, -(-self.nbytes // _FILE_BYTES))
            # Whole chunks, if files are not much longer for it.
            size, chunk = max(1, -(-records // wanted)), self._chunk_rows
            records_per_file = -(-size // chunk) * chunk if chunk <= size // 4 else size
        if files is None:
            size = max(1, records_per_file or 1)
            files = max(1, -(-records // size))
            if files > _MOST_FILES:
                raise ArgumentError(
                    f"records_per_file={size:,} makes {files:,} files of {records:,} records; choose"
                    f" more, so that there are at most {_MOST_FILES:,}"
                )
            return [min(size * at, records) for at in range(files + 1)]
        return [records * at // files for at in range(files + 1)]

    def batches(self, start: int, stop: int) -> Iterator[tuple[int, list[bytes]]]:
        """The records of rows `[start, stop)`, some at a time, with the row after them."""
        ends = [field.ends(start, stop) for field in self.fields]
        for begin, end in self._blocks(start, stop, ends):
            columns = {
                field.name: field.read(begin, end, found)
                for field, found in zip(self.fields, ends, strict=True)
            }
            yield end, self._records(begin, columns)

    def _blocks(
        self, start: int, stop: int, ends: Sequence[Ends | None]
    ) -> Iterator[tuple[int, int]]:
        """The rows in blocks that fit into memory: whole chunks, if these do."""
        most = max(
            1, min(_MOST_BLOCK_BYTES, records_bytes(self.memory_bytes) // (_AT_ONCE * _COPIES))
        )
        sizes = np.zeros(stop - start + 1, np.int64)
        for field, found in zip(self.fields, ends, strict=True):
            facts = field.values.facts
            row_bytes = int(np.prod(facts.shape[1:], dtype=np.int64)) * facts.dtype.itemsize
            if found is None:
                sizes += np.arange(stop - start + 1) * row_bytes
            else:
                sizes += (found.offsets - found.offsets[0]) * row_bytes
        chunk, shift = self._chunk_rows, self._chunk_shift
        begin = start
        while begin < stop:
            fit = int(np.searchsorted(sizes, sizes[begin - start] + most, side="right")) - 1
            end = min(stop, max(begin + 1, start + fit))
            whole = (end + shift) // chunk * chunk - shift
            if end < stop and whole > begin:
                end = whole
            yield begin, end
            begin = end

    def _records(self, first: int, columns: dict[str, Column]) -> list[bytes]:
        if self.encode is None:
            return encode_examples(columns, {field.name: field.feature for field in self.fields})
        rows = len(next(iter(columns.values())))
        return [
            _encoded(self.encode, first + k, {name: column[k] for name, column in columns.items()})
            for k in range(rows)
        ]

    @property
    def _largest(self) -> Field:
        return max(self.fields, key=lambda field: field.nbytes)

    @property
    def _chunk_rows(self) -> int:
        field = self._largest
        return 1 if field.offsets is not None else max(1, field.values.facts.chunk_shape[0])

    @property
    def _chunk_shift(self) -> int:
        field = self._largest
        return 0 if field.offsets is not None else field.values.facts.shift[0]


def _encoded(encode: Encode, row: int, values: dict[str, Any]) -> bytes:
    try:
        record = encode(values)
    except WindrowError as error:
        raise ConversionError(f"row {row}: {error}") from error
    except Exception as error:
        text = f"row {row}: encode raised {type(error).__name__}: {error}"
        raise ConversionError(text) from error
    if not isinstance(record, bytes):
        raise ConversionError(
            f"row {row}: encode returned {type(record).__name__}; a record is bytes"
        )
    return record


@dataclasses.dataclass(frozen=True, slots=True)
class _Task:
    name: str
    start: int
    stop: int


def _given(tasks: tuple[_Task, ...], folder: OutputFolder, results: list[Any]) -> tuple[_Task, ...]:
    return tasks


def _task_bytes(rows: Rows, task: _Task) -> int:
    return rows.share(task.start, task.stop)


def _write_task(
    writer_options: str, rows: Rows, folder: OutputFolder, task: _Task, report: Report
) -> Part:
    steps = Steps(report, _task_bytes(rows, task))

    def batches() -> Iterator[list[bytes]]:
        for stop, records in rows.batches(task.start, task.stop):
            yield records
            steps.reach(stop - task.start, rows.share(task.start, stop))

    def make() -> Part:
        file = write_file(folder, task.name, batches(), writer_options=writer_options)
        return Part(task.name, file.records, (file,))

    part = folder.part(task.name, make)
    steps.end(part.records)
    return part


def _write_manifest(
    plan: Plan, records: int, find: Callable[[], Inputs], folder: OutputFolder, parts: list[Part]
) -> None:
    (before,) = plan.inputs
    now = find().id
    if now != before:
        raise ConversionError(
            f"{before.name}: was written anew while it was converted: {before} before, {now} now;"
            " leave inputs alone meanwhile, and start anew with overwrite=True"
        )
    source = InputFile(before.name, before.size_bytes, records, before.version)
    files = sorted((file for part in parts for file in part.files), key=lambda file: file.name)
    folder.finish(Manifest(plan.format, (source,), plan.settings, tuple(files)))
