"""Chooses some records of a data set and reads what `windrow inspect --picture` draws of them.

Invariant: only the requested records are read, but for TFRecord, whose files have no index.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from windrow.core.text import counted
from windrow.errors import ArgumentError, ConversionError, SourceError
from windrow.inspection.content import example_of, picture_of
from windrow.inspection.facts import ArrayFacts, Inspection
from windrow.inspection.pictures import grid, library
from windrow.inspection.records import features_in, first_records
from windrow.sources.array_record.source import ArrayRecordDataSource
from windrow.sources.detection import detect
from windrow.sources.location import Location
from windrow.sources.tf_example.columns import decode_examples
from windrow.sources.tf_example.features import Feature
from windrow.sources.zarr.source import ZarrDataSource

_CALLER: Final = "inspect"
_SHOWN: Final = 16
_MOST_SHOWN: Final = 400
_NUMBERS: Final = ("bool", "int", "uint", "float", "bfloat", "complex")


class ShownRecords(NamedTuple):
    """Records to draw: the array or feature, their numbers, and a value for each."""

    name: str
    numbers: Sequence[int]
    values: Sequence[Any]


def check_request(path: str | None, records: str | None, field: str | None) -> None:
    """Check the options of a command before anything is read.

    Raises:
        ArgumentError: If they contradict one another, or are out of range.
        MissingExtraError: If matplotlib is not installed.
    """
    if path is None:
        if records is not None or field is not None:
            raise ArgumentError(
                "--records and --field choose what --picture draws: give --picture FILE"
            )
        return
    if not path.lower().endswith(".png"):
        raise ArgumentError(f"--picture {path}: name a file that ends in .png")
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise ArgumentError(f"--picture {path}: there is no folder {folder}; make it first")
    if records is not None:
        _listed(records)
    library("matplotlib")


def draw(
    inspection: Inspection, location: Location, path: str, records: str | None, field: str | None
) -> str:
    """Draw some records into a PNG, and return a message about it.

    Args:
        inspection: The inspection of `location`.
        location: Where the records are.
        path: The file.
        records: Numbers of records, joined by commas; None for some that are evenly spread.
        field: The array or feature; None for the first that can be drawn.

    Raises:
        ArgumentError: If a requested record or field does not exist, or cannot be drawn.
        SourceError: If there is nothing to draw.
        ReadError: If a record cannot be read.
        ConversionError: If the file cannot be written.
    """
    found = read_records(inspection, location, records, field)
    title = f"{location.name}: {found.name}" if found.name else location.name
    data = grid(found.values, [f"{number:,}" for number in found.numbers], title)
    try:
        with open(path, "wb") as file:
            file.write(data)
    except OSError as error:
        why = error.strerror or error
        raise ConversionError(f"--picture {path}: cannot be written: {why}") from error
    return f"{counted(len(found.values), 'record')} of {title} drawn in {path}"


def read_records(
    inspection: Inspection, location: Location, records: str | None, field: str | None
) -> ShownRecords:
    """Read what is drawn; arguments and errors are as for `draw`."""
    if inspection.format == "netcdf":
        raise SourceError(
            f"{_CALLER}: {inspection.url} is NetCDF, which is not drawn; convert it to Zarr first"
        )
    if inspection.arrays:
        return _of_array(inspection, location, records, field)
    return _of_files(inspection, location, records, field)


def _listed(records: str) -> list[int]:
    try:
        numbers = [int(part) for part in records.split(",")]
    except ValueError:
        numbers = []
    if not 1 <= len(numbers) <= _MOST_SHOWN or min(numbers) < 0:
        raise ArgumentError(
            f"--records {records!r:.60}: give numbers of records, from 0, such as 0,5,9; at most"
            f" {_MOST_SHOWN}"
        )
    return numbers


def _numbers(records: str | None, length: int) -> list[int]:
    """Return the numbers of the records to draw, out of `length`."""
    if not length:
        raise SourceError(f"{_CALLER}: there are no records to draw")
    if records is None:
        spread = np.linspace(0, length - 1, min(_SHOWN, length))
        return [int(number) for number in spread]
    numbers = _listed(records)
    if max(numbers) >= length:
        raise ArgumentError(
            f"--records: there is no record {max(numbers):,}; choose from 0 to {length - 1:,}"
        )
    return numbers


# ---- arrays


def _of_array(
    inspection: Inspection, location: Location, records: str | None, field: str | None
) -> ShownRecords:
    array = _chosen(inspection, field)
    numbers = _numbers(records, array.shape[0])
    names = [array.name] if array.name else None
    source = ZarrDataSource(location.path, names=names, storage_options=location.storage_options)
    rows: Any = source.read(np.array(numbers, np.int64))
    for key in array.name.split("/") if array.name else ():
        rows = rows[key]
    return ShownRecords(array.name, numbers, list(rows))


def _chosen(inspection: Inspection, field: str | None) -> ArrayFacts:
    drawn = [a for a in inspection.arrays if len(a.shape) > 1 and a.dtype.startswith(_NUMBERS)]
    if field is not None:
        for array in drawn:
            if array.name == field:
                return array
        names = ", ".join(array.name or "(the array)" for array in drawn) or "none"
        raise ArgumentError(f"--field {field!r} cannot be drawn; choose one of: {names}")
    data = [array for array in drawn if array.holds_records]
    if not data:
        raise SourceError(
            f"{_CALLER}: {inspection.url} has no array of records to draw: it must have numbers and"
            " at least two axes"
        )
    # Pictures and fields before lines.
    return min(data, key=lambda array: len(array.shape) < 3)


# ---- files of records


def _of_files(
    inspection: Inspection, location: Location, records: str | None, field: str | None
) -> ShownRecords:
    tfrecord = "tfrecord" in (inspection.format, inspection.variant.lower().rpartition(" ")[2])
    source = _head_of_tfrecord(location) if tfrecord else _array_record(inspection, location)
    numbers = _numbers(records, len(source))
    found = [source[number] for number in numbers]
    examples = [_example(record) for record in found]
    known = [example for example in examples if example is not None]
    if not known:
        return ShownRecords("", numbers, found)
    manifest = inspection.manifest
    features = {} if manifest is None else features_in(manifest.settings)
    name = _feature(known[0], features, field)
    values = [
        "not a tf.train.Example" if example is None else _value(record, example, name, features)
        for record, example in zip(found, examples, strict=True)
    ]
    return ShownRecords(name, numbers, values)


def _array_record(inspection: Inspection, location: Location) -> ArrayRecordDataSource:
    split, options = inspection.files[0].name or None, location.storage_options
    dataset = detect(location).dataset if split else None
    if split and dataset is not None:
        return ArrayRecordDataSource(dataset.instructions(split), storage_options=options)
    return ArrayRecordDataSource(location.path, split=split, storage_options=options)


def _head_of_tfrecord(location: Location) -> list[bytes]:
    """Return the first records of the first file that has any."""
    files = detect(location).files
    file = next((one for one in files if one.size_bytes()), files[0])
    return first_records(file, file.size_bytes())


def _example(record: bytes) -> dict[str, Any] | None:
    return example_of(record) if record[:1] == b"\n" and picture_of(record) is None else None


def _feature(example: dict[str, Any], features: Mapping[str, Feature], field: str | None) -> str:
    """Choose the feature to draw: pictures first, then arrays, then lists of numbers."""
    if field is not None:
        if field in example:
            return field
        raise ArgumentError(
            f"--field {field!r}: the records have no such feature; they have {sorted(example)}"
        )
    pictures = [n for n, v in example.items() if isinstance(v, list) and v and picture_of(v[0])]
    arrays = [n for n in example if n in features and features[n].shape]
    lists = [n for n, v in example.items() if isinstance(v, np.ndarray) and len(v) > 1]
    for name in [*pictures, *arrays, *lists]:
        return name
    raise SourceError(
        f"{_CALLER}: the records have neither encoded pictures nor lists of numbers to draw; they"
        f" have {sorted(example)}"
    )


def _value(
    record: bytes, example: dict[str, Any], name: str, features: Mapping[str, Feature]
) -> Any:
    """Return what is drawn of a record."""
    value = example.get(name)
    if isinstance(value, list) and value and picture_of(value[0]):
        return value[0]
    if name in features:
        return decode_examples([record], {name: features[name]})[name][0]
    if isinstance(value, list):
        return value[0] if value else f"no {name}"
    return f"no {name}" if value is None else value
