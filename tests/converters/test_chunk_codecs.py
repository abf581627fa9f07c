"""Chunks encoded by the native core, against the packages that decode them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import zstandard

from windrow.converters.zarr import chunk_codecs
from windrow.converters.zarr.chunk_codecs import codecs_of, steps_of
from windrow.core.native import native

if native() is None:
    pytest.skip("the native core is not built here", allow_module_level=True)


@pytest.mark.parametrize("text", ["zstd:3", "blosc:lz4:5", "blosc:zstd:1"])
def test_the_bytes_are_those_of_the_packages(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if text.startswith("zstd") and zstandard.ZSTD_VERSION != (1, 5, 7):
        pytest.skip("another zstd than that of the core")
    values = np.random.default_rng(0).integers(0, 9, 100_000).astype("<i4").tobytes()
    codecs = (*codecs_of(text, itemsize=4), {"name": "crc32c"})
    data: list[Any] = [values, values[:1_001]]
    (step,) = steps_of(codecs, "x")
    found = step([np.frombuffer(part, np.uint8) for part in data])
    monkeypatch.setattr(chunk_codecs, "native", lambda: None)
    for step in steps_of(codecs, "x"):
        data = step(data)
    assert found == data
