"""Arrays that something else than their own metadata describes: consolidated metadata, or an open object.

zarr-python and xarray show the shape and the attributes in the consolidated metadata of a group. The
array's own metadata say how it is stored, and may have grown since.

Invariant: an array has the shape that was shown to the user, and no cell that its own metadata lack.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from windrow.errors import SourceError
from windrow.sources.zarr.folders import Folder, LocalFolder, metadata_of
from windrow.sources.zarr.metadata import attributes_of, is_v3, sizes_of
from windrow.sources.zarr.names import Consolidated, Found

# The entries next to the shape that say where values lie and how they are read.
_STORED: Final = ("dtype", "data_type", "chunks", "chunk_grid")
_WAY_OUT: Final = "Consolidate again (zarr.consolidate_metadata)"


def consolidated_in(folder: Folder, meta: Mapping[str, Any]) -> Consolidated | None:
    """The consolidated metadata in `zarr.json`, or in `.zmetadata`, of a group; None without any."""
    listed = meta.get("consolidated_metadata") if is_v3(meta) else meta
    nodes = listed.get("metadata") if isinstance(listed, dict) else None
    if not isinstance(nodes, dict):
        return None
    if is_v3(meta):
        own = {path: (node, None) for path, node in nodes.items() if isinstance(node, dict)}
        return Consolidated(folder, own, attributes_of(meta, None))
    found: dict[str, tuple[Mapping[str, Any], Any]] = {}
    for key, node in nodes.items():
        path, slash, file = key.rpartition("/")
        if slash and file in (".zarray", ".zgroup") and isinstance(node, dict):
            found[path] = node, nodes.get(f"{path}/.zattrs")
    return Consolidated(folder, found, attributes_of({}, nodes.get(".zattrs")))


def agreed_shape(found: Found, own: Mapping[str, Any]) -> tuple[int, ...] | None:
    """The shape of an array that counts, as it was shown; None for the array's own.

    Args:
        found: The array.
        own: Its own metadata.

    Raises:
        SourceError: If its own metadata have fewer cells, or store it in another way.
    """
    shown, stored = found.metadata or {}, sizes_of(_plain(own.get("shape")))
    shape = found.shape
    if not found.listing or shape is None or stored is None:
        return None
    for key in _STORED:
        then, now = shown.get(key), own.get(key)
        if type(then) is type(now) and then != now and not _is_one_dtype(then, now):
            raise SourceError(
                f"{found.what}: {found.named} in {found.where} has {key} {now} in its own metadata, and"
                f" {then} in {found.listing}: it was written anew. {_WAY_OUT}, or open it again"
            )
    if len(shape) != len(stored) or any(a > b for a, b in zip(shape, stored, strict=True)):
        raise SourceError(
            f"{found.what}: {found.named} in {found.where} has shape {list(stored)} in its own"
            f" metadata, and {list(shape)} in {found.listing}: it was cut since, and what is gone would"
            f" read as the fill value. {_WAY_OUT}, or open it again"
        )
    return shape


def _is_one_dtype(then: Any, now: Any) -> bool:
    """Whether two names are of one dtype of NumPy, as `<i1` and `|i1`."""
    try:
        return isinstance(then, str) and np.dtype(then) == np.dtype(now)
    except TypeError:
        return False


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def capped(found: Found, store: Any, own: Mapping[str, Any]) -> Any:
    """An open TensorStore, without the cells that were not shown. Raises SourceError."""
    shape = agreed_shape(found, own)
    if shape is None or shape == tuple(store.shape):
        return store
    return store[tuple(slice(0, size) for size in shape)]


def warn_of_differences(found: Iterable[tuple[Found, Sequence[int] | None]]) -> None:
    """Warn once if arrays have other metadata than what was shown of them.

    Args:
        found: The arrays, each with the shape in its own metadata; None to read that, where it is local.
    """
    differences = [text for item, own in found if item.listing and (text := _difference(item, own))]
    if differences:
        more = f" (and {len(differences) - 1:,} more)" if len(differences) > 1 else ""
        warnings.warn(f"{differences[0]}{more}. {_WAY_OUT} to read what is new", stacklevel=4)


def _difference(found: Found, shape: Sequence[int] | None) -> str:
    own, zattrs = _own(found)
    if shape is None:
        shape = sizes_of(own.get("shape"))
    where = f"{found.what}: {found.named} in {found.where} has"
    if shape is not None and tuple(shape) != found.shape:
        return (
            f"{where} shape {list(shape)} in its own metadata, and {list(found.shape or ())} in"
            f" {found.listing}; the latter counts"
        )
    attributes = attributes_of(own, zattrs)
    differ = [
        key
        for key in sorted({*attributes, *found.attributes})
        if _text(attributes.get(key)) != _text(found.attributes.get(key))
    ]
    if own and differ:
        return (
            f"{where} another attribute {differ[0]!r} in its own metadata than in {found.listing};"
            " the latter counts"
        )
    return ""


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)  # a NaN equals no NaN


def _own(found: Found) -> tuple[Mapping[str, Any], Any]:
    """The own metadata of a local array, and its attributes of v2; empty elsewhere."""
    if found.folder is None or found.metadata is None:
        return {}, None
    folder = LocalFolder(found.what, found.folder)
    try:
        if is_v3(found.metadata):
            return metadata_of(folder, "zarr.json") or {}, None
        return metadata_of(folder, ".zarray") or {}, metadata_of(folder, ".zattrs")
    except SourceError:
        return {}, None  # opening the array says what is wrong with it
