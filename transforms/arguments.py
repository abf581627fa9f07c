"""Checks of single arguments, with the same messages for a wrong type or size everywhere.

Nodes and options call these checks when they are made, so that a wrong value fails where it was written.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from windrow.core.text import with_article
from windrow.errors import ArgumentError, PlanError

AtEnd: TypeAlias = Literal["stop", "repeat", "drop"]
"""What a mixture does when a dataset has ended."""
AT_END: Final = ("stop", "repeat", "drop")


def one_of(value: Any, allowed: Sequence[str], what: str) -> str:
    """`value`, which is one of some words.

    Raises:
        PlanError: If it is something else.
    """
    if value not in allowed:
        raise PlanError(f"{what} must be one of {', '.join(allowed)}, got {value!r}")
    return str(value)


def integer(value: Any, what: str) -> int:
    """`value` as a Python int; takes NumPy's integers, but no booleans or floats.

    Raises:
        ArgumentError: If it is not an integer.
    """
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise ArgumentError(f"{what} must be an integer, got {value!r}") from None


def one_index(value: Any) -> int:
    """`value` as the index of one element; raises ArgumentError for several."""
    if not isinstance(value, int) and np.ndim(value):
        got = f"index must be an integer, got {with_article(type(value).__name__)}"
        raise ArgumentError(f"{got}; for several elements use ds.read([...])")
    return integer(value, "index")


def indices_of(value: Any, who: str) -> npt.NDArray[Any]:
    """Indices that the method `who` was given, as an array `(n,)` of integers; empty ones of any dtype.

    Raises:
        ArgumentError: If they are not integers in one dimension.
    """
    indices = np.asarray(value)
    if indices.ndim == 1 and (not indices.size or indices.dtype.kind in "iu"):
        return indices
    raise ArgumentError(
        f"{who}: indices must be 64-bit integers in one dimension, got shape {indices.shape} and"
        f" dtype {indices.dtype}"
    )


def at_least(least: int, value: Any, what: str) -> int:
    """`value` as a Python int of at least `least`.

    Raises:
        ArgumentError: If it is not an integer.
        PlanError: If it is smaller.
    """
    number = integer(value, what)
    if number < least:
        raise PlanError(f"{what} must be at least {least}, got {number}")
    return number


def check_times(times: int | None) -> None:
    """Check the number of epochs of a repeat, where None is for ever.

    Raises:
        ArgumentError: If it is not an integer.
        PlanError: If it is smaller than 1.
    """
    if times is not None and integer(times, "repeat: num_epochs") < 1:
        raise PlanError(f"repeat: num_epochs must be at least 1, or None for ever, got {times}")


def checked_seed(seed: Any, who: str, stop: int) -> int:
    """`seed` as a Python int in `[0, stop)`, where `stop` is a power of two.

    Raises:
        ArgumentError: If it is not an integer.
        PlanError: If it is out of range.
    """
    number = integer(seed, f"{who}: seed")
    if not 0 <= number < stop:
        raise PlanError(
            f"{who}: seed={number} is out of range; choose 0 <= seed < 2**{stop.bit_length() - 1}"
        )
    return number


def weights_given(weights: Any) -> tuple[Any, ...] | None:
    """The weights of a mixture as a tuple; None where none are given.

    Raises:
        ArgumentError: If they are not a sequence.
    """
    if weights is None:
        return None
    if not isinstance(weights, Iterable):
        raise ArgumentError(f"mix: weights must be a list of numbers, got {weights!r}")
    if isinstance(weights, Mapping):
        raise ArgumentError("mix: weights are named, datasets are not; name both or neither")
    return tuple(weights)
