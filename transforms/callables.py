"""Types of what users pass to a chain: functions, objects with one method, and sources.

They are for type checkers alone. An object with the right method is taken without a common base class, so
that transforms and options of Grain fit as well.

Invariant: no module imports this one when a program runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, Protocol, TypeAlias, TypedDict, TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T")
S = TypeVar("S")
T_contra = TypeVar("T_contra", contravariant=True)
S_co = TypeVar("S_co", covariant=True)


class Maps(Protocol[T_contra, S_co]):
    """A `transforms.Map`."""

    def map(self, element: T_contra, /) -> S_co: ...


class RandomlyMaps(Protocol[T_contra, S_co]):
    """A `transforms.RandomMap`."""

    def random_map(self, element: T_contra, rng: np.random.Generator, /) -> S_co: ...


class IndexedMaps(Protocol[T_contra, S_co]):
    """A `transforms.MapWithIndex`."""

    def map_with_index(self, index: int, element: T_contra, /) -> S_co: ...


class FlatMaps(Protocol[T_contra, S_co]):
    """A `transforms.FlatMap`."""

    max_fan_out: int

    def flat_map(self, element: T_contra, /) -> Iterable[S_co]: ...


class Filters(Protocol[T_contra]):
    """A `transforms.Filter`."""

    def filter(self, element: T_contra, /) -> object: ...


class Batches(Protocol):
    """A `transforms.Batch`."""

    @property
    def batch_size(self) -> int: ...
    @property
    def drop_remainder(self) -> bool: ...
    @property
    def batch_fn(self) -> Callable[..., Any] | None: ...


# A function that returns None makes the element absent, so elements after it are never None.
MapFunction: TypeAlias = Callable[[T], S | None] | Maps[T, S | None]
RandomMapFunction: TypeAlias = (
    Callable[[T, np.random.Generator], S | None] | RandomlyMaps[T, S | None]
)
IndexedMapFunction: TypeAlias = Callable[[int, T], S | None] | IndexedMaps[T, S | None]
FilterFunction: TypeAlias = Callable[[T], object] | Filters[T]
# The columns of many elements are not elements: only the function knows what it gets.
BatchedFunction: TypeAlias = Callable[[Any], Any] | Maps[Any, Any]
BatchedRandomFunction: TypeAlias = Callable[[Any, Any], Any] | RandomlyMaps[Any, Any]

AnyTransform: TypeAlias = (
    Maps[Any, Any]
    | RandomlyMaps[Any, Any]
    | IndexedMaps[Any, Any]
    | FlatMaps[Any, Any]
    | Filters[Any]
    | Batches
)


class Locality(TypedDict, total=False):
    """Promises of a function about dimensions: see `MapDataset.map`."""

    local: str | Iterable[str]
    halo: Mapping[str, int] | None
    wrap: str | Iterable[str]


class MapPromises(Locality, total=False):
    """Promises of a function of a `MapDataset`: see `MapDataset.map`."""

    keeps_length: bool


class Padding(TypedDict, total=False):
    """How rows of different lengths become one batch: see `MapDataset.batch`."""

    mask: str
    pad_to: int | Mapping[str, int] | None
    pad_value: float


class Unpadded(Padding, total=False):
    """Options of a batch that is not extended by rows that are padding."""

    drop_remainder: bool
    batch_fn: None
    remainder: Literal["keep", "drop"] | None


class Stacked(Padding, total=False):
    """Options of a batch whose leaves are stacked."""

    drop_remainder: bool
    batch_fn: None
    remainder: Literal["keep", "drop", "pad"] | None


# What is stacked to one array.
ArrayLike: TypeAlias = complex | np.generic | npt.NDArray[Any]


class StoredArray(Protocol):
    """An array of NumPy, zarr-python, xarray or TensorStore."""

    @property
    def shape(self) -> tuple[Any, ...]: ...
    @property
    def dtype(self) -> Any: ...


class RandomAccessSource(Protocol[S_co]):
    """A sequence, or a source of the kind of Windrow, Grain or torch."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> S_co: ...


class NamedArrays(Protocol):
    """A group of arrays that is not a mapping, as in zarr-python."""

    def __len__(self) -> int: ...
    def __getitem__(self, name: str, /) -> Any: ...


class Selects(Protocol):
    """A `transforms.DatasetSelectionMap`."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> tuple[int, int]: ...


class WorkerOptions(Protocol):
    """A `MultiprocessingOptions`."""

    @property
    def num_workers(self) -> Any: ...
    @property
    def per_worker_buffer_size(self) -> Any: ...
