"""Finds and reads coordinates: arrays in a store that label the axes of other arrays.

A dimension's coordinate is the array of one axis that has the dimension's name, in the group of the
array or in a group above it.

Invariants: a coordinate is read whole and decoded. Strings are never unpickled. A time that NumPy
cannot represent stays a number. A declared length is checked before memory is allocated. Arrays of
different stores are cut at the same cells only if their labels are the same there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import tensorstore as ts

from windrow.errors import SourceError
from windrow.sources.base import AnyArray
from windrow.sources.windows.cf import decoding_of, times_of
from windrow.sources.windows.declared import Dim
from windrow.sources.windows.selection import Coordinate, shown_label
from windrow.sources.zarr.find import found_array
from windrow.sources.zarr.folders import Folder, LocalFolder, MetadataLookup
from windrow.sources.zarr.metadata import attributes_of, is_v3, of_any_length, why_python
from windrow.sources.zarr.names import Found
from windrow.sources.zarr.objects import HeldArray
from windrow.sources.zarr.open_array import OpenArray, open_arrays
from windrow.sources.zarr.remote_folders import OpenedFolder, store_folder
from windrow.sources.zarr.stores import Access, side_by_side
from windrow.sources.zarr.zarr_python import PythonReader, open_python

T = TypeVar("T")

_WHAT: Final = "coordinate"
_LARGEST_LENGTH: Final = 2**27
_LARGEST_BYTES: Final = 2**30
_LARGEST_STRINGS: Final = 2**26  # characters, as an array of one width
_DEEPEST: Final = 16
# One store may hold the same latitudes as float32, and another one as float64. Without a step, the share
# of the label itself.
_OF_A_STEP: Final = 1e-2
_CLOSE: Final = 1e-6


class Coordinates:
    """The coordinates of some arrays, each sought and read once. Thread-safe."""

    def __init__(self) -> None:
        """Starts without coordinates; nothing is read yet."""
        self._outcomes: dict[tuple[Found, str], Future[Any]] = {}
        self._lock = threading.Lock()

    def of(self, found: Found, dim: str) -> Coordinate | None:
        """The coordinate of a dimension, as `coordinate_of` returns it."""
        return self._once((found, f"{dim}/"), lambda: coordinate_of(found, dim))

    def extra(self, found: Found, name: str) -> Coordinate:
        """Another coordinate along a dimension of the array, such as `valid_time` along `time`.

        Raises:
            SourceError, ReadError, MissingExtraError: As `coordinate_of` raises them.
        """
        if isinstance(found.spec, HeldArray):
            return _held(found.spec, name)
        stored = self._listed(found)[name]
        return self._once((found, name), lambda: _read(stored, str(stored.dims[0])))

    def extra_dims(self, found: Found) -> dict[str, str]:
        """The dimension of each other coordinate along a dimension of the array; values are not read.

        The attribute `coordinates` of the array, or of its group, lists these coordinates.
        """
        if isinstance(found.spec, HeldArray):
            labels = found.spec.labels.items()
            return {name: dim for name, (dim, *_) in labels if name != dim and dim in found.dims}
        return {name: str(stored.dims[0]) for name, stored in self._listed(found).items()}

    def read_ahead(self, of: Sequence[tuple[Found, str]], extra_of: Sequence[Found]) -> None:
        """Reads coordinates of remote arrays in parallel; errors are raised at their first use.

        Args:
            of: Arrays, each with a dimension.
            extra_of: Arrays whose other coordinates are listed.
        """
        calls: list[Callable[[], Any]] = [functools.partial(self.of, *one) for one in of]
        calls += [functools.partial(self._listed, found) for found in extra_of]
        side_by_side([functools.partial(_tried, call) for call in calls], wait=True)

    def _listed(self, found: Found) -> dict[str, Found]:
        return self._once((found, ""), lambda: _extra(found))

    def _once(self, key: tuple[Found, str], read: Callable[[], T]) -> T:
        with self._lock:
            begun = key in self._outcomes
            outcome: Future[T] = self._outcomes.setdefault(key, Future())
        if not begun:
            try:
                outcome.set_result(read())
            except BaseException as error:
                outcome.set_exception(error)
        return outcome.result()


def _tried(call: Callable[[], Any]) -> None:
    with contextlib.suppress(Exception):
        call()


def coordinate_of(found: Found, dim: str) -> Coordinate | None:
    """Reads the whole coordinate of dimension `dim`; None if the dimension has no coordinate.

    It is the array of one axis named `dim`, in the array's group or in a group above it.

    Raises:
        SourceError: If it cannot be read, is absurdly long, or holds Python objects.
        ReadError: If a chunk of it is damaged.
        MissingExtraError: If it holds strings and zarr-python is not installed.
    """
    if isinstance(found.spec, HeldArray):
        held = found.spec.labels.get(dim)
        return None if held is None or held[0] != dim else _held(found.spec, dim)
    stored = _in_groups(found, dim)
    if stored is None or len(stored.shape or ()) != 1 or stored.dims not in ((dim,), ()):
        return None
    return _read(stored, dim)


def _held(array: HeldArray, name: str) -> Coordinate:
    dim, values, attributes = array.labels[name]
    return Coordinate(name, (dim,), values, attributes)


def _extra(found: Found) -> dict[str, Found]:
    lists = [found.attributes.get("coordinates")]
    folder = _folder(found)
    above = None if folder is None else folder.parent()
    if above is not None:
        lists.append(_group_attributes(found, above[0]).get("coordinates"))
    listed = dict.fromkeys(name for text in lists if isinstance(text, str) for name in text.split())
    names = [name for name in listed if name not in found.dims]
    looks = [functools.partial(_in_groups, found, name) for name in names]
    extra = side_by_side(looks, wait=folder is not None and folder.local() is None)
    return {
        name: stored
        for name, stored in zip(names, extra, strict=True)
        if stored is not None and len(stored.dims) == 1 and stored.dims[0] in found.dims
    }


def _folder(found: Found) -> Folder | None:
    """The folder of an array; None for an array without one, such as a view."""
    if isinstance(found.spec, HeldArray):
        return None
    if found.folder is not None:
        return LocalFolder(found.what, found.folder)
    access = found.access or Access(found.what)
    if found.opened is not None:
        return OpenedFolder(found.what, found.opened, access)
    try:
        if found.url is not None:
            return store_folder(found.what, found.url, access)
        spec = found.spec
        if isinstance(spec, ts.TensorStore):
            kvstore = spec.kvstore
        else:
            spec = spec if isinstance(spec, ts.Spec) else ts.Spec(spec)
            kvstore = None if spec.kvstore is None else access.opened(spec.kvstore)
        return None if kvstore is None else store_folder(found.what, kvstore, access)
    except (ValueError, NotImplementedError, RuntimeError, OSError):
        return None


def _in_groups(found: Found, name: str) -> Found | None:
    """The array `name` in the group of an array, or in a group above it."""
    if not name or "/" in name or "\0" in name or name in (".", ".."):
        return None
    listed, path = found.consolidated, found.path
    while listed is not None and path:
        path = path.rpartition("/")[0]
        at = f"{path}/{name}" if path else name
        meta, zattrs = listed.nodes.get(at, ({}, None))
        if "shape" in meta:
            folder = listed.folder.child(at)
            return found_array(folder, name, meta, zattrs, consolidated=listed, path=at)
    for group in _groups(_folder(found), None if listed is None else listed.folder):
        stored = _stored(group.child(name), name)
        if stored is not None:
            return stored
    return None


def _groups(folder: Folder | None, listed: Folder | None = None) -> Iterator[Folder]:
    """The groups around an array; `listed` is the one whose consolidated metadata describe it."""
    above = None if folder is None else folder.parent()
    if listed is not None:
        above = listed.parent()
        if above is None or not _is_group(above[0]):
            return
    for _ in range(_DEEPEST):
        if above is None:
            return
        yield above[0]
        above = above[0].parent()
        if above is None or not _is_group(above[0]):
            return


def _is_group(folder: Folder) -> bool:
    look = MetadataLookup(folder)
    meta = look.metadata("zarr.json")
    if meta is not None:
        return meta.get("node_type") == "group"
    return any(look.read(key) is not None for key in (".zgroup", ".zmetadata"))


def _group_attributes(found: Found, folder: Folder) -> Mapping[str, Any]:
    """The attributes of the group of an array, which is `folder`."""
    if (listed := found.consolidated) is not None:
        group = found.path.rpartition("/")[0]
        return attributes_of(*listed.nodes.get(group, ({}, None))) if group else listed.attributes
    look = MetadataLookup(folder)
    meta = look.metadata("zarr.json")
    attributes = look.attributes() if meta is None else meta.get("attributes")
    return attributes if isinstance(attributes, dict) else {}


def _stored(folder: Folder, name: str) -> Found | None:
    look = MetadataLookup(folder)
    meta, zattrs = look.metadata("zarr.json"), None
    if meta is None:
        meta = look.metadata(".zarray")
        zattrs = None if meta is None else look.attributes()
    elif meta.get("node_type") != "array":
        return None
    if meta is None and look.refused is not None:
        raise look.refused  # otherwise labels would be taken for cells
    return None if meta is None else found_array(folder, name, meta, zattrs)


def _read(stored: Found, dim: str) -> Coordinate:
    length = (stored.shape or (0,))[0]
    if length > _LARGEST_LENGTH:
        raise SourceError(
            f"{_WHAT} {stored.name!r} in {stored.where} declares {length:,} values; at most"
            f" {_LARGEST_LENGTH:,} are read. Write its metadata again, or select by position"
        )
    try:
        values = _values(dataclasses.replace(stored, name=""))
    except SourceError as error:
        raise SourceError(f"{_WHAT} {stored.name!r} cannot be read: {error}") from error
    if values.dtype.kind in "SUO":
        values = _strings(values)
    elif values.dtype.kind not in "mM":
        values = _decoded(values, stored)
    return Coordinate(stored.name, (dim,), values, stored.attributes)


def _values(array: Found) -> AnyArray:
    """Reads the values as they are stored."""
    meta = array.metadata or {}
    if of_any_length(meta):
        python = open_python(array, why_python(meta))
        return PythonReader(python).read(np.arange(python.shape[0], dtype=np.int64))
    part = open_arrays(array.what, [array])[0].part
    if part.rows * part.row_bytes > _LARGEST_BYTES:
        raise SourceError(
            f"{array.where} declares {part.rows:,} values of {part.dtype}, more than"
            f" {_LARGEST_BYTES:,} bytes; write its metadata again, or select by position"
        )
    found: AnyArray = part.read(np.arange(part.rows, dtype=np.int64))
    return found


def _decoded(values: AnyArray, stored: Found) -> AnyArray:
    """Decodes numbers, and times, as in xarray; returns `values` itself if nothing changes."""
    fill = (stored.metadata or {}).get("fill_value") if not is_v3(stored.metadata or {}) else None
    if isinstance(fill, int | float) and fill == 0:
        fill = None  # Zarr's default does not mark missing values: positions and times begin there
    decoding = decoding_of(stored.attributes, values.dtype, fill)
    times = times_of(values, stored.attributes, decoding, stored.name)
    if times is not None:
        return times
    found = values if decoding is None else decoding.apply(values)
    return found.astype(np.float32) if found.dtype.kind == "V" else found


def _strings(values: AnyArray) -> AnyArray:
    """Strings as an array of one width, or as objects if one is far longer than the others."""
    if values.dtype.kind == "U":
        return values
    strings = [_string(value) for value in values.tolist()]
    if len(strings) * max(map(len, strings), default=0) <= _LARGEST_STRINGS:
        return np.array(strings, dtype=np.str_)
    found = np.empty(len(strings), dtype=object)
    found[:] = strings
    return found


def _string(value: str | bytes | None) -> str:
    if not isinstance(value, bytes):
        return value or ""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


# --- labels of several arrays ----------------------------------------------------------------------


def coordinate_along(
    dim: Dim,
    opened: Sequence[OpenArray],
    names: Sequence[tuple[Dim, ...]],
    used: Sequence[int],
    known: Coordinates,
) -> Coordinate | None:
    """The coordinate of a dimension, from the first array with a fitting one; else None."""
    if isinstance(dim, int):
        return None
    for number in used:
        if dim in names[number]:
            found = known.of(opened[number].found, dim)
            length = opened[number].shape[names[number].index(dim)]
            if found is not None and len(found.values) == length:
                return found
    return None


def check_labels(
    opened: Sequence[OpenArray],
    names: Sequence[tuple[Dim, ...]],
    used: Sequence[int],
    known: Coordinates,
) -> None:
    """Checks that arrays of different groups have the same labels along dimensions of one name.

    Arguments are as for `coordinate_along`. Dimensions without coordinates are not compared.

    Raises:
        SourceError: If labels differ.
    """
    # The first array of each group that has a dimension.
    firsts: dict[tuple[str, str], int] = {}
    for number in used:
        found = opened[number].found
        held = isinstance(found.spec, HeldArray)
        group = str(number) if held else found.where.rstrip("/").rpartition("/")[0]
        for dim in names[number]:
            if isinstance(dim, str):
                firsts.setdefault((group, dim), number)
    if len({group for group, _ in firsts}) < 2:
        return
    remote = [(n, dim) for (_, dim), n in firsts.items() if opened[n].is_remote_source]
    known.read_ahead([(opened[number].found, dim) for number, dim in remote], [])
    seen: dict[str, tuple[Coordinate, int]] = {}
    for (_, dim), number in firsts.items():
        labels = coordinate_along(dim, opened, names, [number], known)
        if labels is not None:
            first, other = seen.setdefault(dim, (labels, number))
            same = _same(first.values, labels.values)
            if not same.all():
                cell = int(np.argmin(same))
                both = [shown_label(each.values[cell]) for each in (first, labels)]
                raise SourceError(
                    f"WindowDataSource: the stores differ in the labels of {dim!r}\n"
                    f"  {opened[other].name}: {first.range}\n"
                    f"  {opened[number].name}: {labels.range}\n"
                    f"  cell {cell:,} is {both[0]} in one and {both[1]} in the other\n"
                    "Select the same labels in a source of each and zip these, or name the axes apart"
                    " with dims=."
                )


def _same(one: AnyArray, other: AnyArray) -> npt.NDArray[np.bool_]:
    """Which labels are equal; floats up to a hundredth of the smallest step between them."""
    kinds = {one.dtype.kind, other.dtype.kind}
    if "f" in kinds and kinds <= set("iuf"):
        steps = np.abs(np.diff(one.astype(np.float64)))
        steps = steps[steps > 0]
        close = _OF_A_STEP * float(steps.min()) if len(steps) else 0.0
        return np.isclose(one, other, rtol=0 if close else _CLOSE, atol=close, equal_nan=True)
    if kinds == {"M"}:
        return np.asarray((one == other) | (np.isnat(one) & np.isnat(other)))
    return np.broadcast_to(np.asarray(one == other), one.shape)
