"""Train on a mesh of four devices, be killed twice, and resume on other numbers of processes.

    python -m examples.train_sharded

1. A model of the month of ERA5 of train_era5.py, on a mesh of data and latitude: each process reads
   only the rows and the latitudes that its devices hold.
2. The transformer of train_tokens.py, on a mesh of data and sequence.

Each is trained once on one process with four devices without a stop. The first is trained again on two
processes with two devices each that are killed, then on one with four that is killed, then on four
with one each; the second on two that are killed, then on one. Both trainings must have the same global batches, and the same loss within float tolerance.

Parameters are sharded too. They and the iterator are saved in one step of Orbax, in the background, so
a process may be killed while it saves: then the step before is the newest one.

Everything lies in a folder that is removed at the end. The processes are copies of this program on
this machine, with virtual devices; jax.distributed connects them.
"""

import argparse
import contextlib
import dataclasses
import functools
import itertools
import json
import os
import pathlib
import socket
import sys
import tempfile
import zlib
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

import windrow
from windrow import converters, transforms
from windrow.sources import ArraySpec

try:
    import jax
    import jax.numpy as jnp
    import orbax.checkpoint as ocp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
except ImportError as error:
    raise windrow.errors.missing_extra("examples/train_sharded.py", "examples") from error

from examples import train_era5, train_tokens
from windrow.checkpoint import CheckpointRestore, CheckpointSave

DEVICES, MESH = 4, (2, 2)
# Steps, and for each run the processes, and the share of the steps after which they are killed, or done.
STEPS = {"era5": 12, "tokens": 6}
RUNS = {"era5": train_tokens.RUNS, "tokens": ((2, 0.5), (1, 1))}
SAVE_EVERY = 2  # steps
SEED = 0

P: Any = PartitionSpec


# --- 1. what is trained ------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Case:
    """A training.

    Args:
        axes: The names of the axes of the mesh; the first cuts batches by rows.
        chain: Global batches of the data in a folder.
        placed: How a leaf of a batch lies on the mesh, by its path.
        initial: Initial parameters.
        loss_of: The loss of a batch, from parameters and the batch.
        rate: The learning rate.
    """

    axes: tuple[str, str]
    chain: Callable[[pathlib.Path], Any]
    placed: Callable[[tuple[Any, ...]], Any]
    initial: Callable[[], Any]
    loss_of: Callable[[Any, Any], Any]
    rate: float


class Normalised(transforms.Map):
    """Scales a record, as train_era5.py does, and declares what it makes."""

    def map(self, record: Any) -> Any:
        return train_era5.normalised(record)

    def output_spec(self, spec: Any) -> Any:
        fields = {name: spec[name] for name in ("x", "day_before", "y")}
        return fields | {"day": ArraySpec((), np.dtype("f4"))}


def era5_batches(folder: pathlib.Path) -> windrow.MapDataset[Any]:
    """Global batches of windows of 32 latitudes."""
    source = train_era5.windows(folder / "era5.zarr", train_era5.TRAINING)
    # No latitude depends on another one, so a process may read a part of them.
    records = windrow.MapDataset.source(source).map(Normalised(), local="latitude")
    return records.shuffle(SEED).repeat().batch(16)


def token_batches(folder: pathlib.Path) -> windrow.IterDataset[Any]:
    """Global batches of packed rows."""
    return train_tokens.training_batches(folder / "speeches" / "tokens")


def token_loss(params: Any, batch: Any) -> Any:
    """The loss per target."""
    return train_tokens.losses_of(params, batch).sum() / (batch["targets_segmentation"] > 0).sum()


CASES = {
    "era5": Case(
        ("data", "latitude"),
        era5_batches,
        lambda path: P("data") if path == ("day",) else P("data", None, "latitude"),
        lambda: train_era5.initial(jax.random.key(SEED), (32, 49)),
        train_era5.loss_of,
        train_era5.RATE,
    ),
    "tokens": Case(
        ("data", "sequence"),
        token_batches,
        lambda path: P("data", "sequence"),
        train_tokens.initial,
        token_loss,
        train_tokens.RATE,
    ),
}


def write_era5(folder: pathlib.Path) -> None:
    """Write the month with 32 of its 33 latitudes, 8 to a chunk, so that a part can be read."""
    converters.zarr_to_zarr(
        train_era5.STORE,
        folder / "era5.zarr",
        axes={"latitude": slice(0, 32)},
        chunks={"t2m": (24, 8, 49)},
        shards=0,
        progress=False,
    )


# --- 2. training in one of several processes -----------------------------------------------------------


def mesh_of(case: Case) -> Mesh:
    """All devices.

    The devices of one process are neighbours along the first axis: a process that has two of them has all
    rows, and half of the latitudes or of the sequence.
    """
    return Mesh(np.array(jax.devices()).reshape(MESH).T, case.axes)


def sharded_state(case: Case, mesh: Mesh) -> Any:
    """The initial parameters and averages of Adam, cut along their first axis where it is even."""

    def sharding_of(leaf: Any) -> NamedSharding:
        return NamedSharding(mesh, P("data") if leaf.ndim and leaf.shape[0] % MESH[0] == 0 else P())

    def state() -> Any:
        params = case.initial()
        zeros = jax.tree.map(jnp.zeros_like, params)
        return {"params": params, "mean": zeros, "square": zeros, "step": jnp.int32(0)}

    shardings = jax.tree.map(sharding_of, jax.eval_shape(state))
    return jax.jit(state, out_shardings=shardings)()


