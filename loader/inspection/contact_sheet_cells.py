"""The cells of a contact sheet: chooses records and their arrays, reads them, and picks the drawing.

Invariants: cells come in the order of the requested records; their values are the values of the
records, decoded by the CF attributes of the array; this module does not draw.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from windrow.core.optional_imports import optional
from windrow.core.text import counted, shortened
from windrow.errors import ArgumentError, SourceError, WindrowError
from windrow.inspection.arrays import find_arrays
from windrow.inspection.content import example_of, picture_of
from windrow.inspection.facts import ArrayFacts, Inspection
from windrow.inspection.records import features_in, first_records
from windrow.sources.array_record.source import ArrayRecordDataSource
from windrow.sources.detection import detect
from windrow.sources.location import Location
from windrow.sources.tf_example.features import Feature
from windrow.sources.windows.cf import decoding_of
from windrow.sources.windows.coordinates import coordinate_of
from windrow.sources.zarr.names import Found, arrays_of
from windrow.sources.zarr.source import ZarrDataSource

AnyArray = npt.NDArray[Any]
Kind = Literal["picture", "field", "lines", "note"]

CALLER: Final = "inspect"
# Longer axes are thinned: only every second, third, ... value is drawn.
_MOST_PIXELS: Final = 1024
_MOST_LINES: Final = 8
_CHANNELS: Final = (1, 3, 4)
_CAPTIONS: Final = 2
# Larger values would make a range infinite.
_LARGEST: Final = 1e300
_FORMATS: Final = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
_UPWARDS: Final = ("lat", "latitude", "y", "northing")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class SheetCell:
    """A record as it is drawn.

    Args:
        caption: Its number and its labels.
        kind: 'picture' of uint8 `(h, w)`, `(h, w, 3)` or `(h, w, 4)`; 'field' of floats `(h, w)`;
            'lines' of floats `(n,)` or `(n, lines)`; 'note' for a record that cannot be drawn.
        values: The values to draw.
        note: Why the record cannot be drawn.
    """

    caption: str
    kind: Kind
    values: AnyArray | None = None
    note: str = ""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Sheet:
    """Cells with a common title, scale and shape.

    Args:
        title: Name of what is drawn.
        subtitle: Counts, shapes and ranges.
        cells: One per record.
        unit: Label of the scale.
        limits: The least and the largest value on the scale.
        upwards: Whether the first row of a field lies at the bottom.
        height: Height of a cell divided by its width.
    """

    title: str
    subtitle: str
    cells: tuple[SheetCell, ...]
    unit: str
    limits: tuple[float, float]
    upwards: bool
    height: float

    @property
    def has_scale(self) -> bool:
        """Whether colours stand for values."""
        return any(cell.kind == "field" for cell in self.cells)


@dataclasses.dataclass(frozen=True, slots=True)
class SheetRequest:
    """The records and the field that a sheet shows.

    Args:
        records: Numbers of records; None for `count` records, evenly spread.
        field: The array or feature; None for the first that can be drawn.
        count: Number of records if `records` is None.
    """

    records: tuple[int, ...] | None = None
    field: str | None = None
    count: int = 16

    def numbers(self, length: int) -> list[int]:
        """Return the numbers of the records to show, out of `length` records.

        Raises:
            SourceError: If there are no records.
            ArgumentError: If a requested record does not exist.
        """
        if not length:
            raise SourceError(f"{CALLER}: there are no records to draw")
        if self.records is None:
            spread = np.linspace(0, length - 1, min(self.count, length))
            return [int(number) for number in np.unique(spread.astype(np.int64))]
        if max(self.records) >= length:
            raise ArgumentError(
                f"--records: there is no record {max(self.records):,}; choose from 0 to"
                f" {length - 1:,}"
            )
        return list(self.records)


@dataclasses.dataclass(frozen=True, slots=True)
class _SheetRecords:
    """Records of a sheet: the value of each, or the reason why it cannot be drawn as a string."""

    name: str
    captions: Sequence[str]
    values: Sequence[Any]
    records: int
    unit: str = ""
    upwards: bool = False


pictures: Final = functools.partial(optional, purpose="drawing a contact sheet", extra="pictures")
"""Imports a module of matplotlib or Pillow, as `optional` does."""


def read_sheet(inspection: Inspection, location: Location, request: SheetRequest) -> Sheet:
    """Read the records of a sheet.

    Args:
        inspection: The inspection of `location`.
        location: Where the records are.
        request: The records and the field to show.

    Raises:
        ArgumentError: If a record or the field does not exist, or cannot be drawn.
        SourceError: If there is nothing to draw.
        ReadError: If a record cannot be read.
    """
    if inspection.format == "netcdf":
        raise SourceError(
            f"{CALLER}: {inspection.url} is NetCDF, which is not drawn; convert it to Zarr first"
        )
    read = _read_arrays if inspection.arrays else _read_files
    found = read(inspection, location, request)
    cells = tuple(map(cell_of, found.captions, found.values))
    title = shortened(f"{location.name}: {found.name}" if found.name else location.name, 90)
    sheet = sheet_of(title, cells, unit=found.unit, upwards=found.upwards)
    return dataclasses.replace(sheet, subtitle=_subtitle(found, cells, sheet.limits))


def sheet_of(
    title: str, cells: tuple[SheetCell, ...], *, unit: str = "", upwards: bool = False
) -> Sheet:
    """Make a sheet from cells, with a common scale and height."""
    drawn = [cell for cell in cells if cell.values is not None]
    shapes = [
        cell.values.shape for cell in drawn if cell.values is not None and cell.kind != "lines"
    ]
    height = float(np.clip(np.median([h / w for h, w, *_ in shapes]), 0.25, 3.0)) if shapes else 0.7
    limits = limits_of(
        [c.values for c in drawn if c.values is not None and c.kind in ("field", "lines")]
    )
    return Sheet(title, "", cells, unit, limits, upwards, height)


def _subtitle(found: _SheetRecords, cells: Sequence[SheetCell], limits: tuple[float, float]) -> str:
    words = [f"{counted(len(cells), 'record')} of {found.records:,}"]
    shapes = {np.shape(value) for value in found.values if not isinstance(value, str)}
    if len(shapes) == 1:
        (shape,) = shapes
        words.append(f"each {' x '.join(map(str, shape))}")
        if cells[0].kind == "field" and len(np.squeeze(np.empty(shape, np.bool_)).shape) > 2:
            words.append("the first field is drawn")
    if any(cell.kind == "lines" for cell in cells):
        words.append(f"from {limits[0]:.6g} to {limits[1]:.6g} {found.unit}".rstrip())
    return ", ".join(words)


def limits_of(values: Sequence[AnyArray]) -> tuple[float, float]:
    """Return the range of a scale for all finite values; it is never empty."""
    finite = [array[np.isfinite(array)].clip(-_LARGEST, _LARGEST) for array in values]
    joined = np.concatenate([np.zeros(0), *finite])
    if not joined.size:
        return 0.0, 1.0
    low, high = float(joined.min()), float(joined.max())
    # A few outliers must not make all other values one colour.
    near_low, near_high = (float(value) for value in np.quantile(joined, (0.002, 0.998)))
    if near_high > near_low and high - low > 4 * (near_high - near_low):
        low, high = near_low, near_high
    if high > low:
        return low, high
    margin = abs(low) * 0.05 or 1.0
    return low - margin, low + margin


# ---- from arrays


def _read_arrays(inspection: Inspection, place: Location, request: SheetRequest) -> _SheetRecords:
    array = _chosen(inspection, request.field)
    length = array.shape[0]
    numbers = request.numbers(length)
    options = place.storage_options
    several = bool(array.name)
    labels = [
        other.name
        for other in inspection.arrays
        if several and other.holds_records and other.shape == (length,) and _is_number(other.dtype)
    ][:_CAPTIONS]
    names = list(dict.fromkeys([array.name, *labels])) if several else None
    source = ZarrDataSource(place.path, names=names, storage_options=options)
    rows = source.read(np.array(numbers, np.int64))
    columns = _flat(rows) if several else {"": rows}
    found = {item.name: item for item in arrays_of(find_arrays(place))}[array.name]
    times = _coordinate(found, 0)
    captions = [
        _caption(number, times, {name: columns[name][at] for name in labels if name != array.name})
        for at, number in enumerate(numbers)
    ]
    values = _decoded(columns[array.name], found)
    unit = array.attributes.get("units")
    what = array.attributes.get("long_name") or array.name
    return _SheetRecords(
        name=array.name,
        captions=captions,
        values=list(values),
        records=length,
        unit=shortened(f"{what} [{unit}]" if unit else str(what), 60),
        upwards=_is_upwards(found),
    )


def _chosen(inspection: Inspection, field: str | None) -> ArrayFacts:
    """Choose the array to draw."""
    drawable = [a for a in inspection.arrays if len(a.shape) > 1 and _is_number(a.dtype)]
    if field is None:
        data = [array for array in drawable if array.holds_records]
        # Pictures and fields before lines.
        data.sort(key=lambda array: len(array.shape) < 3)
        if not data:
            raise SourceError(
                f"{CALLER}: {inspection.url} has no array of records to draw: it must have numbers"
                " and at least two axes"
            )
        return data[0]
    for array in drawable:
        if array.name == field:
            return array
    names = ", ".join(array.name or "(the array)" for array in drawable) or "none"
    raise ArgumentError(f"--field {field!r} cannot be drawn; choose one of: {names}")


def _is_number(dtype: str) -> bool:
    return dtype.startswith(("bool", "int", "uint", "float", "bfloat", "complex"))


def _flat(rows: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    found = {}
    for name, value in rows.items():
        if isinstance(value, Mapping):
            found.update(_flat(value, f"{before}{name}/"))
        else:
            found[before + name] = value
    return found


def _decoded(rows: AnyArray, found: Found) -> AnyArray:
    """Decode values by the CF attributes; if these are invalid, return the stored values."""
    fill = (
        None if "node_type" in (found.metadata or {}) else (found.metadata or {}).get("fill_value")
    )
    try:
        decoding = decoding_of(found.attributes, rows.dtype, fill or None)
    except SourceError:
        return rows
    return rows if decoding is None else decoding.apply(rows)


def _coordinate(found: Found, axis: int) -> AnyArray | None:
    """Return the labels along an axis; None if it has no readable labels."""
    name = found.dims[axis] if found.dims else None
    if name is None:
        return None
    try:
        coordinate = coordinate_of(found, name)
    except WindrowError:
        return None
    return None if coordinate is None else coordinate.values


def _is_upwards(found: Found) -> bool:
    """Return whether the last axis but one is an ascending latitude."""
    if len(found.dims) < 3 or str(found.dims[-2]).lower() not in _UPWARDS:
        return False
    values = _coordinate(found, -2)
    return values is not None and len(values) > 1 and bool(values[0] < values[-1])


def _caption(number: int, times: AnyArray | None, labels: Mapping[str, Any]) -> str:
    words = [f"{number:,}"]
    if times is not None and number < len(times):
        value = times[number]
        if np.issubdtype(times.dtype, np.datetime64):
            value = np.datetime_as_string(value, unit="m").replace("T", " ")
        words.append(shortened(str(value), 24))
    words += [
        f"{name.rpartition('/')[2]} {shortened(f'{value}', 16)}" for name, value in labels.items()
    ]
    return "  ".join(words)


# ---- from files of records


def _read_files(inspection: Inspection, place: Location, request: SheetRequest) -> _SheetRecords:
    tfrecord = "tfrecord" in (inspection.format, inspection.variant.lower().rpartition(" ")[2])
    length, take = _head_of_tfrecord(place) if tfrecord else _array_record(place, inspection)
    numbers = request.numbers(length)
    found = take(numbers)
    manifest = inspection.manifest
    known = {} if manifest is None else features_in(manifest.settings)
    parsed = [_parsed(record) for record in found]
    field = (
        _field_of(parsed, known, request.field)
        if any(isinstance(p, dict) for p in parsed)
        else None
    )
    values = [_value(record, one, field, known) for record, one in zip(found, parsed, strict=True)]
    captions = [
        _caption(number, None, _labels(one, field, known))
        for number, one in zip(numbers, parsed, strict=True)
    ]
    return _SheetRecords(field or "", captions, values, length, unit=field or "")


def _array_record(
    place: Location, inspection: Inspection
) -> tuple[int, Callable[[Sequence[int]], list[bytes]]]:
    split, options = inspection.files[0].name or None, place.storage_options
    dataset = detect(place).dataset if split else None
    if split and dataset is not None:
        source = ArrayRecordDataSource(dataset.instructions(split), storage_options=options)
    else:
        source = ArrayRecordDataSource(place.path, split=split, storage_options=options)
    return len(source), lambda numbers: source.read(np.array(numbers, np.int64))


def _head_of_tfrecord(
    location: Location,
) -> tuple[int, Callable[[Sequence[int]], list[bytes]]]:
    """Return the first records of the first file, since only these can be found without an index."""
    files = detect(location).files
    file = next((one for one in files if one.size_bytes()), files[0])
    head = first_records(file, file.size_bytes())
    return len(head), lambda numbers: [head[number] for number in numbers]


def _parsed(record: bytes) -> dict[str, Any] | None:
    return example_of(record) if record[:1] == b"\n" and picture_of(record) is None else None


def _field_of(
    parsed: Sequence[dict[str, Any] | None], known: Mapping[str, Feature], field: str | None
) -> str:
    """Choose the feature to draw: pictures first, then arrays, then lists of numbers."""
    example = next(one for one in parsed if one is not None)
    if field is not None:
        if field not in example:
            raise ArgumentError(
                f"--field {field!r}: the records have no such feature; they have {sorted(example)}"
            )
        return field

    def rank(name: str) -> int:
        value = example[name]
        if isinstance(value, list):
            if value and picture_of(value[0]) is not None:
                return 0
            feature = known.get(name)
            return 1 if feature is not None and feature.raw and feature.shape else 9
        return 2 if len(value) > 1 else 9

    best = min(example, key=rank)
    if rank(best) == 9:
        raise SourceError(
            f"{CALLER}: the records have neither encoded pictures nor lists of numbers to draw; they"
            f" have {sorted(example)}"
        )
    return best


def _value(
    record: bytes, example: dict[str, Any] | None, field: str | None, known: Mapping[str, Feature]
) -> Any:
    """Return the value to draw for a record, or the reason why it cannot be drawn as a string."""
    if field is None:
        return pixels_of(record)
    if example is None:
        return "not a tf.train.Example"
    values = example.get(field)
    if isinstance(values, np.ndarray):
        feature = known.get(field)
        fits = feature is not None and feature.items == values.size and not feature.ragged
        return values.reshape(feature.item_shape) if fits and feature is not None else values
    if not values:
        return f"no {field}"
    feature = known.get(field)
    if feature is not None and feature.raw:
        try:
            flat = np.frombuffer(values[0], feature.numpy_dtype.newbyteorder("<"))
            return flat.reshape([-1 if size is None else size for size in feature.shape])
        except (ValueError, TypeError) as error:
            return f"{field}: {error}"
    return pixels_of(values[0])


def pixels_of(data: bytes) -> Any:
    """Return the pixels of an encoded picture, or the reason why it cannot be decoded as a string."""
    if picture_of(data) is None:
        return f"{counted(len(data), 'byte')}, not a picture"
    images = pictures("PIL.Image")
    try:
        with warnings.catch_warnings():
            # A few bytes may claim to hold gigabytes of pixels.
            warnings.simplefilter("error", images.DecompressionBombWarning)
            with images.open(io.BytesIO(data), formats=_FORMATS) as image:
                image.draft("RGB", (_MOST_PIXELS, _MOST_PIXELS))
                image.thumbnail((_MOST_PIXELS, _MOST_PIXELS))
                if image.mode in ("I;16", "I", "F"):  # depths and other numbers that are not shades
                    return np.asarray(image).astype(np.float64)
                mode = {"RGBA": "RGBA", "1": "L", "L": "L"}.get(image.mode, "RGB")
                return np.asarray(image.convert(mode))
    except (OSError, ValueError, SyntaxError, Warning, images.DecompressionBombError) as error:
        return f"damaged picture: {error}"


def _labels(
    example: dict[str, Any] | None, field: str | None, known: Mapping[str, Feature]
) -> dict[str, Any]:
    """Return single numbers of a record as labels of its cell."""
    found = {}
    for name in (example or {}).keys() - {field}:
        value = _value(b"", example, name, known)
        if isinstance(value, np.ndarray) and value.size == 1 and value.dtype.kind in "biuf":
            found[name] = f"{value.reshape(())[()]:.6g}"
    return dict(sorted(found.items())[:_CAPTIONS])


# ---- both


def cell_of(caption: str, value: Any) -> SheetCell:
    """Make the cell for a value: choose how to draw it."""
    if isinstance(value, str):
        return SheetCell(caption, "note", note=value)
    array = np.asarray(value)
    if array.size == 0:
        return SheetCell(caption, "note", note=f"no values: shape {array.shape}")
    if array.dtype.kind == "c":
        array = np.abs(array)
    array = _two_axes(array)
    picture = _as_picture(array)
    if picture is not None:
        return SheetCell(caption, "picture", _thinned(picture))
    # Values of 8 and 16 bits overflow in sums.
    floats = array.astype(np.float64)
    if array.ndim == 2 and not (
        array.shape[1] <= _MOST_LINES and array.shape[0] > 4 * array.shape[1]
    ):
        return SheetCell(caption, "field", _thinned(floats))
    return SheetCell(caption, "lines", _thinned(np.atleast_1d(floats), axes=1))


def _two_axes(array: AnyArray) -> AnyArray:
    """Take the first item along leading axes until a picture, a field or a line is left."""
    array = np.squeeze(array) if 1 in array.shape else array
    while array.ndim > 3 or (array.ndim == 3 and not _has_channels(array)):
        array = array[0]
    return array


def _has_channels(array: AnyArray) -> bool:
    if array.dtype.kind not in "uf" or (array.dtype.kind == "u" and array.dtype.itemsize > 1):
        return False
    last = array.shape[2] in (3, 4) and min(array.shape[:2]) > 4
    first = array.shape[0] in (3, 4) and min(array.shape[1:]) > 4 and array.dtype == np.uint8
    return last or first


def _as_picture(array: AnyArray) -> AnyArray | None:
    """Return the uint8 pixels of an array that is a picture; None for other arrays."""
    if array.ndim == 3:
        if array.shape[2] not in _CHANNELS:
            array = np.moveaxis(array, 0, 2)
        if array.dtype == np.uint8:
            return array
        floats = np.nan_to_num(array.astype(np.float64))
        # The floats of a picture range from 0 to 1, from -1 to 1, or from 0 to 255.
        low, high = float(floats.min()), float(floats.max())
        if low < 0:
            floats = (floats + 1) / 2 if low >= -1 and high <= 1 else (floats - low) / (high - low)
        elif high > 1:
            floats = floats / max(high, 255.0)
        return (np.clip(floats, 0, 1) * 255).astype(np.uint8)
    if array.ndim == 2 and array.dtype == np.bool_:
        return array.astype(np.uint8) * np.uint8(255)
    return array if array.ndim == 2 and array.dtype == np.uint8 else None


def _thinned(array: AnyArray, axes: int = 2) -> AnyArray:
    steps = tuple(slice(None, None, -(-size // _MOST_PIXELS)) for size in array.shape[:axes])
    return array[steps]
