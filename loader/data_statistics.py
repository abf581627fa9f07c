"""`windrow.statistics`: mean, deviation and extremes of each variable, in one pass, kept in a file.

Each batch gives a count, a mean and a sum of squared differences from that mean, in float64. Two of
these are merged exactly (Chan, Golub and LeVeque 1979), so that no digits are lost where the mean is
large, and parts of the data can be computed apart.

Invariant: a value counts once, unless it is NaN. The result does not depend on threads or workers.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from windrow.core.progress import ProgressMeter, ShowProgress
from windrow.errors import ArgumentError, ElementError, PlanError, SourceError
from windrow.iter_dataset import IterDataset
from windrow.kept_file import Arrays, KeptFile
from windrow.map_dataset import MapDataset
from windrow.scaling import Denormalize, Normalize, leaves_of
from windrow.sources.base import ArraySpec
from windrow.transforms.arguments import at_least
from windrow.transforms.nodes import fingerprint, function_names

Axis: TypeAlias = str | int
FloatArray: TypeAlias = npt.NDArray[np.float64]

_WHAT: Final = "statistics"
_VERSION: Final = 1
_BATCH_BYTES: Final = 2**20
_MOST_ROWS: Final = 4_096
_SHOWN_ROWS: Final = 12
_VARIABLES: Final = "variables"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """Statistics of one variable: of all its values or, with `dims`, of those at each place of them.

    Args:
        count: Values that are not NaN, int64.
        nans: Values that are NaN, int64.
        mean: Their mean; NaN without values. float64, as all that follow.
        squares: The sum of squared differences from the mean.
        min: The smallest value.
        max: The largest value.
        dims: The name of each axis of these arrays; None for one without.
        places: Where these axes are in an element, counted from its last axis, -1.
    """

    count: npt.NDArray[np.int64]
    nans: npt.NDArray[np.int64]
    mean: FloatArray
    squares: FloatArray
    min: FloatArray
    max: FloatArray
    dims: tuple[str | None, ...] = ()
    places: tuple[int, ...] = ()

    @property
    def std(self) -> FloatArray:
        """The standard deviation of the values, as `numpy.std` computes it; NaN without values."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(np.sqrt(self.squares / self.count))

    def merged(self, other: Moments) -> Moments:
        """The statistics of the values of both."""
        count = self.count + other.count
        with np.errstate(invalid="ignore", divide="ignore"):
            share = np.where(count > 0, other.count / count, 0.0)
        mine, others = (np.where(each.count > 0, each.mean, 0.0) for each in (self, other))
        apart = np.where((self.count > 0) & (other.count > 0), others - mine, 0.0)
        base = np.where(self.count > 0, mine, others)
        return dataclasses.replace(
            self,
            count=count,
            nans=self.nans + other.nans,
            mean=np.where(count > 0, base + apart * share, np.nan),
            squares=self.squares + other.squares + apart**2 * share * self.count,
            min=np.fmin(self.min, other.min),
            max=np.fmax(self.max, other.max),
        )


class Statistics(Mapping[str, Moments]):
    """The statistics of each variable of a dataset, by its name: `found["t2m"].mean`.

    Names of nested elements are joined by `/`; the name of an element that is one array is "".
    """

    def __init__(self, variables: Mapping[str, Moments]) -> None:
        """Holds the moments of each variable; `windrow.statistics` computes them."""
        self._variables = dict(variables)

    def __getitem__(self, name: str) -> Moments:
        return self._variables[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._variables)

    def __len__(self) -> int:
        return len(self._variables)

    def __repr__(self) -> str:
        return "\n".join(["Statistics", *(line for item in self.items() for line in _shown(*item))])

    @property
    def normalize(self) -> Normalize:
        """A function for `map` that scales values to mean 0 and deviation 1.

        It scales the leaves with the names of these variables, and leaves others as they are. Axes
        are counted from the last one, so that it takes elements, columns and batches. Integers
        become float32; floats keep their dtype. What never varies is only shifted.
        """
        return Normalize(self._scales())

    @property
    def denormalize(self) -> Denormalize:
        """The function that brings what `normalize` made, or a forecast of it, back to its units."""
        return Denormalize(self._scales())

    def _scales(self) -> dict[str, tuple[FloatArray, FloatArray]]:
        return {name: (_spread(of, of.mean), _spread(of, of.std)) for name, of in self.items()}

    def named(self, names: Mapping[str, str]) -> Statistics:
        """The statistics under other names: `found.named({"x": "t2m", "y": "t2m"})`.

        Raises:
            ArgumentError: If there is no variable of a name.
        """
        wrong = [old for old in names.values() if old not in self]
        if wrong:
            raise ArgumentError(
                f"{_WHAT}: there is no variable {wrong[0]!r}, only {list(self)}; give"
                " named({new_name: old_name})"
            )
        return Statistics({new: self[old] for new, old in names.items()})

    def merged(self, other: Statistics) -> Statistics:
        """The statistics of the values of both, such as two parts of the data.

        Raises:
            ArgumentError: If they have other variables, or of other shapes.
        """
        shapes = [
            {name: (of.mean.shape, of.places) for name, of in each.items()}
            for each in (self, other)
        ]
        if shapes[0] != shapes[1]:
            raise ArgumentError(
                f"{_WHAT}: only statistics of the same variables are merged\n"
                f"  this:  {shapes[0]}\n  other: {shapes[1]}"
            )
        return Statistics({name: of.merged(other[name]) for name, of in self.items()})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Statistics:
        """The statistics in a file that `windrow.statistics(..., path=path)` wrote, of any data.

        Raises:
            SourceError: If the file is not there, or is not a file of statistics.
        """
        file = _file(path, None)
        arrays = file.read()
        if arrays is None:
            raise SourceError(f"{_WHAT}: there is no file {path}; compute them with path={path!r}")
        return _loaded(file, arrays)


