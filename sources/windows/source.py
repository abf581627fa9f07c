"""Reads windows of arrays as records: patches of a grid, offsets along an axis, or listed places.

Invariants: all fields of a record have the same origin. The cells of a record follow from its index
alone. Cells that may not be read are padded, or the record does not exist.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from windrow.core import buffer_pool
from windrow.core.process import refuse_forked
from windrow.errors import ArgumentError, SourceError
from windrow.sources.base import AnyArray, ArraySpec, Columns, IntArray, checked_indices
from windrow.sources.boxes import BoxPart
from windrow.sources.cells import Boxes, numbered
from windrow.sources.chunks import ArrayPart, Blocks, LaidOutSource
from windrow.sources.remote.options import RemoteOptions
from windrow.sources.windows.cf import Decoding, decoding_of
from windrow.sources.windows.coordinates import Coordinates
from windrow.sources.windows.datasets import as_dataset, variables_of
from windrow.sources.windows.fields import TakenField
from windrow.sources.windows.levels import LevelChooser
from windrow.sources.windows.parts import WindowParts, blocks_of, parts_of
from windrow.sources.windows.plan import planned
from windrow.sources.windows.window_coordinates import window_coordinates
from windrow.sources.zarr.levels import Resolution
from windrow.sources.zarr.missing import Missing
from windrow.sources.zarr.objects import HeldArray
from windrow.sources.zarr.open_array import LIBRARY, OpenArray
from windrow.sources.zarr.source import ArrayTree, OverTree, taken
from windrow.sources.zarr.stores import side_by_side

if TYPE_CHECKING:
    import xarray

_WHAT: Final = "WindowDataSource"
_SHOWN_FIELDS: Final = 4
_SHOWN_CHARACTERS: Final = 300


class WindowDataSource(OverTree, LaidOutSource):
    """Windows of one or several Zarr arrays: by grid, by offsets along an axis, or by location.

    Example:
        >>> import numpy as np, tempfile, tensorstore as ts
        >>> from windrow.sources import Field, Window, WindowDataSource
        >>> folder = tempfile.mkdtemp()
        >>> spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": folder}}
        >>> store = ts.open(
        ...     spec, create=True, dtype=ts.float32, shape=[24, 4, 6],
        ...     dimension_units=[None] * 3, domain=ts.IndexDomain(labels=["time", "lat", "lon"], shape=[24, 4, 6]),
        ... ).result()
        >>> store[...] = np.arange(24, dtype="f4")[:, None, None]
        >>> len(WindowDataSource(folder, {"time": Window(3, 1), "lat": 2}))
        44
        >>> inputs = Field(offsets={"time": [-12, -6, 0]})
        >>> source = WindowDataSource(folder, fields={"x": inputs, "y": Field(offsets={"time": 6})})
        >>> source[0]["x"][:, 0, 0].tolist(), source[0]["y"].shape
        ([0.0, 6.0, 12.0], (4, 6))
    """

    def __init__(
        self,
        arrays: Any,
        windows: Mapping[Any, Any] | None = None,
        *,
        fields: Mapping[str, Any] | None = None,
        centers: Any = None,
        fill: Any = 0,
        dims: Any = None,
        names: Sequence[str] | None = None,
        resolution: Resolution | None = None,
        coordinates: bool | Sequence[str] = False,
        decode: Any = False,
        direct: bool | None = None,
        storage_options: Mapping[str, Any] | None = None,
        remote: RemoteOptions | None = None,
        missing: Missing = "fill",
    ) -> None:
        """Opens the arrays; reads metadata and coordinates, but no values.

        A dimension is given by its name, or by the number of the axis. Windows have the whole of a
        dimension that nothing is said of.

        Args:
            arrays: As for `ZarrDataSource`.
            windows: What windows have along each dimension: their size in cells (`{"time": 3}`) or
                in time (`"1D"`); a slice of labels that bounds what they read, or a list of slices;
                or a `Window`, which says all else: strides, padding, labels, origins.
            fields: Fields of a record by name: a `Field`, or the name of an array. By default
                every array, under its own name; a single array's windows are the records.
            centers: Integers `(n, dims)`, one column for each dimension of `windows` with a size, in
                that order: record `i` is the window around the cell `centers[i]`, which has the
                place `size // 2` in it. Any integer array, memory-mapped too; it is not copied.
            fill: Value of constant padding, in the dtype delivered.
            dims: Names of the axes if the store has no names, or in place of its names: a tuple, or
                a dict of tuples by array.
            names: Names of the arrays of a group to open, as for `ZarrDataSource`.
            resolution: The level of a volume at several resolutions, OME-Zarr or precomputed: its name,
                or the size of a cell along some axes, `{"x": "32nm"}`, or as a number in the unit of
                the store. By default the finest one. A `Field` may name a level as its array.
            coordinates: Whether a record has the coordinates of its window too, under the names of
                the dimensions (`x_time` for a field `x` where fields differ along `time`); or the
                names of coordinates. Outside of the array they are NaN or NaT.
            decode: Whether to apply `scale_factor` and `add_offset` and to turn fill values into
                NaN, by the attributes of the CF conventions. True gives the dtype that xarray
                chooses, often float64; a float dtype, such as 'float32', is used in its place.
            direct: As for `ZarrDataSource`.
            storage_options: As for `ZarrDataSource`.
            remote: As for `ZarrDataSource`.
            missing: As for `ZarrDataSource`.

        Raises:
            ArgumentError: If an argument is of a wrong kind, or names an unknown dimension or array.
            NotFoundError: If `arrays` does not exist.
            SourceError: If a size or stride is below 1, no window fits, arrays differ in length
                along a dimension, a label does not exist; and where `ZarrDataSource` raises it.
            RecordIndexError: If a center is not a cell of the arrays.
            ConversionError: If the conversion that writes the folder has not finished.
            ReadError: If this process was forked from one that had used TensorStore, or coordinates
                cannot be read.
        """
        wanted = _float_dtype(decode)
        arrays, names, access = taken(
            _WHAT, arrays, names, storage_options, remote, decode=decode is not False
        )
        levels = LevelChooser(resolution, fields)
        self._tree = ArrayTree(
            _WHAT, arrays, direct=direct, names=names, access=access, choose=levels, missing=missing
        )
        opened = self._tree.open()
        known = Coordinates()
        self._plan = planned(
            opened,
            known,
            windows=windows,
            fields=levels.fields,
            centers=centers,
            dims=dims,
            labelled=coordinates is not False,
        )
        self._named = fields is not None
        self._decodings = tuple(
            None if decode is False else _decoding(opened[field.number], wanted)
            for field in self._plan.taken
        )
        self._fill = self._checked_fill(opened, fill)
        self._coordinates = window_coordinates(
            opened,
            self._plan,
            coordinates,
            known=known,
            own_name=self._tree.own_name,
        )
        self._variables = variables_of(
            opened, self._plan, self._coordinates, self._tree.own_name, decoded=decode is not False
        )
        self._whole: WindowDataSource | None = None  # where this one reads parts of another
        self._forget()
        self._tree.expect_answers()

    def narrowed(self, boxes: Boxes) -> WindowDataSource:
        """The source that reads only these boxes of the leaves of records."""
        count, plan = len(self._plan.taken), self._plan
        numbers = numbered(self._in_tree(list(range(count + len(self._coordinates)))))
        by_number = {numbers[path]: box for path, box in boxes.items()}
        made = copy.copy(self)
        made._whole = self._whole or self
        made._plan = dataclasses.replace(
            plan, taken=tuple(f.within(by_number.get(k)) for k, f in enumerate(plan.taken))
        )
        made._coordinates = tuple(
            coordinate.within(by_number.get(k))
            for k, coordinate in enumerate(self._coordinates, count)
        )
        made._forget()
        return made

    def __getstate__(self) -> dict[str, Any]:
        opened = ("_parts", "_still", "_lock")
        return {name: value for name, value in self.__dict__.items() if name not in opened}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def _forget(self) -> None:
        self._parts: WindowParts | None = None
        self._still: dict[int, AnyArray] = {}  # values of the fields that do not move
        self._lock = threading.Lock()

    def _checked_fill(self, opened: Sequence[OpenArray], fill: Any) -> Any:
        """The value of constant padding, checked against the dtype of every field; else 0."""
        if "constant" not in self._plan.pads.values():
            return 0
        for field, decoding in zip(self._plan.taken, self._decodings, strict=True):
            dtype = opened[field.number].dtype if decoding is None else decoding.dtype
            if field.moves:  # others never reach out of the array
                _check_fill(fill, dtype, field.name)
        return _plain(fill)

    def __len__(self) -> int:
        return len(self._plan.origins)

    def __repr__(self) -> str:
        shown = ", ".join(
            (f"{name}: " if name else "") + _shown(spec)
            for name, spec in list(self._specs().items())[:_SHOWN_FIELDS]
        )
        more = len(self._plan.taken) + len(self._coordinates) - _SHOWN_FIELDS
        shown += f" and {more} more fields" if more > 0 else ""
        left = self._plan.origins.left
        padding = f", {self._plan.pad_label} padding" if self._plan.pads else ""
        return (
            f"{_WHAT}({len(self):,} windows of {shown}{f', {left}' if left else ''}{padding}"
            f" in {self._tree.place})"
        )

    @property
    def fingerprint(self) -> str:
        """The cells of each record; names, dtypes, shapes and chunks of the arrays."""
        if self._whole is not None:
            return self._whole.fingerprint
        plan = self._plan
        cut = [plan.origins.label, *(field.label for field in plan.taken)]
        cut += [f"{dim} in [{r.start}, {r.stop})" for dim, r in plan.ranges.items()]
        # NumPy prints numbers differently in different versions.
        cut += [
            f"{plan.pad_label} {self._fill}" if plan.pads else "None",
            *(f"{k}: {d.label}" for k, d in enumerate(self._decodings) if d),
        ]
        cut += [coordinate.label for coordinate in self._coordinates]
        text = "; ".join(cut)
        if len(text) > _SHOWN_CHARACTERS:
            digest = hashlib.sha256(text.encode()).hexdigest()[:16]
            text = f"{len(self)} windows, sha256:{digest}"
        return f"windows({text}; {self._tree.facts})"

    @property
    def spec(self) -> Any:
        """Shape, dtype and dimensions of each field of a record."""
        return self._in_tree(list(self._specs().values()))

    def _specs(self) -> dict[str, ArraySpec]:
        opened = self._tree.open()
        found: dict[str, ArraySpec] = {}
        for field, decoding in zip(self._plan.taken, self._decodings, strict=True):
            dtype = opened[field.number].dtype if decoding is None else decoding.dtype
            dims = tuple(None if isinstance(dim, int) else dim for dim in field.dims)
            found[field.name] = ArraySpec(field.shape, dtype, dims)
        return {**found, **{item.name: item.spec for item in self._coordinates}}

    # --- layout ----------------------------------------------------------------------------------

    @property
    def parts(self) -> Sequence[BoxPart | ArrayPart]:
        """One part per array along which windows move; chunks are its chunks.

        Raises:
            ReadError: If this process was forked from one that had used TensorStore.
        """
        refuse_forked(LIBRARY, _WHAT)
        return self._laid_out().parts

    def _laid_out(self) -> WindowParts:
        found = self._parts
        if found is None:
            # Decoded fields get their padding in `_decoded`.
            fills = [0 if decoding else self._fill for decoding in self._decodings]
            found = self._parts = parts_of(self._tree.open(), self._plan, fills)
        return found

    def blocks(self) -> IntArray | Blocks:
        """Groups windows by the chunk in which they begin, in the array with the largest chunks.

        Only arrays with an eighth of a record's bytes or more count. Where windows are longer than
        the array's chunks, a block is several chunks: for 8 windows side by side, or up to 16 MiB
        of chunks, so that blocks share few of them.
        """
        if self._whole is not None:  # orders stay as they are
            return self._whole.blocks()
        found = blocks_of(self._laid_out(), self._plan)
        return found.bounds if found.records is None else found

    def still_parts(self) -> Sequence[BoxPart]:
        """The arrays whose cells are the same in all records; see `scan.Repeating`."""
        opened, taken = self._tree.open(), self._plan.taken
        still = [field for field in taken if not field.moves and 0 not in field.shape]
        return [
            opened[number].box_part(
                _beginning(len(opened[number].shape)),
                tuple(field.box_field() for field in still if field.number == number),
            )
            for number in sorted({field.number for field in still})
        ]

    # --- values ----------------------------------------------------------------------------------

    def read(self, indices: IntArray) -> Columns:
        """Reads the windows at `indices` as arrays `(n, ...)` in the tree of a record.

        Raises:
            ReadError: If a chunk cannot be read; the message names array and file. Or if this
                process was forked from one that had used TensorStore.
        """
        refuse_forked(LIBRARY, _WHAT)
        wanted = checked_indices(indices, len(self), _WHAT)
        reads = [functools.partial(part.read, wanted) for part in self._laid_out().parts]
        return self.assembled(side_by_side(reads, wait=self.is_remote_source), wanted)

    def assembled(self, columns: Sequence[Any], indices: IntArray) -> Columns:
        """Builds the tree of `read` from one column per part."""
        plan, laid_out = self._plan, self._laid_out()
        found: list[Any] = []
        for k, field in enumerate(plan.taken):
            place = laid_out.places.get(k)
            if place is None:
                values = self._repeated(k, len(indices))
            else:
                number, at = place
                values = columns[number] if at is None else columns[number][at]
                values = values.reshape(len(indices), *field.shape)
            found.append(self._decoded(k, values, indices))
        found += [coordinate.of(indices, plan.origins) for coordinate in self._coordinates]
        return self._in_tree(found)

    def to_xarray(self, batch: Any, *, dim: str = "sample") -> xarray.Dataset:
        """A record or a batch of this source as an `xarray.Dataset`, with dimensions and attributes.

        It has coordinates if the source has `coordinates`. Those that all windows share are indexes;
        those that windows differ in have the dimension of the samples too: `time (sample, time)`. Where
        fields differ along a dimension, it has the field's name: `x_time`. Values are not copied. It
        is also a function for `map` after `batch`.

        Args:
            batch: A record, or a batch; shuffled, scaled, or with some arrays only.
            dim: Name of the axis of the samples.

        Raises:
            ElementError: If an array does not fit the records of the source.
            MissingExtraError: If xarray is not installed.

        Example:
            >>> import numpy as np
            >>> from windrow.sources import WindowDataSource
            >>> windows = WindowDataSource(np.arange(12), {"x": 3}, dims=("x",))
            >>> dict(windows.to_xarray(windows.read(np.array([2, 0]))).sizes)
            {'sample': 2, 'x': 3}
        """
        tree = self._in_tree(list(range(len(self._variables))))
        return as_dataset(batch, tree, self._variables, dim)

    def _in_tree(self, leaves: list[Any]) -> Any:
        count = len(self._plan.taken)
        if self._named:
            tree: Any = {field.name: leaves[k] for k, field in enumerate(self._plan.taken)}
        else:
            tree = self._tree.assembled(leaves[:count])
        if not self._coordinates:
            return tree
        if not isinstance(tree, dict):
            tree = {self._tree.own_name: tree}
        names = [coordinate.name for coordinate in self._coordinates]
        return {**tree, **dict(zip(names, leaves[count:], strict=True))}

    def _repeated(self, k: int, count: int) -> AnyArray:
        """The values of a field that does not move; they are read once for all records."""
        field = self._plan.taken[k]
        value = self._still.get(k)
        if value is None:
            array = self._tree.open()[field.number]
            if 0 in field.shape:
                value = np.empty(field.shape, array.dtype)
            else:
                part = array.box_part(_beginning(len(field.along)), (field.box_field(),), None)
                value = part.read(np.zeros(1, np.int64))[0].reshape(field.shape)
            with self._lock:
                self._still[k] = value
        out = buffer_pool.empty((count, *field.shape), value.dtype)
        out[...] = value
        return out

    def _decoded(self, k: int, values: AnyArray, indices: IntArray) -> AnyArray:
        decoding = self._decodings[k]
        if decoding is None:
            return values
        found = decoding.apply(values)
        # Cells padded before decoding have a raw value; they get the delivered fill here.
        self._fill_outside(found, self._plan.taken[k], indices)
        return found

    def _fill_outside(self, values: AnyArray, field: TakenField, indices: IntArray) -> None:
        pads, fill = self._plan.pads, self._fill
        if "constant" not in pads.values():
            return
        origins, dims = self._plan.origins.at(indices), self._plan.origins.dims
        axis = 1
        for along in field.along:
            if along.moves and pads.get(along.dim) == "constant":
                may = self._plan.ranges[along.dim]
                cells = along.at(origins[:, dims.index(along.dim)])
                outside = (cells < may.start) | (cells >= may.stop)
                if along.dropped:
                    values[outside[:, 0]] = fill
                elif outside.any():
                    np.moveaxis(values, axis, 1)[outside] = fill
            axis += not along.dropped


def _beginning(rank: int) -> Callable[[IntArray], IntArray]:
    return lambda indices: np.zeros((len(indices), rank), np.int64)


# --- arguments -----------------------------------------------------------------------------------


def _float_dtype(decode: Any) -> np.dtype[Any] | None:
    """The dtype for decoded values; None if it follows from the stored values."""
    if isinstance(decode, bool):
        return None
    try:
        dtype: np.dtype[Any] = np.dtype(decode)
    except TypeError:
        dtype = np.dtype(object)
    if decode is None or dtype.kind != "f":
        raise ArgumentError(
            f"{_WHAT}: decode must be True, False or a float dtype such as 'float32', got {decode!r}"
        )
    return dtype


def _decoding(array: OpenArray, dtype: np.dtype[Any] | None) -> Decoding | None:
    if isinstance(array.found.spec, HeldArray) and array.found.spec.is_decoded:
        return None
    try:
        found = decoding_of(array.attributes, array.dtype, array.missing_value)
    except SourceError as error:
        raise SourceError(f"{_WHAT}: {array.found.named}: {error}") from error
    if found is None or dtype is None or found.dtype.kind != "f":
        return found
    return dataclasses.replace(found, dtype=dtype)


def _check_fill(fill: Any, dtype: np.dtype[Any], name: str) -> None:
    try:
        value = np.asarray(fill)
        with np.errstate(all="ignore"):
            kept = value.astype(dtype)
            rounds = bool(np.asarray(0.5).astype(dtype) == 0.5)  # also dtypes of ml_dtypes
        fits = value.ndim == 0 and bool(kept == value or (kept != kept and value != value))
        fits |= rounds and isinstance(fill, int | float | (complex if dtype.kind == "c" else int))
    except (TypeError, ValueError):
        fits = False
    if not fits:
        field = f"field {name!r}" if name else "the array"
        raise ArgumentError(
            f"{_WHAT}: fill {fill!r} does not fit {field}, whose dtype is {dtype}; choose a value"
            " of that dtype"
        )


def _plain(fill: Any) -> Any:
    """Converts a fill to a Python number, the same one for all equal numbers.

    It is part of a fingerprint, and NumPy prints numbers differently in different versions.
    """
    value = np.asarray(fill)[()]
    number = value.item() if value.dtype.kind in "biufc" else value
    if isinstance(number, float) and number.is_integer() and str(number) != "-0.0":
        return int(number)
    return int(number) if isinstance(number, bool) else number


def _shown(spec: ArraySpec) -> str:
    """A field as text for the user: its dtype and the length of each named axis."""
    names = spec.dims or (None,) * len(spec.shape)
    axes = [
        f"{name} {length}" if name else f"{length}"
        for name, length in zip(names, spec.shape, strict=True)
    ]
    return f"{spec.dtype} [{', '.join(axes)}]"
