"""Zarr to ArrayRecord: row `i` of all arrays becomes record `i`.

Invariant: records have the order of the rows, one record per row, and the manifest describes
features and arrays well enough to write the same arrays again, bit for bit.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Unpack

import numpy as np

from windrow.converters.job.declared import MOST_FILES, declared
from windrow.converters.job.folder import FinishedPart, OutputFolder
from windrow.converters.job.inputs import refuse_changed
from windrow.converters.job.job import RunOptions, memory_of
from windrow.converters.job.manifest import ConversionPlan
from windrow.converters.job.stages import Conversion, Expected, Steps, known
from windrow.converters.records.record_writing import (
    FORMAT,
    WRITER_OPTIONS,
    FileTask,
    SkippedRecords,
    check_writer_options,
    finish_files,
    records_bytes,
    shard_names,
    writing_stage,
)
from windrow.converters.records.reshard import (
    LEAST_MEMORY_BYTES,
    MOST_MEMORY_BYTES,
)
from windrow.converters.zarr.array_inputs import OTHERS, AnyArray, InputArray
from windrow.converters.zarr.decoding import function_name
from windrow.converters.zarr.example_encode import encode_examples
from windrow.converters.zarr.zarr_inputs import ArrayInputs, array_names, find_arrays
from windrow.core.machine import usable_cores
from windrow.errors import ArgumentError, ConversionError, ReadError, SourceError, WindrowError
from windrow.sources.base import IntArray
from windrow.sources.tf_example.features import BYTES, Column, Feature, Ragged, features_to_json
from windrow.sources.zarr.names import BLOCKS, OFFSETS, RAGGED, VALUES

Encode = Callable[[dict[str, Any]], bytes]

# The name of the feature of an array without a group.
ALONE: Final = "value"
_FILE_BYTES: Final = 256 << 20
_AT_ONCE: Final = 2
# A block of rows is in memory as arrays, as records and in between.
_COPIES: Final = 4
_MOST_BLOCK_BYTES: Final = 32 << 20


@declared
def zarr_to_array_record(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    arrays: Sequence[str] | None = None,
    files: int | None = None,
    records_per_file: int | None = None,
    encode: Encode | None = None,
    writer_options: str = WRITER_OPTIONS,
    **run: Unpack[RunOptions],
) -> Conversion:
    """Write the rows of the arrays of a Zarr store as records of ArrayRecord files, in order.

    By default a record is a tf.train.Example with one feature per array: the bytes of its row. The
    manifest's settings then have all that `array_record_to_zarr` needs to write the arrays again:
    `features` (what `windrow.sources.tf_example.features.features_from_json` takes), `arrays` (by name:
    `attributes`, `dimension_names`, `fill_value`, as Zarr v3 has them), `attributes` of the group
    and `group_attributes` of those in it, by name.

    Files are called `x.array_record-00000-of-00004` and so on, after the source `x.zarr`.
    Libraries need some 250 MB of `memory_bytes`. It holds if no chunk is larger than an eighth of the
    rest. Larger chunks are decoded several times each: give such stores to `zarr_to_zarr` first.

    Args:
        source: A path or URL of a Zarr array or group (v2 or v3), or of a file that xarray opens,
            such as NetCDF; its values are taken as they are stored.
        output: A folder or URL, new, empty, or of an earlier run.
        arrays: Names of arrays, of groups of them or of ragged features. None for all whose first
            axis counts records, with their labels (such as times). Labels of other axes, scalars,
            and labels that are strings, are left out. Ragged features are one field each, named like their group; an
            array without a group is called "value".
        files: Number of files; by default, each has about 256 MB of values.
        records_per_file: Records of each file but the last, instead of `files`.
        encode: A function from a dict of the values of a row, by name, to the bytes of its record,
            instead of an Example. It is pickled by value, and must depend on the row alone.
        writer_options: Options of ArrayRecordWriter.
        **run: How it runs: `RunOptions`.

    Returns:
        The manifest, which also lies in the folder.

    Raises:
        NotFoundError: If there is nothing at `source`.
        SourceError: If an array is not of numbers or has no rows to count, or lengths differ.
        ArgumentError: If an argument is of the wrong kind or out of range, or an array is not there.
        ReadError: If a chunk is damaged; the message names it.
        ConversionError: If `encode` fails, or `output` cannot be written or holds another
            conversion.
        MissingExtraError: If what is needed is not installed.
    """
    check_writer_options(writer_options)
    memory_bytes = memory_of(run, LEAST_MEMORY_BYTES, MOST_MEMORY_BYTES)
    if files is not None and records_per_file is not None:
        raise ArgumentError("files and records_per_file say the same; give one of them")
    if encode is not None and not callable(encode):
        raise ArgumentError(f"encode must be a function, got {encode!r}")
    names = array_names(arrays, arrays)
    find = functools.partial(
        find_arrays,
        source,
        names=names,
        storage_options=run.get("storage_options"),
        what="zarr_to_array_record",
    )
    inputs = find()
    fields = _fields(inputs, chosen=names is not None)
    rows = RowEncoder(fields, encode, memory_bytes)
    starts = rows.cut(files, records_per_file)
    settings = {
        "writer_options": writer_options,
        "files": files,
        "records_per_file": records_per_file,
        "encode": function_name(encode),
    }
    described = _described(inputs, fields) if encode is None else {}
    plan = ConversionPlan(FORMAT, (inputs.id,), {**settings, **described})
    tasks = _tasks(_stem(inputs.id.name), starts, rows)
    stage = writing_stage(
        "convert",
        known(tasks),
        functools.partial(_batches, rows),
        writer_options=writer_options,
        at_once=_AT_ONCE,
    )
    return Conversion(
        name="zarr_to_array_record",
        plan=plan,
        stages=(stage,),
        finish=functools.partial(_finish, plan, rows.records, find),
        expected=Expected(rows.records, inputs.id.size_bytes, len(tasks), rows.nbytes),
    )


def _tasks(stem: str, starts: Sequence[int], rows: RowEncoder) -> tuple[FileTask, ...]:
    """Return one task for each file."""
    names, spans = shard_names(stem, len(starts) - 1), itertools.pairwise(starts)
    return tuple(
        FileTask(name, name, rows.share(*span), span)
        for name, span in zip(names, spans, strict=True)
    )


def _stem(name: str) -> str:
    stem = re.sub(r"[^\w.\-]+", "_", os.path.splitext(name)[0]).lstrip("._")
    return stem or "records"


# --- fields --------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class RecordField:
    """A feature of the records: an array's rows, or the rows into which `offsets` cut values."""

    name: str
    feature: Feature
    values: InputArray
    offsets: InputArray | None = None

    @property
    def records(self) -> int:
        """The number of its rows."""
        if self.offsets is None:
            return self.values.facts.shape[0]
        # Before the first row is written there may be no offsets at all.
        return max(0, self.offsets.facts.shape[0] - 1)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.values.facts.nbytes

    def read(self, start: int, stop: int, offsets: IntArray | None) -> Column:
        """Rows `[start, stop)`, whose `offsets` are given if they are ragged."""
        facts = self.values.facts
        if offsets is None:
            return _read(self.values, start, stop)
        values = _read(self.values, int(offsets[0]), int(offsets[-1]))
        return Ragged(values.reshape(-1, *facts.shape[1:]), offsets - offsets[0])

    def ends(self, start: int, stop: int) -> IntArray | None:
        """The offsets of rows `[start, stop)`; None if rows are all of one length.

        Raises:
            ReadError: If they do not rise from 0 to the number of values.
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
        return found


def _read(array: InputArray, start: int, stop: int) -> AnyArray:
    facts = array.facts
    out = np.empty((stop - start, *facts.shape[1:]), facts.dtype)
    array.read((start, *(0 for _ in facts.shape[1:])), out, decoders=usable_cores())
    return out


def _fields(inputs: ArrayInputs, *, chosen: bool) -> tuple[RecordField, ...]:
    """Return the fields of the records, all of one length; SourceError without fields."""
    arrays = dict(inputs.arrays)
    fields = []
    for name, ragged in _ragged(inputs.attributes).items():
        values, offsets = (arrays.pop(f"{name}/{what}", None) for what in (VALUES, OFFSETS))
        arrays.pop(f"{name}/{BLOCKS}", None)
        if values is not None and offsets is not None:
            fields.append(RecordField(name, _ragged_feature(values, ragged), values, offsets))
    if not chosen:
        arrays = _of_records(arrays, inputs.attributes, [field.records for field in fields])
    for name, array in arrays.items():
        facts = array.facts
        if not facts.shape:
            raise SourceError(
                f"{facts.where}: array {name!r} has shape (), and the first axis counts records;"
                " leave it out: arrays=[...] (--array)"
            )
        if facts.is_string:
            raise SourceError(
                f"{facts.where}: array {name!r} holds strings, which are not converted to records;"
                f" {OTHERS}"
            )
        feature = Feature(facts.dtype.name, facts.shape[1:], raw=True)
        fields.append(RecordField(name or ALONE, feature, array))
    if not fields:
        raise SourceError(f"{inputs.id.name}: has no array whose first axis could count records")
    if len({field.records for field in fields}) > 1:
        shown = "\n".join(f"  {field.name}: {field.records:,}" for field in fields)
        raise SourceError(
            f"{inputs.id.name}: the arrays differ in length\n{shown}\n"
            "The first axis counts records: choose arrays of one length: arrays=[...] (--array)."
        )
    return tuple(sorted(fields, key=lambda field: field.name))


def _ragged(attributes: Mapping[str, Any]) -> dict[str, Any]:
    found = attributes.get(RAGGED)
    return found if isinstance(found, dict) else {}


def _ragged_feature(values: InputArray, ragged: Any) -> Feature:
    facts = values.facts
    if isinstance(ragged, dict) and ragged.get("dtype") == BYTES and facts.shape[1:] == ():
        return Feature(BYTES)
    return Feature(facts.dtype.name, (None, *facts.shape[1:]), raw=True)


def _of_records(
    arrays: Mapping[str, InputArray], attributes: Mapping[str, Any], counts: Sequence[int]
) -> dict[str, InputArray]:
    """Return the arrays whose first axis counts records: the data, and the records' labels."""
    all_attributes = [attributes, *(array.facts.attributes for array in arrays.values())]
    listed = {
        name
        for one in all_attributes
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
    for name in [name for name, array in labels.items() if array.facts.is_string]:
        del labels[name]
        warnings.warn(
            f"the records are without coordinate {name!r}: it holds strings, which are not converted"
            " to records",
            UserWarning,
            stacklevel=5,
        )
    return {**data, **labels}


def _described(inputs: ArrayInputs, fields: Sequence[RecordField]) -> dict[str, Any]:
    """Return the description of the arrays for the manifest, so that they can be written again."""
    arrays = [
        array for field in fields for array in (field.values, field.offsets) if array is not None
    ]
    array_settings = {
        array.facts.name or ALONE: {
            "attributes": dict(array.facts.attributes),
            "dimension_names": list(array.facts.dims) or None,
            "fill_value": array.facts.fill_value,
        }
        for array in arrays
    }
    attributes = {key: value for key, value in inputs.attributes.items() if key != RAGGED}
    return {
        "features": features_to_json({field.name: field.feature for field in fields}),
        "arrays": array_settings,
        "attributes": attributes,
        "group_attributes": {name: dict(one) for name, one in inputs.group_attributes.items()},
    }


# --- rows ----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class RowEncoder:
    """Encodes the rows of the fields as records. Picklable."""

    fields: tuple[RecordField, ...]
    encode: Encode | None
    memory_bytes: int

    @property
    def records(self) -> int:
        """The number of all rows."""
        return self.fields[0].records

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return sum(field.nbytes for field in self.fields)

    def share(self, start: int, stop: int) -> int:
        """Estimate the bytes of rows `[start, stop)`; the estimates of all add up to `nbytes`."""
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
            if files > MOST_FILES:
                raise ArgumentError(
                    f"records_per_file={size:,} makes {files:,} files of {records:,} records; choose"
                    f" more, so that there are at most {MOST_FILES:,}"
                )
            return [min(size * at, records) for at in range(files + 1)]
        return [records * at // files for at in range(files + 1)]

    def batches(self, start: int, stop: int) -> Iterator[tuple[int, list[bytes]]]:
        """The records of rows `[start, stop)`, some at a time, with the row after them."""
        ends = [field.ends(start, stop) for field in self.fields]
        for begin, end in self._blocks(start, stop, ends):
            columns = {
                field.name: field.read(
                    begin, end, None if found is None else found[begin - start : end + 1 - start]
                )
                for field, found in zip(self.fields, ends, strict=True)
            }
            yield end, self._records(begin, columns)

    def _blocks(
        self, start: int, stop: int, ends: Sequence[IntArray | None]
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
                sizes += (found - found[0]) * row_bytes
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
    def _largest(self) -> RecordField:
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


def _batches(
    rows: RowEncoder,
    folder: OutputFolder,
    task: FileTask,
    skipped: SkippedRecords,
    steps: Steps,
) -> Iterator[list[bytes]]:
    first, last = task.of
    for stop, records in rows.batches(first, last):
        yield records
        steps.reach(stop - first, rows.share(first, stop))


def _finish(
    plan: ConversionPlan,
    records: int,
    find: Callable[[], ArrayInputs],
    folder: OutputFolder,
    parts: list[FinishedPart],
) -> None:
    (before,) = plan.inputs
    refuse_changed(before.name, before, find().id)
    finish_files(plan, [records], 0, folder, parts)
