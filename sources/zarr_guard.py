"""Telling a chunk that was never stored from a store that is gone.

To Zarr a chunk that is not there is the fill value, so a store that was removed, replaced or cut
shorter after it was opened reads as fill values without a word. What an array's metadata file held
at opening is remembered, and looked up again where rows read are the fill value.

Invariant: a read whose rows hold other values does no I/O here; one that has such rows costs a
`stat` per array while the file is the one that was there.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from windrow.errors import ReadError
from windrow.sources.base import IntArray

AnyArray = npt.NDArray[Any]

FILES: Final = {"zarr": ".zarray", "zarr3": "zarr.json"}
# About as many values of a row are looked at: taking data for the fill value costs a stat, no more.
_SAMPLES: Final = 16


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Guard:
    """The metadata file of a local array, as it was when the array was opened."""

    path: str
    stamp: tuple[int, int, int]
    metadata: dict[str, Any]
    fill: bytes  # of one value

    def check(self, rows: AnyArray, places: Sequence[int] | IntArray, where: str) -> None:
        """Check that the array is there still, if a row looks like the fill value.

        Args:
            rows: Rows that were read, in C order.
            places: Which of them to look at: one of every chunk that they lie in.
            where: Place of the array, for the message.

        Raises:
            ReadError: If its metadata file is gone, or says that the array is another one.
        """
        if self.may_be_fill(rows, places):
            self.refuse_gone(where)

    def refuse_gone(self, where: str) -> None:
        """Check that the array is there still: of a chunk that is missing, one `stat`.

        Raises:
            ReadError: If its metadata file is gone, or says that the array is another one.
        """
        try:
            if _stamp(self.path) == self.stamp:
                return
            now = _metadata(self.path)
        except FileNotFoundError as error:
            raise self._error(where, "is gone") from error
        except (OSError, ValueError) as error:
            raise self._error(where, f"can not be read any more ({error})") from error
        if not same_array(self.metadata, now):
            raise self._error(where, "says that the array is another one")

    def may_be_fill(self, rows: AnyArray, places: Sequence[int] | IntArray) -> bool:
        """Whether a row looks like the fill value, as far as it is looked at; see `check`."""
        return may_be_fill(rows, places, self.fill)

    def _error(self, where: str, what: str) -> ReadError:
        return ReadError(
            f"the array in {where} was removed or replaced since the source was"
            f" made: {self.path} {what}, and records that are not there read as the fill value."
            " Restore it, or make the source again",
            file=self.path,
        )


def may_be_fill(rows: AnyArray, places: Sequence[int] | IntArray, fill: bytes) -> bool:
    """Whether one of the rows at `places` looks like the fill value, as far as it is looked at."""
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


def guard_of(store: Any, dtype: np.dtype[Any]) -> Guard | None:
    """The guard of an open store; None where it is no array of Zarr in a local folder."""
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
        return dataclasses.replace(guard_of_file(path), fill=fill.tobytes())
    except (OSError, ValueError):
        return None


def spec_of(store: Any) -> dict[str, Any]:
    """The spec of an open store as JSON; empty where it has none, as a function's values do."""
    try:
        found: dict[str, Any] = store.spec().to_json()
    except (NotImplementedError, ValueError):
        return {}
    return found


def guard_of_file(path: str) -> Guard:
    """The guard of an array by its metadata file; with no fill value.

    Raises:
        OSError: If the file can not be read.
        ValueError: If it holds no JSON object.
    """
    return Guard(path, _stamp(path), _metadata(path), b"")


def _stamp(path: str) -> tuple[int, int, int]:
    found = os.stat(path)
    return found.st_ino, found.st_size, found.st_mtime_ns


def _metadata(path: str) -> dict[str, Any]:
    with open(path, "rb") as file:
        return metadata_in(file.read())


def metadata_in(raw: bytes) -> dict[str, Any]:
    """What a metadata file says of an array, and of nothing else.

    Raises:
        ValueError: If it holds no JSON object.
    """
    found = json.loads(raw)
    if not isinstance(found, dict):
        raise ValueError("it holds no JSON object")
    # Neither says which values there are, and both may be written while the array is read.
    return {k: v for k, v in found.items() if k not in ("attributes", "consolidated_metadata")}


def same_array(then: dict[str, Any], now: dict[str, Any]) -> bool:
    """Whether `now` is the array of `then`, which may have grown."""
    old, new = then.get("shape"), now.get("shape")
    if not isinstance(old, list) or not isinstance(new, list) or len(old) != len(new):
        return False
    grown = all(isinstance(n, int) and n >= o for o, n in zip(old, new, strict=True))
    return grown and {**then, "shape": None} == {**now, "shape": None}
