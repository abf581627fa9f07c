"""Brings what users pass to `map`, `filter`, `random_map` and `apply` to one form.

A transform is a plain function or an object with one method, as in Grain. Grain's own classes work
too. They are recognized without importing Grain: code that made one has already imported it.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from windrow.errors import ArgumentError, ElementError
from windrow.transforms.arguments import at_least


class Map(abc.ABC):
    """One element in, one element out."""

    @abc.abstractmethod
    def map(self, element: Any, /) -> Any:
        """The new element; None makes it absent."""


class RandomMap(abc.ABC):
    """One element and a random generator in, one element out."""

    @abc.abstractmethod
    def random_map(self, element: Any, rng: np.random.Generator, /) -> Any:
        """The new element. `rng` depends on the seed and the element's index alone."""


class TfRandomMap(abc.ABC):
    """As `RandomMap`, under the name of a method that Grain shares with TensorFlow's loaders.

    For `windrow.DataLoader` alone; a chain takes `RandomMap`.
    """

    @abc.abstractmethod
    def np_random_map(self, element: Any, rng: np.random.Generator, /) -> Any:
        """The new element."""


class MapWithIndex(abc.ABC):
    """One element and its index in, one element out."""

    @abc.abstractmethod
    def map_with_index(self, index: int, element: Any, /) -> Any:
        """The new element; `index` continues over the epochs."""


class Filter(abc.ABC):
    """Keeps some elements."""

    @abc.abstractmethod
    def filter(self, element: Any, /) -> bool:
        """Whether to keep `element`."""


class FlatMap(abc.ABC):
    """One element in, any number of elements out, at most `max_fan_out`."""

    max_fan_out: int
    """The most elements that `flat_map` returns. Random access needs it: `MapDataset.flat_map`."""

    @abc.abstractmethod
    def flat_map(self, element: Any, /) -> Iterable[Any]:
        """The new elements, in order."""


@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """Stack `batch_size` consecutive elements along a new leading axis.

    Raises:
        ArgumentError: If `batch_size` is not an integer.
        PlanError: If it is less than 1.
    """

    batch_size: int
    drop_remainder: bool = False
    batch_fn: Callable[[Sequence[Any]], Any] | None = None

    def __post_init__(self) -> None:
        at_least(1, self.batch_size, "batch: batch_size")


class DatasetSelectionMap(abc.ABC):
    """Maps each index to a dataset and an index in it, for `select_from_datasets`."""

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def __getitem__(self, index: int) -> tuple[int, int]:
        """`(dataset, index in it)`. Any index may be asked for, also beyond the length."""


Transformation: TypeAlias = Map | RandomMap | MapWithIndex | FlatMap | Filter | Batch
Transformations: TypeAlias = Sequence[Transformation]

_METHODS = {
    "Map": ("map", "element"),
    "RandomMap": ("random_map", "element", "rng"),
    "TfRandomMap": ("np_random_map", "element", "rng"),
    "MapWithIndex": ("map_with_index", "index", "element"),
    "FlatMap": ("flat_map", "element"),
    "Filter": ("filter", "element"),
}
"""The method of each kind, and what it is called with, by position."""
_OURS: dict[str, type] = {
    "Map": Map,
    "RandomMap": RandomMap,
    "TfRandomMap": TfRandomMap,
    "MapWithIndex": MapWithIndex,
    "FlatMap": FlatMap,
    "Filter": Filter,
    "Batch": Batch,
}
# Where Grain has a class under another name.
_THEIRS = {"FlatMap": ("grain.experimental", "FlatMapTransform")}


def kind_of(transform: Any) -> str | None:
    """The key of `_OURS` for a transform of Windrow or of Grain; None for anything else."""
    for kind, ours in _OURS.items():
        module, name = _THEIRS.get(kind, ("grain.transforms", kind))
        theirs = getattr(sys.modules.get(module), name, ours)
        if isinstance(transform, (ours, theirs)):
            return kind
    return None


def as_function(transform: Any, kind: str) -> Callable[..., Any]:
    """Return the function of a callable, or of a transform object of the given kind.

    Raises:
        ArgumentError: If it is neither, or takes other arguments.
    """
    method, *passed = _METHODS[kind]
    found = kind_of(transform)
    if found != kind and (found is not None or not callable(transform)):
        raise ArgumentError(
            f"{method}: needs a function or a windrow.transforms.{kind}, got"
            f" {transform!r} of type {type(transform).__name__}"
        )
    function: Callable[..., Any] = getattr(transform, method) if found == kind else transform
    names = _parameters_not_met(function, len(passed))
    if names is not None:
        raise ArgumentError(
            f"{method}: the function is called with ({', '.join(passed)}), and {name_of(function)} takes"
            f" ({', '.join(names)}); give other arguments a default, or fix them by functools.partial"
        )
    return function


def _parameters_not_met(function: Any, given: int) -> tuple[str, ...] | None:
    """The parameters of a Python function that cannot be called with `given` arguments; else None."""
    is_method = isinstance(function, types.MethodType)
    plain = function.__func__ if is_method else function
    if not isinstance(plain, types.FunctionType):
        return None  # it is known at the first call
    code = plain.__code__
    positional = code.co_argcount - is_method
    required = positional - len(plain.__defaults__ or ())
    names = code.co_varnames[is_method : code.co_argcount + code.co_kwonlyargcount]
    has_rest = bool(code.co_flags & inspect.CO_VARARGS)
    by_name = set(names[positional:]) - set(plain.__kwdefaults__ or ())
    fits = required <= given and (given <= positional or has_rest) and not by_name
    return None if fits else names


def as_batch(transform: Any) -> Batch:
    """Convert Grain's or Windrow's `Batch` to Windrow's."""
    if isinstance(transform, Batch):
        return transform
    return Batch(transform.batch_size, transform.drop_remainder, transform.batch_fn)


def call_without_stop(function: Callable[..., Any], *args: Any) -> Any:
    """Call `function(*args)`, and turn a StopIteration into an error.

    A StopIteration would silently end the user's loop: the data must not seem to be over.

    Raises:
        ElementError: If the function raised StopIteration.
    """
    try:
        return function(*args)
    except StopIteration as stop:
        raise ElementError(
            f"{name_of(function)} raised StopIteration; return or raise another error"
        ) from stop


def name_of(function: Any) -> str:
    """The qualified name of a function, for printing and for the state: no address, no path."""
    if isinstance(function, functools.partial):
        return f"partial({name_of(function.func)})"
    owner = getattr(function, "__self__", None)
    name = getattr(function, "__qualname__", getattr(function, "__name__", None))
    if owner is not None and not isinstance(owner, (type, types.ModuleType)) and name is not None:
        # A bound method of a transform object: what matters is the class that the user wrote.
        return f"{type(owner).__qualname__}.{name.rpartition('.')[2]}"
    return str(name) if name is not None else type(function).__qualname__
