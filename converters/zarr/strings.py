"""Strings as Zarr v3 stores them: their types, and the bytes of strings of any length.

Strings of one length have NumPy's names, such as `<U3` and `|S3`, and are arrays of that dtype.
Strings of any length have Zarr's names, `string` and `variable_length_bytes`, and are objects.

Invariant: a string is stored as it was; text that is not UTF-8 keeps its bytes.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from windrow.errors import ConversionError

TEXT: Final = "string"
RAW: Final = "variable_length_bytes"
# What a string of any length counts as, where memory is planned.
ASSUMED_BYTES: Final = 256
_CODECS: Final = {TEXT: "vlen-utf8", RAW: "vlen-bytes"}
_FIXED: Final = {"U": "fixed_length_utf32", "S": "null_terminated_bytes"}


def is_string(name: str) -> bool:
    """Whether a dtype of an array to write is one of strings."""
    return name in _CODECS or re.fullmatch(r"<U[1-9]\d*|\|S[1-9]\d*", name) is not None


def string_dtype(name: str) -> np.dtype[Any]:
    """The dtype in memory."""
    return np.dtype(object if name in _CODECS else name)


def data_type(name: str) -> Any:
    """The data type in metadata."""
    if name in _CODECS:
        return name
    dtype = np.dtype(name)
    return {"name": _FIXED[dtype.kind], "configuration": {"length_bytes": dtype.itemsize}}


def bytes_codec(name: str) -> dict[str, Any]:
    """The codec from values to bytes in metadata."""
    if name in _CODECS:
        return {"name": _CODECS[name], "configuration": {}}
    return {"name": "bytes", "configuration": {"endian": "little"}}


def of_metadata(meta: Mapping[str, Any]) -> str | None:
    """`TEXT` or `RAW` of an array of any length, by its own metadata; None of other objects."""
    if meta.get("dtype") == "|O":
        filters = meta.get("filters")
        named = {item.get("id") for item in filters or [] if isinstance(item, dict)}
        return next((name for name, codec in _CODECS.items() if codec in named), None)
    return {TEXT: TEXT, RAW: RAW, "bytes": RAW}.get(str(meta.get("data_type")))


def encoded(values: npt.NDArray[Any], array: str) -> npt.NDArray[np.uint8]:
    """The bytes of strings of any length, as the codecs `vlen-utf8` and `vlen-bytes` have them.

    Raises:
        ConversionError: If a value is not a string.
    """
    raw = [_raw(value, array) for value in values.ravel().tolist()]
    parts = [struct.pack("<I", len(raw))]
    for data in raw:
        parts += [struct.pack("<I", len(data)), data]
    return np.frombuffer(b"".join(parts), np.uint8)


def _raw(value: object, array: str) -> bytes:
    if isinstance(value, str):
        return value.encode(errors="surrogateescape")
    if isinstance(value, bytes) or value is None:
        return value or b""
    raise ConversionError(
        f"array {array!r}: {value!r:.80} is not a string, as its other values are"
    )
