"""Describes arrays by their metadata: Zarr, N5 and Neuroglancer's precomputed volumes.

Invariant: no chunk is read. Zarr metadata are read once; other formats are opened by TensorStore, which
reads their metadata again.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from windrow.core.redaction import Redaction
from windrow.errors import NotFoundError, ReadError, SourceError
from windrow.inspection.facts import ArrayFacts, Inspection
from windrow.sources import signatures
from windrow.sources.detection import Contents
from windrow.sources.location import Location
from windrow.sources.zarr.chunkwise import PrecomputedChunks
from windrow.sources.zarr.find import choose, find_all
from windrow.sources.zarr.metadata import SHARDING, chunks_of, codecs_of, is_sharded, is_v3
from windrow.sources.zarr.names import Found, FoundGroup, FoundTree, arrays_of, warn_of_differences
from windrow.sources.zarr.presence import refuse_misplaced
from windrow.sources.zarr.store_array import open_each, refuse_misplaced_store
from windrow.sources.zarr.stores import Access

_METADATA: Final = signatures.ZARR.metadata_files.union(
    signatures.N5.metadata_files, signatures.PRECOMPUTED.metadata_files
)
# Settings of codecs that do not affect the compression.
_SILENT: Final = frozenset(
    {"typesize", "blocksize", "endian", "id", "name", "order", "driver", "type"}
)
# The shuffles of blosc, by their numbers in Zarr v2.
_SHUFFLES: Final[dict[Any, str]] = {-1: "auto", 0: "noshuffle", 1: "shuffle", 2: "bitshuffle"}


def inspect_contents(contents: Contents, sizes: bool | None) -> Inspection:
    """Describe the arrays at a location.

    Args:
        contents: The contents of the location.
        sizes: Whether to count their stored bytes, as for `windrow.inspect`.

    Raises:
        SourceError: If files lie in a local array, and no chunk where its metadata say.
        WindrowError: As `find_arrays` raises it.
    """
    folders = [name.rstrip("/") for name in contents.names or () if name.endswith("/")]
    tree = find_arrays(contents.location, folders)
    return inspect_arrays(contents.location, tree, stored_sizes(contents.location, tree, sizes))


def find_arrays(place: Location, names: Sequence[str] = ()) -> FoundTree:
    """Find the arrays at a place.

    Args:
        place: An array or a group.
        names: The arrays and groups to look for in a remote group whose metadata do not list
            them. If empty, the group is listed, without the content of its folders.

    Raises:
        NotFoundError: If the place holds neither an array nor a group.
        WindrowError: As `ZarrDataSource` raises it.
    """
    if place.fetcher is None:
        return find_all(place.caller, place.path)
    try:
        return find_all(
            place.caller, place.path, names, Access(place.caller, place.storage_options)
        )
    except SourceError:
        # Sources do not list remote stores, since without consolidated metadata this lists all chunks too.
        folders = () if names else _folders_in(place)
        if not folders:
            raise
    return find_all(place.caller, place.path, folders, Access(place.caller, place.storage_options))


def array_names(files: Sequence[str]) -> list[str]:
    """Return the names of the arrays in a group, from the paths of its files."""
    folders = (path.rpartition("/") for path in files)
    return [folder for folder, _, file in folders if folder and file in signatures.ZARR.array_files]


def _folders_in(place: Location) -> list[str]:
    try:
        names = place.names.names_in(place.path)
    except (NotFoundError, ReadError):
        return []
    return [name.rstrip("/") for name in names if name.endswith("/")]


def inspect_arrays(place: Location, tree: FoundTree, sizes: Mapping[str, int]) -> Inspection:
    """Describe the arrays that were found.

    Args:
        place: Their location.
        tree: The arrays and groups that were found there.
        sizes: Stored bytes of each array, by name, as far as they were counted.
    """
    found = list(arrays_of(tree))
    data = _data(tree)
    warn_of_differences((item, None) for item in found)
    unread = [item for item in found if item.metadata is None]
    opened = iter(open_each(unread, refuse=True))
    arrays = []
    for item in found:
        refuse_misplaced(item)
        facts = _of_store(item, next(opened)) if item.metadata is None else _of_zarr(item)
        held = sizes.get(item.name)
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
        attributes=dict(tree.groups[()]) if isinstance(tree, FoundGroup) else {},
    )


def stored_sizes(place: Location, tree: FoundTree, sizes: bool | None) -> Mapping[str, int]:
    """Return the stored bytes of each array; {} for no counts."""
    if sizes is False or (sizes is None and not place.is_local):
        return {}
    if place.is_local and not os.path.isdir(place.path):  # an archive
        return {}
    listed = _local_sizes(place.path) if place.is_local else _listed_sizes(place).items()
    return sizes_by_array([found.name for found in arrays_of(tree)], listed)


def _local_sizes(folder: str) -> Iterator[tuple[str, int]]:
    """Yield the path below a folder, and the bytes, of each file."""
    for above, _, names in os.walk(folder):
        below = os.path.relpath(above, folder).replace(os.sep, "/")
        for name in names:
            path = name if below == "." else f"{below}/{name}"
            yield path, os.stat(os.path.join(above, name)).st_size


def _listed_sizes(place: Location) -> dict[str, int]:
    """List a remote folder recursively, and return the bytes of each file by path.

    Raises:
        ReadError: If it cannot be listed.
    """
    from fsspec.core import url_to_fs

    try:
        fs, path = url_to_fs(place.path, **dict(place.storage_options or {}))
        found = fs.find(path, detail=True)
    except Exception as error:
        reason = Redaction(place.storage_options).hide(f"{type(error).__name__}: {error}")
    else:
        below = len(path.rstrip("/")) + 1
        return {
            name[below:]: int(info.get("size") or 0)
            for name, info in found.items()
            if name.startswith(path.rstrip("/") + "/")
        }
    raise ReadError(f"{place.caller}: {place.shown} cannot be listed to count its bytes: {reason}")


def sizes_by_array(names: Sequence[str], files: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Sum the bytes of each array from the paths of files below the group, and their sizes."""
    totals = dict.fromkeys(names, 0)
    for path, size in files:
        folder, _, file = path.rpartition("/")
        if file in _METADATA:
            continue
        while folder not in totals and folder:
            folder = folder.rpartition("/")[0]
        if folder in totals:
            totals[folder] += size
    return totals


