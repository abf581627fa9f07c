"""Recognises the bytes of a record: a tf.train.Example, an encoded picture, text, or other bytes.

Invariant: only the given bytes are read; they are neither evaluated nor decompressed.
"""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from windrow.core.text import shortened
from windrow.errors import ReadError, SourceError
from windrow.inspection.facts import Content, FeatureFacts
from windrow.sources.tf_example.features import Feature
from windrow.transforms import columns

_PICTURES: Final = (
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"\xff\xd8\xff", "JPEG"),
    (b"GIF87a", "GIF"),
    (b"GIF89a", "GIF"),
    (b"RIFF", "WebP"),
    (b"BM", "BMP"),
)
_TEXT_BYTES: Final = 4096
_SHOWN_NUMBERS: Final = 4
_EXAMPLE: Final = "tf.train.Example"


def picture_of(data: bytes) -> str | None:
    """Return the format of the picture that `data` encodes, by its first bytes; None for other data."""
    found = next((name for magic, name in _PICTURES if data.startswith(magic)), None)
    if found == "WebP" and data[8:12] != b"WEBP":
        return None
    # The two bytes of BMP begin many strings; its size follows them.
    if found == "BMP" and int.from_bytes(data[2:6], "little") != len(data):
        return None
    return found


def _picture(data: bytes) -> str | None:
    """Describe the picture that `data` encodes, with its size where Pillow can read its header."""
    format = picture_of(data)
    if format is None or importlib.util.find_spec("PIL") is None:
        return format and f"{format} picture"
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as image:
            return f"{format} picture, {image.width} x {image.height} pixels"
    except (OSError, ValueError, Image.DecompressionBombError):
        return f"{format} picture"


def content_of(record: bytes, features: Mapping[str, Feature] | None = None) -> Content:
    """Describe a record; `features` are the features of an Example that become arrays."""
    if example := example_of(record):
        known = features or {}
        facts = tuple(_feature(name, values, known.get(name)) for name, values in example.items())
        return Content("example", len(record), _EXAMPLE, facts)
    kind, looks_like = _described(record, 16)
    return Content(kind, len(record), looks_like)


def _described(data: bytes, shown_bytes: int) -> tuple[str, str]:
    """Return what kind of bytes these are, and what they look like."""
    if not data:
        return "empty", "no bytes"
    if (picture := _picture(data)) is not None:
        return "picture", picture
    if (text := _text_of(data)) is not None:
        return "text", f"text: {text}"
    return "bytes", f"bytes, beginning with {data[:shown_bytes].hex(' ')}"


def example_of(record: bytes) -> dict[str, Any] | None:
    """Return the values of a tf.train.Example by feature; None if the record is something else."""
    from windrow.converters import decode_example

    # The tag of the only field of an Example, which other messages may have too.
    if record[:1] != b"\n":
        return None
    try:
        return dict(decode_example(record))
    except (ReadError, SourceError):
        return None


def leaves_of(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of an element, and the features of a tf.train.Example.

    Names are joined by `/`, and places of lists in brackets.
    """
    if isinstance(value, bytes) and (example := example_of(value)):
        value = {key: one[0] if len(one) == 1 else one for key, one in sorted(example.items())}
    children: Mapping[Any, Any] | None = None
    if isinstance(value, Mapping):
        children = value
    elif columns.is_named_tuple(value):
        children = dict(zip(type(value)._fields, value, strict=True))  # type: ignore[attr-defined]
    elif isinstance(value, list) and value and all(isinstance(n, (int, float)) for n in value):
        value = np.asarray(value)
    elif isinstance(value, (tuple, list)):
        children = {f"[{place}]": child for place, child in enumerate(value)}
    if children is None:
        yield name, value
        return
    for key, child in children.items():
        joint = " " if name.endswith("]") or str(key).startswith("[") else "/"
        yield from leaves_of(child, f"{name}{joint}{key}" if name else str(key))


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
    _, words = _described(values[0], 8)
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
