"""Chooses some records of a data set and reads what `windrow inspect --picture` draws of them.

Invariant: only the requested records are read, but for TFRecord, whose files have no index.
"""

from __future__ import annotations

import os
from typing import Any, Final, NamedTuple

import numpy as np

from windrow.core.text import counted
from windrow.errors import ArgumentError, ConversionError, SourceError
from windrow.inspection.content import leaves_of, picture_of
from windrow.inspection.facts import ArrayFacts, Inspection
from windrow.inspection.pictures import drawable, grid, library
from windrow.inspection.records import features_in, first_records
from windrow.sources.array_record.source import ArrayRecordDataSource
from windrow.sources.detection import detect
from windrow.sources.location import Location
from windrow.sources.tf_example.columns import decode_examples
from windrow.sources.zarr.source import ZarrDataSource

_CALLER: Final = "inspect"
_SHOWN: Final = 16
_MOST_SHOWN: Final = 400
_NUMBERS: Final = ("bool", "int", "uint", "float", "bfloat", "complex")


class ShownRecords(NamedTuple):
    """Records to draw: the array or feature, their numbers, and a value for each."""

    name: str
    numbers: list[int]
    values: list[Any]


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
        return _of_array(_chosen_array(inspection, field), location, records)
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


def _of_array(array: ArrayFacts, location: Location, records: str | None) -> ShownRecords:
    numbers = _numbers(records, array.shape[0])
    names = [array.name] if array.name else None
    source = ZarrDataSource(location.path, names=names, storage_options=location.storage_options)
    ((_, rows),) = leaves_of(source.read(np.array(numbers, np.int64)))
    return ShownRecords(array.name, numbers, list(rows))


def _chosen_array(inspection: Inspection, field: str | None) -> ArrayFacts:
    drawn = {
        array.name: array
        for array in inspection.arrays
        if len(array.shape) > 1 and array.dtype.startswith(_NUMBERS)
    }
    if field is not None:
        if field not in drawn:
            names = ", ".join(name or "(the array)" for name in drawn) or "none"
            raise ArgumentError(f"--field {field!r} cannot be drawn; choose one of: {names}")
        return drawn[field]
    data = [array for array in drawn.values() if array.holds_records]
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
    source = _records_at(inspection, location)
    numbers = _numbers(records, len(source))
    manifest = inspection.manifest
    features = {} if manifest is None else features_in(manifest.settings)
    shaped = {name: feature for name, feature in features.items() if feature.shape}
    elements = []
    for number in numbers:
        leaves = dict(leaves_of(source[number]))
        for name in shaped.keys() & leaves.keys():
            leaves[name] = decode_examples([source[number]], {name: shaped[name]})[name][0]
        elements.append(leaves)
    name = _chosen_leaf(elements[0], field)
    values = [leaves.get(name, f"no {name or 'record of this kind'}") for leaves in elements]
    return ShownRecords(name, numbers, values)


def _records_at(inspection: Inspection, location: Location) -> Any:
    """Return the records by number; for TFRecord the first ones of the first file that has any."""
    contents, split = detect(location), inspection.files[0].name or None
    if contents.stored_as == "tfrecord":
        file = next((one for one in contents.files if one.size_bytes()), contents.files[0])
        return first_records(file, file.size_bytes())
    options = location.storage_options
    if split and contents.dataset is not None:
        return ArrayRecordDataSource(contents.dataset.instructions(split), storage_options=options)
    return ArrayRecordDataSource(location.path, split=split, storage_options=options)


def _chosen_leaf(leaves: dict[str, Any], field: str | None) -> str:
    """Choose what is drawn of records: pictures and fields come before lines."""
    if field is not None:
        if field in leaves:
            return field
        raise ArgumentError(
            f"--field {field!r}: the records have no such feature; they have {sorted(leaves)}"
        )
    if len(leaves) == 1:
        return next(iter(leaves))
    axes = {name: _axes(value) for name, value in leaves.items()}
    for name in sorted((name for name in axes if axes[name]), key=lambda name: axes[name] < 2):
        return name
    raise SourceError(
        f"{_CALLER}: the records have neither encoded pictures nor lists of numbers to draw; they"
        f" have {sorted(leaves)}"
    )


def _axes(value: Any) -> int:
    """Return how many axes a drawing of a value has; 0 if it is not drawn."""
    if isinstance(value, bytes):
        return 2 if picture_of(value) else 0
    drawn = drawable(value)
    return 0 if isinstance(drawn, str) or drawn.size < 2 else drawn.ndim
