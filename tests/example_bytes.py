"""Examples written byte by byte, from the wire format alone: in the usual way, or any other.

It owes nothing to protobuf or to the code under test.
"""

from __future__ import annotations

import dataclasses
import random
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Numbers: TypeAlias = npt.NDArray[np.int64] | npt.NDArray[np.float32]
Stored: TypeAlias = Sequence[bytes] | Numbers

UNKNOWN = (
    b"\x78\x05",  # field 15: a varint
    b"\x7a\x03abc",  # bytes
    b"\x7d\x01\x02\x03\x04",  # four bytes
    b"\x79\x01\x02\x03\x04\x05\x06\x07\x08",  # eight bytes
    b"\x7b\x78\x01\x7c",  # a group
)


def varint(number: int, *, too_long: int = 0) -> bytes:
    """A number of up to 64 bits; with bytes more than it needs, if asked for."""
    number &= 2**64 - 1
    out = []
    while number > 0x7F or too_long > 0:
        if number <= 0x7F:
            too_long -= 1
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def field(tag: int, data: bytes, *, too_long: int = 0) -> bytes:
    return bytes([tag]) + varint(len(data), too_long=too_long) + data


@dataclasses.dataclass(frozen=True, slots=True)
class Style:
    """How a record is written; the default is the usual way."""

    shuffled: bool = False
    unpacked: bool = False
    in_two: bool = False
    unknown: bool = False
    said_before: bool = False
    long_lengths: bool = False
    long_numbers: bool = False
    value_first: bool = False

    @classmethod
    def drawn(cls, draw: random.Random) -> Style:
        return cls(**{f.name: draw.random() < 0.2 for f in dataclasses.fields(cls)})


def example(features: Mapping[str, Stored], style: Style, draw: random.Random) -> bytes:
    """A serialised Example."""
    names = sorted(features)
    if style.shuffled:
        draw.shuffle(names)
    entries = []
    for name in names:
        if style.said_before and draw.random() < 0.5:
            other: Stored = [b"other"] if draw.random() < 0.5 else np.array([1, 2])
            entries.append(_entry(name, other, style, draw))
        entries.append(_entry(name, features[name], style, draw))
    long = int(style.long_lengths)
    half = len(entries) // 2 if style.in_two else 0
    parts = [entries[:half], entries[half:]] if half else [entries]
    return _spread(
        (
            field(0x0A, _spread((field(0x0A, e) for e in part), style, draw), too_long=long)
            for part in parts
        ),
        style,
        draw,
    )


def _entry(name: str, values: Stored, style: Style, draw: random.Random) -> bytes:
    long = int(style.long_lengths)
    key = field(0x0A, name.encode(), too_long=long)
    lists = [values]
    if style.in_two and len(values) > 1:
        # Two lists of one kind are one list.
        lists = [values[:1], values[1:]]
    value = _spread((_list(part, style, draw) for part in lists), style, draw)
    pair = [key, field(0x12, value, too_long=long)]
    # Without unknown fields: protobuf for Python drops an entry that has one.
    return b"".join(reversed(pair) if style.value_first else pair)


def _list(values: Stored, style: Style, draw: random.Random) -> bytes:
    if not isinstance(values, np.ndarray):
        return field(0x0A, _spread((field(0x0A, one) for one in values), style, draw))
    is_float = values.dtype == np.float32
    if is_float:
        numbers = [one.tobytes() for one in values]
    else:
        long = int(style.long_numbers)
        numbers = [varint(one, too_long=long if 0 <= one < 2**56 else 0) for one in values.tolist()]
    if style.unpacked:
        fields = [(b"\x0d" if is_float else b"\x08") + one for one in numbers]
    else:
        fields = [field(0x0A, b"".join(numbers))] if numbers else []
    return field(0x12 if is_float else 0x1A, _spread(fields, style, draw))


def _spread(fields: Iterable[bytes], style: Style, draw: random.Random) -> bytes:
    out = b""
    for one in fields:
        if style.unknown and draw.random() < 0.3:
            out += draw.choice(UNKNOWN)
        out += one
    return out


def mutated(record: bytes, draw: random.Random) -> bytes:
    """A record with a few bytes changed, cut out, put in or moved."""
    data = bytearray(record)
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(len(data) + 1)
        match draw.randrange(6):
            case 0 if at < len(data):
                data[at] ^= 1 << draw.randrange(8)
            case 1 if at < len(data):
                data[at] = draw.choice([0, 1, 0x0A, 0x12, 0x1A, 0x0B, 0x0C, 0x7F, 0x80, 0xFF])
            case 2:
                del data[at:]
            case 3:
                del data[at : at + draw.randint(1, 4)]
            case 4:
                data[at:at] = draw.randbytes(draw.randint(1, 4))
            case _:
                data[at:at] = data[: draw.randint(0, len(data))]
    return bytes(data)


def signalling_nan() -> np.float32:
    """A NaN that is another one after going through Python's floats."""
    return np.float32(np.frombuffer(struct.pack("<I", 0x7FA00001), "<f4")[0])
