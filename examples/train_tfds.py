"""From a builder of TensorFlow Datasets to a trained model, as in Grain's guide, without TensorFlow.

    make tfds

1. `windrow tfds-build` builds the dataset of examples/shapes: ArrayRecord files as `tfds build
   --file_format=array_record` writes them, and a Zarr group for each split. This is the
   only step that needs tfds and TensorFlow.
2. `TFDSDataSource` reads four fifths of the split in batches: shuffled, mapped, batched. That is the
   guide's first program. The second is a stream whose functions run in two worker processes. Both give
   the same batches; so does a chain over the Zarr group, where pictures are arrays already.
3. A small model is trained in JAX, once through, and once stopped in the middle of an epoch and
   resumed in a new process. Both end with the same parameters, bit for bit.
4. The model is tried on the last fifth of the split, and on the other split.

Everything lies in a folder that is removed at the end. No network.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np

import windrow as grain
from windrow.sources import TFDSDataSource, ZarrDataSource

BUILDER = pathlib.Path(__file__).with_name("shapes")
BATCH, EPOCHS, SEED = 32, 12, 42
TRAINED_ON, KEPT_BACK = "train[:80%]", "train[80%:]"


# --- 1. the build ------------------------------------------------------------------------------------


def build(data: pathlib.Path) -> None:
    command = [sys.executable, "-m", "windrow", "tfds-build", str(BUILDER)]
    command += ["--data_dir", str(data), "--also", "zarr"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the build failed\n{done.stderr}")
    folder = next(data.glob("shapes/*"))
    print(f"built {', '.join(sorted(path.name for path in folder.iterdir()))}")


# --- 2. the guide's programs -------------------------------------------------------------------------


def transform(record: dict[str, Any]) -> dict[str, Any]:
    """A picture as float32 `(16, 16, 1)` around 0, and its label."""
    return {"image": record["image"] / np.float32(128) - 1, "label": record["label"]}


def elements(data: pathlib.Path, split: str) -> Any:
    """Shuffled, transformed elements of a split."""
    source = TFDSDataSource("shapes", split=split, data_dir=data, images=True)
    return grain.MapDataset.source(source).shuffle(seed=SEED).map(transform)


def batches_of(data: pathlib.Path, split: str) -> Any:
    """The first program: random access only, and a state of a few integers."""
    return elements(data, split).batch(BATCH, drop_remainder=True)


def stream_of(data: pathlib.Path, split: str) -> Any:
    """The second program: a stream in worker processes."""
    options = grain.multiprocessing.MultiprocessingOptions(num_workers=2)
    stream = elements(data, split).to_iter_dataset().batch(BATCH, drop_remainder=True)
    return stream.mp_prefetch(options)


def same(first: Iterator[Any], second: Iterator[Any]) -> int:
    """Return the number of batches, after comparing both.

    Raises:
        SystemExit: If they differ.
    """
    number = 0
    for number, (one, other) in enumerate(zip(first, second, strict=True), start=1):
        if any(not np.array_equal(one[name], other[name]) for name in one):
            raise SystemExit(f"batch {number} differs")
    return number


def check_programs(data: pathlib.Path) -> None:
    source = TFDSDataSource("shapes", split=TRAINED_ON, data_dir=data, images=True)
    print(f"{TRAINED_ON}: {len(source)} examples of {', '.join(source.class_names('label') or ())}")
    number = same(iter(batches_of(data, TRAINED_ON)), iter(stream_of(data, TRAINED_ON)))
    print(f"the stream by two workers has the same {number} batches")
    rows = ZarrDataSource(next(data.glob("shapes/*")) / "zarr" / "train")
    stored = grain.MapDataset.source(rows).shuffle(seed=SEED).map(transform)
    number = same(iter(batches_of(data, "train")), iter(stored.batch(BATCH, drop_remainder=True)))
    print(f"the Zarr group has the same {number} batches")


# --- 3. training -------------------------------------------------------------------------------------


def train(data: pathlib.Path, checkpoint: pathlib.Path, stop_at: int | None = None) -> Any:
    """Train all epochs, from the checkpoint if there is one; return parameters, or None if stopped."""
    import jax
    import jax.numpy as jnp

    def loss_of(params: Any, images: Any, labels: Any) -> Any:
        hidden = jax.nn.relu(images.reshape(len(images), -1) @ params["hidden"] + params["bias"])
        shares = jax.nn.log_softmax(hidden @ params["out"])
        return -jnp.mean(jnp.take_along_axis(shares, labels[:, None], axis=1))

    @jax.jit
    def update(params: Any, images: Any, labels: Any) -> Any:
        gradients = jax.grad(loss_of)(params, images, labels)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)

    rng = np.random.default_rng(SEED)
    shapes = {"hidden": (256, 128), "bias": (128,), "out": (128, 3)}
    params: Any = {name: rng.normal(0, 0.05, size).astype("f4") for name, size in shapes.items()}
    iterator = iter(batches_of(data, TRAINED_ON).repeat(EPOCHS))
    if checkpoint.exists():
        with np.load(checkpoint) as saved:
            params = {name: saved[name] for name in params}
            iterator.set_state(json.loads(str(saved["state"])))
    for step, batch in enumerate(iterator, start=1):
        params = update(params, batch["image"], batch["label"])
        if step == stop_at:
            np.savez(checkpoint, state=json.dumps(iterator.get_state()), **params)
            return None
    return {name: np.asarray(value) for name, value in params.items()}


def train_and_go_on(data: pathlib.Path) -> dict[str, Any]:
    """Train without and with a stop; fail unless both end with the same parameters."""
    through = train(data, data / "none.npz")
    steps = len(batches_of(data, TRAINED_ON))
    train(data, data / "stopped.npz", stop_at=2 * steps + steps // 3)
    print(f"stopped in the middle of epoch 3, after {2 * steps + steps // 3} steps", flush=True)
    command = [sys.executable, __file__, "--go-on", str(data)]
    subprocess.run(command, check=True)
    with np.load(data / "gone_on.npz") as gone_on:
        if any(not np.array_equal(through[name], gone_on[name]) for name in through):
            raise SystemExit("the two runs differ")
    print("resumed in a new process: the same parameters")
    return dict(through)


def right(data: pathlib.Path, split: str, params: dict[str, Any]) -> float:
    """The accuracy of the model on a split."""
    chain = elements(data, split)
    all_of_it = chain.batch(len(chain))[0]
    images = all_of_it["image"].reshape(len(chain), -1)
    scores = np.maximum(images @ params["hidden"] + params["bias"], 0) @ params["out"]
    return float((scores.argmax(axis=1) == all_of_it["label"]).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--go-on", type=pathlib.Path, metavar="FOLDER", help="from its checkpoint")
    arguments = parser.parse_args()
    if arguments.go_on:
        params = train(arguments.go_on, arguments.go_on / "stopped.npz")
        np.savez(arguments.go_on / "gone_on.npz", **params)
        return
    with tempfile.TemporaryDirectory() as name:
        data = pathlib.Path(name)
        build(data)
        check_programs(data)
        params = train_and_go_on(data)
        shares = {split: right(data, split, params) for split in (KEPT_BACK, "test")}
        for split, share in shares.items():
            print(f"{split}: {share:.1%} right")
        if min(shares.values()) < 0.8:
            raise SystemExit("the model has learnt too little")


if __name__ == "__main__":
    main()
