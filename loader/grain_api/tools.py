"""Grain's experimental functions: batches that are padded, orders, generators, checks, devices, settings."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from windrow.base import Dataset
from windrow.core.machine import machine_bytes, usable_cores
from windrow.core.optional_imports import optional
from windrow.core.text import with_article
from windrow.errors import ArgumentError, ElementError, PlanError, RecordIndexError
from windrow.iter_dataset import IterDataset
from windrow.iterator import DatasetIterator
from windrow.sources.base import ArraySpec
from windrow.transforms import columns, orders, specs
from windrow.transforms.arguments import at_least, checked_seed
from windrow.transforms.nodes import chains_of
from windrow.transforms.options import MultiprocessingOptions, ReadOptions
from windrow.transforms.random import philox_key
from windrow.transforms.record_sizes import nbytes

D = TypeVar("D", bound="Dataset[Any]")


@runtime_checkable
class ShapeDtypeStructProtocol(Protocol):
    """What has a shape and a dtype, such as `windrow.sources.ArraySpec` or an array."""

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Lengths of the axes; None where one is not known."""
        ...

    @property
    def dtype(self) -> npt.DTypeLike:
        """The type of the numbers."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class ShapeDtypeStruct:
    """A shape and a dtype. It equals a `windrow.sources.ArraySpec` of this shape and dtype."""

    shape: tuple[int | None, ...]
    dtype: npt.DTypeLike

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (ShapeDtypeStruct, ArraySpec)):
            return NotImplemented
        return self.shape == other.shape and bool(self.dtype == other.dtype)

    def __hash__(self) -> int:
        return hash(self.shape)  # equal dtypes, such as np.int64 and its dtype, hash differently


def get_element_spec(ds: Dataset[Any]) -> Any:
    """`ds.element_spec` with a `ShapeDtypeStruct` for each array, number, str or bytes; reads nothing."""
    return specs.mapped(_as_struct, ds.element_spec)


def _as_struct(leaf: Any) -> Any:
    if leaf in (str, bytes):
        return ShapeDtypeStruct((), leaf)
    return ShapeDtypeStruct(leaf.shape, leaf.dtype) if isinstance(leaf, ArraySpec) else leaf


def apply_transformations(ds: D, transformations: Any) -> D:
    """`ds.apply(transformations)`."""
    made: D = ds.apply(transformations)  # type: ignore[attr-defined]
    return made


def batch_and_pad(values: Sequence[Any], *, batch_size: int, pad_value: Any = 0) -> Any:
    """A batch of `batch_size` rows: elements stacked, then rows of `pad_value`.

    For `batch_fn`, with `functools.partial`. `batch(n, remainder="pad")` does the same, is planned,
    and says which rows are real.

    Args:
        values: From 1 up to `batch_size` elements of one structure.
        batch_size: Rows of the batch.
        pad_value: The value of what pads.

    Raises:
        PlanError: If there are no elements, or too many.
        ElementError: If elements do not fit together, or `pad_value` is not a value of their dtype.

    Example:
        >>> import windrow
        >>> windrow.experimental.batch_and_pad([1, 2], batch_size=4).tolist()
        [1, 2, 0, 0]
    """
    if not 1 <= len(values) <= batch_size:
        raise PlanError(
            f"batch_and_pad: {len(values)} elements do not make a batch of {batch_size}; give from 1"
            f" up to {batch_size}"
        )
    more = batch_size - len(values)

    def padded(column: Any) -> Any:
        rows = np.stack(column) if isinstance(column, list) else np.asarray(column)
        if more and rows.dtype.kind in "biufc" and not columns.holds(rows.dtype, pad_value):
            raise ElementError(
                f"batch_and_pad: pad_value={pad_value!r} is not a value of dtype {rows.dtype}, which elements"
                " have; choose another, or convert them in a map before"
            )
        pad = np.full((more, *rows.shape[1:]), pad_value, rows.dtype)
        return np.concatenate([rows, pad]) if more else rows

    batch = columns.columns_in(columns.batch_of(list(values)))
    return columns.element_of(columns.map_columns(padded, batch))


class RngPool:
    """Generators that depend on a seed and an index alone, as `random_map` has them.

    Args:
        seed: In `[0, 2**64)`.
    """

    def __init__(self, seed: int) -> None:
        self._seed = checked_seed(seed, "RngPool", 2**64)

    def __reduce__(self) -> tuple[Any, ...]:
        return RngPool, (self._seed,)

    def acquire_rng(self, index: int, *, op_seed: int = 0) -> np.random.Generator:
        """The generator of an index, in `[0, 2**64)`; `op_seed` makes another one."""
        counter = np.array([0, 0, op_seed, index], np.uint64)
        return np.random.Generator(np.random.Philox(key=philox_key(self._seed), counter=counter))

    def release_rng(self, rng: np.random.Generator) -> None:
        """Does nothing: generators are not used again."""


def get_next_index(ds_iter: DatasetIterator[Any]) -> int:
    """The number of the element that comes next, from 0.

    After random access alone it is an index, so absent elements count. In other streams it counts the
    elements that were given.

    Raises:
        ArgumentError: If it is not an iterator of Windrow.
    """
    batch = _iterator(ds_iter, "get_next_index")._tail.batch
    rows: int = ds_iter.get_state()["rows"]
    return rows if batch is None else -(-rows // batch.size)


def set_next_index(ds_iter: DatasetIterator[Any], index: int) -> None:
    """Continue with the element of a number: see `get_next_index`.

    After random access nothing is read. In other streams it costs what `DatasetIterator.seek` costs.

    Raises:
        ArgumentError: If it is not an iterator of Windrow, or the number is not an integer.
        PlanError: If the number is negative.
        RecordIndexError: If it is beyond the end.

    Example:
        >>> import windrow
        >>> iterator = iter(windrow.MapDataset.range(10).batch(3))
        >>> windrow.experimental.set_next_index(iterator, 2)
        >>> next(iterator).tolist(), windrow.experimental.get_next_index(iterator)
        ([6, 7, 8], 3)
    """
    tail = _iterator(ds_iter, "set_next_index")._tail
    number = at_least(0, index, "set_next_index: index")
    if not tail.is_indexed or tail.node.width > 1:
        ds_iter.seek(number)
        return
    length = chains_of(tail.node)[0].parent.length
    if number > length:
        raise RecordIndexError(
            f"set_next_index: {number} is beyond the end: choose 0 <= index <= {length}"
        )
    ds_iter.set_state({"next_index": number})


def _iterator(value: Any, who: str) -> DatasetIterator[Any]:
    if not isinstance(value, DatasetIterator):
        raise ArgumentError(
            f"{who}: needs an iterator of Windrow, got {with_article(type(value).__name__)}"
        )
    return value


def device_put(
    ds: IterDataset[Any], device: Any, *, cpu_buffer_size: int = 4, device_buffer_size: int = 2
) -> IterDataset[Any]:
    """The elements of a stream on a device, put there by the thread that makes them ahead.

    Args:
        ds: A stream of trees of arrays.
        device: A device or sharding, as `jax.device_put` takes it.
        cpu_buffer_size: Accepted for compatibility, as the next; `ReadOptions` say how far ahead.
        device_buffer_size: See above.

    Raises:
        MissingExtraError: If JAX is not installed.
        PlanError: If a size is negative.
    """
    at_least(0, cpu_buffer_size, "device_put: cpu_buffer_size")
    at_least(0, device_buffer_size, "device_put: device_buffer_size")
    jax = optional("jax", "device_put", "jax")
    return ds.map(functools.partial(jax.device_put, device=device))


def assert_equal_output_after_checkpoint(ds: Any) -> None:
    """Check that an iterator restored at any step yields the rest, and has the state it was given.

    Args:
        ds: A dataset of few elements, or anything whose iterators have `get_state` and `set_state`.

    Raises:
        AssertionError: If a restored iterator has other elements or another state, or there is no
            element.
    """
    iterator, states, elements = iter(ds), [], []
    for _ in itertools.count():
        states.append(iterator.get_state())
        try:
            elements.append(next(iterator))
        except StopIteration:
            break
    if not elements:
        raise AssertionError("the dataset has no elements, so there is nothing to compare")
    for step, state in enumerate(states[:-1]):
        again = iter(ds)
        again.set_state(state)
        if again.get_state() != state:
            raise AssertionError(
                f"restored at step {step} the iterator has the state {again.get_state()}, not {state}"
            )
        np.testing.assert_equal(list(again), elements[step:], f"restored at step {step}")


def index_shuffle(index: int, max_index: int, seed: int, rounds: int = 4) -> int:
    """The place of `index` in a random order of the integers from 0 up to `max_index`.

    With four rounds it is the order of `MapDataset.shuffle`. Grain's function gives some integers
    twice where `max_index` is 2^16, 2^18, ...; here each comes once.

    Args:
        index: In `[0, max_index]`.
        max_index: The largest integer.
        seed: In `[0, 2**32)`.
        rounds: An even number from 4 up to 1024.

    Raises:
        ArgumentError: If a number is not an integer.
        PlanError: If a number is out of range.

    Example:
        >>> import windrow
        >>> [windrow.experimental.index_shuffle(k, 4, seed=1, rounds=4) for k in range(5)]
        [1, 2, 3, 0, 4]
    """
    if not 4 <= rounds <= 1024 or rounds % 2:
        raise PlanError(
            f"index_shuffle: rounds must be an even integer between 4 and 1024, got {rounds!r}"
        )
    length = at_least(0, max_index, "index_shuffle: max_index") + 1
    if not 0 <= at_least(0, index, "index_shuffle: index") < length:
        raise PlanError(f"index_shuffle: index {index} is outside [0, {max_index}]")
    network = orders.network_of(length, checked_seed(seed, "index_shuffle", 2**32), rounds)
    return 0 if length == 1 else network.walk(index, length)


# --- settings that follow from the size of elements --------------------------------------------------

_MIB: Final = 1 << 20
_MOST_ELEMENTS: Final = 1000


@dataclasses.dataclass(slots=True)
class PerformanceConfig:
    """Settings for `mp_prefetch` and `to_iter_dataset`."""

    multiprocessing_options: MultiprocessingOptions | None = None
    read_options: ReadOptions | None = None


def pick_performance_config(
    ds: IterDataset[Any],
    *,
    ram_budget_mb: int | None,
    max_workers: int | None,
    max_buffer_size: int | None,
    samples_to_check: int = 5,
) -> PerformanceConfig:
    """Settings for which the elements made ahead fit into memory, as far as a few elements show.

    Windrow's own settings are bounded in bytes (`ReadOptions.memory_bytes`), and `ds.explain()`
    advises without reading. `mp_prefetch("auto")` decides how many workers there are from the first
    elements. This function is for programs that call Grain's.

    Args:
        ds: A stream. It is read up to the elements that are checked.
        ram_budget_mb: MiB for elements; None for a quarter of the machine's memory.
        max_workers: The most workers; None for one per core.
        max_buffer_size: The most elements made ahead; None for 1,000.
        samples_to_check: The number of elements whose size is measured.

    Raises:
        ArgumentError: If a number is not an integer.
        PlanError: If a number is less than 1.

    Example:
        >>> import numpy as np, windrow
        >>> stream = windrow.MapDataset.source(np.zeros((64, 1 << 20), np.uint8)).to_iter_dataset()
        >>> found = windrow.experimental.pick_performance_config(
        ...     stream, ram_budget_mb=32, max_workers=2, max_buffer_size=None
        ... )
        >>> found.multiprocessing_options.num_workers, found.read_options.prefetch_buffer_size
        (2, 32)
    """
    who = "pick_performance_config:"
    checked = at_least(1, samples_to_check, f"{who} samples_to_check")
    workers = (
        usable_cores() if max_workers is None else at_least(1, max_workers, f"{who} max_workers")
    )
    most = _MOST_ELEMENTS
    if max_buffer_size is not None:
        most = at_least(1, max_buffer_size, f"{who} max_buffer_size")
    budget = machine_bytes() // 4 if ram_budget_mb is None else ram_budget_mb * _MIB
    at_least(1, budget, f"{who} ram_budget_mb")
    size = _mean_bytes([ds], checked)
    chains = list(_chains(ds))
    read = _mean_bytes(chains, checked) * max(1, len(chains))
    return PerformanceConfig(
        MultiprocessingOptions(max(1, min(workers, int(budget / max(1, size))))),
        ReadOptions(prefetch_buffer_size=max(1, min(most, int(budget / max(1, read))))),
    )


def _mean_bytes(datasets: list[Any], samples: int) -> float:
    each = math.ceil(samples / max(1, len(datasets)))
    sizes = [nbytes(x) for ds in datasets for x in itertools.islice(ds, each)]
    return float(np.mean(sizes)) if sizes else 0.0


def _chains(ds: Dataset[Any]) -> Iterator[Dataset[Any]]:
    """The datasets with random access that a stream begins with: what is read ahead."""
    for parent in ds.parents:
        if isinstance(parent, IterDataset):
            yield from _chains(parent)
        else:
            yield parent
