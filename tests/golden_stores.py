"""Small stores of every layout that the golden chains read, kept as one archive of files.

The archive is kept, not made anew in each run: so no version of a library that writes changes what
the golden files compare.
"""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any, Literal

import numpy as np

ARCHIVE = Path(__file__).resolve().parent / "golden" / "stores.tar.gz"


def unpack(folder: Path) -> Path:
    """The stores, in a folder that is made for them."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


def pack(folder: Path) -> None:
    """Write the archive: files in the order of their names, without times or owners."""
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                info = tarfile.TarInfo(path.relative_to(folder).as_posix())
                info.size = path.stat().st_size
                info.mode = 0o644
                archive.addfile(info, io.BytesIO(path.read_bytes()))
    ARCHIVE.parent.mkdir(exist_ok=True)
    ARCHIVE.write_bytes(gzip.compress(held.getvalue(), 9, mtime=0))


def write_stores(folder: Path) -> None:
    """The stores anew, by the packages that write them."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_zarr(folder)
    _write_records(folder)
    numbers = np.arange(180, dtype="i4").reshape(60, 3)
    np.save(folder / "mapped.npy", numbers)
    _write_damaged(folder)


def _write_zarr(folder: Path) -> None:
    import zarr
    from numcodecs import Delta

    rng = np.random.default_rng(0)
    rows = rng.integers(0, 50, (200, 6)).astype("f4")

    def array(name: str, values: Any, chunks: tuple[int, ...], **more: Any) -> Any:
        store = zarr.create_array(
            str(folder / name), shape=values.shape, dtype=values.dtype, chunks=chunks, **more
        )
        store[...] = values
        return store

    array("chunks", rows, (8, 6))
    array("sharded", rows[:120], (1, 6), shards=(24, 6))
    array("inner", rows[:120], (4, 6), shards=(24, 6))
    array("raw", rows[:150].astype("i4"), (10, 6), compressors=None)
    array("second", rows[:100], (8, 4), zarr_format=2)
    array("delta", rows[:60], (8, 6), zarr_format=2, filters=[Delta("f4")])
    array("big-endian", rows[:40].astype(">i4"), (8, 6), zarr_format=2)
    array("one", rows[:1], (1, 6))
    array("tokens", rng.integers(0, 9, 1_000).astype("u2"), (64,), dimension_names=["t"])
    field = rng.integers(0, 9, (20, 12, 12)).astype("i2")
    array("field", field, (4, 4, 4), dimension_names=["t", "y", "x"])
    sparse = zarr.create_array(
        str(folder / "sparse"), shape=(50, 3), dtype="i4", chunks=(8, 3), fill_value=7
    )
    sparse[16:24] = 3
    versions: tuple[tuple[str, Literal[2, 3]], ...] = (("group", 3), ("group-v2", 2))
    for name, version in versions:
        group = zarr.create_group(str(folder / name), zarr_format=version)
        for key, values, size in (
            ("x", np.ascontiguousarray(rows[:90, :4]), 8),
            ("y", np.arange(90), 30),
            ("z", rows[:90, 0] > 20, 16),
        ):
            group.create_array(key, data=values, chunks=(size, *values.shape[1:]))
    packed = zarr.create_group(str(folder / "climate"))
    t2m = rng.integers(-90, 90, (24, 4, 6)).astype("i2")
    t2m[3, 2, 1] = -99
    temperature = packed.create_array(
        "t2m", data=t2m, chunks=(5, 4, 3), dimension_names=("time", "lat", "lon")
    )
    temperature.attrs.update({"scale_factor": 0.5, "add_offset": 10.0, "_FillValue": -99})
    height = rng.integers(0, 9, (4, 6)).astype("f4")
    packed.create_array("height", data=height, dimension_names=("lat", "lon"))
    time = packed.create_array("time", data=np.arange(24) * 6, dimension_names=("time",))
    time.attrs.update({"units": "hours since 2020-01-01", "calendar": "standard"})
    packed.create_array("lat", data=np.linspace(45, 0, 4), dimension_names=("lat",))
    packed.create_array("lon", data=np.arange(6) * 10.0, dimension_names=("lon",))