def statistics(
    data: Any,
    *,
    per: Sequence[Axis] = (),
    names: Sequence[str] | None = None,
    path: str | os.PathLike[str] | None = None,
    workers: int = 0,
    progress: ShowProgress = True,
) -> Statistics:
    """Compute the statistics of each variable of a dataset: one pass over one epoch.

    Reads are planned, and batches are reduced on all cores, in float64.

    Args:
        data: A `windrow.MapDataset`, or what `MapDataset.source` takes. Elements in their stored
            order are read fastest. Cells that several windows share count in each of them.
        per: Dimensions that keep statistics of their own, such as `["level"]`: names, or numbers of
            the axes of an element. Variables without such a dimension have one value.
        names: The variables to take; by default all leaves that hold numbers.
        path: A local file that keeps the result. If it is there, nothing is read, provided that it
            was computed of the same data with functions of the same names; other data is refused.
        workers: Worker processes for the maps of the dataset; 0 runs them on threads.
        progress: Whether to show a bar on a terminal, and elsewhere to log a line every 10 seconds;
            or a function that is called with a `windrow.progress.Progress`.

    Raises:
        ArgumentError: If an argument is of a wrong kind, or names an unknown dimension or variable.
        PlanError: If the dataset is empty or never ends.
        ElementError: If elements hold no numbers.
        SourceError: If the file was computed of other data, or is not a file of statistics.
        NotFoundError: If the folder of `path` does not exist.

    Example:
        >>> import numpy as np, windrow
        >>> images = np.arange(24, dtype="u1").reshape(2, 2, 2, 3)
        >>> found = windrow.statistics(images, per=[-1], progress=False)
        >>> found[""].mean
        array([10.5, 11.5, 12.5])
        >>> dataset = windrow.MapDataset.source(images).map(found.normalize)
        >>> round(float(dataset[0][0, 0, 0]), 3)
        -1.528
    """
    count = at_least(0, workers, f"{_WHAT}: workers")
    _check_list(
        per, f"{_WHAT}: per must be a list of dimensions, such as ['level'] or [-1]", str | int
    )
    if names is not None:
        _check_list(names, f"{_WHAT}: names must be a list of variables, such as ['t2m']", str)
    dataset = _dataset(data)
    about = {
        "version": _VERSION,
        "chain": fingerprint(dataset._node),
        "functions": list(function_names(dataset._node)),
        "per": list(per),
        "names": None if names is None else list(names),
    }
    file = None if path is None else _file(path, about)
    kept = None if file is None else file.read()
    if file is not None and kept is not None:
        return _loaded(file, kept)
    specs, row_bytes = _specs_of(dataset)
    found = _computed(dataset, _variables(specs, per, names), row_bytes, count, progress)
    if file is not None:
        file.write(_arrays(found))
    return found


# --- what is computed ----------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class _Variable:
    """A leaf of elements, and the axes that have statistics of their own.

    Args:
        axes: The axes of an element, ascending.
        rank: Axes of an element.
        dims: Their names.
    """

    axes: tuple[int, ...]
    rank: int
    dims: tuple[str | None, ...]


def _dataset(data: Any) -> MapDataset[Any]:
    if isinstance(data, IterDataset):
        raise ArgumentError(
            f"{_WHAT}: needs a dataset with random access, got {type(data).__name__}; give the"
            " MapDataset that it is made of"
        )
    dataset = data if isinstance(data, MapDataset) else MapDataset.source(data)
    if dataset._node.is_endless():
        raise PlanError(f"{_WHAT}: the dataset never ends; compute them before repeat()")
    if not len(dataset):
        raise PlanError(f"{_WHAT}: the dataset is empty")
    return dataset


