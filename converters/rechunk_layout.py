"""What becomes of the arrays of a source: which, with which axes first, in which chunks and shards.

Invariant: metadata alone decide; equal sources and settings give equal layouts.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np

from windrow.converters.array_inputs import ArrayFacts, Cells, InputArray
from windrow.converters.rechunk_plan import Grids
from windrow.converters.zarr_layout import (
    ArrayLayout,
    codecs_of,
    encoding_bytes,
    fill_scalar,
    stored_fill,
    training_rows,
)
from windrow.errors import ArgumentError
from windrow.sources.features import DTYPES, numpy_dtype

# Arrays that hold no records are stored in files of about this size.
_FILE_BYTES: Final = 128 << 20

Axis = int | str | None
Sizes = int | Sequence[int] | None


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """What was asked for; as `zarr_to_zarr` has it."""

    record_axis: Axis | Mapping[str, Axis] = None
    chunks: Sizes | Mapping[str, Sizes] = None
    shards: Sizes | Mapping[str, Sizes] = None
    codecs: str | Mapping[str, str] = "zstd:1"
    dtype: str | Mapping[str, str] | None = None
    select: Mapping[str, slice] = dataclasses.field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As manifests have it."""
        found = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        found["select"] = {
            name: [None if k is None else operator.index(k) for k in (s.start, s.stop)]
            for name, s in self.select.items()
        }
        return {name: _as_json(value) for name, value in found.items()}


