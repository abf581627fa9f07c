"""From TFRecord files to training on Zarr: a conversion is killed and resumes, and nothing is lost.

    python examples/convert_records.py

1. Small pictures are written as TFRecord files of tf.train.Examples, as you may have them.
2. They are converted to ArrayRecord files: one to one, now with random access. The program that does
   it is killed in the middle. Every source refuses what it leaves, and says how to resume; the
   same call again keeps the files that were finished.
3. The records are decoded once and for all, into a Zarr group of one array per feature.
4. A chain reads the group, shuffled, for a classifier that is trained on it; and the batches are those
   that the records would have given.

Everything lies in a folder that is removed at the end. No network, no TensorFlow, no Beam.
"""

import argparse
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
from typing import Any, cast

import numpy as np
import numpy.typing as npt

import windrow
from windrow import converters
from windrow.converters import Feature
from windrow.core.progress import Progress
from windrow.sources import ArrayRecordDataSource, ZarrDataSource

FILES, RECORDS_PER_FILE = 8, 500
RECORDS = FILES * RECORDS_PER_FILE
SIDE, CLASSES = 8, 10
BATCH, EPOCHS, SEED = 50, 3, 42
# How the features of an Example become arrays: its bytes do not say so.
FEATURES = {
    "image": Feature("uint8", (SIDE, SIDE), raw=True),
    "label": Feature("int64"),
}

Record = dict[str, Any]
Images = npt.NDArray[np.uint8]


# --- 1. TFRecord files -------------------------------------------------------------------------------


def make_pictures() -> tuple[Images, npt.NDArray[np.int64]]:
    """Pictures of ten kinds, each a pattern under noise, and their labels."""
    rng = np.random.default_rng(SEED)
    patterns = rng.integers(0, 2, (CLASSES, SIDE, SIDE)) * 100
    labels = rng.integers(0, CLASSES, RECORDS)
    noise = rng.integers(0, 156, (RECORDS, SIDE, SIDE))
    return (patterns[labels] + noise).astype(np.uint8), labels


def write_tfrecords(folder: pathlib.Path) -> str:
    """Write the pictures as TFRecord files; return the glob pattern of the files."""
    images, labels = make_pictures()
    folder.mkdir()
    for number in range(FILES):
        rows = range(number * RECORDS_PER_FILE, (number + 1) * RECORDS_PER_FILE)
        converters.write_records(
            folder / f"pictures.tfrecord-{number:05d}-of-{FILES:05d}",
            (
                converters.encode_example({"image": images[i].tobytes(), "label": int(labels[i])})
                for i in rows
            ),
        )
    return str(folder / "pictures.tfrecord-*")


# --- 2. killed, and resumed --------------------------------------------------------------------------


def die_in_the_middle(progress: Progress) -> None:
    """Simulate a machine failure: kill -9 of this process after half of the bytes."""
    if progress.total_bytes and progress.done_bytes > progress.total_bytes / 2:
        os.kill(os.getpid(), signal.SIGKILL)


def convert_and_die(pattern: str, output: str) -> None:
    converters.tfrecord_to_array_record(pattern, output, progress=die_in_the_middle)
    raise SystemExit("the conversion came to its end, though it was to be killed")


def convert_in_two_runs(pattern: str, output: pathlib.Path) -> None:
    command = [sys.executable, __file__, "--convert-and-die", pattern, str(output)]
    done = subprocess.run(command, check=False)
    if done.returncode != -signal.SIGKILL:
        raise SystemExit(f"the first run ended with code {done.returncode}")
    finished = {path.name: path.stat().st_ino for path in output.glob("*.array_record-*")}
    print(f"first run: killed, with {len(finished)} of {FILES} files in their place")
    try:
        ArrayRecordDataSource(str(output))
    except windrow.WindrowError as error:
        print(f"a source refuses the folder: {type(error).__name__}")
    else:
        raise SystemExit("an unfinished folder was opened")

    manifest = converters.tfrecord_to_array_record(pattern, output, progress=False)
    kept = sum((output / name).stat().st_ino == inode for name, inode in finished.items())
    print(f"second run: {kept} files kept, {FILES - kept} written; {manifest.records} records")
    # The last files may have been put in place just before the run noted that they are finished.
    if not kept or manifest.records != RECORDS:
        raise SystemExit("the second run did not resume the first")


# --- 4. training on what was written -----------------------------------------------------------------


def train(group: pathlib.Path) -> float:
    """Train a softmax regression in plain NumPy; return its accuracy in the last epoch."""
    batches = windrow.MapDataset.source(ZarrDataSource(str(group))).shuffle(SEED)
    weights = np.zeros((SIDE * SIDE + 1, CLASSES))
    right = 0
    for epoch in range(EPOCHS):
        right = 0
        for batch in batches.batch(BATCH):
            pixels = batch["image"].reshape(BATCH, -1) / 255 - 0.5
            inputs = np.concatenate([pixels, np.ones((BATCH, 1))], axis=1)
            scores = np.exp(inputs @ weights)
            shares = scores / scores.sum(axis=1, keepdims=True)
            right += int((shares.argmax(axis=1) == batch["label"]).sum())
            shares[np.arange(BATCH), batch["label"]] -= 1
            weights -= 0.5 * inputs.T @ shares / BATCH
        print(f"epoch {epoch}: {right / RECORDS:.1%} right")
    return right / RECORDS


def check_same(records: pathlib.Path, group: pathlib.Path) -> None:
    """Check that the rows of the group are the decoded records, in the same shuffled order."""

    def decode(record: bytes) -> dict[str, object]:
        features = converters.decode_example(record)
        image = np.frombuffer(features["image"][0], np.uint8).reshape(SIDE, SIDE)
        return {"image": image, "label": features["label"][0]}

    from_records = windrow.MapDataset.source(ArrayRecordDataSource(str(records))).map(decode)
    from_group = windrow.MapDataset.source(ZarrDataSource(str(group)))
    for index in range(0, RECORDS, 7):
        chains = (from_records, from_group)
        one, other = (cast("Record", chain.shuffle(SEED)[index]) for chain in chains)
        if one["label"] != other["label"] or not np.array_equal(one["image"], other["image"]):
            raise SystemExit(f"record {index} differs")
    print("the group has what the records have")


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--convert-and-die", nargs=2, metavar=("PATTERN", "OUTPUT"))
    arguments = parser.parse_args()
    if arguments.convert_and_die:
        convert_and_die(*arguments.convert_and_die)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        pattern = write_tfrecords(folder / "tfrecord")
        print(f"{RECORDS} records in {FILES} TFRecord files")
        convert_in_two_runs(pattern, folder / "records")
        manifest = converters.array_record_to_zarr(
            str(folder / "records"), folder / "group", features=FEATURES, progress=False
        )
        print(f"Zarr: {manifest.records} rows in {len(manifest.files)} files")
        check_same(folder / "records", folder / "group")
        if train(folder / "group") < 0.9:
            raise SystemExit("the classifier has learnt too little")


if __name__ == "__main__":
    main()
