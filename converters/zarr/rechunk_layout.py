"""The layout of a source's arrays in the target: which arrays, their first axes, chunks and shards.

Invariant: layouts depend on metadata and settings alone; equal ones give equal layouts.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np

from windrow.converters.job.manifest import as_json
from windrow.converters.zarr.array_inputs import Cast, Cells, InputArray, InputFacts
from windrow.converters.zarr.chunk_codecs import ASSUMED_BYTES, codecs_of
from windrow.converters.zarr.layout import (
    ArrayLayout,
    encoding_bytes,
    fill_scalar,
    stored_fill,
    training_rows,
)
from windrow.converters.zarr.rechunk_plan import Grids
from windrow.core.text import listing
from windrow.errors import ArgumentError
from windrow.sources.tf_example.features import DTYPES, numpy_dtype

# Arrays that hold no records are stored in files of about this size.
_FILE_BYTES: Final = 128 << 20
# Up to this many strings of any length are one chunk.
_WHOLE_STRINGS: Final = 1 << 16

# Behind a dtype: values that do not fit it are cast all the same.
_UNSAFE: Final = ":unsafe"
# What an axis becomes: the axis that counts records, a part of it, or both.
RECORDS: Final = "records"
AxisUse = str | slice | tuple[str | slice, ...]

Axis = int | str | None
Sizes = int | Sequence[int] | None


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """The settings of `zarr_to_zarr`."""

    record_axis: Axis = None
    chunks: Sizes | Mapping[str, Sizes] = None
    shards: Sizes | Mapping[str, Sizes] = None
    codecs: str | Mapping[str, str] = "zstd:1"
    dtype: str | Mapping[str, str] | None = None
    select: Mapping[str, slice] = dataclasses.field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The settings as manifests have them."""
        found = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        found["select"] = {
            name: [None if k is None else operator.index(k) for k in (s.start, s.stop)]
            for name, s in self.select.items()
        }
        texts = self.dtype.values() if isinstance(self.dtype, Mapping) else [self.dtype]
        cast = max(map(_cast, texts), default="checked")  # unsafe, if any is
        return {"cast": cast, **{name: as_json(value) for name, value in found.items()}}


def used_axes(axes: Axis | Mapping[Any, AxisUse]) -> tuple[Axis, dict[str, slice]]:
    """Return the axis that counts records, and the parts of axes that are taken, by name.

    Raises:
        ArgumentError: If several are to count records, or one is neither a name nor a number.
    """
    named = axes if isinstance(axes, Mapping) else {} if axes is None else {axes: RECORDS}
    uses = [
        (axis, use)
        for axis, given in named.items()
        for use in (given if isinstance(given, tuple) else (given,))
    ]
    for axis, _ in uses:
        if isinstance(axis, bool) or not isinstance(axis, str | int):
            raise ArgumentError(f"axes: {axis!r} is neither a number nor a name of an axis")
    records = [axis for axis, use in uses if use == RECORDS]
    if len(records) > 1:
        raise ArgumentError(f"axes: one axis counts records, got {', '.join(map(repr, records))}")
    parts: dict[Any, Any] = {axis: use for axis, use in uses if use != RECORDS}
    return next(iter(records), None), parts


