"""Zarr arrays that tests write to a folder and read from a server."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import numpy.typing as npt
import tensorstore as ts
import zarr

from tests.range_server import RangeServer
from windrow.sources import RemoteOptions, ZarrDataSource

AnyArray = npt.NDArray[Any]

# For faults that come again and again, for those that last, and for answers that do not come. What
# is well passes the last one too, on a busy machine: that is read by `tests.limits.at_last`. Limits of
# a stall are curl's, for the whole process: none is short here.
PATIENT = RemoteOptions(retries=8, backoff_s=0.01, max_backoff_s=0.05)
TWICE = RemoteOptions(retries=1, backoff_s=0.01, max_backoff_s=0.02, outage_s=0)
SHORT = dataclasses.replace(TWICE, timeout_s=0.25)


def values(*shape: int, seed: int = 0) -> AnyArray:
    """Floats of which none is the fill value."""
    return (np.random.default_rng(seed).random(shape) + 1).astype("f4")


def write(
    path: Path, data: AnyArray, chunk: tuple[int, ...], shard: tuple[int, ...] | None = None
) -> Path:
    """An array of Zarr v3, in shards if that is given."""
    layout = ts.ChunkLayout(read_chunk_shape=chunk, write_chunk_shape=shard or chunk)
    store = ts.open(
        {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/"}},
        create=True,
        delete_existing=True,
        dtype=data.dtype,
        shape=data.shape,
        chunk_layout=layout,
        dimension_units=None,
        domain=ts.IndexDomain(labels=["time", *"xyz"[: data.ndim - 1]], shape=data.shape),
    ).result()
    store[...] = data
    return path


def write_filtered(path: Path, data: AnyArray, chunk: tuple[int, ...]) -> Path:
    """An array of Zarr v2 with a filter, which TensorStore does not read."""
    import numcodecs

    array = zarr.create_array(
        store=str(path),
        shape=data.shape,
        chunks=chunk,
        dtype=data.dtype,
        zarr_format=2,
        filters=[numcodecs.Shuffle(data.dtype.itemsize)],
    )
    array[...] = data
    return path


def write_old(path: Path, data: AnyArray, chunk: tuple[int, ...]) -> Path:
    """An array of Zarr v2."""
    zarr.create_array(
        store=str(path), shape=data.shape, chunks=chunk, dtype=data.dtype, zarr_format=2
    )[...] = data
    return path


def write_ways(top: Path, data: AnyArray) -> None:
    """Write `data` as the arrays that `array_over` opens, in chunks and shards of few rows."""
    write(top / "plain", data, (4, 6))
    write(top / "shard", data, (2, 3), (16, 6))
    write_filtered(top / "filter", data, (4, 6))


def array_over(server: RangeServer, way: str, remote: RemoteOptions = PATIENT) -> ZarrDataSource:
    """Open an array that `write_ways` wrote and `server` serves.

    TensorStore reads 'plain' and 'shard'. fsspec reads 'filter', and 'cookies', which is 'shard' with
    a setting that TensorStore does not take.
    """
    if way == "cookies":
        options = {"cookies": {"a": "b"}}
        return ZarrDataSource(server.url("shard"), storage_options=options, remote=remote)
    return ZarrDataSource(server.url(way), remote=remote)


def objects(folder: Path, prefix: str = "") -> dict[str, bytes]:
    """The files in a folder by their paths."""
    return {
        prefix + file.relative_to(folder).as_posix(): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def in_memory(folder: Path, name: str) -> str:
    """The URL of a copy in fsspec's memory."""
    put_all(folder, lambda key, data: fsspec.filesystem("memory").pipe(f"/{name}/{key}", data))
    return f"memory://{name}"


def put_all(folder: Path, put: Callable[[str, bytes], None]) -> None:
    """Give every file of a folder to `put`."""
    for key, data in objects(folder).items():
        put(key, data)
