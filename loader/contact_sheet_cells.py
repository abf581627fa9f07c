"""What a contact sheet shows: which records, which of their arrays, and how each is drawn.

Invariants: cells come in the order of the records asked for; values are those of the records,
decoded by the CF attributes of their array; nothing is drawn here.
"""

from __future__ import annotations

import dataclasses
import importlib
import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from windrow.errors import ArgumentError, ReadError, SourceError, WindrowError, missing_extra
from windrow.inspection_arrays import find_arrays
from windrow.inspection_content import example_of, picture_of
from windrow.inspection_facts import ArrayFacts, Inspection, counted, shortened
from windrow.inspection_place import WHAT, Place, place_of
from windrow.inspection_records import head_records
from windrow.opening import dataset_at
from windrow.sources.array_record import ArrayRecordDataSource
from windrow.sources.cf import decoding_of
from windrow.sources.coordinates import coordinate_of
from windrow.sources.features import Feature, features_from_json
from windrow.sources.zarr import ZarrDataSource
from windrow.sources.zarr_names import Found, arrays_of

AnyArray = npt.NDArray[Any]
Kind = Literal["picture", "field", "lines", "note"]

# Longer axes are drawn by every second, third, ... value.
_MOST_PIXELS: Final = 1024
_MOST_LINES: Final = 8
_CHANNELS: Final = (1, 3, 4)
_CAPTIONS: Final = 2
# Ranges of larger values are infinite.
_LARGEST: Final = 1e300
_FORMATS: Final = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
_UPWARDS: Final = ("lat", "latitude", "y", "northing")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """A record as it is drawn.

    Args:
        caption: Its number, and what labels it.
        kind: 'picture' of uint8 `(h, w)`, `(h, w, 3)` or `(h, w, 4)`; 'field' of floats `(h, w)`;
            'lines' of floats `(n,)` or `(n, lines)`; 'note' for one that can not be drawn.
        values: What is drawn.
        note: Why it can not be drawn.
    """

    caption: str
    kind: Kind
    values: AnyArray | None = None
    note: str = ""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Sheet:
    """Cells, and what they have in common.

    Args:
        title: What is drawn.
        subtitle: The same in numbers.
        cells: One per record.
        unit: What values are of, for a scale.
        limits: The least and the largest value on the scale.
        upwards: Whether the first row of a field lies at the bottom.
        height: Of a cell, by its width.
    """

    title: str
    subtitle: str
    cells: tuple[Cell, ...]
    unit: str
    limits: tuple[float, float]
    upwards: bool
    height: float

    @property
    def has_scale(self) -> bool:
        """Whether colours stand for values."""
        return any(cell.kind == "field" for cell in self.cells)


@dataclasses.dataclass(frozen=True, slots=True)
class _Read:
    """Records that were read: `values` by record, or an error in its place."""

    name: str
    captions: Sequence[str]
    values: Sequence[Any]
    records: int
    unit: str = ""
    upwards: bool = False


