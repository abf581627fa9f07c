"""Declares how a feature of a tf.train.Example becomes an array, and back.

An Example keeps bytes, int64 and float32, without shapes. A `Feature` declares their meaning. Many
records become a column: an array with a leading axis of records, or values and offsets where the
records' lengths differ.

Invariant: a column gives back the values of every record bit for bit. NaNs in another dtype than
float32 stay NaNs, and may have other bits.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

from windrow.errors import ArgumentError, ReadError

BYTES: Final = "bytes"
DTYPES: Final = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128", "bfloat16"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e4m3b11fnuz", "float8_e5m2", "float8_e5m2fnuz"),
)

# Sizes and offsets fit an int64 with room to spare.
_MAX_ITEMS: Final = 2**40

Array: TypeAlias = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Feature:
    """How one feature of every record becomes a row of a column.

    Args:
        dtype: NumPy's name, one of `DTYPES`. Without `raw`, whole numbers and bools are int64 in
            the Example and floats float32, and a value that the dtype cannot hold exactly makes its
            record a bad one. "bytes" is one value of bytes of any length: text, an encoded picture.
        shape: The shape of a row. The first axis may be None: then the feature is ragged, rows differ
            in length, and a record without the feature has a row of length 0. All others must be in
            every record.
        raw: The feature is one value of bytes: the row's own, in C order, little-endian.

    Raises:
        ArgumentError: If the three do not go together.

    Example:
        >>> Feature("uint8", (32, 32, 3), raw=True)
        Feature(dtype='uint8', shape=(32, 32, 3), raw=True)
        >>> Feature("int64")  # a label
        Feature(dtype='int64', shape=(), raw=False)
        >>> Feature("float32", (None, 2)).ragged  # points, as many as there are
        True
    """

    dtype: str
    shape: tuple[int | None, ...] = ()
    raw: bool = False

    def __post_init__(self) -> None:
        if wrong := _wrong(self.dtype, self.shape, self.raw):
            raise ArgumentError(f"feature: {wrong}")

    def __str__(self) -> str:
        return " ".join([self.dtype, *[str(self.shape)] * (not self.opaque), *["raw"] * self.raw])

    @property
    def ragged(self) -> bool:
        """Whether rows differ in length: the column is a `Ragged`."""
        return self.dtype == BYTES or self.shape[:1] == (None,)

    @property
    def may_be_missing(self) -> bool:
        """Whether a record without the feature has a row of length 0."""
        return self.shape[:1] == (None,)

    @property
    def opaque(self) -> bool:
        """Whether the row is bytes of any length."""
        return self.dtype == BYTES

    @property
    def in_bytes(self) -> bool:
        """Whether the Example holds one value of bytes, not numbers."""
        return self.raw or self.dtype == BYTES

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype of the column's array, or of its values; uint8 for bytes."""
        return np.dtype("uint8") if self.opaque else numpy_dtype(self.dtype)

    @property
    def item_shape(self) -> tuple[int, ...]:
        """The shape of a row, without the axis that differs."""
        return tuple(size for size in self.shape if size is not None)

    @property
    def items(self) -> int:
        """Number of values in `item_shape`: 1 for `()`."""
        return _product(self.shape[self.may_be_missing :])

    @property
    def item_bytes(self) -> int:
        """Bytes of a row, or of one item along the axis that differs."""
        return self.items * int(self.numpy_dtype.itemsize)

    def to_json(self) -> dict[str, Any]:
        """The feature in JSON, as `from_json` takes it.

        Example:
            >>> Feature("float32", (None, 2)).to_json()
            {'dtype': 'float32', 'shape': [None, 2], 'raw': False}
        """
        return {"dtype": self.dtype, "shape": list(self.shape), "raw": self.raw}

    @classmethod
    def from_json(cls, value: object, *, where: str) -> Feature:
        """Reads a feature from `value`; messages name `where`, its file and its name.

        Missing keys have the defaults of `Feature`.

        Raises:
            ReadError: If `value` is not a feature.

        Example:
            >>> Feature.from_json({"dtype": "bool", "shape": [3], "raw": True}, where="features.json")
            Feature(dtype='bool', shape=(3,), raw=True)
            >>> Feature.from_json({"dtype": "int64"}, where="features.json")
            Feature(dtype='int64', shape=(), raw=False)
        """
        known: dict[str, Any] = {"dtype": None, "shape": [], "raw": False}
        if not isinstance(value, dict) or "dtype" not in value or not value.keys() <= known.keys():
            raise ReadError(
                f"{where}: a feature has dtype, and may have shape and raw, got {value!r:.80}"
            )
        value = {**known, **value}
        shape = tuple(value["shape"]) if isinstance(value["shape"], list) else value["shape"]
        if wrong := _wrong(value["dtype"], shape, value["raw"]):
            raise ReadError(f"{where}: {wrong}")
        return cls(value["dtype"], shape, value["raw"])


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Ragged:
    """A column of rows that differ in length.

    Args:
        values: All rows, one after another: `(items, *item_shape)`; or another `Ragged`, where the
            rows themselves consist of rows that differ in length.
        offsets: int64 `(rows + 1,)`: row `i` is `values[offsets[i] : offsets[i + 1]]`.

    Example:
        >>> column = Ragged(np.array([5, 6, 7]), np.array([0, 2, 2, 3]))
        >>> len(column), column[0], column[1]
        (3, array([5, 6]), array([], dtype=int64))
        >>> nested = Ragged(column, np.array([0, 1, 3]))
        >>> [row.tolist() for row in nested[1]]
        [[], [7]]
    """

    values: Any  # an Array or a Ragged
    offsets: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[Any]:
        return (self[row] for row in range(len(self)))

    def __getitem__(self, row: int | slice) -> Any:
        """A view of one row, or a `Ragged` for a slice. Negative numbers count from the end."""
        if isinstance(row, slice):
            start, stop, step = row.indices(len(self))
            if step != 1:
                raise ArgumentError(f"Ragged: rows are cut with a step of 1, got {row}")
            offsets = self.offsets[start : max(start, stop) + 1]
            return Ragged(self.values[offsets[0] : offsets[-1]], offsets - offsets[0])
        row = range(len(self))[row]
        return self.values[self.offsets[row] : self.offsets[row + 1]]