def step_of(case: Case, mesh: Mesh, state: Any) -> Callable[[Any, Any], tuple[Any, Any]]:
    """A step of training: the next state, sharded as this one, and the loss."""

    def step(state: Any, batch: Any) -> tuple[Any, Any]:
        loss, slope = jax.value_and_grad(case.loss_of)(state["params"], batch)
        averages = state["params"], state["mean"], state["square"]
        moved = train_era5.adam(*averages, state["step"], case.rate, slope)
        names = ("params", "mean", "square")
        return dict(zip(names, moved, strict=True)) | {"step": state["step"] + 1}, loss

    shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
    return jax.jit(step, out_shardings=(shardings, NamedSharding(mesh, P())))


def checksums(batch: Any) -> dict[str, int]:
    """A checksum of each part that the devices of this process hold, by leaf and place."""
    return {
        f"{name}{shard.index}": zlib.crc32(np.ascontiguousarray(shard.data).tobytes())
        for name, leaf in batch.items()
        for shard in leaf.addressable_shards
    }


def train_part(
    link: Connection,
    index: int,
    count: int,
    name: str,
    folder: pathlib.Path,
    saved_in: str,
    stop: int,
    port: int,
) -> None:
    """Train as process `index` of `count`, from the newest step that was saved to step `stop`.

    First it sends the number of that step. In each step it sends the checksums of its parts of the
    batch, the loss, and the chunks that it has read, and waits for a reply.
    """
    # Gloo, which moves values between processes on CPUs, prints its connections there.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    jax.config.update("jax_num_cpu_devices", DEVICES // count)  # type: ignore[no-untyped-call]
    # A step takes less time than its compilation, which all processes do.
    jax.config.update("jax_disable_most_optimizations", True)  # type: ignore[no-untyped-call]
    if count > 1:
        jax.distributed.initialize(f"localhost:{port}", count, index)
    case = CASES[name]
    mesh, dataset = mesh_of(case), case.chain(folder)

    def sharding(path: tuple[Any, ...]) -> NamedSharding:
        return NamedSharding(mesh, case.placed(path))

    state = sharded_state(case, mesh)
    step = step_of(case, mesh, state)
    options = ocp.CheckpointManagerOptions(save_interval_steps=SAVE_EVERY, max_to_keep=2)
    with (
        iter(dataset.to_jax(sharding)) as batches,
        ocp.CheckpointManager(folder / saved_in, options=options) as manager,
    ):
        if (saved := manager.latest_step()) is not None:
            target = jax.tree.map(ocp.utils.to_shape_dtype_struct, state)
            args = ocp.args.Composite(
                state=ocp.args.StandardRestore(target), data=CheckpointRestore(batches)
            )
            state = manager.restore(saved, args=args)["state"]
        first = int(state["step"])
        link.send(first)
        for batch in itertools.islice(batches, stop - first):
            state, loss = step(state, batch)
            chunks = sum(int(cost.chunks.high) for cost in batches.stats().sources)
            link.send((checksums(batch), float(loss), chunks))
            link.recv()
            args = ocp.args.Composite(
                state=ocp.args.StandardSave(state), data=CheckpointSave(batches)
            )
            manager.save(int(state["step"]), args=args)
    if count > 1:
        jax.distributed.shutdown()  # type: ignore[no-untyped-call]


# --- 3. several runs -----------------------------------------------------------------------------------


def train(
    name: str, folder: pathlib.Path, run: str, count: int, *, stop: int, kill: bool = False
) -> list[train_tokens.Step]:
    """Train on `count` processes up to step `stop`; with `kill` they are killed in that step."""
    steps, chunks = [], ()
    arguments = (name, folder, f"{name}-{run}", stop, free_port())
    with train_tokens.processes(count, train_part, *arguments) as (links, started):
        first, *_ = [link.recv() for link in links]
        for number in range(first, stop):
            parts, losses, chunks = zip(*(link.recv() for link in links), strict=True)
            steps.append(train_tokens.Step(number, count, joined(parts), losses[0]))
            if kill and number == stop - 1:
                train_tokens.kill_all(started)
                break
            for link in links:
                link.send(None)
    devices = f"{count} x {DEVICES // count} devices"
    print(
        f"{run:>10}: {devices}, steps {first} to {stop - 1}, chunks read by each process {chunks}"
    )
    return steps


def joined(parts: tuple[dict[str, int], ...]) -> int:
    """A checksum of a global batch, from the checksums of its parts, whichever process has them."""
    found: dict[str, int] = {}
    for each in parts:
        for place, checksum in each.items():
            if found.setdefault(place, checksum) != checksum:
                raise SystemExit(f"two processes have other values at {place}")
    return zlib.crc32(json.dumps(found, sort_keys=True).encode())


def free_port() -> int:
    with contextlib.closing(socket.socket()) as found:
        found.bind(("localhost", 0))
        return int(found.getsockname()[1])


def main() -> None:
    argparse.ArgumentParser(description=str(__doc__).splitlines()[0]).parse_args()
    with tempfile.TemporaryDirectory() as root:
        folder = pathlib.Path(root)
        write_era5(folder)
        train_tokens.write_tokens(folder)
        for name, case in CASES.items():
            print(f"{name}, on a mesh of {MESH[0]} x {MESH[1]} over {' and '.join(case.axes)}")
            train_tokens.train_twice(
                functools.partial(train, name, folder), STEPS[name], RUNS[name]
            )


if __name__ == "__main__":
    main()
