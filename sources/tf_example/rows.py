"""Joins the rows of many Examples: the native core decodes most, protobuf parses the rest one by one.

Invariant: the core takes a record only where protobuf and the features would give the same bits. It
leaves all others, and there may be any number of them; without the core it takes none.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from windrow.core.native import native
from windrow.sources.tf_example.features import Array, Column, Feature, Ragged, cast, offsets_of

Mask: TypeAlias = npt.NDArray[np.bool_]
Counts: TypeAlias = npt.NDArray[np.int64]
Row: TypeAlias = Mapping[str, bytes]
"""The values of a record, by feature, as they lie in the column."""

_FLOAT32: Final = np.dtype(np.float32)


class ExampleRows:
    """The rows of `records` that the native core decodes; `taken` says which.

    Args:
        records: The messages.
        features: The features to decode, by name.
        exact: Whether to leave records that have other features too.
    """

    def __init__(
        self, records: Sequence[bytes], features: Mapping[str, Feature], *, exact: bool
    ) -> None:
        self._features = features
        self._numbers = {name: number for number, name in enumerate(features)}
        self.taken: Mask = np.zeros(len(records), np.bool_)
        core = native()
        if core is None:
            return
        wanted = [_wanted(name, feature) for name, feature in features.items()]
        self._found = core.Examples(tuple(records), wanted, exact)
        self.taken = np.frombuffer(self._found.taken(), np.bool_).copy()
        for name, feature in features.items():
            if _stored_dtype(feature) != feature.numpy_dtype:
                self._leave_inexact(name, feature)

    def columns(self, others: Mapping[int, Row]) -> dict[str, Column]:
        """The columns of the rows that were taken, and of `others`, by number."""
        kept = self.taken.copy()
        kept[list(others)] = True
        rows = kept.astype(np.int64)
        first_of_row = offsets_of(rows)
        counts = {
            name: self._counts(name, feature, others) if feature.ragged else rows
            for name, feature in self._features.items()
        }
        filled = self._filled(counts)
        numbers = np.fromiter(others, np.int64, len(others))
        out: dict[str, Column] = {}
        for name, feature in self._features.items():
            values, _ = cast(filled[name], feature.numpy_dtype)
            offsets = offsets_of(counts[name]) if feature.ragged else first_of_row
            # As bytes, since an item may have any dtype and shape.
            data, starts = values.view(np.uint8).data, offsets[numbers] * feature.item_bytes
            for start, row in zip(starts.tolist(), others.values(), strict=True):
                data[start : start + len(row[name])] = row[name]
            shaped = values.reshape(int(offsets[-1]), *feature.item_shape)
            out[name] = Ragged(shaped, offsets_of(counts[name][kept])) if feature.ragged else shaped
        return out

    def _counts(self, name: str, feature: Feature, others: Mapping[int, Row]) -> Counts:
        """The items of a ragged feature in each record; 0 in records that are left out."""
        counts = np.zeros(len(self.taken), np.int64)
        if self.taken.any():
            sizes = np.frombuffer(self._found.sizes(self._numbers[name]), np.int64)
            counts[self.taken] = sizes[self.taken] // _stored_bytes(feature)
        item_bytes = feature.item_bytes
        for number, row in others.items():
            counts[number] = len(row[name]) // item_bytes
        return counts

    def _filled(self, counts: Mapping[str, Counts]) -> dict[str, Array]:
        """Flat arrays with the values that were taken, in the dtype that the core decodes to."""
        out = {
            name: np.empty(
                int(each.sum()) * self._features[name].items, _stored_dtype(self._features[name])
            )
            for name, each in counts.items()
        }
        if self.taken.any():
            self._found.fill(
                [self._numbers[name] for name in out],
                [values.view(np.uint8) for values in out.values()],
                [each * _stored_bytes(self._features[name]) for name, each in counts.items()],
            )
        return out

    def _leave_inexact(self, name: str, feature: Feature) -> None:
        """Leaves the records with a number that the feature's dtype does not hold exactly."""
        counts = self._counts(name, feature, {}) if feature.ragged else self.taken.astype(np.int64)
        _, fits = cast(self._filled({name: counts})[name], feature.numpy_dtype)
        if fits is not None and not fits.all():
            row_of = np.repeat(np.arange(len(counts)), counts * feature.items)
            self.taken[row_of[~fits]] = False


def _wanted(name: str, feature: Feature) -> tuple[str, str, int, bool, bool]:
    """A feature as the core takes it."""
    form = _stored_dtype(feature).name
    if feature.in_bytes:
        form = "bools in bytes" if feature.dtype == "bool" else "bytes"
    return name, form, _stored_bytes(feature), feature.ragged, feature.may_be_missing


@functools.lru_cache(maxsize=1024)
def _stored_dtype(feature: Feature) -> np.dtype[Any]:
    """The dtype that the core decodes to: it leaves floats as they are stored."""
    dtype = feature.numpy_dtype
    return dtype if feature.in_bytes or dtype.kind in "iub" else _FLOAT32


@functools.lru_cache(maxsize=1024)
def _stored_bytes(feature: Feature) -> int:
    """Bytes of a row as the core decodes it, or of one item of a ragged one."""
    return feature.items * int(_stored_dtype(feature).itemsize)
