"""Finds the labels of a dimension, and compares the labels that several stores have.

Invariant: arrays of different stores are cut at the same cells only if their labels are the same there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from windrow.errors import SourceError
from windrow.sources.base import AnyArray
from windrow.sources.windows.coordinates import Coordinates
from windrow.sources.windows.declared import Dim
from windrow.sources.windows.selection import Coordinate, shown_label
from windrow.sources.zarr.objects import HeldArray
from windrow.sources.zarr.open_array import OpenArray

_WHAT: Final = "WindowDataSource"
# One store may hold the same latitudes as float32, and another one as float64. Without a step, the share
# of the label itself.
_OF_A_STEP: Final = 1e-2
_CLOSE: Final = 1e-6


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
                    f"{_WHAT}: the stores differ in the labels of {dim!r}\n"
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
