"""Turns records and batches of windows into `xarray.Dataset`: names, labels and attributes of arrays.

Invariants: nothing is read, and no values are copied. Labels that differ between windows are those that
came with the batch; all others follow from the plan of the source.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from windrow.core.optional_imports import optional
from windrow.core.text import listing, with_article
from windrow.errors import ElementError
from windrow.sources.base import AnyArray
from windrow.sources.windows.cf import described
from windrow.sources.windows.plan import WindowPlan
from windrow.sources.windows.window_coordinates import WindowCoordinate, axis_name
from windrow.sources.zarr.open_array import OpenArray

if TYPE_CHECKING:
    import xarray

_WHAT: Final = "WindowDataSource.to_xarray"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Variable:
    """One leaf of a record as a variable of a Dataset.

    Args:
        name: Its name.
        dims: Names of its axes in a record.
        shape: Its shape in a record.
        attributes: Its attributes.
        labels: Its values if it is a coordinate that all records share; else None.
        is_coordinate: Whether it is a coordinate.
    """

    name: str
    dims: tuple[str, ...]
    shape: tuple[int | None, ...]
    attributes: Mapping[str, Any]
    labels: AnyArray | None = None
    is_coordinate: bool = False


def variables_of(
    opened: Sequence[OpenArray],
    plan: WindowPlan,
    coordinates: Sequence[WindowCoordinate],
    own_name: str,
    *,
    decoded: bool,
) -> tuple[Variable, ...]:
    """The variables of a record: its fields, then its coordinates.

    Args:
        opened: The arrays.
        plan: The cells of each record.
        coordinates: The coordinates of records.
        own_name: Name of a single array, whose field has no name.
        decoded: Whether the user asked for decoded values.
    """
    found = []
    for field in plan.taken:
        array = opened[field.number]
        kept = [axis for axis in field.along if not axis.dropped]
        dims = tuple(axis_name(plan, axis.dim, field.name) for axis in kept)
        attributes = described(array.attributes, array.dtype, array.missing_value, decoded=decoded)
        found.append(Variable(field.name or own_name, dims, field.shape, attributes))
    for coordinate in coordinates:
        along, spec, labels = coordinate.along, coordinate.spec, None
        if not along.moves:
            labels = coordinate.values[along.cells()]
            labels = labels[0] if along.dropped else labels
        dims = () if along.dropped else (coordinate.axis,)
        attributes = described(coordinate.attributes, spec.dtype, None, decoded=True)
        for name in ("units", "calendar") if spec.dtype.kind in "mM" else ():
            attributes.pop(name, None)  # they say how times are stored
        found.append(
            Variable(coordinate.name, dims, spec.shape, attributes, labels, is_coordinate=True)
        )
    return tuple(found)


def as_dataset(batch: Any, tree: Any, variables: Sequence[Variable], dim: str) -> xarray.Dataset:
    """The Dataset of a record, or of a batch whose samples lie along `dim`.

    Args:
        batch: Arrays in the tree of a record; some may be missing.
        tree: The tree of a record, with the number of a variable for each leaf.
        variables: The variables.
        dim: Name of the first axis of a batch.

    Raises:
        ElementError: If an array does not fit the records, or has no place in them.
        MissingExtraError: If xarray is not installed.
    """
    library = optional("xarray", _WHAT, "xarray")
    leaves = {
        variables[number].name: (variables[number], leaf)
        for number, leaf in _leaves(batch, tree, "")
    }
    ranks = {len(np.shape(leaf)) - len(of.shape) for of, leaf in leaves.values()}
    for of, leaf in leaves.values():
        shape = np.shape(leaf)
        more = len(shape) - len(of.shape)
        if more not in (0, 1) or shape[more:] != of.shape or len(ranks) > 1:
            raise ElementError(
                f"{_WHAT}: {of.name!r} has shape {shape}, and in a record of the source {of.shape}; give a"
                " record or a batch, before functions that change shapes"
            )
    first = (dim,) * ranks.pop() if ranks else ()
    data: dict[str, Any] = {}
    labels: dict[str, Any] = {}
    dims = {name for of, _ in leaves.values() for name in of.dims}
    for of, leaf in leaves.values():
        if of.labels is None:
            into = labels if of.is_coordinate or of.name in dims else data
            into[of.name] = ((*first, *of.dims), leaf, dict(of.attributes))
    for of in variables:
        if of.labels is not None and dims.issuperset(of.dims):
            labels[of.name] = (of.dims, of.labels, dict(of.attributes))
    found: xarray.Dataset = library.Dataset(data, labels)
    return found


def _leaves(batch: Any, tree: Any, path: str) -> Iterator[tuple[int, Any]]:
    """The leaves of a batch, each with its number in the tree of a record."""
    if not isinstance(tree, dict):
        yield tree, np.asarray(batch) if isinstance(batch, list) else batch
        return
    if not isinstance(batch, Mapping):
        raise ElementError(
            f"{_WHAT}: got {with_article(type(batch).__name__)}{path and f' as {path!r}'}, and records of"
            f" the source are dicts of {listing(list(tree))}; give a record or a batch of it"
        )
    for key, item in batch.items():
        if key not in tree:
            raise ElementError(
                f"{_WHAT}: {path + str(key)!r} is not in a record of the source, which has"
                f" {listing(list(tree))}; leave it out, or add it to the Dataset afterwards"
            )
        yield from _leaves(item, tree[key], f"{path}{key}/")
