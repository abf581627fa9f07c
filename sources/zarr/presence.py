"""Compares stored files with the metadata: finds arrays that are gone, and chunks without a place.

Zarr reads a chunk that is not there as the fill value. A store that was removed, replaced or cut
shorter after it was opened therefore reads as fill values, without an error. This module remembers
what an array's metadata file held at opening, and checks the file again when rows that were read
are the fill value.

Orphan chunks are stored chunks that the metadata has no place for. They show that the shape or
chunk shape in the metadata is wrong, or that a writer left something behind. An array none of whose
chunks lie where its metadata say, though files lie there that look like chunks, is refused when it is opened.

Invariants: a read whose rows hold other values does no I/O here; a read of rows that look like the
fill value costs one `stat` per array while the file is unchanged. Chunks are listed and never opened, and
to refuse an array a folder is listed no further than to its first chunk.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from windrow.core.text import listing
from windrow.errors import ReadError, SourceError
from windrow.sources.base import AnyArray, IntArray
from windrow.sources.zarr.metadata import keys_of
from windrow.sources.zarr.names import Found

FILES: Final = {"zarr": ".zarray", "zarr3": "zarr.json"}
# About this many values of a row are compared: taking data for the fill value costs only a stat.
_SAMPLES: Final = 16
_MOST_ORPHANS: Final = 1000
_NUMBER: Final = r"0|[1-9]\d*"
_LIKE_A_CHUNK: Final = r"(c[./]?)?\d[\d._,-]*(\.\w+)?"
_SHOWN: Final = 3


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class PresenceCheck:
    """The metadata file of a local array, as it was when the array was opened."""

    path: str
    stamp: tuple[int, int, int]
    metadata: dict[str, Any]
    fill: bytes  # of one value

    def check(self, rows: AnyArray, places: Sequence[int] | IntArray, where: str) -> None:
        """Check that the array is still there, if a row looks like the fill value.

        Args:
            rows: Rows that were read, in C order.
            places: The rows to compare: one of every chunk that they lie in.
            where: Place of the array, for the message.

        Raises:
            ReadError: If its metadata file is gone or describes another array.
        """
        if self.may_be_fill(rows, places):
            self.refuse_gone(where)

    def refuse_gone(self, where: str) -> None:
        """Check that the array is still there, with one `stat` while its file is unchanged.

        Raises:
            ReadError: If its metadata file is gone or describes another array.
        """
        try:
            if _stamp(self.path) == self.stamp:
                return
            with open(self.path, "rb") as file:
                change = change_since(self.metadata, file.read())
        except FileNotFoundError as error:
            raise self._error(where, change_since(self.metadata, None)) from error
        except OSError as error:
            raise self._error(where, f"can no longer be read ({error})") from error
        if change:
            raise self._error(where, change)

    def may_be_fill(self, rows: AnyArray, places: Sequence[int] | IntArray) -> bool:
        """Whether a row looks like the fill value, by a sample of its cells; see `check`."""
        return may_be_fill(rows, places, self.fill)

    def _error(self, where: str, what: str) -> ReadError:
        return gone_error(where, self.path, what, file=self.path)


def gone_error(where: str, place: str, what: str, file: str | None = None) -> ReadError:
    """The error for an array whose metadata at `place` have changed since it was opened."""
    return ReadError(
        f"the array in {where} was removed or replaced since the source was made: {place} {what},"
        " and records that are not there read as the fill value. Restore it, or make the source"
        " again",
        file=file,
        is_unanswered=True,
    )


def may_be_fill(rows: AnyArray, places: Sequence[int] | IntArray, fill: bytes) -> bool:
    """Whether one of the rows at `places` looks like the fill value, by a sample of its cells."""
    if not rows.size:
        return False
    values = rows.reshape(len(rows), -1)
    step = max(1, values.shape[1] // _SAMPLES)
    if len(places) == 1:
        seen = values[places[0], ::step].tobytes()
        return seen == fill * (len(seen) // len(fill))
    sampled = np.ascontiguousarray(values[places, ::step]).view(np.uint8)
    wanted = np.frombuffer(fill * (sampled.shape[1] // len(fill)), np.uint8)
    return bool((sampled == wanted).all(axis=1).any())


def presence_of(store: Any, dtype: np.dtype[Any]) -> PresenceCheck | None:
    """The check of an open store; None unless it is an array of Zarr in a local folder."""
    if store.kvstore is None:
        return None
    spec = spec_of(store)
    kvstore = spec.get("kvstore")
    if (
        spec.get("driver") not in FILES
        or not isinstance(kvstore, dict)
        or kvstore["driver"] != "file"
    ):
        return None
    fill = np.zeros((), dtype) if store.fill_value is None else np.asarray(store.fill_value, dtype)
    if fill.ndim:
        return None
    path = kvstore["path"] + spec.get("metadata_key", FILES[spec["driver"]])
    try:
        return dataclasses.replace(presence_of_file(path), fill=fill.tobytes())
    except (OSError, ValueError):
        return None


def spec_of(store: Any) -> dict[str, Any]:
    """The spec of an open store as JSON; empty if it has none, as for the values of a function."""
    try:
        spec: dict[str, Any] = store.spec().to_json()
    except (NotImplementedError, ValueError):
        return {}
    return spec


def presence_of_file(path: str) -> PresenceCheck:
    """The check of an array by its metadata file; without a fill value.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it does not hold a JSON object.
    """
    stamp = _stamp(path)
    with open(path, "rb") as file:
        return PresenceCheck(path, stamp, metadata_in(file.read()), b"")


def _stamp(path: str) -> tuple[int, int, int]:
    status = os.stat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns


def metadata_in(raw: bytes) -> dict[str, Any]:
    """The part of a metadata file that describes the values of one array.

    Raises:
        ValueError: If it does not hold a JSON object.
    """
    metadata = json.loads(raw)
    if not isinstance(metadata, dict):
        raise ValueError("it is not a JSON object")
    # These say nothing about values, and both may be written while the array is read.
    return {k: v for k, v in metadata.items() if k not in ("attributes", "consolidated_metadata")}


def change_since(then: dict[str, Any], raw: bytes | None) -> str:
    """The fault of the metadata now, for `gone_error`; '' if the array is the same.

    Args:
        then: The metadata at opening, as `metadata_in` returned them.
        raw: The metadata file now; None if it is gone.
    """
    if raw is None:
        return "is gone"
    try:
        now = metadata_in(raw)
    except ValueError as error:
        return f"can no longer be read ({error})"
    return "" if _same_array(then, now) else "describes another array"


def _same_array(then: dict[str, Any], now: dict[str, Any]) -> bool:
    """Whether `now` describes the array of `then`, which may have grown."""
    old, new = then.get("shape"), now.get("shape")
    if not isinstance(old, list) or not isinstance(new, list) or len(old) != len(new):
        return False
    grown = all(isinstance(n, int) and n >= o for o, n in zip(old, new, strict=True))
    return grown and {**then, "shape": None} == {**now, "shape": None}


# --- chunks and their places ---------------------------------------------------------------------


def orphan_chunks(folder: str, prefix: str, separator: str, grid: Sequence[int]) -> list[str]:
    """Paths of up to 1,000 stored objects that lie outside of an array's grid, in order.

    Args:
        folder: The folder of the array.
        prefix: The beginning of the keys of stored objects.
        separator: Between the coordinates in a key.
        grid: Stored objects along each axis.

    Raises:
        OSError: If a folder cannot be listed.
    """
    orphans = (
        entry.path
        for entry, at in _objects_in(folder, prefix, separator, len(grid))
        if any(k >= n for k, n in zip(at, grid, strict=True))
    )
    return sorted(itertools.islice(orphans, _MOST_ORPHANS))


def refuse_misplaced(found: Found) -> None:
    """Check that some chunk of a local array of Zarr or N5 lies where its metadata say, if files lie there.

    A chunk that is not found reads as the fill value. An array without any files is whole: all its cells
    are the fill value.

    Raises:
        SourceError: If none does.
    """
    folder, keys = found.folder, keys_of(found.metadata or {})
    if found.is_n5 and found.access is None and isinstance(found.spec, dict):
        folder, keys = found.spec["kvstore"]["path"].rstrip("/"), ("", "/")
    if folder is None or keys is None or not found.shape:
        return
    try:
        stored = _objects_in(folder, *keys, len(found.shape))
        if any(not entry.is_dir() for entry, _ in stored):
            return
        others = sorted(_like_chunks(folder))
    except OSError:
        return  # reading the chunks will say why
    if others:
        key = keys[0] + keys[1].join("0" for _ in found.shape)
        raise SourceError(
            f"{found.what}: no chunk of {found.named} in {found.where} lies where its metadata say, such"
            f" as {key}, though the folder holds {listing(others, _SHOWN)}, so that all cells would read as the"
            " fill value. If the metadata are wrong, correct the separator of chunk keys; else rename the"
            " files, or decompress them (gunzip)"
        )


def is_whole(name: str) -> bool:
    """Whether a file is not one that a writer makes before it has a chunk."""
    return not name.startswith(".") and not name.endswith((".__lock", ".partial", ".tmp"))


def _objects_in(
    folder: str, prefix: str, separator: str, rank: int
) -> Iterator[tuple[os.DirEntry[str], tuple[int, ...]]]:
    """What has the key of a stored object in the folder of an array, with its coordinates."""
    if separator == "/":
        below = os.path.join(folder, prefix.rstrip("/"))
        yield from _objects_below(below, rank) if os.path.isdir(below) else ()
        return
    key = re.escape(prefix) + r"\.".join([f"({_NUMBER})"] * rank)
    with os.scandir(folder) as entries:
        for entry in entries:
            if match := re.fullmatch(key, entry.name):
                yield entry, tuple(map(int, match.groups()))


def _objects_below(
    folder: str, rank: int, at: tuple[int, ...] = ()
) -> Iterator[tuple[os.DirEntry[str], tuple[int, ...]]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if not re.fullmatch(_NUMBER, entry.name):
                continue
            coords = (*at, int(entry.name))
            if len(coords) == rank:
                yield entry, coords
            elif entry.is_dir():
                yield from _objects_below(entry.path, rank, coords)


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
