"""Functions of the chains: the same ones for every side, and importable in worker processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


def decode(record: bytes) -> npt.NDArray[np.uint8]:
    """The record as an array, without a copy."""
    return np.frombuffer(record, np.uint8)


def decode_many(records: Sequence[bytes]) -> npt.NDArray[np.uint8]:
    """Records of one length as rows that may be written to."""
    return np.frombuffer(bytearray().join(records), np.uint8).reshape(len(records), -1)


def as_image(record: bytes) -> npt.NDArray[np.uint16]:
    """The record as a small image, as users write it."""
    return np.frombuffer(record, np.uint16).reshape(36, 42)


def one_us(number: Any) -> Any:
    """Pure Python that takes about a microsecond."""
    for _ in range(56):
        number = number + 1
    return number


def add_one(number: Any) -> Any:
    """The least that a Python function can do."""
    return number + 1


def one_ms(row: Any) -> Any:
    """Pure Python that takes about a millisecond: it counts, so that it is the same work always."""
    number = 0
    for _ in range(56_000):
        number = number + 1
    return row


def same(element: Any) -> Any:
    """Nothing at all."""
    return element
