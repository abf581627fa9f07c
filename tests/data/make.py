"""Writes the files beside it, each with the package and version that README.md names.

Run from this folder: `python make.py WHAT`, WHAT being the name of a function below. The files are
kept in git, so that the tests read what other versions wrote; run this only to add one.
"""

from __future__ import annotations

import gzip
import importlib.metadata
import os
import sys
from typing import Any

import numpy as np

ERA5_STEPS = 48


def record(number: int) -> bytes:
    """Record `number` of every ArrayRecord file here: empty for 0, else of unlike lengths."""
    return b"%d " % number * (number % 7)


def array_record() -> None:
    """ArrayRecord files of one content with several options of the writer, packed by gzip."""
    module: Any = importlib.import_module("array_record.python.array_record_module")
    version = importlib.metadata.version("array_record")
    for options in ("group_size:1", "group_size:8,brotli:5", "group_size:8,transpose:true,snappy"):
        name = f"v{version}-{options.replace(':', '').replace(',', '-')}.array_record"
        writer = module.ArrayRecordWriter(name, options)
        for number in range(20):
            writer.write(record(number))
        writer.close()
        # Its blocks of zeros make the smallest file 128 KiB.
        with open(name, "rb") as plain, open(f"{name}.gz", "wb") as packed:
            packed.write(gzip.compress(plain.read(), mtime=0))
        os.unlink(name)


def zarr_v2_group() -> None:
    """With zarr-python 2: a group with consolidated metadata; chunks that are absent in `sparse`."""
    zarr: Any = importlib.import_module("zarr")
    root = zarr.open_group("v2-group.zarr", mode="w")
    root.attrs["title"] = "written by zarr-python 2"
    squares = np.arange(40, dtype="<i4").reshape(20, 2) ** 2
    root.create_dataset("squares", data=squares, chunks=(6, 2)).attrs["unit"] = "1"
    root.create_dataset("inner/big_endian", data=squares.astype(">f8"), chunks=(20, 1), order="F")
    root.create_dataset("inner/flag", data=squares[:, 0] % 3 == 0, chunks=(7,), compressor=None)
    sparse = root.create_dataset("sparse", shape=(20,), chunks=(5,), dtype="f4", fill_value=-1)
    sparse[5:10] = 1
    zarr.consolidate_metadata(root.store)


def zarr_v3_sharded() -> None:
    """With zarr-python 3: a sharded array with attributes, and absent chunks in the last shard."""
    zarr: Any = importlib.import_module("zarr")
    array = zarr.create_array(
        "v3-sharded.zarr",
        shape=(50, 3),
        shards=(20, 3),
        chunks=(5, 3),
        dtype="u2",
        fill_value=7,
        attributes={"title": "written by zarr-python 3"},
        overwrite=True,
    )
    array[:42] = np.arange(42 * 3, dtype="u2").reshape(42, 3)


def era5(path: str) -> None:
    """With zarr-python 3: the first 48 hours, every third row and column of the file at `path`."""
    zarr: Any = importlib.import_module("zarr")
    h5py: Any = importlib.import_module("h5py")  # in no environment where types are checked
    with h5py.File(path) as file:
        t2m = file["t2m"][:ERA5_STEPS, ::3, ::3]
        latitude, longitude = file["latitude"][::3], file["longitude"][::3]
        hours = file["time"][:ERA5_STEPS]
    root = zarr.open_group("era5-uk-t2m.zarr", mode="w", zarr_format=3)
    root.attrs["source"] = "Contains modified Copernicus Climate Change Service information 2019"
    names = ("time", "latitude", "longitude")
    made = root.create_array(
        "t2m", data=t2m, chunks=(12, 11, 17), dimension_names=names, fill_value=np.nan
    )
    made.attrs.update({"units": "K", "long_name": "2 metre temperature"})
    for name, values, units in (
        ("time", hours, "hours since 2019-03-01 00:00:00"),
        ("latitude", latitude, "degrees_north"),
        ("longitude", longitude, "degrees_east"),
    ):
        root.create_array(name, data=values, dimension_names=(name,)).attrs["units"] = units


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
