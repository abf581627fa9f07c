"""One process of a case of `benchmarks.devices`: it reads what its devices hold, and prints figures as JSON.

`python -m benchmarks.devices_side CASE FOLDER INDEX COUNT DEVICES PORT`
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

CASE, FOLDER = sys.argv[1], Path(sys.argv[2])
INDEX, COUNT, HERE, PORT = map(int, sys.argv[3:7])
if __name__ == "__main__":
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={HERE}"

import grain  # noqa: E402
import jax  # noqa: E402
import numpy as np  # noqa: E402
import psutil  # noqa: E402
from absl import flags  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402

from windrow import MapDataset, ReadOptions, merge_states  # noqa: E402
from windrow.devices.agreement import store_of_jax  # noqa: E402
from windrow.sources import WindowDataSource, ZarrDataSource  # noqa: E402

P: Any = PartitionSpec
BATCH: Final = 1024  # rows of a global batch
LANES: Final = 8
_EPOCHS: Final = 6  # of a training loop
_TURNS: Final = 5
_AHEAD: Final = 16  # steps until a loop keeps its pace
_BUILDS: Final = 1_000
_LOADER: Final = 0.8  # the share of the loader's speed that a training step needs
# Threads, elements ahead and worker processes of Grain.
_SETTINGS: Final = {
    "16 threads": (16, 500, 0),
    "2 threads": (2, 16, 0),
    "no threads": (0, 0, 0),
    "1 worker": (0, 0, 1),
}


def over(*axes: tuple[str, int]) -> Mesh:
    """A mesh of all devices."""
    devices = np.array(jax.devices()).reshape([size for _, size in axes])
    return Mesh(devices, [name for name, _ in axes])


def bytes_from_files() -> int:
    """Bytes that this process has read so far."""
    return int(psutil.Process().io_counters().read_chars)


def together(name: str) -> None:
    """Wait for the other processes."""
    if COUNT > 1:
        store_of_jax().wait_at_barrier(name, 120_000)


def read_through(dataset: Any, sharding: Any) -> dict[str, Any]:
    """The bytes, chunks and memory of an epoch."""
    one = MapDataset.source(np.zeros((COUNT * HERE, 8), np.float32)).batch(COUNT * HERE)
    list(one.to_jax(NamedSharding(over(("all", COUNT * HERE)), P("all"))))  # loads all modules
    explanation = dataset.explain(sharding=sharding)
    shared, process = dataset.to_jax(sharding), psutil.Process()
    bytes_before, idle_bytes = bytes_from_files(), process.memory_info().rss
    peak_bytes = share_bytes = 0
    with iter(shared) as batches:
        for batch in batches:
            share_bytes = sum(shard.data.nbytes for shard in batch.addressable_shards)
            peak_bytes = max(peak_bytes, process.memory_info().rss - idle_bytes)
        (costs,) = batches.stats().sources
    across = explanation.across
    return {
        "bytes": bytes_from_files() - bytes_before,
        "chunks": costs.chunks.high,
        "reads": costs.reads.high,
        "peak_bytes": peak_bytes,
        "allowed_bytes": explanation.buffers.high + 2 * share_bytes + 80e6,
        "explained": None if across is None else [t.high for t in across.times_read if t],
        "advice": [each.kind for each in explanation.advice],
    }


def _sizes() -> dict[str, int]:
    sizes: dict[str, int] = json.loads((FOLDER / "sizes.json").read_text())
    return sizes


# --- counts --------------------------------------------------------------------------------------


def fields() -> dict[str, Any]:
    """4-D fields, latitude over all processes."""
    source = MapDataset.source(ZarrDataSource(FOLDER / "fields.zarr"))
    return read_through(
        source.batch(2), NamedSharding(over(("lat", COUNT * HERE)), P(None, None, "lat"))
    )


def volume() -> dict[str, Any]:
    """Patches of a volume, split 2 x 2 over z and y; in one process, whole."""
    kind = CASE.partition(":")[2]
    centers = np.load(FOLDER / f"{kind}.npy")
    source = WindowDataSource(
        FOLDER / "volume.zarr", dict.fromkeys("zyx", _sizes()["patch"]), centers=centers
    )
    mesh = over(("z", 2), ("y", 2))
    return read_through(MapDataset.source(source).batch(2), NamedSharding(mesh, P(None, "z", "y")))


def rows() -> dict[str, Any]:
    """Rows of a block shuffle, by random access or in lanes."""
    blocks = MapDataset.source(ZarrDataSource(FOLDER / "rows.zarr")).block_shuffle(seed=1)
    dataset: Any = blocks.to_iter_dataset(lanes=LANES) if CASE == "rows:lanes" else blocks
    return read_through(
        dataset.batch(BATCH, remainder="drop"),
        NamedSharding(over(("data", COUNT * HERE)), P("data")),
    )


# --- times ---------------------------------------------------------------------------------------


def _shuffled(rows: int = BATCH) -> Any:
    """A global shuffle of a store whose chunks are kept in memory."""
    source = MapDataset.source(ZarrDataSource(FOLDER / "rows.zarr"))
    return source.shuffle(seed=1).repeat().batch(rows)


def _decoded(rows: int = BATCH) -> Any:
    """Shuffled blocks of a store whose chunks are decoded in each epoch."""
    source = MapDataset.source(ZarrDataSource(FOLDER / "rows.zarr"))
    batches = source.block_shuffle(seed=1).repeat().batch(rows)
    return batches.to_iter_dataset(ReadOptions(resident_bytes=16 << 20))


def training() -> dict[str, Any]:
    """A loop whose step waits, over the loader and over batches that lie on the devices.

    Those are looped over once more while another process reads at the same pace: what two programs
    on these cores take from each other.
    """
    sharding = NamedSharding(over(("data", HERE)), P("data"))
    step = jax.jit(lambda batch: batch[0, 0] + 1)
    _, kind, rows = CASE.split(":")
    more, beside, waits = [], [], []
    steps = _EPOCHS * int(_sizes()["rows"]) // int(rows)
    with iter(_paced(kind, int(rows)).to_jax(sharding)) as batches:
        own = [next(batches) for _ in range(4)]
        step(own[0]).block_until_ready()
        for _ in range(_TURNS):  # each finds the loader's speed anew, as the machine may be busy
            _loop(itertools.islice(batches, _AHEAD), step, 0.0)  # what was made ahead is used up
            wait_s = _loop(itertools.islice(batches, steps), step, 0.0) / steps / _LOADER
            _loop(itertools.islice(batches, _AHEAD), step, wait_s)
            ours_s = _loop(itertools.islice(batches, steps), step, wait_s)
            alone_s = _loop(itertools.islice(itertools.cycle(own), steps), step, wait_s)
            with _reading(f"reading:{kind}:{rows}:{wait_s}"):
                foreign_s = _loop(itertools.islice(itertools.cycle(own), steps), step, wait_s)
            more.append(ours_s / alone_s - 1)
            beside.append(foreign_s / alone_s - 1)
            waits.append(wait_s)
    return {
        "more": statistics.median(more),
        "beside": statistics.median(beside),
        "step_ms": 1e3 * statistics.median(waits),
    }


def _paced(kind: str, rows: int) -> Any:
    return _decoded(rows) if kind == "decoded" else _shuffled(rows)


@contextlib.contextmanager
def _reading(case: str) -> Iterator[None]:
    """Another process reads meanwhile."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.devices_side",
        case,
        str(FOLDER),
        "0",
        "1",
        "1",
        "0",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it has read for a while
        yield
        process.kill()