def _check_list(given: Any, must: str, of: Any) -> None:
    several = isinstance(given, Sequence) and not isinstance(given, str)
    if not several or not all(isinstance(one, of) for one in given):
        raise ArgumentError(f"{must}, got {given!r}")


def _specs_of(dataset: MapDataset[Any]) -> tuple[dict[str, Any], int | None]:
    """The spec of each leaf, and the bytes of an element; None where elements may differ in shape."""
    try:
        specs = leaves_of(dataset.element_spec)
    except PlanError:  # a function does not say what it makes
        return leaves_of(dataset.read_spec()), None
    sizes = [
        [*spec.shape, spec.dtype.itemsize] for spec in specs.values() if isinstance(spec, ArraySpec)
    ]
    known = [math.prod(n for n in size if n is not None) for size in sizes if None not in size]
    return specs, sum(known) if len(known) == len(sizes) else None


def _variables(
    leaves: Mapping[str, Any], per: Sequence[Axis], names: Sequence[str] | None
) -> dict[str, _Variable]:
    """The variables of elements, by the spec of each leaf."""
    specs = {
        name: spec
        for name, spec in leaves.items()
        if isinstance(spec, ArraySpec) and _is_number(spec.dtype)
    }
    unknown = [name for name in names or () if name not in specs]
    if unknown:
        raise ArgumentError(
            f"{_WHAT}: elements have no numbers named {unknown[0]!r}, only {list(specs)}"
        )
    specs = {name: specs[name] for name in (specs if names is None else names)}
    if not specs:
        raise ElementError(f"{_WHAT}: elements hold no numbers; decode them in a map")
    for one in per:
        if all(_axis(one, spec) is None for spec in specs.values()):
            known = sorted({dim for spec in specs.values() for dim in spec.dims or () if dim})
            raise ArgumentError(
                f"{_WHAT}: per names {one!r}, and the elements have "
                + (f"the dimensions {known}" if known else "no names of dimensions; give axes")
            )
    found: dict[str, _Variable] = {}
    for name, spec in specs.items():
        axes = sorted({axis for one in per if (axis := _axis(one, spec)) is not None})
        dims = spec.dims or (None,) * len(spec.shape)
        found[name] = _Variable(tuple(axes), len(dims), tuple(dims[axis] for axis in axes))
    return found


def _axis(given: Axis, spec: ArraySpec) -> int | None:
    rank = len(spec.shape)
    if isinstance(given, str):
        return spec.dims.index(given) if spec.dims and given in spec.dims else None
    return given % rank if -rank <= given < rank else None


def _is_number(dtype: np.dtype[Any]) -> bool:
    # Kinds of ml_dtypes, such as bfloat16, are "V" or "f".
    return dtype.kind in "biuf" or (dtype.kind == "V" and np.can_cast(dtype, np.float64))


# --- one pass ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """The statistics of some elements."""

    rows: int
    nbytes: int
    found: Statistics


class _Reduce:
    """Computes the statistics of a batch, or of one element."""

    def __init__(self, variables: Mapping[str, _Variable], batched: bool) -> None:
        self._variables, self._batched = dict(variables), batched

    def __call__(self, element: Any) -> _Part:
        leaves = leaves_of(element)
        arrays = {name: np.asarray(leaves[name]) for name in self._variables}
        rows = len(next(iter(arrays.values()))) if self._batched else 1
        found = {name: self._moments(name, array) for name, array in arrays.items()}
        return _Part(rows, sum(array.nbytes for array in arrays.values()), Statistics(found))

    def _moments(self, name: str, values: npt.NDArray[Any]) -> Moments:
        variable, more = self._variables[name], int(self._batched)
        if values.ndim != variable.rank + more:
            raise ElementError(
                f"{_WHAT}: {name or 'an element'} has {values.ndim - more} axes, and the first one has"
                f" {variable.rank}; statistics need elements of one rank"
            )
        kept = [axis + more for axis in variable.axes]
        others = tuple(axis for axis in range(values.ndim) if axis not in kept)
        places = tuple(axis - variable.rank for axis in variable.axes)
        found = _moments(values, others, variable.dims, places)
        if np.isinf(found.min).any() or np.isinf(found.max).any():
            raise ElementError(
                f"{_WHAT}: {name or 'an element'} has infinite values, which have no mean; replace them"
                " in a map, by NaN to leave them out"
            )
        return found


def _moments(
    values: npt.NDArray[Any],
    axes: tuple[int, ...],
    dims: tuple[str | None, ...],
    places: tuple[int, ...],
) -> Moments:
    """The moments over some axes of an array."""
    wide = values.astype(np.float64)
    size = math.prod(values.shape[axis] for axis in axes)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = wide.sum(axis=axes, keepdims=True) / size
    if np.isnan(mean).any():  # NaN in, or no values at all
        return _moments_with_gaps(wide, axes, dims, places)
    low, high = (np.asarray(f(values, axis=axes)).astype(np.float64) for f in (np.min, np.max))
    with np.errstate(invalid="ignore"):
        wide -= mean
    np.square(wide, out=wide)
    count = np.full(low.shape, size, np.int64)
    mean, squares = mean.reshape(low.shape), np.asarray(wide.sum(axis=axes))
    return Moments(count, np.zeros_like(count), mean, squares, low, high, dims, places)