def _data(tree: FoundTree) -> set[Found]:
    """Return the arrays whose first axis counts records."""
    try:
        _, others = choose("inspect", tree)
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
    shape = found.shape or ()
    dtype = meta.get("data_type" if is_v3(meta) else "dtype")
    (chunks, shards), codecs = chunks_of(meta), list(codecs_of(meta))
    if not is_sharded(meta):
        shards = None
    for _, name, inner in codecs:
        if name == SHARDING:
            codecs = list(codecs_of({**meta, "codecs": inner.get("codecs")}))
            break
    itemsize = _itemsize(dtype)
    return ArrayFacts(
        name=found.name,
        shape=shape,
        dtype=_dtype(dtype),
        dims=found.dims,
        chunks=chunks,
        shards=shards,
        codecs=tuple(_codec(name, own) for _, name, own in codecs if name != "bytes"),
        decoded_bytes=None if itemsize is None else math.prod(shape) * itemsize,
        attributes=dict(found.attributes),
    )


def _of_store(found: Found, store: Any) -> ArrayFacts:
    """Return the facts of an array that TensorStore has opened."""
    refuse_misplaced_store(found, store)
    if found.is_precomputed and found.access is None:
        PrecomputedChunks(found, store).ending()
    layout = store.chunk_layout
    chunks, shards = tuple(layout.read_chunk.shape), tuple(layout.write_chunk.shape)
    codec = store.codec.to_json()
    declared = codec.get("compression", codec.get("encoding"))
    settings = declared if isinstance(declared, dict) else {}
    name = settings.get("id") or settings.get("type") or declared
    return ArrayFacts(
        name=found.name,
        shape=tuple(store.shape),
        dtype=str(store.dtype.name),
        dims=found.dims,
        chunks=chunks,
        shards=shards if shards != chunks else None,
        codecs=(_codec(name, settings),),
        decoded_bytes=math.prod(store.shape) * store.dtype.numpy_dtype.itemsize,
        attributes=dict(found.attributes),
    )


def _codec(name: Any, settings: Mapping[str, Any]) -> str:
    if name == "blosc":
        shuffle = settings.get("shuffle")
        settings = {**settings, "shuffle": _SHUFFLES.get(shuffle, shuffle)}
    shown = [
        key if value is True else str(value)
        for key, value in settings.items()
        # Settings that are off are not shown.
        if key not in _SILENT and isinstance(value, int | float | str) and value is not False
    ]
    return f"{name}({', '.join(shown)})" if shown else str(name or "unknown")


def _dtype(declared: Any) -> str:
    if isinstance(declared, str):
        try:
            return str(np.dtype(declared))
        except TypeError:
            return declared
    if isinstance(declared, dict):
        return str(declared.get("name", declared))
    return str(declared)


def _itemsize(declared: Any) -> int | None:
    """Return the bytes of a value; None if they differ or are unknown."""
    # ml_dtypes adds bfloat16, float8 and int4 to NumPy; TensorStore depends on it.
    import ml_dtypes

    if not isinstance(declared, str):
        return None
    try:
        dtype = np.dtype(getattr(ml_dtypes, declared, declared))
    except TypeError:
        return int(declared[1:]) // 8 if declared[:1] == "r" and declared[1:].isdigit() else None
    return None if dtype.kind == "O" else dtype.itemsize


def _sum(sizes: Sequence[int | None]) -> int | None:
    known = [size for size in sizes if size is not None]
    return sum(known) if known and len(known) == len(sizes) else None
