"""Options of whole streams, and settings that follow from the size of elements."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar

import numpy as np

from windrow.base import Dataset
from windrow.core.machine import usable_cores
from windrow.core.text import with_article
from windrow.errors import ArgumentError
from windrow.iter_dataset import IterDataset
from windrow.transforms import nodes
from windrow.transforms.arguments import at_least
from windrow.transforms.options import DatasetOptions, MultiprocessingOptions, ReadOptions

T = TypeVar("T")
_MIB: Final = 1 << 20
_MOST_ELEMENTS: Final = 1000


class WithOptionsIterDataset(IterDataset[T]):
    """The stream `parent` with options, which hold for all of it.

    Where several of them give an option, the last one in the chain counts.

    Example:
        >>> import windrow
        >>> from windrow.experimental import DatasetOptions, WithOptionsIterDataset
        >>> stream = windrow.MapDataset.range(5000).to_iter_dataset().filter(lambda n: n < 10)
        >>> strict = DatasetOptions(filter_raise_threshold_ratio=0.99)
        >>> list(WithOptionsIterDataset(stream, strict))
        Traceback (most recent call last):
        ...
        windrow.errors.ElementError: filter(<lambda>) left out ...
    """

    def __init__(self, parent: IterDataset[T], options: DatasetOptions) -> None:
        if not isinstance(parent, IterDataset):
            raise ArgumentError(
                f"WithOptionsIterDataset: needs an IterDataset, got {with_article(type(parent).__name__)}"
            )
        if not isinstance(options, DatasetOptions):
            raise ArgumentError(
                "WithOptionsIterDataset: needs a windrow.experimental.DatasetOptions, got"
                f" {options!r}"
            )
        super().__init__(nodes.OptionsNode((parent._node,), options))


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

    Windrow's own settings are bounded in bytes (`ReadOptions.prefetch_bytes`), and `ds.explain()`
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
    budget = _quarter_of_memory() if ram_budget_mb is None else ram_budget_mb * _MIB
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
    sizes = [_bytes_of(x) for ds in datasets for x in itertools.islice(ds, each)]
    return float(np.mean(sizes)) if sizes else 0.0


def _bytes_of(element: Any) -> int:
    if isinstance(element, Mapping):
        return sum(map(_bytes_of, element.values()))
    if isinstance(element, (list, tuple)):
        return sum(map(_bytes_of, element))
    return element.nbytes if isinstance(element, np.ndarray) else sys.getsizeof(element)


def _chains(ds: Dataset[Any]) -> Iterator[Dataset[Any]]:
    """The datasets with random access that a stream begins with: what is read ahead."""
    for parent in ds.parents:
        if isinstance(parent, IterDataset):
            yield from _chains(parent)
        else:
            yield parent


def _quarter_of_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4
