"""Train on handwritten digits, be killed in the middle of an epoch, and resume as if nothing happened.

    python examples/train_digits.py

1. The digits of scikit-learn are written as TFRecord files, as many people have them, and converted
   by Beam pipelines to ArrayRecord files and to Zarr arrays.
2. A small convolutional network is trained in JAX, with a checkpoint of parameters and iterator
   every few steps: once through from the ArrayRecord files, whose records two worker processes
   decode, once through from the Zarr arrays, and once killed and resumed in a new process with
   another number of workers. All three must see the same batches and end with the same loss.
3. The same chain and Grain's are timed over the same files.
"""

import argparse
import importlib.util
import json
import logging
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from typing import Any

import numpy as np
from tqdm import tqdm

import windrow

# Imported where they are used, since worker processes import this file too.
NEEDED = ("grain", "jax", "orbax", "sklearn")
FILES = 4
BATCH = 64
EPOCHS = 8
STEPS_PER_EPOCH = 1797 // BATCH
CHECKPOINT_EVERY = 10
WORKERS = 2
RESUMED_WORKERS = 3  # the stream and its state do not depend on it
KILL_AT = 3 * STEPS_PER_EPOCH + 15  # the middle of the fourth epoch

# Orbax warns of the half-written checkpoint that the killed run leaves; it is harmless.
logging.getLogger("absl").setLevel(logging.ERROR)


# --- 1. the data -------------------------------------------------------------------------------------


def write_tfrecords(folder: pathlib.Path) -> None:
    """1,797 images of 8x8 in four TFRecord files of tf.train.Examples."""
    from sklearn.datasets import load_digits

    from windrow.converters import encode_example, write_records

    digits: Any = load_digits()
    folder.mkdir(parents=True, exist_ok=True)
    parts = np.array_split(np.arange(len(digits.target)), FILES)
    for number, rows in enumerate(parts):
        write_records(
            folder / f"digits.tfrecord-{number:05d}-of-{FILES:05d}",
            (
                encode_example(
                    {
                        "image": digits.images[i].astype(np.uint8).tobytes(),
                        "label": int(digits.target[i]),
                    }
                )
                for i in rows
            ),
        )


def decode(record: bytes) -> dict[str, Any]:
    """One tf.train.Example as an image, float32 `(8, 8)` from 0 to 1, and a label."""
    from windrow.converters import decode_example

    example = decode_example(record)
    image = np.frombuffer(example["image"][0], np.uint8).reshape(8, 8)
    return {"image": image.astype(np.float32) / 16, "label": np.int32(example["label"][0])}


def convert(folder: pathlib.Path) -> None:
    """Convert TFRecord to ArrayRecord, file by file, and to a Zarr group with an array per field."""
    from windrow.converters import tfrecord_to_array_record, tfrecord_to_zarr

    inputs = str(folder / "tfrecord" / "*")
    with tqdm(total=2, desc="convert", unit="format") as bar:
        tfrecord_to_array_record(inputs, folder / "array_record")
        bar.update()
        tfrecord_to_zarr(inputs, folder / "zarr", decode=decode)
        bar.update()


# --- 2. the chain and the model ----------------------------------------------------------------------


def from_array_record(folder: pathlib.Path, library: Any = windrow) -> Any:
    """Batches of images and labels, in another order in each epoch. A thread reads ahead.

    The chain is Grain's: with `library=grain` the same lines are a program for Grain.
    """
    files = sorted(str(file) for file in (folder / "array_record").glob("*.array_record*"))
    source = library.sources.ArrayRecordDataSource(files)
    return (
        library.MapDataset.source(source)
        .shuffle(seed=42)
        .map(decode)
        .batch(BATCH, drop_remainder=True)
    )


def from_zarr(folder: pathlib.Path) -> windrow.MapDataset[Any]:
    """The same batches. Here a record is a row of each array, decoded already."""
    source = windrow.sources.ZarrDataSource(folder / "zarr")
    return windrow.MapDataset.source(source).shuffle(seed=42).batch(BATCH, drop_remainder=True)


