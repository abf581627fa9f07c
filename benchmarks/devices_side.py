"""One process of a case of `benchmarks.devices`: it reads what its devices hold, and prints figures as JSON.

`python -m benchmarks.devices_side CASE FOLDER INDEX COUNT DEVICES PORT`
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

CASE, FOLDER = sys.argv[1], Path(sys.argv[2])
INDEX, COUNT, HERE, PORT = map(int, sys.argv[3:7])
if __name__ == "__main__":
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={HERE}"

import jax  # noqa: E402
import numpy as np  # noqa: E402
import psutil  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402

from windrow import MapDataset  # noqa: E402
from windrow.devices.agreement import store_of_jax  # noqa: E402
from windrow.sources import WindowDataSource, ZarrDataSource  # noqa: E402

P: Any = PartitionSpec
BATCH: Final = 1024  # rows of a global batch
LANES: Final = 8


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


CASES: Final[dict[str, Callable[[], dict[str, Any]]]] = {
    "fields": fields,
    "volume": volume,
    "rows": rows,
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