Column: TypeAlias = Array | Ragged


def offsets_of(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The offsets of consecutive runs of these lengths, with the end of the last one."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def ragged_of(rows: Sequence[bytes | memoryview], feature: Feature) -> Ragged:
    """The column of a ragged feature, from the bytes of the values of each row."""
    values = np.frombuffer(bytearray().join(rows), feature.numpy_dtype)
    offsets = offsets_of(np.fromiter(map(len, rows), np.int64, len(rows)))
    return Ragged(values.reshape(-1, *feature.item_shape), offsets // feature.item_bytes)


def features_to_json(features: Mapping[str, Feature]) -> dict[str, Any]:
    """The features in JSON, as `features_from_json` takes them, in the same order."""
    return {name: feature.to_json() for name, feature in features.items()}


def features_from_json(value: object, *, where: str) -> dict[str, Feature]:
    """Reads the features by name from `value`, the content of the file `where`.

    Raises:
        ReadError: If `value` does not hold features.

    Example:
        >>> features = {"label": Feature("int64")}
        >>> features_from_json(features_to_json(features), where="features.json") == features
        True
    """
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise ReadError(f"{where}: features are a JSON object by name, got {value!r:.80}")
    return {
        name: Feature.from_json(one, where=f"{where}: feature {name!r}")
        for name, one in value.items()
    }


@functools.cache
def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype with a name from `DTYPES`."""
    return np.dtype(getattr(ml_dtypes, name, name))


def cast(values: Array, dtype: np.dtype[Any]) -> tuple[Array, npt.NDArray[np.bool_] | None]:
    """Casts numbers to `dtype`; also returns which are exact, None if all. NaNs are all equal.

    Example:
        >>> cast(np.array([255, 256, -1]), np.dtype("uint8"))
        (array([255,   0, 255], dtype=uint8), array([ True, False, False]))
    """
    if values.dtype == dtype:
        return values, None
    with np.errstate(all="ignore"):
        out = values.astype(dtype)
        back = out.astype(values.dtype)
    fits = back == values
    if values.dtype.kind in "iu":
        # A number of the other sign survives the way to 64 bits and back.
        return out, fits & ((out < 0) == (values < 0))
    # The two zeros compare equal, but have different bits.
    return out, fits & (np.signbit(back) == np.signbit(values)) | np.isnan(back) & np.isnan(values)


@functools.lru_cache(maxsize=1024)
def _product(sizes: tuple[int, ...]) -> int:
    """The product of `sizes`, kept since every record may need it."""
    return math.prod(sizes)


def _wrong(dtype: object, shape: object, raw: object) -> str:
    """A description of the disagreement; empty if the three agree."""
    if dtype not in (BYTES, *DTYPES):
        return f"dtype {dtype!r:.40} is unknown; choose one of {', '.join((BYTES, *DTYPES))}"
    if not isinstance(raw, bool):
        return f"raw is True or False, got {raw!r:.40}"
    if not isinstance(shape, tuple) or not all(map(_is_size, shape[shape[:1] == (None,) :])):
        return f"shape is a tuple of sizes, the first may be None, got {shape!r:.80}"
    if math.prod(size or 1 for size in shape) > _MAX_ITEMS:
        return f"shape {shape!r:.80} has more than {_MAX_ITEMS:,} items"
    if dtype == BYTES and (shape or raw):
        return f"dtype 'bytes' has neither shape nor raw, got shape={shape!r:.80}, raw={raw}"
    if shape[:1] == (None,) and 0 in shape:
        return f"shape {shape!r:.80}: rows of empty items have no length"
    if dtype in ("complex64", "complex128") and not raw:
        return f"dtype {dtype!r} needs raw=True: the numbers of an Example are not complex"
    return ""


def _is_size(size: object) -> bool:
    return isinstance(size, int) and not isinstance(size, bool) and size >= 0
