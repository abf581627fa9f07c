"""Chains where reading is not what counts: order, functions, worker processes, lanes, states."""

from __future__ import annotations

import functools
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np

import windrow
from benchmarks import functions, loops, rows, stores
from benchmarks.harness import FLOOR, OURS, Bound, Case, Metrics, Place, Regime, Side
from benchmarks.loops import Grain
from benchmarks.rows import BATCH, GLOBAL, Read
from windrow import MapDataset
from windrow.sources import ZarrDataSource

_part = functools.partial
SEED: Final = 42


# --- nothing to read -----------------------------------------------------------------------------


def _elements(place: Place) -> int:
    return place.size(500_000, 500)


def our_range(place: Place) -> Any:
    """What the order and the batches cost."""
    return MapDataset.range(place.size(10_000_000, 20_000)).shuffle(seed=SEED).batch(BATCH)


def grain_range(place: Place, way: Grain) -> Any:
    """The same chain in Grain."""
    import grain

    chain = grain.MapDataset.range(place.size(10_000_000, 20_000)).shuffle(seed=SEED)
    return way.stream(chain.batch(BATCH))


def range_floor(place: Place) -> Iterator[Any]:
    """A ready order cut into batches, each copied."""
    order = np.random.default_rng(SEED).permutation(place.size(10_000_000, 20_000))
    return (order[i : i + BATCH].copy() for i in range(0, len(order), BATCH))


def _counted(elements: Any) -> Callable[[], int]:
    """Handing elements over one by one."""
    return lambda: sum(1 for _ in elements)


def our_elements(place: Place, *, function: Callable[[Any], Any]) -> Callable[[], int]:
    """A function of each element, without batches."""
    return _counted(MapDataset.range(_elements(place)).shuffle(seed=SEED).map(function))


