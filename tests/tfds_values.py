"""Comparing values of tfds' features bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np

from windrow.sources.tf_example.features import Ragged


def assert_same(found: Any, wanted: Any, where: str = "") -> None:
    """Assert that two trees of columns or values are the same: types, dtypes, shapes and bits."""
    assert type(found) is type(wanted), f"{where}: {type(found)}, and not {type(wanted)}"
    if isinstance(wanted, dict):
        assert list(found) == list(wanted), where
        for name, value in wanted.items():
            assert_same(found[name], value, f"{where}/{name}")
    elif isinstance(wanted, Ragged):
        assert found.offsets.tolist() == wanted.offsets.tolist(), where
        assert_same(found.values, wanted.values, where)
    elif isinstance(wanted, np.ndarray):
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), where
        if wanted.dtype == object:
            assert_same(list(found.flat), list(wanted.flat), where)
        else:
            assert found.tobytes() == wanted.tobytes(), where
    elif isinstance(wanted, np.generic):
        assert (found.dtype, found.tobytes()) == (wanted.dtype, wanted.tobytes()), where
    elif isinstance(wanted, list):
        assert len(found) == len(wanted), where
        for at, (one, other) in enumerate(zip(found, wanted, strict=True)):
            assert_same(one, other, f"{where}[{at}]")
    else:
        assert found == wanted, where