def train(folder: pathlib.Path, run: str, kill_at: int | None, workers: int) -> None:
    """Train from the latest checkpoint of the run, or from the start; log each batch and loss."""
    import jax
    import jax.numpy as jnp
    import orbax.checkpoint as ocp

    from windrow.checkpoint import CheckpointRestore, CheckpointSave

    def loss_of(params: Any, images: Any, labels: Any) -> Any:
        x = jax.lax.conv(images[:, None], params["conv"], (1, 1), "SAME")
        x = jax.nn.relu(x).reshape(len(images), -1) @ params["dense"] + params["bias"]
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(x), labels[:, None], axis=1))

    @jax.jit
    def update(params: Any, images: Any, labels: Any) -> tuple[Any, Any]:
        loss, gradients = jax.value_and_grad(loss_of)(params, images, labels)
        return jax.tree.map(lambda p, g: p - 0.2 * g, params, gradients), loss

    first, second = jax.random.split(jax.random.key(0))
    params: Any = {
        "conv": 0.3 * jax.random.normal(first, (16, 1, 3, 3)),
        "dense": 0.03 * jax.random.normal(second, (1024, 10)),
        "bias": jnp.zeros(10),
    }
    step = 0
    dataset = from_zarr(folder) if run == "zarr" else from_array_record(folder)
    batches = iter(dataset.repeat(EPOCHS).mp_prefetch(workers))
    options = ocp.CheckpointManagerOptions(max_to_keep=2)
    with (
        batches,
        ocp.CheckpointManager(folder / "runs" / run, options=options) as checkpoints,
        open(folder / f"{run}.log", "a", encoding="utf-8") as log,
    ):
        latest = checkpoints.latest_step()
        if latest is not None:
            # One checkpoint holds both: the parameters and the position in the stream of batches.
            parts = ocp.args.Composite(
                params=ocp.args.StandardRestore(params), batches=CheckpointRestore(batches)
            )
            params, step = checkpoints.restore(latest, args=parts)["params"], latest
            print(f"resumed from the checkpoint of step {step}, {workers} workers", flush=True)
        for batch in tqdm(batches, run, EPOCHS * STEPS_PER_EPOCH, initial=step, unit="step"):
            params, loss = update(params, batch["image"], batch["label"])
            step += 1
            digest = zlib.crc32(batch["label"], zlib.crc32(batch["image"]))
            line = {"step": step, "batch": f"{digest:08x}", "loss": float(loss)}
            print(json.dumps(line), file=log, flush=True)
            if step % CHECKPOINT_EVERY == 0:
                parts = ocp.args.Composite(
                    params=ocp.args.StandardSave(params), batches=CheckpointSave(batches)
                )
                checkpoints.save(step, args=parts)
            if step == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)


def run_training(
    folder: pathlib.Path, run: str, *, kill_at: int | None = None, workers: int = WORKERS
) -> int:
    """Train in a separate process; return its exit code."""
    command = [sys.executable, __file__, "--train", run, "--folder", str(folder)]
    command += ["--workers", str(workers)]
    return subprocess.run([*command, *(["--kill-at", str(kill_at)] if kill_at else [])]).returncode


def logged(folder: pathlib.Path, run: str) -> list[dict[str, Any]]:
    """Read the log of a run by step; a step that was repeated after a restart counts once."""
    lines = (folder / f"{run}.log").read_text().splitlines()
    return list({line["step"]: line for line in map(json.loads, lines)}.values())


def train_thrice(folder: pathlib.Path) -> None:
    """Train without a stop, from Zarr, and killed and resumed; fail unless all results are equal."""
    for run in ("array_record", "zarr", "killed"):  # what an earlier program left in the folder
        shutil.rmtree(folder / "runs" / run, ignore_errors=True)
        (folder / f"{run}.log").unlink(missing_ok=True)
    for run in ("array_record", "zarr"):
        if run_training(folder, run) != 0:
            raise SystemExit("training failed")
    if run_training(folder, "killed", kill_at=KILL_AT) != -signal.SIGKILL:
        raise SystemExit("the run that was to be killed was not")
    epoch = KILL_AT // STEPS_PER_EPOCH + 1
    print(f"killed at step {KILL_AT}, in the middle of epoch {epoch}", flush=True)
    if run_training(folder, "killed", workers=RESUMED_WORKERS) != 0:
        raise SystemExit("resuming failed")
    steps = {run: logged(folder, run) for run in ("array_record", "zarr", "killed")}
    batches = [[line["batch"] for line in lines] for lines in steps.values()]
    losses = [lines[-1]["loss"] for lines in steps.values()]
    for run, loss in zip(steps, losses, strict=True):
        print(f"{run:>12}: {len(steps[run])} batches, final loss {loss:.6f}")
    if not batches[0] == batches[1] == batches[2] or len(set(losses)) > 1:
        raise SystemExit("the three runs differ")
    print("the three runs saw the same batches and ended with the same loss")


# --- 3. the speed ------------------------------------------------------------------------------------


def records_per_second(dataset: Any, most_s: float = 4.0) -> float:
    """Records per second of an endless dataset of batches, after a warm-up."""
    iterator = iter(dataset)
    for _ in range(STEPS_PER_EPOCH):
        next(iterator)
    batches, start = 0, time.perf_counter()
    while time.perf_counter() - start < most_s:
        next(iterator)
        batches += 1
    return batches * BATCH / (time.perf_counter() - start)


def compare(folder: pathlib.Path) -> None:
    """Time the same chain over the same files in Windrow and in Grain."""
    import grain

    ours = records_per_second(from_array_record(folder).repeat())
    theirs = records_per_second(from_array_record(folder, grain).repeat())
    print(
        f"records per second: windrow {ours:,.0f}, grain {theirs:,.0f}, {ours / theirs:.1f} times"
    )
    print("(small records that Python decodes; docs/measurements.md has careful measurements)")


def main() -> None:
    if any(importlib.util.find_spec(name) is None for name in NEEDED):
        raise windrow.errors.missing_extra("examples/train_digits.py", "examples")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--folder", type=pathlib.Path, help="where to work [a temporary folder]")
    parser.add_argument("--train", metavar="RUN", help="only train, as the run of this name")
    parser.add_argument("--kill-at", type=int, help="with --train: be killed at this step")
    parser.add_argument("--workers", type=int, default=WORKERS, help="with --train: processes")
    args = parser.parse_args()
    if args.train:
        train(args.folder, args.train, args.kill_at, args.workers)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = (args.folder or pathlib.Path(temporary)).absolute()
        write_tfrecords(folder / "tfrecord")
        convert(folder)
        train_thrice(folder)
        compare(folder)


if __name__ == "__main__":
    main()