def grain_elements(
    place: Place, way: Grain, *, function: Callable[[Any], Any]
) -> Callable[[], int]:
    """The same in Grain, over a twentieth of them."""
    import grain

    chain = grain.MapDataset.range(_elements(place) // 20).shuffle(seed=SEED).map(function)
    return _counted(way.stream(chain))


def elements_floor(place: Place, *, function: Callable[[Any], Any]) -> Callable[[], int]:
    """The function in a bare loop over a ready order."""
    order = np.random.default_rng(SEED).permutation(_elements(place)).tolist()
    return _counted(map(function, order))


def _of_elements(name: str, shows: str, function: Callable[[Any], Any], *bounds: Bound) -> Case:
    given: dict[str, Any] = {"function": function}
    sides = (
        Side(OURS, _part(our_elements, **given)),
        Side("Grain", _part(grain_elements, **given), loops.GRAIN_ALONE, ("grain",)),
        Side(FLOOR, _part(elements_floor, **given)),
    )
    return Case(f"chain.{name}", shows, sides, Regime.WHOLE, bounds=bounds)


# --- worker processes ----------------------------------------------------------------------------


class Kept:
    """Rows in memory, each of another content: single ones for Grain, whole batches for torch."""

    def __init__(self, rows: int, row_bytes: int) -> None:
        self._arguments = rows, row_bytes
        # Written to, every byte: pages that never were are one and the same in memory.
        words = np.arange(rows * row_bytes // 4, dtype=np.uint32)
        self.rows = words.view(np.uint8).reshape(rows, row_bytes)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]

    def __reduce__(self) -> Any:
        return Kept, self._arguments


class _Fetched(Kept):
    """The same for torch, with the function in the worker process."""

    def __init__(
        self, rows: int, row_bytes: int, function: Callable[[Any], Any], each: bool
    ) -> None:
        super().__init__(rows, row_bytes)
        self._function, self._each = function, each

    def __getitems__(self, indices: Sequence[int]) -> Any:
        at = indices[0] % len(self.rows)
        batch = self.rows[at : at + len(indices)]
        if self._each:
            return np.stack([self._function(row) for row in batch])
        return self._function(batch)


def _in_shared_memory(rows: Any) -> Any:
    """The batch copied to where workers hand it over from, as torch's own collation does."""
    import torch

    found = torch.as_tensor(rows)
    storage: Any = found.untyped_storage()
    shared = storage._new_shared(found.nbytes)
    return found.new_empty(0).set_(shared, 0, found.shape, found.stride()).copy_(found)


class Spread:
    """A chain over rows in memory whose function runs in two worker processes.

    Args:
        rows: Rows in memory; they are read again and again.
        row_bytes: Bytes of each.
        batch: Rows of a batch.
        function: What is called.
        each: Whether it is called on each row; else on batches.
    """

    def __init__(
        self, rows: int, row_bytes: int, batch: int, function: Callable[[Any], Any], *, each: bool
    ) -> None:
        self.rows, self.row_bytes, self.batch = rows, row_bytes, batch
        self.function, self.each = function, each

    def _kept(self, place: Place) -> tuple[int, int]:
        return place.size(self.rows, 4 * self.batch), place.size(self.row_bytes, 64)

    def _chain(self, library: Any, rows: Any) -> Any:
        chain = library.MapDataset.source(rows).repeat()
        if self.each:
            return chain.map(self.function).batch(self.batch)
        return chain.batch(self.batch).map(self.function)

    def ours(self, place: Place, *, workers: int) -> Any:
        """Ours."""
        batches = self._chain(windrow, Kept(*self._kept(place)).rows)
        return batches.mp_prefetch(workers) if workers else batches

    def grain(self, place: Place, way: Grain) -> Any:
        """Grain's, whose processes make their rows anew."""
        import grain

        return way.stream(self._chain(grain, Kept(*self._kept(place))))

    def torch(self, place: Place, setting: tuple[int, bool]) -> Any:
        """torch's, whose processes are forked and have the rows."""
        import torch

        ahead, is_shared = setting
        rows: Any = _Fetched(*self._kept(place), self.function, self.each)
        return torch.utils.data.DataLoader(
            rows,
            self.batch,
            sampler=range(10**9),
            num_workers=2,
            collate_fn=_in_shared_memory if is_shared else torch.as_tensor,
            prefetch_factor=ahead,
            multiprocessing_context="fork",
        )

    def floor(self, place: Place) -> Iterator[Any]:
        """Each batch copied once, into memory that is used again."""
        rows = Kept(*self._kept(place)).rows
        out = np.empty((self.batch, rows.shape[1]), np.uint8)
        for first in itertools.cycle(range(0, len(rows) - self.batch + 1, self.batch)):
            np.copyto(out, rows[first : first + self.batch])
            yield out


_TORCH: Final = {
    f"{'in shared memory, ' if shared else ''}{ahead} ahead": (ahead, shared)
    for ahead in (2, 8)
    for shared in (False, True)
}


def _workers(name: str, shows: str, work: Spread, warm: int, floor: bool, *bounds: Bound) -> Case:
    sides = (
        Side(OURS, _part(work.ours, workers=2)),
        Side("ours, no workers", _part(work.ours, workers=0)),
        Side("torch", work.torch, _TORCH, ("torch",)),
        Side("Grain", work.grain, loops.GRAIN_WORKERS, ("grain",)),
        *([Side(FLOOR, work.floor)] if floor else []),
    )
    return Case(f"workers.{name}", shows, sides, Regime.STEADY, bounds=bounds, seconds=2, warm=warm)


_SLOW: Final = Spread(6_400, 3_072, 64, functions.one_ms, each=True)
_LARGE: Final = Spread(8_000, 64_000, 1_000, functions.same, each=False)
_COMPACT: Final = Spread(25_000, 4_000, 25, functions.same, each=False)


# --- states --------------------------------------------------------------------------------------


def _grain_records(place: Place) -> Any:
    import grain

    source = grain.sources.ArrayRecordDataSource(str(place.path("records")))
    chain = grain.MapDataset.source(source).shuffle(seed=1).map(functions.decode).batch(BATCH)
    return loops.GRAIN["no threads"].stream(chain)


def restoring(place: Place, *, opened: Callable[[Place], Any]) -> Metrics:
    """Save in mid-epoch, restore in a new iterator, wait for its first batch."""
    dataset, state, saves = opened(place), None, []
    iterator = iter(dataset)
    for _ in range(place.size(100, 3)):
        next(iterator)
        begun_s = time.perf_counter()
        state = iterator.get_state()
        saves.append(time.perf_counter() - begun_s)
    getattr(iterator, "close", lambda: None)()
    restores, firsts = [], []
    for _ in range(place.size(5, 2)):
        begun_s = time.perf_counter()
        iterator = iter(dataset)
        made_s = time.perf_counter()
        iterator.set_state(state)
        restores.append(time.perf_counter() - made_s)
        next(iterator)
        firsts.append(time.perf_counter() - begun_s)
        getattr(iterator, "close", lambda: None)()
    return {
        "first_batch_ms": statistics.median(firsts) * 1e3,
        "set_state_us": statistics.median(restores) * 1e6,
        "get_state_us": statistics.median(saves) * 1e6,
        "state_bytes": len(json.dumps(state)),
    }


# --- lanes ------------------------------------------------------------------------------------------


def lanes(place: Place, *, lanes: int) -> Any:
    """Shuffled batches for ever, in `lanes` lanes."""
    chain = MapDataset.source(ZarrDataSource(str(place.path("rows")))).seed(1)
    blocks = chain.block_shuffle(window_blocks=64).repeat()
    return blocks.to_iter_dataset(lanes=lanes).batch(BATCH)


# --- cases ---------------------------------------------------------------------------------------

_LANES: Final = (
    Side(OURS, _part(lanes, lanes=64)),
    Side("one lane", _part(lanes, lanes=1)),
)
CASES: Final = (
    Case(
        "chain.range",
        "nothing to read: order and batches",
        (
            Side(OURS, our_range),
            Side("Grain", grain_range, loops.GRAIN_ALONE, ("grain",)),
            Side(FLOOR, range_floor),
        ),
        bounds=(
            Bound("elements/s, 10 million of a range", at_least=10**7),
            Bound("MB of memory; its indices are 80", "memory_mb", at_most=40),
        ),
    ),
    _of_elements(
        "function",
        "a Python function of a microsecond, element by element",
        functions.one_us,
        Bound("of a bare loop over the function", over=FLOOR, at_least=0.5),
    ),
    _of_elements("elements", "handing elements over", functions.add_one),
    _workers(
        "slow_map",
        "a function of a millisecond of pure Python per record",
        _SLOW,
        8,
        False,
        Bound("times none", over="ours, no workers", at_least=1.8),
        Bound("times Grain's two workers", over="Grain", at_least=1.2),
    ),
    _workers(
        "large",
        "batches of 64 MB from memory, a function that does nothing: what handing over costs",
        _LARGE,
        16,
        True,
        Bound("MB/s to the consumer", "mb_per_s", at_least=3_000),
        Bound("times torch's two workers", over="torch", at_least=3),
    ),
    _workers(
        "small",
        "the same with batches of 100 KB: the cost of each",
        _COMPACT,
        500,
        True,
        Bound("records/s", at_least=200_000),
        Bound("times Grain's two workers", over="Grain", at_least=3),
    ),
    Case(
        "state.restoring",
        "saving at a step, and restoring",
        (
            Side(OURS, _part(restoring, opened=_part(rows.ours, Read("records", GLOBAL)))),
            Side("Grain", _part(restoring, opened=_grain_records), needs=("grain",)),
        ),
        Regime.FIGURES,
        {"records": stores.array_record},
    ),
    Case(
        "lanes.64",
        "a stream of 64 lanes, and the same of one",
        _LANES,
        Regime.STEADY,
        {"rows": stores.rows},
        (
            Bound("GB/s, of one lane's", "mb_per_s", "one lane", at_least=0.95),
            Bound("CPU time per GB, of one lane's", "cpu_s_per_gb", "one lane", at_most=1.05),
        ),
    ),
)
