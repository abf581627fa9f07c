"""Fill values of Zarr files of our own."""

from __future__ import annotations

import json

import numpy as np
import pytest

from windrow.converters.zarr.layout import fill_scalar, stored_fill
from windrow.sources.tf_example.features import DTYPES, numpy_dtype


@pytest.mark.parametrize("dtype", DTYPES)
def test_fill_values_keep_their_bits(dtype: str) -> None:
    kind = numpy_dtype(dtype)
    for seed in range(20):
        raw = np.random.default_rng(seed).bytes(kind.itemsize)
        raw = bytes([raw[0] & 1]) if dtype == "bool" else raw
        value = np.frombuffer(raw, kind)[0]
        found = fill_scalar(json.loads(json.dumps(stored_fill(value))), kind)
        # A number other than NaN may be stored as its value.
        assert found.tobytes() == value.tobytes() or found == value
