"""Where the chunks of a local array must lie by its metadata, compared with the files that lie there.

A chunk that is not found reads as the fill value. So an array none of whose chunks lie where its metadata
say, though files lie there that look like chunks, is refused when it is opened.

Invariants: files are listed, and never opened. A folder is listed no further than to its first chunk. An
array without any files is whole: all its cells are the fill value.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator
from typing import Any, Final

from windrow.core.text import listing
from windrow.errors import SourceError
from windrow.sources.zarr.find import open_each
from windrow.sources.zarr.local.presence import spec_of
from windrow.sources.zarr.metadata import keys_of
from windrow.sources.zarr.names import Found
from windrow.sources.zarr.precomputed import PrecomputedChunks, is_whole

_NUMBER: Final = r"0|[1-9]\d*"
_LIKE_A_CHUNK: Final = r"(c[./]?)?\d[\d._,-]*(\.\w+)?"
_SHOWN: Final = 3


def refuse_misplaced(found: Found) -> None:
    """Check that some chunk of a local array of Zarr or N5 lies where its metadata say, if files lie there.

    Raises:
        SourceError: If none does.
    """
    folder, keys = found.folder, keys_of(found.metadata or {})
    if found.is_n5 and found.access is None and isinstance(found.spec, dict):
        folder, keys = found.spec["kvstore"]["path"].rstrip("/"), ("", "/")
    if folder is None or keys is None or not found.shape:
        return
    prefix, separator = keys
    levels = [re.escape(prefix) + r"\.".join([f"({_NUMBER})"] * len(found.shape))]
    top = folder
    if separator == "/":
        top, levels = os.path.join(folder, prefix), [_NUMBER] * len(found.shape)
    try:
        if _has_chunk(top, levels):
            return
        others = sorted(_like_chunks(folder))
    except OSError:
        return  # reading the chunks will say why
    if others:
        key = prefix + separator.join("0" for _ in found.shape)
        raise SourceError(
            f"{found.what}: no chunk of {found.named} in {found.where} lies where its metadata say, such"
            f" as {key}, though the folder holds {listing(others, _SHOWN)}, so that all cells would read as the"
            " fill value. If the metadata are wrong, correct the separator of chunk keys; else rename the"
            " files, or decompress them (gunzip)"
        )


def refuse_misplaced_store(found: Found, store: Any) -> None:
    """As `refuse_misplaced`, of an array that was given as a spec or an open TensorStore.

    Raises:
        SourceError: If files lie in a local folder, and no chunk where the metadata say; or if chunk files
            of a precomputed volume were compressed once more.
    """
    if found.folder is not None or found.is_n5 or found.is_precomputed:
        return
    spec = spec_of(store)
    while isinstance(spec.get("base"), dict):  # such as a cast
        spec = spec["base"]
    kvstore, metadata = spec.get("kvstore"), spec.get("metadata") or {}
    is_local = isinstance(kvstore, dict) and kvstore.get("driver") == "file"
    own = dataclasses.replace(found, spec=spec, metadata=metadata)
    if is_local:
        own = dataclasses.replace(own, access=None)
    match spec.get("driver"):
        case "zarr" | "zarr3" if is_local:
            folder = spec["kvstore"]["path"].rstrip("/")
            refuse_misplaced(dataclasses.replace(own, folder=folder, shape=metadata["shape"]))
        case "n5" if is_local:
            shape = metadata["dimensions"]
            refuse_misplaced(dataclasses.replace(own, attributes=metadata, shape=shape))
        case "neuroglancer_precomputed" if is_local or isinstance(found.spec, dict):
            _refuse_compressed(dataclasses.replace(own, attributes=spec["scale_metadata"]), spec)


def _refuse_compressed(found: Found, spec: dict[str, Any]) -> None:
    """Check that no chunk file of a volume was compressed once more, which TensorStore does not find."""
    # A view of the volume has no chunks of its own.
    whole = {key: spec[key] for key in ("driver", "kvstore", "scale_index")}
    (volume,) = open_each([dataclasses.replace(found, spec=whole)], refuse=True)
    if ending := PrecomputedChunks(found, volume).ending():
        raise SourceError(
            f"{found.what}: chunk files of the volume in {found.where} end in {ending}; TensorStore does not"
            " find them, and would give 0 for their cells. Give the path or URL of the volume, by which they"
            " are read, or decompress them"
        )


def _has_chunk(folder: str, levels: list[str], level: int = 0) -> bool:
    """Whether a file lies in a folder under the names of all levels."""
    if not os.path.isdir(folder):
        return False
    with os.scandir(folder) as entries:
        for entry in entries:
            if not re.fullmatch(levels[level], entry.name):
                continue
            if level + 1 < len(levels):
                if entry.is_dir() and _has_chunk(entry.path, levels, level + 1):
                    return True
            elif not entry.is_dir():
                return True
    return False


def _like_chunks(folder: str) -> Iterator[str]:
    """Files that look like chunks: one of each entry of the folder, by its path there."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name != "c" and not re.fullmatch(_LIKE_A_CHUNK, entry.name):
                continue
            if not entry.is_dir():
                if is_whole(entry.name):
                    yield entry.name
                continue
            for path, _, files in os.walk(entry.path):
                if whole := [name for name in files if is_whole(name)]:
                    yield os.path.relpath(os.path.join(path, min(whole)), folder)
                    break