def _write_records(folder: Path) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    from windrow.converters import encode_example, write_records

    def records(name: str, values: list[bytes], options: str) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        writer = ArrayRecordWriter(str(folder / name), options)
        for value in values:
            writer.write(value)
        writer.close()

    plain = [b"record %d " % n * (n % 5 + 1) for n in range(120)]
    records("single.array_record", plain[:100], "group_size:1")
    records("groups.array_record", plain[:100], "group_size:16")
    records("raw.array_record", plain[:30], "group_size:8,uncompressed")
    for part, count in enumerate((30, 40, 50)):
        records(f"part-{part}.array_record", plain[:count], "group_size:4")
    examples = [
        encode_example({"id": n, "label": n % 3, "pair": [n / 2, n / 4], "text": b"text %d" % n})
        for n in range(45)
    ]
    records("examples.array_record", examples, "group_size:8")
    for part, (start, stop) in enumerate(((0, 20), (20, 45))):
        write_records(folder / f"examples.tfrecord-{part:05}-of-00002", examples[start:stop])
        write_records(folder / f"plain.tfrecord-{part:05}-of-00002", plain[start:stop])
    _write_tfds(folder / "counts" / "1.0.0", records)


def _write_tfds(folder: Path, records: Any) -> None:
    """A folder as tfds writes them, written without tfds."""
    from windrow.converters import encode_example

    kind = "tensorflow_datasets.core.features."
    scalar = {"dtype": "int64", "encoding": "none", "shape": {}}
    features = {
        "id": {"pythonClassName": f"{kind}scalar.Scalar", "tensor": scalar},
        "label": {
            "pythonClassName": f"{kind}class_label_feature.ClassLabel",
            "classLabel": {"numClasses": "3"},
        },
        "text": {"pythonClassName": f"{kind}text_feature.Text", "text": {}},
    }
    splits = []
    for split, lengths in (("train", (40, 25)), ("test", (9,))):
        first = 0
        for shard, length in enumerate(lengths):
            values = [
                encode_example({"id": at, "label": at % 3, "text": f"{split} {at}".encode()})
                for at in range(first, first + length)
            ]
            name = f"counts-{split}.array_record-{shard:05}-of-{len(lengths):05}"
            records((folder / name).relative_to(folder.parent.parent), values, "group_size:4")
            first += length
        splits.append({"name": split, "numBytes": "1", "shardLengths": [str(n) for n in lengths]})
    info = {"name": "counts", "version": "1.0.0", "fileFormat": "array_record", "splits": splits}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    whole = {
        "pythonClassName": f"{kind}features_dict.FeaturesDict",
        "featuresDict": {"features": features},
    }
    (folder / "features.json").write_text(json.dumps(whole))
    (folder / "label.labels.txt").write_text("one\ntwo\nthree\n")


def _write_damaged(folder: Path) -> None:
    """What is not whole: a chunk, a record file, a TFRecord file, and no data at all."""
    import shutil

    shutil.copytree(folder / "raw", folder / "damaged")
    chunk = folder / "damaged" / "c" / "3" / "0"
    chunk.write_bytes(chunk.read_bytes()[:40])
    shutil.copytree(folder / "chunks", folder / "damaged-zstd")
    chunk = folder / "damaged-zstd" / "c" / "2" / "0"
    chunk.write_bytes(b"\0" * len(chunk.read_bytes()))
    for name, at in (("groups.array_record", 200), ("plain.tfrecord-00000-of-00002", 300)):
        whole = bytearray((folder / name).read_bytes())
        whole[at] ^= 0xFF
        (folder / f"damaged.{name.split('.')[1].split('-')[0]}").write_bytes(whole)
    (folder / "cut.array_record").write_bytes((folder / "groups.array_record").read_bytes()[:100])
    (folder / "nothing.txt").write_text("no data set\n")