def _moments_with_gaps(
    wide: FloatArray, axes: tuple[int, ...], dims: tuple[str | None, ...], places: tuple[int, ...]
) -> Moments:
    missing = np.isnan(wide)
    nans = np.count_nonzero(missing, axis=axes, keepdims=True)
    count = math.prod(wide.shape[axis] for axis in axes) - nans
    low, high = (
        np.asarray(extreme.reduce(wide, axis=axes, initial=end))
        for extreme, end in ((np.fmin, np.inf), (np.fmax, -np.inf))
    )
    wide[missing] = 0
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = wide.sum(axis=axes, keepdims=True) / count
        wide -= mean
    wide[missing] = 0
    np.square(wide, out=wide)
    count, nans, mean = (np.reshape(each, low.shape) for each in (count, nans, mean))
    low, high = (np.where(count > 0, each, np.nan) for each in (low, high))
    return Moments(count, nans, mean, np.asarray(wide.sum(axis=axes)), low, high, dims, places)


def _computed(
    dataset: MapDataset[Any],
    wanted: Mapping[str, _Variable],
    row_bytes: int | None,
    workers: int,
    progress: ShowProgress,
) -> Statistics:
    rows: IterDataset[Any] = dataset.to_iter_dataset()
    if row_bytes is not None:
        rows = rows.batch(max(1, min(_MOST_ROWS, _BATCH_BYTES // max(1, row_bytes))))
    parts: Any = rows.map(_Reduce(wanted, row_bytes is not None))
    if workers:
        parts = parts.mp_prefetch(workers)
    found: Statistics | None = None
    with iter(parts) as iterator, ProgressMeter(_WHAT, None, progress) as meter:
        for part in iterator:
            meter.add(part.rows, part.nbytes)
            found = part.found if found is None else found.merged(part.found)
    if found is None:
        raise ElementError(f"{_WHAT}: all elements are absent")
    return found


# --- the file, and text --------------------------------------------------------------------------

_ARRAYS: Final = ("count", "nans", "mean", "squares", "min", "max")


def _file(path: str | os.PathLike[str], about: dict[str, Any] | None) -> KeptFile:
    return KeptFile.at(path, about, _WHAT)


def _arrays(found: Statistics) -> Arrays:
    variables = [(name, of.dims, of.places) for name, of in found.items()]
    arrays = {
        f"{number}.{name}": np.asarray(getattr(of, name))
        for number, of in enumerate(found.values())
        for name in _ARRAYS
    }
    return {**arrays, _VARIABLES: np.frombuffer(json.dumps(variables).encode(), np.uint8)}


def _loaded(file: KeptFile, arrays: Arrays) -> Statistics:
    try:
        found = {}
        for number, (name, dims, places) in enumerate(json.loads(bytes(arrays[_VARIABLES]))):
            values: Any = {each: arrays[f"{number}.{each}"] for each in _ARRAYS}
            found[name] = Moments(**values, dims=tuple(dims), places=tuple(places))
        return Statistics(found)
    except (KeyError, ValueError, TypeError) as error:
        raise file.damaged("not a file of statistics") from error


def _spread(of: Moments, values: FloatArray) -> FloatArray:
    """Values in the shape in which they meet the last axes of an element."""
    shape = [1] * -min(of.places, default=0)
    for place, size in zip(of.places, values.shape, strict=True):
        shape[place] = size
    return values.reshape(shape)


def _shown(name: str, of: Moments) -> Iterator[str]:
    """Lines about a variable: one, or one for each of its places."""
    columns = [np.ravel(each) for each in (of.mean, of.std, of.min, of.max, of.count, of.nans)]
    places = list(np.ndindex(of.mean.shape))
    for place, mean, std, low, high, count, nans in list(zip(places, *columns, strict=True))[
        :_SHOWN_ROWS
    ]:
        at = ", ".join(f"{dim or 'axis'} {k}" for dim, k in zip(of.dims, place, strict=True))
        gaps = f", {nans:,} NaN" if nans else ""
        yield (
            f"  {name}{f'[{at}]' if at else ''}: mean {mean:.6g}, std {std:.6g}, min {low:.6g},"
            f" max {high:.6g} of {count:,} values{gaps}"
        )
    if len(places) > _SHOWN_ROWS:
        yield f"  ... and {len(places) - _SHOWN_ROWS:,} more"
