"""Chunks encoded by the native core, against the packages that decode them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from numcodecs import blosc

from tests.hypothesis_profiles import examples
from windrow.converters.zarr import chunk_codecs
from windrow.converters.zarr.chunk_codecs import codecs_of, steps_of
from windrow.core.native import native

if native() is None:
    pytest.skip("the native core is not built here", allow_module_level=True)

CHECKSUM = {"name": "crc32c"}
CHUNKS = st.lists(
    st.one_of(st.binary(max_size=50), st.builds(bytes, st.integers(1, 300_000))),
    min_size=1,
    max_size=5,
)


def encoded(codecs: Any, chunks: list[bytes]) -> list[bytes]:
    (step,) = steps_of(codecs, "x")
    found = [bytes(data) for data in chunks]
    return step([np.frombuffer(data, np.uint8) for data in found])


@settings(max_examples=examples(60))
@given(
    CHUNKS.filter(all),
    st.sampled_from(["blosclz", "lz4", "lz4hc", "zlib", "zstd"]),
    st.integers(0, 9),
    st.sampled_from([1, 2, 3, 8]),
    st.sampled_from(["noshuffle", "shuffle", "bitshuffle"]),
)
def test_blosc(chunks: list[bytes], name: str, level: int, size: int, shuffle: str) -> None:
    (codec,) = codecs_of(f"blosc:{name}:{level}", itemsize=size)
    codec["configuration"]["shuffle"] = shuffle
    found = encoded([codec], chunks)
    assert [blosc.decompress(data) for data in found] == chunks


@pytest.mark.parametrize("text", ["zstd:3", "blosc:lz4:5", "blosc:zstd:1"])
def test_the_bytes_are_those_of_the_packages(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if text.startswith("zstd") and zstandard.ZSTD_VERSION != (1, 5, 7):
        pytest.skip("another zstd than that of the core")
    values = np.random.default_rng(0).integers(0, 9, 100_000).astype("<i4").tobytes()
    codecs = (*codecs_of(text, itemsize=4), CHECKSUM)
    found = encoded(codecs, [values, values[:1_001]])
    monkeypatch.setattr(chunk_codecs, "native", lambda: None)
    data: list[Any] = [values, values[:1_001]]
    for step in steps_of(codecs, "x"):
        data = step(data)
    assert found == data