def pictures(module: str) -> Any:
    """A module of matplotlib or Pillow.

    Raises:
        MissingExtraError: If it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise missing_extra("drawing a contact sheet", "pictures") from error


def read_sheet(
    inspection: Inspection,
    url: str,
    *,
    records: Sequence[int] | None,
    count: int,
    field: str | None,
    storage_options: Mapping[str, Any] | None,
) -> Sheet:
    """Read the records of a sheet.

    Args:
        inspection: What is at `url`.
        url: Where they are.
        records: Which; None for `count` of them, evenly spread.
        count: How many.
        field: The array or feature; None for the first that can be drawn.
        storage_options: For URLs.

    Raises:
        ArgumentError: If a record or the field is not there, or can not be drawn.
        SourceError: If there is nothing to draw.
        ReadError: If a record can not be read.
    """
    place = place_of(url, storage_options)
    if inspection.format == "netcdf":
        raise SourceError(
            f"{WHAT}: {inspection.url} is NetCDF, which is not drawn; convert it to Zarr first"
        )
    if inspection.arrays:
        found = _of_arrays(inspection, place, records, count, field)
    else:
        found = _of_files(inspection, place, records, count, field)
    cells = tuple(map(cell_of, found.captions, found.values))
    title = shortened(f"{place.name}: {found.name}" if found.name else place.name, 90)
    sheet = sheet_of(title, cells, unit=found.unit, upwards=found.upwards)
    return dataclasses.replace(sheet, subtitle=_subtitle(found, cells, sheet.limits))


def sheet_of(
    title: str, cells: tuple[Cell, ...], *, unit: str = "", upwards: bool = False
) -> Sheet:
    """Cells with a common scale and height."""
    drawn = [cell for cell in cells if cell.values is not None]
    shapes = [
        cell.values.shape for cell in drawn if cell.values is not None and cell.kind != "lines"
    ]
    height = float(np.clip(np.median([h / w for h, w, *_ in shapes]), 0.25, 3.0)) if shapes else 0.7
    limits = limits_of(
        [c.values for c in drawn if c.values is not None and c.kind in ("field", "lines")]
    )
    return Sheet(title, "", cells, unit, limits, upwards, height)


def _subtitle(found: _Read, cells: Sequence[Cell], limits: tuple[float, float]) -> str:
    told = [f"{counted(len(cells), 'record')} of {found.records:,}"]
    shapes = {np.shape(value) for value in found.values if not isinstance(value, str)}
    if len(shapes) == 1:
        (shape,) = shapes
        told.append(f"each {' x '.join(map(str, shape))}")
        if cells[0].kind == "field" and len(np.squeeze(np.empty(shape, np.bool_)).shape) > 2:
            told.append("of which the first field is drawn")
    if any(cell.kind == "lines" for cell in cells):
        told.append(f"from {limits[0]:.6g} to {limits[1]:.6g} {found.unit}".rstrip())
    return ", ".join(told)


def limits_of(values: Sequence[AnyArray]) -> tuple[float, float]:
    """The range that a scale shows: of all finite values, and never empty."""
    finite = [array[np.isfinite(array)].clip(-_LARGEST, _LARGEST) for array in values]
    joined = np.concatenate([np.zeros(0), *finite])
    if not joined.size:
        return 0.0, 1.0
    low, high = float(joined.min()), float(joined.max())
    # One value that is far off must not make all others one colour.
    near_low, near_high = (float(value) for value in np.quantile(joined, (0.002, 0.998)))
    if near_high > near_low and high - low > 4 * (near_high - near_low):
        low, high = near_low, near_high
    if high > low:
        return low, high
    margin = abs(low) * 0.05 or 1.0
    return low - margin, low + margin


# ---- from arrays


def _of_arrays(
    inspection: Inspection,
    place: Place,
    records: Sequence[int] | None,
    count: int,
    field: str | None,
) -> _Read:
    array = _chosen(inspection, field)
    length = array.shape[0]
    numbers = _numbers_of(records, count, length)
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
    return _Read(
        name=array.name,
        captions=captions,
        values=list(values),
        records=length,
        unit=shortened(f"{what} [{unit}]" if unit else str(what), 60),
        upwards=_is_upwards(found),
    )


def _chosen(inspection: Inspection, field: str | None) -> ArrayFacts:
    """The array to draw."""
    drawable = [a for a in inspection.arrays if len(a.shape) > 1 and _is_number(a.dtype)]
    if field is None:
        data = [array for array in drawable if array.holds_records]
        # Pictures and fields before lines.
        data.sort(key=lambda array: len(array.shape) < 3)
        if not data:
            raise SourceError(
                f"{WHAT}: {inspection.url} has no array of records to draw: of numbers, with two"
                " axes or more"
            )
        return data[0]
    for array in drawable:
        if array.name == field:
            return array
    names = ", ".join(array.name or "(the array)" for array in drawable) or "none"
    raise ArgumentError(f"--field {field!r}: can not be drawn; what can: {names}")


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
    """Values by CF; as stored where the attributes can not be meant."""
    fill = (
        None if "node_type" in (found.metadata or {}) else (found.metadata or {}).get("fill_value")
    )
    try:
        decoding = decoding_of(found.attributes, rows.dtype, fill or None)
    except SourceError:
        return rows
    return rows if decoding is None else decoding.apply(rows)


def _coordinate(found: Found, axis: int) -> AnyArray | None:
    """Labels along an axis; None where there are none that can be read."""
    name = found.dims[axis] if found.dims else None
    if name is None:
        return None
    try:
        coordinate = coordinate_of(found, name)
    except WindrowError:
        return None
    return None if coordinate is None else coordinate.values


def _is_upwards(found: Found) -> bool:
    """Whether the last axis but one is a latitude that ascends."""
    if len(found.dims) < 3 or str(found.dims[-2]).lower() not in _UPWARDS:
        return False
    values = _coordinate(found, -2)
    return values is not None and len(values) > 1 and bool(values[0] < values[-1])


def _caption(number: int, times: AnyArray | None, labels: Mapping[str, Any]) -> str:
    told = [f"{number:,}"]
    if times is not None and number < len(times):
        value = times[number]
        if np.issubdtype(times.dtype, np.datetime64):
            value = np.datetime_as_string(value, unit="m").replace("T", " ")
        told.append(shortened(str(value), 24))
    told += [
        f"{name.rpartition('/')[2]} {shortened(f'{value}', 16)}" for name, value in labels.items()
    ]
    return "  ".join(told)


# ---- from files of records


def _of_files(
    inspection: Inspection,
    place: Place,
    records: Sequence[int] | None,
    count: int,
    field: str | None,
) -> _Read:
    tfrecord = "tfrecord" in (inspection.format, inspection.variant.lower().rpartition(" ")[2])
    read = _head_of_tfrecord(place, inspection) if tfrecord else _array_record(place, inspection)
    length, take = read
    numbers = _numbers_of(records, count, length)
    found = take(numbers)
    known = _features(inspection)
    parsed = [_parsed(record) for record in found]
    field = _field_of(parsed, known, field) if any(isinstance(p, dict) for p in parsed) else None
    values = [_value(record, one, field, known) for record, one in zip(found, parsed, strict=True)]
    captions = [
        _caption(number, None, _labels(one, field, known))
        for number, one in zip(numbers, parsed, strict=True)
    ]
    return _Read(field or "", captions, values, length, unit=field or "")


def _array_record(
    place: Place, inspection: Inspection
) -> tuple[int, Callable[[Sequence[int]], list[bytes]]]:
    split, options = inspection.files[0].name or None, place.storage_options
    names = place.names.names_in(place.path) if split else []
    dataset = dataset_at(place, names, what=WHAT) if split else None
    if split and dataset is not None:
        source = ArrayRecordDataSource(dataset.instructions(split), storage_options=options)
    else:
        source = ArrayRecordDataSource(place.path, split=split, storage_options=options)
    return len(source), lambda numbers: source.read(np.array(numbers, np.int64))


def _head_of_tfrecord(
    place: Place, inspection: Inspection
) -> tuple[int, Callable[[Sequence[int]], list[bytes]]]:
    """The first records of the first file: nothing tells where the others lie."""
    file = place
    if inspection.variant != "file":
        names = [n for n in place.names.names_in(place.path) if ".tfrec" in n.lower()]
        found = [place.child(name) for name in names]
        if not found:
            found = [place.at(path) for path in place.names.glob(place.path)]
        file = next((one for one in found if one.size_bytes()), found[0])
    head = [data for _, data in head_records(file, file.size_bytes())]
    return len(head), lambda numbers: [head[number] for number in numbers]


def _features(inspection: Inspection) -> Mapping[str, Feature]:
    told = inspection.manifest.settings.get("features") if inspection.manifest is not None else None
    try:
        return features_from_json(told, where="manifest") if isinstance(told, dict) else {}
    except ReadError:
        return {}


def _parsed(record: bytes) -> dict[str, Any] | None:
    return example_of(record) if record[:1] == b"\n" and picture_of(record) is None else None


def _field_of(
    parsed: Sequence[dict[str, Any] | None], known: Mapping[str, Feature], field: str | None
) -> str:
    """The feature to draw: pictures first, then arrays, then lists of numbers."""
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
            f"{WHAT}: the records have nothing to draw, no encoded pictures and no lists of"
            f" numbers: {sorted(example)}"
        )
    return best


def _value(
    record: bytes, example: dict[str, Any] | None, field: str | None, known: Mapping[str, Feature]
) -> Any:
    """What is drawn of a record, or the words for why not."""
    if field is None:
        return pixels_of(record)
    if example is None:
        return "no tf.train.Example"
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
    """The pixels of an encoded picture, or the words for why there are none."""
    if picture_of(data) is None:
        return f"{counted(len(data), 'byte')}, no picture"
    images = pictures("PIL.Image")
    try:
        with warnings.catch_warnings():
            # A few bytes may say that they are gigabytes of pixels.
            warnings.simplefilter("error", images.DecompressionBombWarning)
            with images.open(io.BytesIO(data), formats=_FORMATS) as image:
                image.draft("RGB", (_MOST_PIXELS, _MOST_PIXELS))
                image.thumbnail((_MOST_PIXELS, _MOST_PIXELS))
                if image.mode in ("I;16", "I", "F"):  # depths and the like: numbers, no shades
                    return np.asarray(image).astype(np.float64)
                mode = {"RGBA": "RGBA", "1": "L", "L": "L"}.get(image.mode, "RGB")
                return np.asarray(image.convert(mode))
    except (OSError, ValueError, SyntaxError, Warning, images.DecompressionBombError) as error:
        return f"damaged picture: {error}"


def _labels(
    example: dict[str, Any] | None, field: str | None, known: Mapping[str, Feature]
) -> dict[str, Any]:
    """Single numbers beside what is drawn."""
    found = {}
    for name in (example or {}).keys() - {field}:
        value = _value(b"", example, name, known)
        if isinstance(value, np.ndarray) and value.size == 1 and value.dtype.kind in "biuf":
            found[name] = f"{value.reshape(())[()]:.6g}"
    return dict(sorted(found.items())[:_CAPTIONS])


# ---- both


def _numbers_of(records: Sequence[int] | None, count: int, length: int) -> list[int]:
    if not length:
        raise SourceError(f"{WHAT}: there are no records to draw")
    if records is None:
        spread = np.linspace(0, length - 1, min(count, length))
        return [int(number) for number in np.unique(spread.astype(np.int64))]
    if max(records) >= length:
        raise ArgumentError(
            f"--records: there is no record {max(records):,}; choose from 0 to {length - 1:,}"
        )
    return list(records)


def cell_of(caption: str, value: Any) -> Cell:
    """How a value is drawn."""
    if isinstance(value, str):
        return Cell(caption, "note", note=value)
    array = np.asarray(value)
    if array.size == 0:
        return Cell(caption, "note", note=f"no values: shape {array.shape}")
    if array.dtype.kind == "c":
        array = np.abs(array)
    array = _two_axes(array)
    picture = _as_picture(array)
    if picture is not None:
        return Cell(caption, "picture", _thinned(picture))
    # Values of 8 and 16 bits overflow where they are added up.
    floats = array.astype(np.float64)
    if array.ndim == 2 and not (
        array.shape[1] <= _MOST_LINES and array.shape[0] > 4 * array.shape[1]
    ):
        return Cell(caption, "field", _thinned(floats))
    return Cell(caption, "lines", _thinned(np.atleast_1d(floats), axes=1))


def _two_axes(array: AnyArray) -> AnyArray:
    """The first of what lies along leading axes, until a picture, a field or a line is left."""
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
    """The pixels of an array that is a picture, uint8."""
    if array.ndim == 3:
        if array.shape[2] not in _CHANNELS:
            array = np.moveaxis(array, 0, 2)
        if array.dtype == np.uint8:
            return array
        floats = np.nan_to_num(array.astype(np.float64))
        # Floats of pictures are from 0 to 1, from -1 to 1, or from 0 to 255.
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
