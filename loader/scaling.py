"""Scales the leaves of elements by statistics, and back.

Invariant: a leaf is scaled by the statistics of its name, along its last axes. Other leaves stay as
they are. Arrays of JAX and of NumPy are scaled alike.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from windrow.errors import ElementError
from windrow.sources.base import ArraySpec

# A mean and a deviation, in the shape in which they meet the last axes.
Scale: TypeAlias = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]

_LISTED: Final = 8


@dataclasses.dataclass(frozen=True, eq=False)
class _Scaling(abc.ABC):
    """A function of elements, columns or batches."""

    scales: Mapping[str, Scale]

    def __call__(self, element: Any) -> Any:
        """Scales the leaves that have statistics, each into new memory.

        Raises:
            ElementError: If none has, or one does not fit the axes of its statistics.
        """
        return self._over(element, self._leaf)

    def output_spec(self, spec: Any) -> Any:
        """What it makes of an element: the same shapes, in float."""
        return self._over(
            spec,
            lambda name, of: (
                ArraySpec(of.shape, _result(of.dtype), of.dims) if isinstance(of, ArraySpec) else of
            ),
        )

    @abc.abstractmethod
    def scaled(self, values: Any, mean: Any, std: Any) -> Any:
        """The values on the other scale; all arguments have one float dtype."""

    def _over(self, element: Any, function: Callable[[str, Any], Any]) -> Any:
        met: list[str] = []

        def scaled(name: str, leaf: Any) -> Any:
            met.append(name)
            return function(name, leaf)

        found = _mapped(element, "", self.scales, scaled)
        if not met:
            names = list(leaves_of(element))[:_LISTED]
            raise ElementError(
                f"{type(self).__name__}: the element has {names}, and there are statistics of"
                f" {list(self.scales)[:_LISTED]}; name them as the element does, by named(...)"
            )
        return found

    def _leaf(self, name: str, values: Any) -> Any:
        if isinstance(values, list):  # a column of arrays that differ in shape
            return [self._leaf(name, each) for each in values]
        if not isinstance(values, np.ndarray | np.generic) and not _has_dtype(values):
            values = np.asarray(values)
        mean, std = self.scales[name]
        own = tuple(values.shape[values.ndim - mean.ndim :]) if mean.ndim <= values.ndim else ()
        if len(own) != mean.ndim or any(
            m not in (1, n) for m, n in zip(mean.shape, own, strict=True)
        ):
            raise ElementError(
                f"{type(self).__name__}: {name or 'the element'} has the shape {tuple(values.shape)}, and its"
                f" statistics the shape {mean.shape} along the last axes; compute them of the same selection"
            )
        made = _result(values.dtype)
        # float32 has 24 bits.
        is_long = (
            isinstance(values, np.ndarray) and values.dtype.kind in "iu" and values.itemsize > 2
        )
        wide = np.dtype(np.float64 if made == np.float64 or is_long else np.float32)
        seen = values if values.dtype == wide else values.astype(wide)
        found = self.scaled(seen, mean.astype(wide), _nonzero(std).astype(wide))
        return found if found.dtype == made else found.astype(made)


class Normalize(_Scaling):
    """Scales values to mean 0 and deviation 1."""

    def scaled(self, values: Any, mean: Any, std: Any) -> Any:
        return (values - mean) / std


class Denormalize(_Scaling):
    """Brings scaled values back to their units."""

    def scaled(self, values: Any, mean: Any, std: Any) -> Any:
        return values * std + mean


def _result(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of scaled values: their own if it has fractions, else float32."""
    return np.dtype(np.float32) if dtype.kind in "biu" else dtype


def _nonzero(std: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The deviation; 1 where values never vary."""
    return np.where(std > 0, std, np.where(np.isnan(std), np.nan, 1.0))


def _has_dtype(values: Any) -> bool:
    return isinstance(getattr(values, "dtype", None), np.dtype)


# --- trees ---------------------------------------------------------------------------------------


def leaves_of(tree: Any, name: str = "") -> dict[str, Any]:
    """The leaves of an element by their names, joined by `/`; '' for an element that is a leaf."""
    children = _children(tree)
    if children is None:
        return {name: tree}
    found: dict[str, Any] = {}
    for key, child in children:
        found.update(leaves_of(child, f"{name}/{key}" if name else str(key)))
    return found


def _children(tree: Any) -> list[tuple[Any, Any]] | None:
    if isinstance(tree, Mapping):
        return list(tree.items())
    if isinstance(tree, list | tuple):
        return list(enumerate(tree))
    return None


def _mapped(
    tree: Any, name: str, names: Mapping[str, Any], function: Callable[[str, Any], Any]
) -> Any:
    """The tree with the leaves of some names replaced."""
    if name in names and not isinstance(tree, Mapping | tuple):  # a list is a column of arrays
        return function(name, tree)
    children = _children(tree)
    if children is None:
        return tree
    found = [
        _mapped(child, f"{name}/{key}" if name else str(key), names, function)
        for key, child in children
    ]
    if isinstance(tree, Mapping):
        return dict(zip(tree, found, strict=True))
    if isinstance(tree, tuple) and type(tree) is not tuple:  # a NamedTuple
        return type(tree)(*found)
    return type(tree)(found)
