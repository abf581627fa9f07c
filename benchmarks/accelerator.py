"""`python -m benchmarks.accelerator`: batches of rows onto one accelerator, and a training loop there.

It measures four things on the first device of JAX, which may be a CPU too:

- whether all batches arrive whole, though the memory that they come from is used again;
- GB a second, beside copies of batches that already lie in memory, and beside Grain;
- a loop whose step multiplies matrices for some milliseconds, over the loader and over batches that
  lie on the device;
- the CPU's time per GB.

It prints a JSON line per figure and then a table. `--page docs/jax.md` also puts that into the page.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import zarr
from jax.sharding import SingleDeviceSharding

from benchmarks import report
from benchmarks.devices import ROW
from windrow import MapDataset, ReadOptions
from windrow.sources import ZarrDataSource

_AHEAD: Final = 2  # batches on their way to the device
_TURNS: Final = 5
_BEGIN, _END = "<!-- accelerator -->", "<!-- end of accelerator -->"


@dataclasses.dataclass(frozen=True, slots=True)
class Sizes:
    """How much is stored, read and looped over.

    Args:
        rows: Rows of 3 KB, in chunks of 100.
        batch: Rows of a batch.
        steps_s: Seconds that each side of a loop takes.
        step_ms: Milliseconds that the steps of the loops take.
        side: Rows and columns of the matrices of a step.
    """

    rows: int = 81_920
    batch: int = 4_096
    steps_s: float = 2.0
    step_ms: tuple[float, ...] = (5.0, 20.0)
    side: int = 2048


SMALL: Final = Sizes(rows=4_000, batch=256, steps_s=0.05, step_ms=(2.0,), side=64)


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """A line of the table: a case, a figure of it, and what was measured."""

    case: str
    figure: str
    measured: str


# --- the sides -----------------------------------------------------------------------------------


def write(sizes: Sizes, folder: Path) -> None:
    """Write the rows."""
    rows = np.random.default_rng(0).random((sizes.rows, ROW), "f4")
    zarr.create_array(folder / "rows.zarr", data=np.round(rows, 2), chunks=(100, ROW))


def _batches(folder: Path, sizes: Sizes, *, kept: bool) -> Any:
    """Batches of a store whose chunks are kept in memory, or decoded in each epoch."""
    source = MapDataset.source(ZarrDataSource(folder / "rows.zarr"))
    if kept:
        return source.shuffle(seed=1).repeat().batch(sizes.batch)
    batches = source.block_shuffle(seed=1).repeat().batch(sizes.batch)
    return batches.to_iter_dataset(ReadOptions(resident_bytes=16 << 20))


def _copied(batches: Iterator[Any], device: Any) -> Iterator[Any]:
    """Batches on the device, as a loop of five lines brings them there."""
    waiting: collections.deque[Any] = collections.deque()
    for batch in batches:
        waiting.append(jax.device_put(batch, device))
        if len(waiting) > _AHEAD:
            yield waiting.popleft()


def _of_grain(folder: Path, sizes: Sizes, threads: int, workers: int) -> Iterator[Any]:
    import grain
    from absl import flags

    flags.FLAGS(["benchmark"])
    dataset = grain.MapDataset.source(_InMemory(folder)).shuffle(seed=1).repeat().batch(sizes.batch)
    stream = dataset.to_iter_dataset(grain.ReadOptions(threads, 2 * max(1, threads)))
    if workers:
        stream = stream.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))
    return iter(stream)


class _InMemory:
    """Rows of an array in memory, which is quicker for Grain than any store."""

    def __init__(self, folder: Path) -> None:
        self._rows = np.asarray(zarr.open_array(folder / "rows.zarr")[:])

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        return self._rows[index]


# --- cases ---------------------------------------------------------------------------------------


@jax.jit
def _sum_of_bits(batch: Any) -> Any:
    bits = jax.lax.bitcast_convert_type(batch, jnp.uint32)
    return jnp.sum(bits * (1 + jnp.arange(bits.shape[1], dtype=jnp.uint32)), axis=1)


def of_arrival(folder: Path, sizes: Sizes, device: Any) -> Iterator[Line]:
    """Each row of each batch is what the plain iterator has, held on to or let go at once."""
    count = max(8, 4 * sizes.rows // sizes.batch)
    for kept in (True, False):
        batches = _batches(folder, sizes, kept=kept)
        arrays = itertools.islice(batches.to_jax(SingleDeviceSharding(device)), count)
        held = [
            (each if number % 3 == 0 else None, _sum_of_bits(each))
            for number, each in enumerate(arrays)
        ]
        wrong = abs(count - len(held)) * sizes.batch
        for (array, found), plain in zip(held, batches, strict=False):
            wrong += int((np.asarray(found) != np.asarray(_sum_of_bits(plain))).sum())
            wrong += 0 if array is None else int((np.asarray(array) != plain).any(1).sum())
        what = "chunks kept in memory" if kept else "chunks decoded each epoch"
        yield Line(f"{count} batches arrive, {what}", "rows that differ", str(wrong))


def of_rates(folder: Path, sizes: Sizes, device: Any) -> Iterator[Line]:
    """GB a second onto the device."""
    own = [np.asarray(each) for each in itertools.islice(_batches(folder, sizes, kept=True), 8)]
    sharding = SingleDeviceSharding(device)
    sides: dict[str, Callable[[], Iterator[Any]]] = {
        "copies of batches in memory (limit)": lambda: _copied(itertools.cycle(own), device),
        "global shuffle, chunks kept in memory": lambda: iter(
            _batches(folder, sizes, kept=True).to_jax(sharding)
        ),
        "block_shuffle, chunks decoded each epoch": lambda: iter(
            _batches(folder, sizes, kept=False).to_jax(sharding)
        ),
    }
    for threads, workers in ((16, 0), (2, 0), (0, 2)):
        sides[f"Grain, array in memory, {threads} threads, {workers} workers"] = functools.partial(
            _grain_on, folder, sizes, device, threads, workers
        )
    for name, side in sides.items():
        rates, costs = [], []
        for _ in range(_TURNS):
            batches = side()
            for _ in range(2 * _AHEAD):
                next(batches).block_until_ready()
            began_s, cpu_s, count = time.perf_counter(), time.process_time(), 0
            while time.perf_counter() - began_s < sizes.steps_s:
                next(batches).block_until_ready()
                count += 1
            gigabytes = count * sizes.batch * ROW * 4 / 1e9
            rates.append(gigabytes / (time.perf_counter() - began_s))
            costs.append((time.process_time() - cpu_s) / gigabytes)
            batches.close()  # type: ignore[attr-defined]
        text = f"{statistics.median(rates):.2f} ({min(rates):.2f} to {max(rates):.2f}); {min(costs):.2f}"
        yield Line(name, "GB/s; s of this process's CPU per GB", text)


def _grain_on(folder: Path, sizes: Sizes, device: Any, threads: int, workers: int) -> Iterator[Any]:
    return _copied(_of_grain(folder, sizes, threads, workers), device)


@functools.partial(jax.jit, static_argnums=2)
def _step(weights: Any, batch: Any, times: int) -> Any:
    weights = weights + jnp.mean(batch)
    for _ in range(times):
        weights = jnp.tanh(weights @ weights)
    return weights


def of_training(folder: Path, sizes: Sizes, device: Any) -> Iterator[Line]:
    """A loop whose step computes on the device: over the loader, and over batches that lie there."""
    weights = jax.device_put(np.eye(sizes.side, dtype=np.float32) / 2, device)
    sharding = SingleDeviceSharding(device)
    own = [
        jax.device_put(each, device)
        for each in itertools.islice(_batches(folder, sizes, kept=True), 4)
    ]
    for step_ms in sizes.step_ms:
        times, took_s = _calibrated(own, weights, step_ms / 1e3)
        count = max(4, int(sizes.steps_s / took_s))
        for kept in (True, False):
            more, alones = [], []
            with iter(_batches(folder, sizes, kept=kept).to_jax(sharding)) as batches:
                for _ in range(_TURNS):
                    _loop(itertools.islice(batches, 8), weights, times)
                    ours_s = _loop(itertools.islice(batches, count), weights, times)
                    alone_s = _loop(itertools.islice(itertools.cycle(own), count), weights, times)
                    more.append(ours_s / alone_s - 1)
                    alones.append(alone_s / count)
            rate = sizes.batch * ROW * 4 / 1e9 / statistics.median(alones)
            what = "chunks kept in memory" if kept else "chunks decoded each epoch"
            yield Line(
                f"a loop of {1e3 * statistics.median(alones):.1f} ms a step, {rate:.2f} GB/s, {what}",
                "more time than over batches on the device",
                f"{100 * statistics.median(more):+.1f}% ({100 * min(more):+.1f} to {100 * max(more):+.1f})",
            )


def _calibrated(own: Sequence[Any], weights: Any, goal_s: float) -> tuple[int, float]:
    """How often a step multiplies so that it takes as long as wanted, and how long it takes then."""
    times = 1
    while True:
        _loop(iter(own[:1]), weights, times)  # compiles
        took_s = _loop(itertools.islice(itertools.cycle(own), 20), weights, times) / 20
        if took_s >= goal_s:
            return times, took_s
        times = max(times + 1, int(times * min(2.0, goal_s / took_s)))


def _loop(batches: Iterator[Any], weights: Any, times: int) -> float:
    began_s = time.perf_counter()
    for batch in batches:
        weights = _step(weights, batch, times)
    weights.block_until_ready()
    return time.perf_counter() - began_s


CASES: Final = {"arrival": of_arrival, "rates": of_rates, "training": of_training}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accelerator")
    parser.add_argument("--small", action="store_true", help="a tiny run; its times say nothing")
    parser.add_argument("--page", type=Path, metavar="FILE", help="put the table into a page")
    parser.add_argument(
        "--from-json", type=Path, metavar="FILE", help="use the lines of such a run"
    )
    args = parser.parse_args(argv)
    if args.from_json:
        read = args.from_json.read_text().splitlines()
        lines = [Line(**json.loads(line)) for line in read if line.startswith("{")]
    else:
        lines = list(measured(SMALL if args.small else Sizes()))
    rows = [dataclasses.astuple(line) for line in lines]
    text = report.table(("case", "figure", "measured"), rows, left=2)
    print(text)
    if args.page:
        report.put_into_page(args.page, text, begin=_BEGIN, end=_END)
    return 0


def measured(sizes: Sizes) -> Iterator[Line]:
    """The lines of all cases; each is printed as JSON, too."""
    device = jax.devices()[0]
    print(f"on {device.device_kind} ({device.platform})", flush=True)
    with tempfile.TemporaryDirectory(prefix="windrow-accelerator-") as name:
        folder = Path(name)
        write(sizes, folder)
        for case in CASES.values():
            for line in case(folder, sizes, device):
                print(json.dumps(dataclasses.asdict(line)), flush=True)
                yield line


if __name__ == "__main__":
    raise SystemExit(main())
