"""What the bytes of a record are: a tf.train.Example, an encoded picture, text, or anything else.

Invariant: only the bytes given are looked at; none of them is evaluated or decompressed.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from windrow.errors import MissingExtraError, ReadError, SourceError
from windrow.inspection_facts import Content, FeatureFacts, shortened
from windrow.sources.features import Feature

_PNG: Final = b"\x89PNG\r\n\x1a\n"
_JPEG: Final = b"\xff\xd8\xff"
# Headers of JPEG that hold its size: start of frame, whichever coding it announces.
_FRAMES: Final = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
_ALONE: Final = frozenset({0x01, *range(0xD0, 0xD9)})
_OTHER_PICTURES: Final = ((b"GIF87a", "GIF"), (b"GIF89a", "GIF"), (b"BM", "BMP"))
_LOOKED_AT_BYTES: Final = 4096
_SHOWN_NUMBERS: Final = 4
_EXAMPLE: Final = "tf.train.Example"


class Picture(NamedTuple):
    """The format of an encoded picture, and its size where its header tells."""

    format: str
    size: tuple[int, int] | None

    def __str__(self) -> str:
        if self.size is None:
            return f"{self.format} picture"
        return f"{self.format} picture, {self.size[0]} x {self.size[1]} pixels"


def picture_of(data: bytes) -> Picture | None:
    """The picture that `data` encodes, by its first bytes; width before height."""
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
    """What a record looks like; `features` are those of an Example that become arrays."""
    size = len(record)
    if not record:
        return Content("empty", 0, "no bytes")
    if (picture := picture_of(record)) is not None:
        return Content("picture", size, str(picture))
    looks_like = "bytes"
    # The one field that an Example has; a message may be anything else that has it too.
    if record[0] == 0x0A:
        try:
            if found := features_of(record, features or {}):
                return Content("example", size, _EXAMPLE, found)
        except MissingExtraError:
            looks_like = f"bytes, maybe a {_EXAMPLE}: to see, install protobuf"
    if (text := _text_of(record)) is not None:
        return Content("text", size, f"text: {text}")
    return Content("bytes", size, f"{looks_like}, beginning with {record[:16].hex(' ')}")


def features_of(record: bytes, known: Mapping[str, Feature]) -> tuple[FeatureFacts, ...]:
    """The features of a tf.train.Example; none where the record is something else.

    Args:
        record: Its bytes.
        known: How features become arrays, where that is known.

    Raises:
        MissingExtraError: If what reads one is not installed.
    """
    example = example_of(record)
    return tuple(
        _feature(name, values, known.get(name)) for name, values in (example or {}).items()
    )


def example_of(record: bytes) -> dict[str, Any] | None:
    """The values of a tf.train.Example by feature; None where the record is something else.

    Raises:
        MissingExtraError: If what reads one is not installed.
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
        told = str(picture)
    elif (text := _text_of(first)) is not None:
        told = f"text: {text}"
    else:
        told = f"bytes, beginning with {first[:8].hex(' ')}" if first else "no bytes"
    return told if len(values) == 1 else f"{told}; and {len(values) - 1:,} more"


def _text_of(data: bytes) -> str | None:
    """The beginning of a text, on one line; None where the bytes are no text."""
    try:
        # A character may be cut where the looking ends.
        text = data[:_LOOKED_AT_BYTES].decode(
            "utf-8", "strict" if len(data) <= _LOOKED_AT_BYTES else "ignore"
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
        if marker in _ALONE or marker == 0xFF:
            at += 1 if marker == 0xFF else 2
        else:
            at += 2 + struct.unpack_from(">H", data, at + 2)[0]
    return None


def _is_of(name: str, data: bytes) -> bool:
    """Whether more than a few letters say so: two are the beginning of many texts."""
    return name != "BMP" or (len(data) > 26 and struct.unpack_from("<I", data, 2)[0] == len(data))
