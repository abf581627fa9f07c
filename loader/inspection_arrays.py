"""What arrays are, by their metadata: those of Zarr, N5 and Neuroglancer's precomputed volumes.

Invariant: no chunk is read. Metadata that Zarr keeps are read once; other formats are opened by
TensorStore, which reads theirs again.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from windrow.errors import NotFoundError, ReadError, SourceError
from windrow.inspection_facts import ArrayFacts, Inspection
from windrow.inspection_place import WHAT, Place
from windrow.sources.secrets import Secrets
from windrow.sources.zarr_access import Access
from windrow.sources.zarr_names import Found, FoundGroup, FoundTree, arrays_of, choose
from windrow.sources.zarr_open import find_all, open_all, sizes_of

_METADATA: Final = frozenset(
    {"zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata", "attributes.json", "info"}
)
# Settings of codecs that tell nothing of how they compress.
_SILENT: Final = frozenset(
    {"typesize", "blocksize", "endian", "id", "name", "order", "driver", "type"}
)
_SHARDING: Final = "sharding_indexed"
# Of blosc, as Zarr v2 counts them.
_SHUFFLES: Final[dict[Any, str]] = {-1: "auto", 0: "noshuffle", 1: "shuffle", 2: "bitshuffle"}


def find_arrays(place: Place, names: Sequence[str] = ()) -> FoundTree:
    """The arrays at a place.

    Args:
        place: An array or a group.
        names: The arrays and groups to look for in a group far away whose metadata do not list
            them; where there are none it is listed, without what lies in the folders in it.

    Raises:
        NotFoundError: If it holds neither array nor group.
        WindrowError: As `ZarrDataSource` raises it.
    """
    if place.fetcher is None:
        return find_all(place.what, place.path)
    try:
        return find_all(place.what, place.path, names, Access(place.what, place.storage_options))
    except SourceError:
        # Sources do not list a store far away, since in a group of old its chunks are listed too.
        folders = () if names else _folders_in(place)
        if not folders:
            raise
    return find_all(place.what, place.path, folders, Access(place.what, place.storage_options))


def array_names(files: Sequence[str]) -> list[str]:
    """The arrays of a group, by the paths of its files."""
    folders = (path.rpartition("/") for path in files)
    return [folder for folder, _, file in folders if folder and file in ("zarr.json", ".zarray")]


def _folders_in(place: Place) -> list[str]:
    try:
        names = place.names.names_in(place.path)
    except (NotFoundError, ReadError):
        return []
    return [name.rstrip("/") for name in names if name.endswith("/")]


def inspect_arrays(place: Place, tree: FoundTree, sizes: Mapping[str, int] | None) -> Inspection:
    """What the arrays are that were found.

    Args:
        place: Where they are.
        tree: What was found there.
        sizes: Bytes of each array as stored, by name, where others have counted them; None to count
            those of a local disk, and no others.
    """
    found = list(arrays_of(tree))
    data = _data(tree)
    opened = iter(open_all([item for item in found if item.metadata is None]))
    arrays = []
    for item in found:
        held = _held_bytes(item) if sizes is None else sizes.get(item.name)
        facts = _of_store(item, next(opened)) if item.metadata is None else _of_zarr(item)
        arrays.append(dataclasses.replace(facts, holds_records=item in data, stored_bytes=held))
    lengths = {array.shape[0] for array in arrays if array.holds_records and array.shape}
    stored = [array.stored_bytes for array in arrays]
    decoded = [array.decoded_bytes for array in arrays]
    format, version = _format(found)
    kind = "array" if isinstance(tree, Found) else "group"
    return Inspection(
        url=place.shown,
        format=format,
        variant=f"{version} {kind}".strip(),
        records=lengths.pop() if len(lengths) == 1 else None,
        stored_bytes=_sum(stored),
        decoded_bytes=_sum(decoded),
        arrays=tuple(arrays),
        attributes=dict(tree.attributes) if isinstance(tree, FoundGroup) else {},
    )


def listed_sizes(place: Place) -> dict[str, int]:
    """Bytes of what lies below a place far away, by path, from listings of all that is there.

    Raises:
        ReadError: If it can not be listed.
    """
    from fsspec.core import url_to_fs

    try:
        fs, path = url_to_fs(place.path, **dict(place.storage_options or {}))
        found = fs.find(path, detail=True)
    except Exception as error:
        why = Secrets(place.storage_options).hide(f"{type(error).__name__}: {error}")
    else:
        below = len(path.rstrip("/")) + 1
        return {
            name[below:]: int(info.get("size") or 0)
            for name, info in found.items()
            if name.startswith(path.rstrip("/") + "/")
        }
    raise ReadError(f"{WHAT}: {place.shown} can not be listed to count its bytes: {why}")


def sizes_by_array(names: Sequence[str], files: Mapping[str, int]) -> dict[str, int]:
    """Bytes of each array, from the sizes of files by path below the group."""
    totals = dict.fromkeys(names, 0)
    for path, size in files.items():
        folder, _, file = path.rpartition("/")
        if file in _METADATA:
            continue
        while folder not in totals and folder:
            folder = folder.rpartition("/")[0]
        if folder in totals:
            totals[folder] += size
    return totals


def _data(tree: FoundTree) -> set[Found]:
    """The arrays whose first axis counts records."""
    try:
        _, others = choose(WHAT, tree)
    except SourceError:  # all of them have shape ()
        return set()
    return {item for item in arrays_of(tree) if item not in others and item.shape != ()}


def _format(found: Sequence[Found]) -> tuple[str, str]:
    metadata = found[0].metadata
    if metadata is not None:
        return "zarr", "v3" if "node_type" in metadata else "v2"
    return ("n5" if "dimensions" in found[0].attributes else "precomputed"), ""


def _of_zarr(found: Found) -> ArrayFacts:
    meta = found.metadata or {}
    modern = "node_type" in meta
    shape = found.shape or ()
    dtype = meta.get("data_type" if modern else "dtype")
    chunks = sizes_of(
        _at(meta, "chunk_grid", "configuration", "chunk_shape") if modern else meta.get("chunks")
    )
    shards, codecs = None, list(_codecs_of(meta))
    for codec in codecs:
        if modern and codec.get("name") == _SHARDING:
            shards, chunks = chunks, sizes_of(_at(codec, "configuration", "chunk_shape"))
            codecs = [c for c in _at(codec, "configuration", "codecs") or [] if isinstance(c, dict)]
            break
    itemsize = _itemsize(dtype)
    return ArrayFacts(
        name=found.name,
        shape=shape,
        dtype=_dtype(dtype),
        dims=found.dims,
        chunks=chunks,
        shards=shards,
        codecs=tuple(_codec(codec) for codec in codecs if codec.get("name") != "bytes"),
        decoded_bytes=None if itemsize is None else math.prod(shape) * itemsize,
        stored_bytes=None,
        holds_records=False,
        attributes=dict(found.attributes),
    )


def _of_store(found: Found, store: Any) -> ArrayFacts:
    """Of an array that TensorStore has opened."""
    layout = store.chunk_layout
    chunks, shards = tuple(layout.read_chunk.shape), tuple(layout.write_chunk.shape)
    codec = store.codec.to_json()
    told = codec.get("compression", codec.get("encoding"))
    codecs = [told] if isinstance(told, dict) else [{"name": told}]
    return ArrayFacts(
        name=found.name,
        shape=tuple(store.shape),
        dtype=str(store.dtype.name),
        dims=found.dims,
        chunks=chunks,
        shards=shards if shards != chunks else None,
        codecs=tuple(_codec(codec) for codec in codecs),
        decoded_bytes=math.prod(store.shape) * store.dtype.numpy_dtype.itemsize,
        stored_bytes=None,
        holds_records=False,
        attributes=dict(found.attributes),
    )


def _codecs_of(meta: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for told in (meta.get("codecs"), meta.get("filters"), [meta.get("compressor")]):
        yield from (codec for codec in told or () if isinstance(codec, dict))


def _codec(codec: Mapping[str, Any]) -> str:
    name = codec.get("name") or codec.get("id") or codec.get("type") or "unknown"
    settings = codec.get("configuration", codec)
    if isinstance(settings, dict) and name == "blosc":
        shuffle = settings.get("shuffle")
        settings = {**settings, "shuffle": _SHUFFLES.get(shuffle, shuffle)}
    shown = [
        key if value is True else str(value)
        for key, value in (settings.items() if isinstance(settings, dict) else ())
        # What is switched off is not said.
        if key not in _SILENT and isinstance(value, int | float | str) and value is not False
    ]
    return f"{name}({', '.join(shown)})" if shown else str(name)


def _dtype(told: Any) -> str:
    if isinstance(told, str):
        try:
            return str(np.dtype(told))
        except TypeError:
            return told
    if isinstance(told, dict):
        return str(told.get("name", told))
    return str(told)


def _itemsize(told: Any) -> int | None:
    """Bytes of a value; None where they differ, or are not known."""
    # It makes NumPy know bfloat16, float8 and int4 by their names; TensorStore brings it.
    import ml_dtypes

    if not isinstance(told, str):
        return None
    try:
        dtype = np.dtype(getattr(ml_dtypes, told, told))
    except TypeError:
        return int(told[1:]) // 8 if told[:1] == "r" and told[1:].isdigit() else None
    return None if dtype.kind == "O" else dtype.itemsize


def _held_bytes(found: Found) -> int | None:
    """Bytes of the chunks of an array in a local folder; None for others."""
    if found.folder is None:
        return None
    total, folders = 0, [found.folder]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif entry.name not in _METADATA:
                    total += entry.stat().st_size
    return total


def _at(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _sum(sizes: Sequence[int | None]) -> int | None:
    known = [size for size in sizes if size is not None]
    return sum(known) if known and len(known) == len(sizes) else None
