"""Recognises the bytes of a record: a tf.train.Example, an encoded picture, text, or other bytes.

Invariant: only the given bytes are read; they are neither evaluated nor decompressed.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from windrow.core.text import shortened
from windrow.errors import MissingExtraError, ReadError, SourceError
from windrow.inspection.facts import Content, FeatureFacts
from windrow.sources.tf_example.features import Feature

_PNG: Final = b"\x89PNG\r\n\x1a\n"
_JPEG: Final = b"\xff\xd8\xff"
# Headers of JPEG that hold its size: start of frame, for every coding.
_FRAMES: Final = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
_BARE_MARKERS: Final = frozenset({0x01, *range(0xD0, 0xD9)})
_OTHER_PICTURES: Final = ((b"GIF87a", "GIF"), (b"GIF89a", "GIF"), (b"BM", "BMP"))
_TEXT_BYTES: Final = 4096
_SHOWN_NUMBERS: Final = 4
_EXAMPLE: Final = "tf.train.Example"


class Picture(NamedTuple):
    """The format of an encoded picture, and its size if the header has it."""

    format: str
    size: tuple[int, int] | None

    def __str__(self) -> str:
        if self.size is None:
            return f"{self.format} picture"
        return f"{self.format} picture, {self.size[0]} x {self.size[1]} pixels"


def picture_of(data: bytes) -> Picture | None:
    """Recognise the picture that `data` encodes, by its first bytes; width comes before height."""
    if data.startswith(_PNG) and data[12:16] == b"IHDR" and len(data) >= 24:
        width, height = struct.unpack_from(">II", data, 16)
        return Picture("PNG", (width, height))
    if data.startswith(_JPEG):
        return Picture("JPEG", _jpeg_size(data))
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return Picture("WebP", None)
    for magic, name in _OTHER_PICTURES:
        if data.startswith(magic) and _is_of(name, data):
            return Picture(name, None)
    return None


def content_of(record: bytes, features: Mapping[str, Feature] | None = None) -> Content:
    """Describe a record; `features` are the features of an Example that become arrays."""
    size = len(record)
    if not record:
        return Content("empty", 0, "no bytes")
    if (picture := picture_of(record)) is not None:
        return Content("picture", size, str(picture))
    looks_like = "bytes"
    # The tag of the only field of an Example, which other messages may have too.
    if record[0] == 0x0A:
        try:
            if found := features_of(record, features or {}):
                return Content("example", size, _EXAMPLE, found)
        except MissingExtraError:
            looks_like = f"bytes, maybe a {_EXAMPLE}: install protobuf to read it"
    if (text := _text_of(record)) is not None:
        return Content("text", size, f"text: {text}")
    return Content("bytes", size, f"{looks_like}, beginning with {record[:16].hex(' ')}")


def features_of(record: bytes, known: Mapping[str, Feature]) -> tuple[FeatureFacts, ...]:
    """Return the features of a tf.train.Example; empty if the record is something else.

    Args:
        record: Its bytes.
        known: How features become arrays, if known.

    Raises:
        MissingExtraError: If protobuf is not installed.
    """
    example = example_of(record)
    return tuple(
        _feature(name, values, known.get(name)) for name, values in (example or {}).items()
    )


def example_of(record: bytes) -> dict[str, Any] | None:
    """Return the values of a tf.train.Example by feature; None if the record is something else.

    Raises:
        MissingExtraError: If protobuf is not installed.
    """
    from windrow.converters import decode_example

    try:
        return dict(decode_example(record))
    except (ReadError, SourceError):
        return None


def _feature(name: str, values: Any, known: Feature | None) -> FeatureFacts:
    if isinstance(values, np.ndarray):
        shown = ", ".join(f"{value:.6g}" for value in values[:_SHOWN_NUMBERS].tolist())
        more = ", ..." if len(values) > _SHOWN_NUMBERS else ""
        return FeatureFacts(name, str(values.dtype), len(values), values.nbytes, shown + more)
    size = sum(map(len, values))
    if known is not None and known.raw:
        shape = " x ".join("any" if n is None else str(n) for n in known.shape) or "a number"
        return FeatureFacts(name, "bytes", len(values), size, f"{known.dtype}, {shape}")
    return FeatureFacts(name, "bytes", len(values), size, _bytes_like(values))


def _bytes_like(values: Sequence[bytes]) -> str:
    if not values:
        return ""
    first = values[0]
    picture = picture_of(first)
    if picture is not None:
        words = str(picture)
    elif (text := _text_of(first)) is not None:
        words = f"text: {text}"
    else:
        words = f"bytes, beginning with {first[:8].hex(' ')}" if first else "no bytes"
    return words if len(values) == 1 else f"{words}; and {len(values) - 1:,} more"


def _text_of(data: bytes) -> str | None:
    """Return the beginning of the text on one line; None if the bytes are not text."""
    try:
        # A character may be cut at the end of the inspected bytes.
        text = data[:_TEXT_BYTES].decode(
            "utf-8", "strict" if len(data) <= _TEXT_BYTES else "ignore"
        )
    except UnicodeDecodeError:
        return None
    if not text or not all(character.isprintable() or character in "\t\r\n" for character in text):
        return None
    return shortened(text, 48)


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker in _FRAMES:
            height, width = struct.unpack_from(">HH", data, at + 5)
            return width, height
        if marker in _BARE_MARKERS or marker == 0xFF:
            at += 1 if marker == 0xFF else 2
        else:
            at += 2 + struct.unpack_from(">H", data, at + 2)[0]
    return None


def _is_of(name: str, data: bytes) -> bool:
    """Return whether more than the magic bytes match; the two of BMP begin many strings."""
    return name != "BMP" or (len(data) > 26 and struct.unpack_from("<I", data, 2)[0] == len(data))
