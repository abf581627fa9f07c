"""One of several processes that share devices: what it gets and reads, as JSON.

`python -m tests.devices.program FOLDER INDEX COUNT DEVICES PORT WHAT`: process INDEX of COUNT, each with
DEVICES virtual CPU devices. It restores the newest checkpoint in FOLDER, if there is one, and saves another.
WHAT is "all", "checkpoint" for that alone, or "death": then the last process dies while it saves.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

FOLDER, INDEX, COUNT, HERE, PORT = Path(sys.argv[1]), *map(int, sys.argv[2:6])
WHAT = sys.argv[6]
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={HERE}"

import jax  # noqa: E402
import numpy as np  # noqa: E402
import orbax.checkpoint as ocp  # noqa: E402
from jax.experimental import multihost_utils  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402

from tests.devices.cases import Noting, are_same, records  # noqa: E402
from windrow import MapDataset  # noqa: E402
from windrow.checkpoint import CheckpointRestore, CheckpointSave  # noqa: E402
from windrow.errors import PlanError  # noqa: E402
from windrow.sources import ZarrDataSource  # noqa: E402

if COUNT > 1:
    jax.distributed.initialize(f"localhost:{PORT}", COUNT, INDEX)

P: Any = PartitionSpec
DEVICES = jax.devices()
TREE = {"x": P("data"), "n": P(("data", "model"))}
ROWS = 64
MOST = 9  # batches of each chain
STORE = FOLDER / "rows.zarr"
RECORDS = records(np.arange(ROWS))


def shardings(mesh: Mesh, specs: Any) -> Any:
    return {name: NamedSharding(mesh, spec) for name, spec in specs.items()}


def chain(source: Any) -> Any:
    return MapDataset.source(source).shuffle(seed=5).batch(16)


def stream(source: Any) -> Any:
    return MapDataset.source(source).to_iter_dataset(lanes=8).filter(lambda r: r["n"] % 5)


def compared(dataset: Any, plain: Any, sharding: Any, most: int | None = None) -> dict[str, Any]:
    """Whether all batches equal those of the plain iterator, and which records were read for them."""
    iterator, source = dataset
    batches = list(itertools.islice(iterator.to_jax(sharding), most))
    expected = list(itertools.islice(plain, most))
    same = len(batches) == len(expected) and all(map(are_same, batches, expected))
    return {"same": same, "batches": len(batches), "read": sorted(source.indices)}


def random_access(mesh: Mesh, specs: Any) -> dict[str, Any]:
    source = Noting(ROWS)
    return compared((chain(source), source), chain(Noting(ROWS)), shardings(mesh, specs))


def is_kept(record: Any) -> bool:
    """Shortens lanes 4 to 7 of 8 alone, so that processes without one of these have to be told the end."""
    return bool(record["n"] % 8 < 4 or record["n"] % 3)


def finite_stream(mesh: Mesh) -> dict[str, Any]:
    source = Noting(ROWS)
    dataset, plain = (
        MapDataset.source(each).to_iter_dataset(lanes=8).filter(is_kept).batch(8, remainder="drop")
        for each in (source, Noting(ROWS))
    )
    found = compared((dataset, source), plain, shardings(mesh, TREE))
    with iter(dataset.to_jax(shardings(mesh, TREE))) as again, iter(plain) as expected:
        again.seek(2)
        expected.seek(2)
        found["same"] &= all(map(are_same, again, expected))
        # Each process has its own lanes, and all of them end at one row.
        found["end"], found["after"] = again.get_state()["rows"], again.skip(1)
    return found


def stored_chunks(mesh: Mesh) -> dict[str, Any]:
    dataset = (
        MapDataset.source(ZarrDataSource(STORE)).block_shuffle(seed=3).to_iter_dataset(lanes=4)
    )
    sharding = NamedSharding(mesh, P("data"))
    with iter(dataset.batch(16).to_jax(sharding)) as batches:
        same = all(map(are_same, batches, dataset.batch(16)))
        (costs,) = batches.stats().sources
    assert costs.stored_bytes is not None
    return {"same": same, "chunks": costs.chunks.high, "bytes": costs.stored_bytes.high}


def boxes(mesh: Mesh) -> dict[str, Any]:
    """Parts of fields over latitude; each process has its own ones, and a halo around them."""

    def smooth(field: Any) -> Any:
        padded = np.pad(field, ((1, 1), (0, 0)), mode="edge")
        return padded[:-2] + padded[2:]

    def before(field: Any) -> Any:
        return field - np.roll(field, 1, 0)

    fields = MapDataset.source(ZarrDataSource(FOLDER / "fields.zarr")).shuffle(seed=2)
    sharding = NamedSharding(mesh, P(None, "data"))
    plain = fields.batch(4)
    with iter(plain.to_jax(sharding)) as batches:
        same = all(map(are_same, batches, plain))
        (costs,) = batches.stats().sources
    explanation = plain.explain(sharding=sharding)
    each = [explanation] if explanation.across is None else explanation.across.processes
    said = [costs.chunks.high for process in each for costs in process.epoch]
    around = fields.map(smooth, local="lat", halo={"lat": 1}).batch(4)
    same &= all(map(are_same, around.to_jax(sharding), around))
    circle = fields.map(before, local="lat", halo={"lat": 1}, wrap="lat").batch(4)
    same &= all(map(are_same, circle.to_jax(sharding), circle))
    return {"same": same, "chunks": costs.chunks.high, "explained": said}


def colocated(mesh: Mesh) -> dict[str, Any]:
    """Each process runs what the host of a controller runs: it has some of the devices of the mesh."""
    # JAX sorts the keys of trees that go through it.
    dataset = stream(dict(sorted(RECORDS.items()))).repeat().batch(16)
    given = shardings(mesh, TREE)
    with iter(dataset.to_jax(given, colocated=True)) as hosts, iter(dataset) as plain:
        same = all(are_same(next(hosts), next(plain)) for _ in range(3))
        with iter(dataset.to_jax(given)) as own, iter(dataset.to_jax(given, colocated=True)) as new:
            own.seek(3)
            same &= hosts.get_state() == own.get_state()
            new.set_state(plain.get_state())
            same &= are_same(next(new), next(plain))
    return {"same": same}


def evaluation(mesh: Mesh) -> dict[str, Any]:
    """The records of real rows of this process: an evaluation that ends in a short batch."""
    dataset = MapDataset.source({"n": np.arange(ROWS - 3, dtype=np.int32)}).batch(
        16, remainder="pad", mask="real"
    )
    spec = NamedSharding(mesh, P(("data", "model")))
    real, batches = list[int](), 0
    for batch in dataset.to_jax(spec):
        batches += 1
        shards = zip(batch["n"].addressable_shards, batch["real"].addressable_shards, strict=True)
        for numbers, mask in shards:
            real += np.asarray(numbers.data)[np.asarray(mask.data)].tolist()
    return {"real": real, "batches": batches}


def kept_in_memory(mesh: Mesh) -> dict[str, Any]:
    """A leaf that stays in NumPy has the rows of this process."""
    specs = {"x": NamedSharding(mesh, P("data")), "n": NamedSharding(mesh, P("data"))}
    same = True
    for batch, plain in zip(chain(RECORDS).to_jax(specs, host=("n",)), chain(RECORDS), strict=True):
        own = sorted({shard.index[0].indices(16)[:2] for shard in batch["x"].addressable_shards})
        rows = np.concatenate([np.arange(*bounds) for bounds in own])
        same &= isinstance(batch["n"], np.ndarray)
        same &= np.array_equal(batch["n"], plain["n"][rows])
    return {"same": same}


def drawn(number: int) -> dict[str, Any]:
    """A random chain on a random mesh: the same in all processes."""
    random = np.random.default_rng([number, COUNT, HERE])
    count = len(DEVICES)
    model = int(random.choice([n for n in (1, 2, 4) if count % n == 0]))
    devices = random.permutation(np.array(DEVICES)).reshape(-1, model)
    mesh = Mesh(devices, ("data", "model"))
    rows: list[Any] = [P("data"), P(("data", "model")), P("model"), P(), P(("model", "data"))]
    size = 8 * int(random.integers(1, 4))
    lanes = int(random.choice([1, 8]))
    kinds: dict[str, Any] = {
        "rows": lambda: (
            MapDataset.source(RECORDS).shuffle(seed=number).batch(size, remainder="drop")
        ),
        "mixed": lambda: MapDataset.mix(
            [MapDataset.source(RECORDS), MapDataset.source(RECORDS).shuffle(seed=number)[:40]]
        ).batch(size, remainder="drop"),
        "stream": lambda: stream(RECORDS).repeat().batch(size),
        "padded": lambda: (
            MapDataset.source(RECORDS)[: ROWS - 3]
            .to_iter_dataset(lanes=lanes)
            .batch(size, remainder="pad", mask="real")
        ),
        "fields": lambda: (
            MapDataset.source(ZarrDataSource(FOLDER / "fields.zarr"))
            .shuffle(seed=number)
            .repeat(3)
            .batch(8)
        ),
    }
    kind = list(kinds)[number]
    spec = rows[int(random.integers(len(rows)))]
    if kind == "fields":
        spec = P(None, *spec) if random.integers(2) else spec
    dataset: Any = kinds[kind]()
    found = list(itertools.islice(dataset.to_jax(NamedSharding(mesh, spec)), MOST))
    expected = list(itertools.islice(dataset, MOST))
    same = len(found) == len(expected) > 0 and all(map(are_same, found, expected))
    return {"same": same, "what": f"{kind} of {size} on {mesh.devices.shape} by {spec}"}


def part_of_the_devices() -> str:
    """What a process says whose devices are not in the mesh."""
    mesh = Mesh(np.array(DEVICES[:HERE]).reshape(HERE, 1), ("data", "model"))
    try:
        return str(random_access(mesh, TREE)["same"])
    except PlanError as error:
        return str(error)


class Dying:
    """An iterator that ends this process when its state is saved."""

    def get_state(self) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    def set_state(self, state: Any) -> None:
        raise NotImplementedError

    def start_prefetch(self) -> None:
        raise NotImplementedError


def checkpointed(mesh: Mesh) -> dict[str, Any]:
    """Restores parameters and the iterator, compares batches, saves after the first of them."""
    source = Noting(ROWS)
    plain, dataset = (stream(each).repeat().batch(16) for each in (Noting(ROWS), source))
    iterator = iter(dataset.to_jax(shardings(mesh, TREE)))
    sharding = NamedSharding(mesh, P("data"))
    found: dict[str, Any] = {}
    with ocp.CheckpointManager(FOLDER / "steps") as manager:
        step = manager.latest_step() or 0
        first = np.arange(16, dtype="f4")
        weights = jax.make_array_from_callback((16,), sharding, lambda at: first[at])
        params = {"weights": weights}
        if step:
            args = ocp.args.Composite(
                params=ocp.args.StandardRestore(
                    jax.tree.map(ocp.utils.to_shape_dtype_struct, params)
                ),
                data=CheckpointRestore(iterator),
            )
            restored = manager.restore(step, args=args)
            params, iterator = restored["params"], restored["data"]
            shards = params["weights"].addressable_shards
            found["params"] = all(
                np.array_equal(shard.data, first[shard.index] + step) for shard in shards
            )
        with iter(plain) as expected:
            expected.seek(step)
            found["same"] = are_same(next(iterator), next(expected))
            params = {"weights": jax.jit(lambda w: w + 1)(params["weights"])}
            is_dying = WHAT == "death" and INDEX == COUNT - 1
            args = ocp.args.Composite(
                params=ocp.args.StandardSave(params),
                data=CheckpointSave(Dying() if is_dying else iterator),
            )
            manager.save(step + 1, args=args)
            for _ in range(9):  # beyond the end of an epoch
                found["same"] &= are_same(next(iterator), next(expected))
            manager.wait_until_finished()
    iterator.close()
    return {**found, "step": step, "lanes": sorted({n % 8 for n in source.indices})}


def main() -> None:
    data = Mesh(np.array(DEVICES).reshape(-1, 1), ("data", "model"))
    found = {"checkpoint": checkpointed(data)} if WHAT != "all" else everything(data)
    with contextlib.suppress(FileExistsError):
        name = FOLDER / f"{INDEX}-of-{COUNT}.json"
        with tempfile.NamedTemporaryFile("w", dir=FOLDER, delete=False) as file:
            json.dump(found, file)
        os.replace(file.name, name)


def gathers(*_: Any, **__: Any) -> Any:
    """Stands for what JAX has to gather across processes."""
    raise AssertionError("to_jax gathered across processes")


def everything(data: Mesh) -> dict[str, Any]:
    """What is asked of all processes, case by case; `data` has all devices along one axis."""
    with mock.patch.multiple(
        multihost_utils,
        process_allgather=gathers,
        broadcast_one_to_all=gathers,
        assert_equal=gathers,
    ):
        found = without_checkpoints(data)
    return {**found, "checkpoint": checkpointed(data)}


def without_checkpoints(data: Mesh) -> dict[str, Any]:
    """All cases but the last."""
    rows = np.array(DEVICES).reshape(COUNT, HERE)
    return {
        "rows": random_access(data, TREE),
        # Neighbouring rows are of different processes.
        "permuted": random_access(Mesh(rows.T.reshape(-1, 1), ("data", "model")), TREE),
        "replicated": random_access(data, {"x": P(), "n": P()}),
        "another axis": random_access(
            Mesh(rows, ("data", "model")), {"x": P(None, "data"), "n": P()}
        ),
        "stream": finite_stream(data),
        "some of each": random_access(
            Mesh(rows[:, :1].reshape(-1, 1), ("data", "model")), {"x": P("data"), "n": P("data")}
        ),
        "chunks": stored_chunks(data),
        "boxes": boxes(data),
        "colocated": colocated(data),
        "evaluation": evaluation(data),
        "host": kept_in_memory(data),
        "drawn": [drawn(number) for number in range(5)],
        "part": part_of_the_devices(),
    }


if __name__ == "__main__":
    main()