@dataclasses.dataclass(frozen=True, slots=True)
class Converted:
    """An array of the source and what it becomes. Picklable.

    Args:
        source: The array.
        axes: Axis `k` of the target is axis `axes[k]` of the source.
        start: The first cell that is taken, in the source's axes.
        layout: What it becomes.
    """

    source: InputArray
    axes: Cells
    start: Cells
    layout: ArrayLayout

    @property
    def grids(self) -> Grids:
        """The array as it lies in the source and in the target."""
        facts, layout = self.source.facts, self.layout
        moved = [
            (facts.chunk_shape[k], (self.start[k] + facts.shift[k]) % facts.chunk_shape[k])
            for k in self.axes
        ]
        return Grids(
            layout.shape,
            tuple(chunk for chunk, _ in moved),
            tuple(shift for _, shift in moved),
            layout.file_shape,
            facts.dtype.itemsize,
            layout.numpy_dtype.itemsize,
            encoding_bytes(layout.chunk_bytes),
            layout.index_bytes,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class _Taken:
    """An array before it is known how it is stored."""

    name: str
    source: InputArray
    axes: Cells
    start: Cells
    shape: Cells
    dims: tuple[str | None, ...]
    dtype: np.dtype[Any]

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.dtype.itemsize


def converted(
    arrays: Mapping[str, InputArray], settings: Settings, *, apart: Collection[str] = ()
) -> tuple[list[Converted], int]:
    """What becomes of `arrays`, by their new names, and the number of records.

    Those of the names `apart` in the source hold no records, unless there are no others.

    Raises:
        ArgumentError: If the settings name what is not there, or do not fit.
    """
    _check_names(arrays, settings)
    taken = [_taken(name, array, settings) for name, array in arrays.items()]
    lead = _lead(taken, settings, apart)
    members = [item for item in taken if lead is not None and _shares_records(item, lead)]
    records = 0 if lead is None else lead.shape[0]
    rows, shard_rows = training_rows([item.row_bytes for item in members], records)
    chunk_rows = {item.name: size for item, size in zip(members, rows, strict=True)}
    if isinstance(settings.dtype, str) and not any(_wanted_kind(item, settings) for item in taken):
        raise ArgumentError(
            f"dtype {settings.dtype!r} is for arrays of its kind, and there are none; name those to"
            f" cast in a dict: dtype={{{taken[0].name!r}: {settings.dtype!r}}}"
        )
    found = []
    for item in taken:
        sizes = _sizes(item, chunk_rows.get(item.name), shard_rows, settings)
        found.append(Converted(item.source, item.axes, item.start, _layout(item, sizes, settings)))
    return found, records


def _check_names(arrays: Mapping[str, InputArray], settings: Settings) -> None:
    for field in ("record_axis", "chunks", "shards", "codecs", "dtype"):
        value = getattr(settings, field)
        for name in value if isinstance(value, Mapping) else ():
            if name not in arrays:
                raise ArgumentError(
                    f"{field} names {name!r}, which is not there; there are"
                    f" {', '.join(sorted(arrays))}"
                )
    there = {dim for array in arrays.values() for dim in array.facts.dims if dim}
    named = ", ".join(sorted(there))
    for dim in settings.select:
        if dim not in there:
            names = named or "none: the axes of these arrays have no names to select by"
            raise ArgumentError(f"select: dimension {dim!r} is not there; there are {names}")
    axis = settings.record_axis
    if isinstance(axis, str) and axis not in there:
        names = named or "none: give the number of the axis"
        raise ArgumentError(f"record_axis: dimension {axis!r} is not there; there are {names}")
    ranks = {len(array.facts.shape) for array in arrays.values()}
    if isinstance(axis, int) and not any(-rank <= axis < rank for rank in ranks):
        raise ArgumentError(f"record_axis={axis} is no axis of any array; they have {_axes(ranks)}")
    for field in ("chunks", "shards"):
        sizes = getattr(settings, field)
        listed = isinstance(sizes, Sequence) and not isinstance(sizes, str)
        if listed and len(sizes) not in ranks:
            raise ArgumentError(f"{field}: {sizes!r} fits no array; they have {_axes(ranks)}")


def _axes(ranks: Collection[int]) -> str:
    return " or ".join(map(str, sorted(ranks))) + " axes"


def _taken(name: str, array: InputArray, settings: Settings) -> _Taken:
    facts = array.facts
    rank = len(facts.shape)
    first = _axis(name, facts, _of(settings.record_axis, name, None), settings)
    axes = () if not rank else (first, *(k for k in range(rank) if k != first))
    spans = [range(size) for size in facts.shape]
    for k, dim in enumerate(facts.dims):
        if dim is not None and dim in settings.select:
            spans[k] = _span(dim, settings.select[dim], facts.shape[k])
    dims = facts.dims or (None,) * rank
    return _Taken(
        name,
        array,
        axes,
        tuple(span.start for span in spans),
        tuple(len(spans[k]) for k in axes),
        tuple(dims[k] for k in axes),
        _dtype(name, facts, settings),
    )


def _axis(name: str, facts: ArrayFacts, axis: Axis, settings: Settings) -> int:
    """The axis that counts records; the first one where an array lacks the one that is named."""
    rank = len(facts.shape)
    own = isinstance(settings.record_axis, Mapping) and name in settings.record_axis
    if isinstance(axis, str):
        if axis in facts.dims:
            return facts.dims.index(axis)
        fits = False
    elif axis is None or isinstance(axis, bool) or not isinstance(axis, int):
        if axis is not None:
            raise ArgumentError(f"record_axis must be a number or a name of an axis, got {axis!r}")
        return 0
    else:
        fits = -rank <= axis < rank
    if fits:
        return int(axis) % rank
    if own:
        raise ArgumentError(
            f"record_axis={axis!r} is no axis of array {name!r} of shape {list(facts.shape)}"
        )
    return 0


def _span(dim: str, wanted: slice, size: int) -> range:
    if not isinstance(wanted, slice) or wanted.step not in (None, 1):
        raise ArgumentError(f"select: {dim!r} must be a slice without a step, got {wanted!r}")
    try:
        start, stop, _ = wanted.indices(size)
    except TypeError as error:
        raise ArgumentError(
            f"select: {dim!r}: {wanted!r} has bounds that are no integers"
        ) from error
    return range(start, max(start, stop))


def _dtype(name: str, facts: ArrayFacts, settings: Settings) -> np.dtype[Any]:
    wanted = _of(settings.dtype, name, None)
    if wanted is None:
        return facts.dtype
    if not isinstance(wanted, str) or wanted not in DTYPES:
        raise ArgumentError(f"dtype {wanted!r} is none of {', '.join(DTYPES)}")
    found = numpy_dtype(wanted)
    # One dtype for all is for those of its kind: floats become no integers by the way.
    if not isinstance(settings.dtype, Mapping) and _kind(found) != _kind(facts.dtype):
        return facts.dtype
    if _kind(facts.dtype) == "complex" and _kind(found) != "complex":
        raise ArgumentError(f"dtype: array {name!r} of {facts.dtype} does not become {found}")
    return found


def _wanted_kind(item: _Taken, settings: Settings) -> bool:
    return _kind(item.source.facts.dtype) == _kind(numpy_dtype(str(settings.dtype)))


def _kind(dtype: np.dtype[Any]) -> str:
    kinds = {"b": "bool", "i": "integer", "u": "integer", "c": "complex"}
    return kinds.get(dtype.kind, "float")


def _lead(taken: Sequence[_Taken], settings: Settings, apart: Collection[str]) -> _Taken | None:
    """The array whose first axis counts the records: of those that have it, the one with most bytes."""
    ranked = [item for item in taken if item.shape]
    ranked = [item for item in ranked if item.source.facts.name not in apart] or ranked
    if isinstance(settings.record_axis, str):
        ranked = [item for item in ranked if item.dims[0] == settings.record_axis] or ranked
    sizes = [math.prod(item.shape) * item.dtype.itemsize for item in ranked]
    return ranked[int(np.argmax(sizes))] if ranked else None


def _shares_records(item: _Taken, lead: _Taken) -> bool:
    same = bool(item.shape) and item.shape[0] == lead.shape[0]
    named = item.shape and item.dims[0] and lead.dims[0]
    return same and (not named or item.dims[0] == lead.dims[0])


# --- sizes ---------------------------------------------------------------------------------------


def _sizes(
    item: _Taken, chunk_rows: int | None, shard_rows: int, settings: Settings
) -> tuple[Cells, Cells | None]:
    """Chunks and shards of an array."""
    row = tuple(max(1, size) for size in item.shape[1:])
    asked_chunk = _asked("chunks", item, settings.chunks)
    asked_shard = _asked("shards", item, settings.shards)
    if asked_chunk is not None:
        chunk = asked_chunk
    elif chunk_rows is not None:
        chunk = (chunk_rows, *row)
    else:
        chunk, shard = _like_source(item)
        # Shards of so many records are none of arrays that hold none, unless they are named.
        if asked_shard is None or (any(asked_shard) and not isinstance(settings.shards, Mapping)):
            return chunk, shard
    if asked_shard == (0,) * len(chunk):
        return chunk, None
    if asked_shard is not None:
        if any(s % c for s, c in zip(asked_shard, chunk, strict=True)):
            raise ArgumentError(
                f"shards of {list(asked_shard)} are no whole number of chunks of {list(chunk)} of"
                f" array {item.name!r}; name a multiple along each axis, or 0 for no shards"
            )
        return chunk, asked_shard if asked_shard != chunk else None
    # By the rule, in whole rows and whole chunks.
    rows = max(1, shard_rows // chunk[0]) * chunk[0]
    shard = (rows, *(-(-n // c) * c for n, c in zip(row, chunk[1:], strict=True)))
    return chunk, None if shard == chunk else shard


def _asked(what: str, item: _Taken, value: Any) -> Cells | None:
    """Sizes that were asked for, along all axes; zeros for none at all."""
    wanted = _of(value, item.name, None)
    if wanted is None or not item.shape:
        return None
    row = tuple(max(1, size) for size in item.shape[1:])
    if isinstance(wanted, int) and not isinstance(wanted, bool):
        if wanted == 0 and what == "shards":
            return (0,) * len(item.shape)
        found: tuple[Any, ...] = (wanted, *row)
    elif isinstance(wanted, Sequence) and not isinstance(wanted, str):
        found = tuple(wanted)
        if len(found) != len(item.shape) and not isinstance(value, Mapping):
            return None  # sizes for arrays of another rank
    else:
        raise ArgumentError(f"{what}: {wanted!r} is no number of records and no list of sizes")
    good = all(type(size) is int and size >= 1 for size in found)
    if not good or len(found) != len(item.shape):
        raise ArgumentError(
            f"{what}: {wanted!r} does not fit array {item.name!r} of shape {list(item.shape)}; name"
            " a number of records, or a size of at least 1 for each axis"
        )
    return found


def _like_source(item: _Taken) -> tuple[Cells, Cells | None]:
    """Chunks as in the source, in shards of about 128 MiB."""
    facts = item.source.facts
    chunk = tuple(
        max(1, min(facts.chunk_shape[k], n)) for k, n in zip(item.axes, item.shape, strict=True)
    )
    shard = list(chunk)
    for axis in reversed(range(len(chunk))):
        beside = math.prod(shard) // shard[axis] * item.dtype.itemsize
        most = max(1, _FILE_BYTES // (beside * chunk[axis]))
        shard[axis] = min(-(-item.shape[axis] // chunk[axis]) or 1, most) * chunk[axis]
    return chunk, None if tuple(shard) == chunk else tuple(shard)


def _layout(item: _Taken, sizes: tuple[Cells, Cells | None], settings: Settings) -> ArrayLayout:
    facts = item.source.facts
    codecs = codecs_of(_of(settings.codecs, item.name, "zstd:1"), itemsize=item.dtype.itemsize)
    fill = facts.fill_value
    if fill is not None and item.dtype != facts.dtype:
        with np.errstate(all="ignore"):
            fill = stored_fill(fill_scalar(fill, facts.dtype).astype(item.dtype))
    return ArrayLayout(
        name=item.name,
        dtype=item.dtype.name,
        shape=item.shape,
        chunk_shape=sizes[0],
        shard_shape=sizes[1],
        codecs=codecs,
        dimension_names=item.dims if any(item.dims) else None,
        attributes=dict(facts.attributes),
        fill_value=fill,
    )


def _of(value: Any, name: str, default: Any) -> Any:
    """The setting of one array, of a dict for some or one for all."""
    return value.get(name, default) if isinstance(value, Mapping) else value


def _as_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _as_json(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_as_json(item) for item in value]
    return value
