"""The index of ArrayRecord files from their last bytes, against the array_record package."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.array_record_bytes import CODECS, index_of, some_records, written
from windrow.errors import SourceError
from windrow.sources.array_record.chunks import (
    BLOCK,
)


def test_padded_chunks_are_not_fetched_with_their_padding(tmp_path: Path) -> None:
    records = some_records(random.Random(1), 20)
    for codec in CODECS:
        raw = written(tmp_path / "a", records, f"group_size:5,{codec},pad_to_block_boundary:true")
        index = index_of(raw)
        assert index.chunk_offsets.tolist()[1:] == [BLOCK, 2 * BLOCK, 3 * BLOCK]
        starts, stops = index.spans(np.arange(4))
        assert (stops - starts).max() < 8_192


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("small") / "a"
    return written(path, some_records(random.Random(2), 30), "group_size:4,zstd")


@given(st.data())
def test_a_damaged_index_is_an_error_or_the_same(small: bytes, data: st.DataObject) -> None:
    whole = index_of(small)
    # Within the footer or the postscript, where damage is not in padding.
    at = data.draw(
        st.one_of(
            st.integers(whole.footer_offset, whole.footer_offset + 200),
            st.integers(len(small) - BLOCK, len(small) - BLOCK + 140),
        )
    )
    damaged = bytearray(small)
    damaged[at : at + data.draw(st.integers(1, 40))] = data.draw(st.binary(min_size=1, max_size=40))
    damaged = damaged[: len(small)].ljust(len(small), b"\0")
    try:
        index = index_of(bytes(damaged))
    except SourceError:
        return
    assert index.chunk_offsets.tolist() == whole.chunk_offsets.tolist()
    assert (index.records, index.decoded_bytes) == (whole.records, whole.decoded_bytes)
