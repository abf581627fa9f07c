"""Volumes at several resolutions, as OME-Zarr and in Neuroglancer's precomputed form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy.typing as npt
import tensorstore as ts
import zarr

AnyArray = npt.NDArray[Any]


def volume(
    path: Path, values: AnyArray, *, kind: str = "image", driver: str = "file", **scale: Any
) -> Any:
    """The store of a precomputed volume of values `(x, y, z)` or `(x, y, z, channel)`."""
    values = values[..., None] if values.ndim == 3 else values
    size = {"size": values.shape[:3], "chunk_size": [8, 8, 8], "resolution": [1, 1, 1]}
    spec = {
        "driver": "neuroglancer_precomputed",
        "kvstore": {"driver": driver, "path": f"{path}/"},
        "multiscale_metadata": {
            "type": kind,
            "data_type": str(values.dtype),
            "num_channels": values.shape[3],
        },
        "scale_metadata": {"encoding": "raw", **size, **scale},
    }
    store = ts.open(spec, create=True).result()
    store[...] = values
    return store


def precomputed(path: Path, *levels: tuple[AnyArray, list[float], list[int]]) -> Path:
    """A precomputed volume: values, resolution and voxel_offset of each scale."""
    for values, resolution, offset in levels:
        volume(path, values, resolution=resolution, voxel_offset=offset)
    return path


def ome(
    path: Path,
    levels: dict[str, tuple[AnyArray, list[dict[str, Any]]]],
    axes: list[dict[str, Any]],
    version: str = "0.5",
    **more: Any,
) -> Path:
    """An OME-Zarr image: by path the values and the transformations of each level."""
    datasets = [{"path": k, "coordinateTransformations": t} for k, (_, t) in levels.items()]
    multiscales: list[Any] = [{"axes": axes, "datasets": datasets, **more}]
    modern = version == "0.5"
    attributes: Any = {"multiscales": [{"version": "0.4", **multiscales[0]}]}
    if modern:
        attributes = {"ome": {"version": "0.5", "multiscales": multiscales}}
    group = zarr.create_group(path, zarr_format=3 if modern else 2, attributes=attributes)
    names: dict[str, Any] = {"dimension_names": [axis["name"] for axis in axes]} if modern else {}
    for key, (values, _) in levels.items():
        group.create_array(key, data=values, chunks=tuple(min(n, 7) for n in values.shape), **names)
    return path


def scale(*steps: float) -> dict[str, Any]:
    return {"type": "scale", "scale": list(steps)}


def translation(*firsts: float) -> dict[str, Any]:
    return {"type": "translation", "translation": list(firsts)}


def space(*names: str, unit: str = "micrometer") -> list[dict[str, Any]]:
    return [{"name": name, "type": "space", "unit": unit} for name in names]