def reading() -> dict[str, Any]:
    """Read at a pace, without devices, until the process is ended."""
    _, kind, rows, every = CASE.split(":")
    with iter(_paced(kind, int(rows))) as batches:
        for _ in range(_AHEAD):
            next(batches)
        print("reading", flush=True)
        due_s = time.perf_counter()
        for _ in batches:
            due_s += float(every)
            time.sleep(max(0.0, due_s - time.perf_counter()))
    return {}


def rebuilding() -> dict[str, Any]:
    """Iterators for two meshes in turn, built and closed: what a process holds before and after."""
    shardings = [
        NamedSharding(over(("data", HERE)), P("data")),
        NamedSharding(over(("data", HERE // 2), ("model", 2)), P("data", "model")),
    ]
    dataset, process, held = _shuffled(64), psutil.Process(), []
    for number in range(_BUILDS + 1):
        with iter(dataset.to_jax(shardings[number % 2])) as batches:
            next(batches).block_until_ready()
        if number in (_BUILDS // 4, _BUILDS):
            memory = process.memory_full_info().uss
            held.append((process.num_threads(), process.num_fds(), memory))
    (threads, files, memory), (threads_after, files_after, memory_after) = held
    return {
        "threads": threads_after - threads,
        "files": files_after - files,
        "mb": (memory_after - memory) / 1e6,
    }


def _loop(batches: Iterator[Any], step: Callable[[Any], Any], wait_s: float) -> float:
    began_s = time.perf_counter()
    for batch in batches:
        step(batch).block_until_ready()
        time.sleep(wait_s)
    return time.perf_counter() - began_s


def against_grain() -> dict[str, Any]:
    """Rows a second of this process: ours, and Grain in each setting."""
    flags.FLAGS(["benchmark"])
    sharding = NamedSharding(over(("data", COUNT * HERE)), P("data"))
    found: dict[str, float] = {}
    for turn in range(2):
        for name, dataset in (("kept", _shuffled()), ("decoded", _decoded())):
            with iter(dataset.to_jax(sharding)) as batches:
                found[name] = max(found.get(name, 0), _rate(batches, f"{name} {turn}"))
        for name, setting in _SETTINGS.items():
            arrays = _of_grain(setting, sharding)
            found[name] = max(found.get(name, 0), _rate(arrays, f"{name} {turn}"))
            arrays.close()
    return found


def _of_grain(setting: tuple[int, int, int], sharding: Any) -> Any:
    threads, ahead, workers = setting
    source = grain.sources.ArrayRecordDataSource([str(FOLDER / "rows.array_record")])
    own = grain.MapDataset.source(source).shuffle(seed=1).repeat()[INDEX::COUNT]
    dataset = (
        own.map(as_row)
        .batch(BATCH // COUNT)
        .to_iter_dataset(grain.ReadOptions(num_threads=threads, prefetch_buffer_size=ahead))
    )
    if workers:
        dataset = dataset.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))
    for batch in dataset:
        yield jax.make_array_from_process_local_data(sharding, batch)  # type: ignore[no-untyped-call]


def as_row(record: bytes) -> Any:
    """The row of a record."""
    return np.frombuffer(record, np.float32)


def _rate(batches: Iterator[Any], name: str, seconds: float = 2.0) -> float:
    for _ in range(4):
        next(batches).block_until_ready()
    together(name)
    began_s, count = time.perf_counter(), 0
    while time.perf_counter() - began_s < seconds:
        next(batches).block_until_ready()
        count += 1
    return count * BATCH / COUNT / (time.perf_counter() - began_s)


def _filtered() -> Any:
    blocks = MapDataset.source(ZarrDataSource(FOLDER / "rows.zarr")).block_shuffle(seed=1)
    lanes = blocks.repeat().to_iter_dataset(lanes=LANES)
    return (
        lanes.filter(lambda row: row[0] < 0.9)
        .batch(BATCH)
        .to_jax(NamedSharding(over(("data", COUNT * HERE)), P("data")))
    )


def saving() -> dict[str, Any]:
    """The state of this process after some batches."""
    with iter(_filtered()) as batches:
        for _ in range(10):
            next(batches)
        return {"state": batches.get_state()}


def restoring() -> dict[str, Any]:
    """Seconds to the first batch, of a state of as many processes and of one of another number."""
    together("restore")
    shared, found = _filtered(), {}
    names = sorted(path.stem for path in FOLDER.glob("state-*.json"))
    states = {
        name: merge_states(json.loads((FOLDER / f"{name}.json").read_text())) for name in names
    }
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(2 * _TURNS + 1):
        for name in names:
            began_s = time.perf_counter()
            with iter(shared) as batches:
                batches.set_state(states[name])
                next(batches).block_until_ready()
                times[name].append(time.perf_counter() - began_s)
    for name in names:
        found[name] = statistics.median(times[name][1:])
    return found


CASES: Final[dict[str, Callable[[], dict[str, Any]]]] = {
    "fields": fields,
    "volume": volume,
    "rows": rows,
    "training": training,
    "reading": reading,
    "rebuilding": rebuilding,
    "grain": against_grain,
    "saving": saving,
    "restoring": restoring,
}


def main() -> int:
    """Run the case."""
    if COUNT > 1:
        jax.distributed.initialize(f"localhost:{PORT}", COUNT, INDEX)
    found = CASES[CASE.partition(":")[0]]()
    print(json.dumps(found), flush=True)
    together("end")
    return 0


if __name__ == "__main__":
    sys.exit(main())
