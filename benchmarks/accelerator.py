"""Batches of rows onto the first device of JAX, which may be a CPU too, and a training loop there.

Rates are beside copies of batches that already lie in memory, and beside Grain. The loop's step multiplies matrices for
some milliseconds, over the loader and over batches that lie on the device.
"""

from __future__ import annotations

import collections
import functools
import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.harness import OURS, Bound, Case, Metrics, Place, Regime, Side
from benchmarks.loops import Grain
from windrow import MapDataset
from windrow.sources import ZarrDataSource

ROW: Final = 768  # cells of a row of 3 KB
_AHEAD: Final = 2  # batches on their way to the device
_NEEDS: Final = ("jax",)
_part = functools.partial


def rows(place: Place, path: Path) -> None:
    """Rows of 3 KB, in chunks of 100."""
    import zarr

    values = np.random.default_rng(0).random((place.size(81_920, 4_000), ROW), "f4")
    zarr.create_array(path, data=np.round(values, 2), chunks=(100, ROW))


def _batch(place: Place) -> int:
    return place.size(4_096, 256)


def _batches(place: Place, *, kept: bool) -> Any:
    """Batches of a store whose chunks are kept in memory, or decoded in each epoch."""
    source = MapDataset.source(ZarrDataSource(place.path("device_rows")))
    if kept:
        return source.shuffle(seed=1).repeat().batch(_batch(place))
    batches = source.block_shuffle(seed=1).repeat().batch(_batch(place))
    return batches


def _sharding() -> Any:
    import jax
    from jax.sharding import SingleDeviceSharding

    return SingleDeviceSharding(jax.devices()[0])


# --- rates ---------------------------------------------------------------------------------------


def _there(batches: Iterable[Any]) -> Iterator[Any]:
    """Batches that have arrived."""
    for batch in batches:
        yield batch.block_until_ready()


def _copied(batches: Iterator[Any]) -> Iterator[Any]:
    """Batches on the device, as a loop of five lines brings them there."""
    import jax

    waiting: collections.deque[Any] = collections.deque()
    for batch in batches:
        waiting.append(jax.device_put(batch, jax.devices()[0]))
        if len(waiting) > _AHEAD:
            yield waiting.popleft()


def our_rows(place: Place, *, kept: bool) -> Iterator[Any]:
    """Ours."""
    return _there(_batches(place, kept=kept).to_jax(_sharding()))


def copies(place: Place) -> Iterator[Any]:
    """Copies of batches in memory: the limit."""
    own = [np.asarray(each) for each in itertools.islice(_batches(place, kept=True), 8)]
    return _there(_copied(itertools.cycle(own)))


def grain_rows(place: Place, way: Grain) -> Iterator[Any]:
    """Grain over an array in memory, which is quicker for it than any store."""
    import grain
    import zarr

    values = np.asarray(zarr.open_array(place.path("device_rows"))[:])
    chain = grain.MapDataset.source(values).shuffle(seed=1).repeat().batch(_batch(place))
    return _there(_copied(iter(way.stream(chain))))


# --- a training loop -----------------------------------------------------------------------------


def training(place: Place, *, kept: bool, step_ms: float) -> Metrics:
    """A loop whose step computes on the device: over the loader, and over batches that lie there."""
    import jax
    import jax.numpy as jnp

    @_part(jax.jit, static_argnums=2)
    def step(weights: Any, batch: Any, times: int) -> Any:
        weights = weights + jnp.mean(batch)
        for _ in range(times):
            weights = jnp.tanh(weights @ weights)
        return weights

    side = place.size(2_048, 64)
    weights = jax.device_put(np.eye(side, dtype=np.float32) / 2, jax.devices()[0])
    own = [
        jax.device_put(each, jax.devices()[0])
        for each in itertools.islice(_batches(place, kept=True), 4)
    ]
    looped = _part(_looped, step, weights)
    times, took_s = _calibrated(looped, own, step_ms / 1e3)
    count = max(4, int((0.05 if place.small else 2.0) / took_s))
    more, alones = [], []
    with iter(_batches(place, kept=kept).to_jax(_sharding())) as batches:
        for _ in range(place.size(5, 1)):
            looped(itertools.islice(batches, 8), times)
            ours_s = looped(itertools.islice(batches, count), times)
            alone_s = looped(itertools.islice(itertools.cycle(own), count), times)
            more.append(ours_s / alone_s - 1)
            alones.append(alone_s / count)
    alone_s = statistics.median(alones)
    return {
        "step_ms": 1e3 * alone_s,
        "gb_per_s": _batch(place) * ROW * 4 / 1e9 / alone_s,
        "more_percent": 100 * statistics.median(more),
    }


def _calibrated(
    looped: Callable[..., float], own: Sequence[Any], goal_s: float
) -> tuple[int, float]:
    """How often a step multiplies so that it takes as long as wanted, and how long it takes then."""
    times = 1
    while True:
        looped(iter(own[:1]), times)  # compiles
        took_s = looped(itertools.islice(itertools.cycle(own), 20), times) / 20
        if took_s >= goal_s:
            return times, took_s
        times = max(times + 1, int(times * min(2.0, goal_s / took_s)))


def _looped(step: Any, weights: Any, batches: Iterator[Any], times: int) -> float:
    begun_s = time.perf_counter()
    for batch in batches:
        weights = step(weights, batch, times)
    weights.block_until_ready()
    return time.perf_counter() - begun_s


# --- cases ---------------------------------------------------------------------------------------

_STORES: Final = {"device_rows": rows}
_KEPT, _DECODED = "chunks kept in memory", "chunks decoded each epoch"
_GRAIN: Final = {
    f"{threads} threads, {workers} workers": Grain(threads, 2 * max(1, threads), workers)
    for threads, workers in ((16, 0), (2, 0), (0, 2))
}


def _figures(name: str, shows: str, side: Callable[[Place], Metrics], *bounds: Bound) -> Case:
    return Case(
        f"accelerator.{name}",
        shows,
        (Side(OURS, side, needs=_NEEDS),),
        Regime.FIGURES,
        _STORES,
        bounds,
    )


CASES: Final = (
    Case(
        "accelerator.rates",
        "onto the device",
        (
            Side(OURS, _part(our_rows, kept=True), needs=_NEEDS),
            Side(f"ours, {_DECODED}", _part(our_rows, kept=False), needs=_NEEDS),
            Side("copies of batches in memory", copies, needs=_NEEDS),
            Side("Grain, array in memory", grain_rows, _GRAIN, (*_NEEDS, "grain")),
        ),
        Regime.STEADY,
        _STORES,
        seconds=2,
    ),
    *(
        _figures(
            f"loop of {step_ms:g} ms, {what}",
            f"a loop of {step_ms:g} ms a step, {what}",
            _part(training, kept=what == _KEPT, step_ms=step_ms),
        )
        for step_ms in (5.0, 20.0)
        for what in (_KEPT, _DECODED)
    ),
)