@dataclasses.dataclass(frozen=True, slots=True)
class Converted:
    """An array of the source and its layout in the target. Picklable.

    Args:
        source: The array.
        axes: Axis `k` of the target is axis `axes[k]` of the source.
        start: The first cell that is taken, in the source's axes.
        layout: The layout in the target.
        cast: Whether a value that the dtype of the target cannot hold is an error.
    """

    source: InputArray
    axes: Cells
    start: Cells
    layout: ArrayLayout
    cast: Cast = "checked"

    @property
    def grids(self) -> Grids:
        """The array as it lies in the source and in the target."""
        facts, layout = self.source.facts, self.layout
        objects = layout.numpy_dtype.kind == "O"
        moved = [
            (facts.chunk_shape[k], (self.start[k] + facts.shift[k]) % facts.chunk_shape[k])
            for k in self.axes
        ]
        return Grids(
            layout.shape,
            tuple(chunk for chunk, _ in moved),
            tuple(shift for _, shift in moved),
            layout.file_shape,
            ASSUMED_BYTES if objects else facts.dtype.itemsize,
            ASSUMED_BYTES if objects else layout.numpy_dtype.itemsize,
            encoding_bytes(layout.chunk_bytes),
            layout.index_bytes,
            objects,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class _SelectedArray:
    """An array before its layout is chosen."""

    name: str
    source: InputArray
    axes: Cells
    start: Cells
    shape: Cells
    dims: tuple[str | None, ...]
    dtype: np.dtype[Any]
    is_label: bool = False

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def is_coordinate(self) -> bool:
        """Whether it labels an axis, as xarray writes coordinates: readers read it as a whole."""
        return self.dims == (self.source.facts.name.rpartition("/")[2],)


def converted(
    arrays: Mapping[str, InputArray],
    settings: Settings,
    *,
    apart: Collection[str] = (),
    labels: Collection[str] = (),
) -> tuple[list[Converted], int]:
    """Return the layouts of `arrays` in the target, by their new names, and the number of records.

    Arrays whose names in the source are in `apart` hold no records, unless there are no others.
    Those whose new names are in `labels` come along with the others: settings that do not name them
    are not for them, and the layout of the others does not depend on them.

    Raises:
        ArgumentError: If the settings name an array or axis that is not there, or do not fit.
    """
    _check_names(arrays, settings)
    taken = [_taken(name, array, settings, name in labels) for name, array in arrays.items()]
    lead = _lead(taken, settings, apart)
    members = [item for item in taken if lead is not None and _shares_records(item, lead)]
    records = 0 if lead is None else lead.shape[0]
    of_rows = [item for item in members if item.dtype.kind != "O"]
    rows, _ = training_rows([item.row_bytes for item in of_rows], records)
    chunk_rows = {item.name: size for item, size in zip(of_rows, rows, strict=True)}
    _, shard_rows = training_rows(
        [item.row_bytes for item in of_rows if not item.is_label], records
    )
    members = [item for item in members if not item.is_label]
    sized = {item.name for item in members if item is lead or not item.is_coordinate}
    chunks = _by_array("chunks", taken, sized, settings.chunks)
    shards = _by_array("shards", taken, sized, settings.shards)
    if isinstance(settings.dtype, str) and not any(_wanted_kind(item, settings) for item in taken):
        raise ArgumentError(
            f"dtype {settings.dtype!r} is for arrays of its kind, and the source has no such array; name"
            f" the arrays to cast in a dict: dtype={{{taken[0].name!r}: {settings.dtype!r}}}"
        )
    found = []
    for item in taken:
        asked = chunks.get(item.name), shards.get(item.name)
        sizes = _sizes(item, chunk_rows.get(item.name), shard_rows, *asked)
        layout, cast = _layout(item, sizes, settings), _cast(_of(settings.dtype, item.name, None))
        found.append(Converted(item.source, item.axes, item.start, layout, cast))
    return found, records


def _check_names(arrays: Mapping[str, InputArray], settings: Settings) -> None:
    there = {dim for array in arrays.values() for dim in array.facts.dims if dim}
    named = ", ".join(sorted(there))
    for field in ("chunks", "shards", "codecs", "dtype"):
        value = getattr(settings, field)
        along = there if field in ("chunks", "shards") else set()
        for name in value if isinstance(value, Mapping) else ():
            if name not in arrays and name not in along:
                raise ArgumentError(
                    f"{field} names {name!r}, which is not there; there are"
                    f" {', '.join(sorted(arrays))}{f', and the dimensions {named}' if along else ''}"
                )
    for dim in settings.select:
        if dim not in there:
            names = named or "none: the axes of these arrays have no names to select by"
            raise ArgumentError(f"axes: dimension {dim!r} is not there; there are {names}")
    axis = settings.record_axis
    if isinstance(axis, str) and axis not in there:
        names = named or "none: give the number of the axis"
        raise ArgumentError(f"axes: dimension {axis!r} is not there; there are {names}")
    ranks = {len(array.facts.shape) for array in arrays.values()}
    if isinstance(axis, int) and not any(-rank <= axis < rank for rank in ranks):
        raise ArgumentError(f"axes: {axis} is not an axis of any array; they have {_axes(ranks)}")


def _by_array(
    what: str, taken: Sequence[_SelectedArray], sized: Collection[str], value: Any
) -> dict[str, Any]:
    """Return the sizes that were asked for, by array.

    One number or list is for the arrays `sized`, and 0, for no shards, for every array. A number for a dimension is its size in every array that has it, as in xarray. Its coordinate,
    which has the same name, is left out unless no other array has it: readers read coordinates as a whole.

    Returns:
        The sizes by array. An array that a dict did not name has a dict of sizes by dimension.

    Raises:
        ArgumentError: If a name is a dimension and another array, a size of a dimension is not a positive
            integer, or a list fits no array.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        everywhere = what == "shards" and value == 0
        having = [item for item in taken if everywhere or item.name in sized]
        is_list = isinstance(value, Sequence) and not isinstance(value, str)
        fitting = [item for item in having if not is_list or len(item.shape) == len(value)]
        if is_list and not fitting:
            names = listing([item.name or "the array" for item in having])
            ranks = {len(item.shape) for item in having}
            raise ArgumentError(
                f"{what}: {value!r} fits no array of records: {names} ({_axes(ranks)})"
            )
        return {item.name: value for item in fitting}
    items = {item.name: item for item in taken}
    named: dict[str, Any] = {}
    along: dict[str, dict[str, int]] = {}
    for name, size in value.items():
        having = [item for item in taken if name in item.dims]
        array = items.get(name)
        # Only arrays have lists of sizes, and 0 for no shards.
        if not having or (array is not None and (type(size) is not int or size == 0)):
            named[name] = size
            continue
        if array is not None and not array.is_coordinate:
            raise ArgumentError(
                f"{what}: {name!r} is a dimension and an array of shape {list(array.shape)}; name a"
                f" size for each axis: {{{name!r}: [{size}, ...]}} for this array, and"
                f" {{{having[0].name!r}: [...]}} for others with the dimension"
            )
        if type(size) is not int or size < 1:
            raise ArgumentError(
                f"{what}: {size!r} is not a size of dimension {name!r}; name a number of at least 1"
            )
        meant = [item for item in having if not (item.is_coordinate or item.is_label)]
        for item in meant or having:
            along.setdefault(item.name, {})[name] = size
    return along | named


def _axes(ranks: Collection[int]) -> str:
    found = " or ".join(map(str, sorted(ranks)))
    return f"{found or 'no'} {'axis' if found == '1' else 'axes'}"


def _taken(
    name: str, array: InputArray, settings: Settings, is_label: bool = False
) -> _SelectedArray:
    facts = array.facts
    rank = len(facts.shape)
    first = _axis(facts, settings.record_axis)
    axes = () if not rank else (first, *(k for k in range(rank) if k != first))
    spans = [range(size) for size in facts.shape]
    for k, dim in enumerate(facts.dims):
        if dim is not None and dim in settings.select:
            spans[k] = _span(dim, settings.select[dim], facts.shape[k])
    dims = facts.dims or (None,) * rank
    named = settings.dtype if isinstance(settings.dtype, Mapping) else ()
    return _SelectedArray(
        name,
        array,
        axes,
        tuple(span.start for span in spans),
        tuple(len(spans[k]) for k in axes),
        tuple(dims[k] for k in axes),
        facts.dtype if is_label and name not in named else _dtype(name, facts, settings),
        is_label,
    )


def _axis(facts: InputFacts, axis: Axis) -> int:
    """Return the axis that counts records: the named one, or the first if an array lacks it."""
    rank = len(facts.shape)
    if isinstance(axis, str):
        return facts.dims.index(axis) if axis in facts.dims else 0
    return axis % rank if axis is not None and -rank <= axis < rank else 0


def _span(dim: str, wanted: slice, size: int) -> range:
    if not isinstance(wanted, slice) or wanted.step not in (None, 1):
        raise ArgumentError(
            f'axes: {dim!r} must be "records" or a slice without a step, or a tuple of both, got'
            f" {wanted!r}"
        )
    try:
        start, stop, _ = wanted.indices(size)
    except TypeError as error:
        raise ArgumentError(
            f"axes: {dim!r}: {wanted!r} has bounds that are not integers"
        ) from error
    return range(start, max(start, stop))


def _dtype(name: str, facts: InputFacts, settings: Settings) -> np.dtype[Any]:
    text = _of(settings.dtype, name, None)
    if text is None:
        return facts.dtype
    wanted = _without_cast(text)
    if wanted not in DTYPES:
        raise ArgumentError(f"dtype {text!r} is not one of {', '.join(DTYPES)}")
    if facts.is_string:
        if isinstance(settings.dtype, Mapping):
            raise ArgumentError(f"dtype: array {name!r} holds strings, which are not cast")
        return facts.dtype
    found = numpy_dtype(wanted)
    # One dtype for all casts arrays of its kind only: floats do not silently become integers.
    if not isinstance(settings.dtype, Mapping) and _kind(found) != _kind(facts.dtype):
        return facts.dtype
    if _kind(facts.dtype) == "complex" and _kind(found) != "complex":
        raise ArgumentError(f"dtype: array {name!r} of {facts.dtype} does not become {found}")
    return found


def _wanted_kind(item: _SelectedArray, settings: Settings) -> bool:
    return _kind(item.source.facts.dtype) == _kind(numpy_dtype(_without_cast(settings.dtype)))


def _cast(dtype: object) -> Cast:
    """Return how values become a dtype that was asked for."""
    return "unsafe" if isinstance(dtype, str) and dtype.endswith(_UNSAFE) else "checked"


def _without_cast(dtype: object) -> str:
    return dtype.removesuffix(_UNSAFE) if isinstance(dtype, str) else ""


def _kind(dtype: np.dtype[Any]) -> str:
    kinds = {"b": "bool", "i": "integer", "u": "integer", "c": "complex"}
    kinds |= dict.fromkeys("USO", "string")
    return kinds.get(dtype.kind, "float")


def _lead(
    taken: Sequence[_SelectedArray], settings: Settings, apart: Collection[str]
) -> _SelectedArray | None:
    """Return the array whose first axis counts the records; of several, the one with most bytes."""
    ranked = [item for item in taken if item.shape and not item.is_label]
    ranked = [item for item in ranked if item.source.facts.name not in apart] or ranked
    if isinstance(settings.record_axis, str):
        ranked = [item for item in ranked if item.dims[0] == settings.record_axis] or ranked
    sizes = [math.prod(item.shape) * item.dtype.itemsize for item in ranked]
    return ranked[int(np.argmax(sizes))] if ranked else None


def _shares_records(item: _SelectedArray, lead: _SelectedArray) -> bool:
    same = bool(item.shape) and item.shape[0] == lead.shape[0]
    named = item.shape and item.dims[0] and lead.dims[0]
    return same and (not named or item.dims[0] == lead.dims[0])


# --- sizes ---------------------------------------------------------------------------------------


def _sizes(
    item: _SelectedArray, chunk_rows: int | None, shard_rows: int, chunks: Any, shards: Any
) -> tuple[Cells, Cells | None]:
    """Chunks and shards of an array, from those that were asked for."""
    row = tuple(max(1, size) for size in item.shape[1:])
    like_source = _like_source(item)
    usual = like_source[0] if chunk_rows is None else (chunk_rows, *row)
    asked_chunk = _asked("chunks", item, chunks, usual)
    chunk = usual if asked_chunk is None else asked_chunk
    # By the rule, in whole rows and whole chunks.
    shard: Cells = chunk
    if chunk and item.dtype.kind != "O":
        rows = max(1, shard_rows // chunk[0]) * chunk[0]
        shard = (rows, *(-(-n // c) * c for n, c in zip(row, chunk[1:], strict=True)))
    asked_shard = _asked("shards", item, shards, shard)
    if asked_chunk is None and asked_shard is None and chunk_rows is None:
        return like_source
    if asked_shard is not None:
        if not any(asked_shard):
            return chunk, None
        if any(s % c for s, c in zip(asked_shard, chunk, strict=True)):
            raise ArgumentError(
                f"shards of {list(asked_shard)} are not a whole number of chunks of {list(chunk)} of"
                f" array {item.name!r}; name a multiple along each axis, or 0 for no shards"
            )
        shard = asked_shard
    return chunk, None if shard == chunk else shard


def _asked(what: str, item: _SelectedArray, wanted: Any, usual: Cells) -> Cells | None:
    """Return the sizes that were asked for, along all axes; zeros for no shards.

    Args:
        what: "chunks" or "shards".
        item: The array.
        wanted: What was asked for.
        usual: The sizes along the axes for which none was asked.
    """
    if wanted is None or not item.shape:
        return None
    row = tuple(max(1, size) for size in item.shape[1:])
    if isinstance(wanted, Mapping):
        named = zip(item.dims, usual, strict=True)
        return tuple(size if dim is None else wanted.get(dim, size) for dim, size in named)
    if isinstance(wanted, int) and not isinstance(wanted, bool):
        if wanted == 0 and what == "shards":
            return (0,) * len(item.shape)
        found: tuple[Any, ...] = (wanted, *row)
    elif isinstance(wanted, Sequence) and not isinstance(wanted, str):
        found = tuple(wanted)
    else:
        raise ArgumentError(
            f"{what}: {wanted!r} is neither a number of records nor a list of sizes"
        )
    good = all(type(size) is int and size >= 1 for size in found)
    if not good or len(found) != len(item.shape):
        raise ArgumentError(
            f"{what}: {wanted!r} does not fit array {item.name!r} of shape {list(item.shape)}; name"
            " a number of records, or a size of at least 1 for each axis"
        )
    return found


def _like_source(item: _SelectedArray) -> tuple[Cells, Cells | None]:
    """Chunks as in the source, in shards of about 128 MiB."""
    facts = item.source.facts
    chunk = tuple(
        max(1, min(facts.chunk_shape[k], n)) for k, n in zip(item.axes, item.shape, strict=True)
    )
    if item.dtype.kind == "O":
        few = math.prod(item.shape) <= _WHOLE_STRINGS
        return tuple(max(1, n) for n in item.shape) if few else chunk, None
    shard = list(chunk)
    for axis in reversed(range(len(chunk))):
        beside = math.prod(shard) // shard[axis] * item.dtype.itemsize
        most = max(1, _FILE_BYTES // (beside * chunk[axis]))
        shard[axis] = min(-(-item.shape[axis] // chunk[axis]) or 1, most) * chunk[axis]
    return chunk, None if tuple(shard) == chunk else tuple(shard)


def _layout(
    item: _SelectedArray, sizes: tuple[Cells, Cells | None], settings: Settings
) -> ArrayLayout:
    facts = item.source.facts
    itemsize = {"U": 4, "S": 1, "O": 1}.get(item.dtype.kind, item.dtype.itemsize)
    codecs = codecs_of(_of(settings.codecs, item.name, "zstd:1"), itemsize=itemsize)
    fill = facts.fill_value
    if fill is not None and item.dtype != facts.dtype:
        with np.errstate(all="ignore"):
            fill = stored_fill(fill_scalar(fill, facts.dtype).astype(item.dtype))
    return ArrayLayout(
        name=item.name,
        dtype=facts.type_name if facts.is_string else item.dtype.name,
        shape=item.shape,
        chunk_shape=sizes[0],
        shard_shape=sizes[1],
        codecs=codecs,
        dimension_names=item.dims if any(item.dims) else None,
        attributes=dict(facts.attributes),
        fill_value=fill,
    )


def _of(value: Any, name: str, default: Any) -> Any:
    """Return the setting of one array, from a dict by name or from one setting for all."""
    return value.get(name, default) if isinstance(value, Mapping) else value
