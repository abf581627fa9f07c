"""The index of ArrayRecord files from their last bytes, against the array_record package."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordReader
from hypothesis import given
from hypothesis import strategies as st

from tests.array_record_bytes import CODECS, chunks_of, index_of, some_records, written
from tests.sources.array_record.test_sources_array_record_crafted import craft
from windrow.errors import SourceError
from windrow.sources.array_record.chunks import (
    BLOCK,
    contiguous,
    ends,
    leading_varint,
    places,
    varint,
    varints,
)
from windrow.sources.array_record.index import (
    TAIL_BYTES,
    footer_span,
    parse_footer,
)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("count", [0, 1, 2, 100, 101, 257])
def test_an_index_says_what_the_package_says(tmp_path: Path, codec: str, count: int) -> None:
    records = some_records(random.Random(count), count)
    for group in (1, 100, 65536):
        raw = written(tmp_path / "a", records, f"group_size:{group},{codec}")
        reader = ArrayRecordReader(str(tmp_path / "a"))
        index = index_of(raw)
        assert index.records == reader.num_records() == count
        assert index.written_with == reader.writer_options_string()
        assert (index.group, index.chunks) == (group, -(-count // group))
        assert index.decoded_bytes == sum(map(len, records))
        assert index.first_decoded_bytes == sum(map(len, records[:group]))
        assert index.size_bytes == len(raw)
        assert index.counts(np.arange(index.chunks)).sum() == count


def test_the_index_of_a_long_footer(tmp_path: Path) -> None:
    # The footers are longer than the tail.
    for codec, count in (("uncompressed", 9_000), ("zstd", 15_000), ("snappy", 12_000)):
        draw = random.Random(count)
        records = [draw.randbytes(draw.randrange(90)) for _ in range(count)]
        raw = written(tmp_path / "a", records, f"group_size:1,{codec}")
        start, stop = footer_span("t", "f", raw[-TAIL_BYTES:], len(raw))
        assert stop - start > 30_000
        index = parse_footer("t", "f", raw[start:stop], start, len(raw))
        assert (index.chunks, index.decoded_bytes) == (count, sum(map(len, records)))
        broken = bytearray(raw[start:stop])
        broken[20_000] ^= 1
        with pytest.raises(SourceError, match=r"f is damaged: its index cannot be read"):
            parse_footer("t", "f", bytes(broken), start, len(raw))


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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: b"", r"f is empty \(0 bytes\): its writer was not closed"),
        (lambda raw: raw[:1000], r"f is cut off or damaged.*its 1,000 bytes are not a multiple"),
        (lambda raw: raw[:BLOCK], r"f is cut off or damaged.*its 65,536 bytes"),
        (lambda raw: raw[:-BLOCK] + bytes(BLOCK), r"the index at its end is missing or damaged"),
        (lambda raw: b"\x89HDF" + bytes(5000), r"not an ArrayRecord file: it begins with b'\\x89H"),
        (lambda raw: bytes(3 * BLOCK), r"the index at its end is missing or damaged"),
    ],
)
def test_files_that_are_none_are_refused(small: bytes, change: object, message: str) -> None:
    assert callable(change)
    raw = change(small)
    with pytest.raises(SourceError, match=message):
        footer_span("t", "f", raw[-TAIL_BYTES:], len(raw))


def test_a_tfrecord_file_is_told_by_its_name() -> None:
    with pytest.raises(SourceError, match=r"has the name of a TFRecord file: convert it first"):
        footer_span("t", "a.tfrecord-00000-of-00001", bytes(100), 100)


@pytest.mark.parametrize(
    ("first", "stop", "why"),
    [
        (0, 0, "it is cut off: 0 of its bytes exist"),
        (0, 60, r"it is cut off: 60 of its \d+ bytes exist"),
        (1, 300, "its header hash is wrong"),
    ],
)
def test_footers_that_are_none_are_refused(small: bytes, first: int, stop: int, why: str) -> None:
    start, _ = footer_span("t", "f", small[-TAIL_BYTES:], len(small))
    with pytest.raises(SourceError, match=f"f is damaged: its index cannot be read: {why}"):
        parse_footer("t", "f", small[start + first : start + stop], start, len(small))


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


@pytest.mark.parametrize("sizes", [(1, 1, 2), (2, 1, 2), (1, 1, 4)])
def test_chunks_of_unequal_size_are_refused(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    groups = [[b"x"] * size for size in sizes]
    raw = craft(tmp_path / "a", groups, group_size=2).read_bytes()
    with pytest.raises(SourceError, match=r"in 3 chunks, which are not all of \d records"):
        index_of(raw)


def test_counts_that_do_not_add_up_are_refused(tmp_path: Path) -> None:
    raw = craft(tmp_path / "a", [[b"a"], [b"b"]], group_size=1, counted=3).read_bytes()
    with pytest.raises(SourceError, match=r"its index counts 2 chunks and 3 records, and lists"):
        index_of(raw)
    raw = craft(tmp_path / "a", [[b"a"], []], group_size=1).read_bytes()
    with pytest.raises(SourceError, match=r"counts records that no chunk of its size can hold"):
        index_of(raw)


@given(st.integers(0, 3 * BLOCK), st.integers(0, 3 * BLOCK), st.integers(0, 400))
def test_bytes_of_a_chunk_are_those_between_block_headers(
    offset: int, start: int, count: int
) -> None:
    if 0 < offset % BLOCK <= 24:
        offset += 24
    # A file in which each byte that is of no block header tells its own place.
    file = np.arange(offset, offset + 8 * BLOCK)
    own = file[file % BLOCK >= 24]
    at = np.arange(start, start + count)
    assert places(np.array([offset]), at).tolist() == own[at].tolist()
    raw = (file % 251).astype(np.uint8).tobytes()
    expected = (own[start : start + count] % 251).astype(np.uint8).tobytes()
    assert contiguous(offset, raw, start, start + count) == expected
    if start > 40:
        assert ends(np.array([offset]), np.array([start - 40])).tolist() == [own[start - 1] + 1]


@given(st.lists(st.integers(0, 2**63 - 1), max_size=20))
def test_varints_come_back(values: list[int]) -> None:
    raw = b"".join(map(varint, values))
    found = varints(np.frombuffer(raw, np.uint8), len(values))
    assert found is not None
    assert found.tolist() == values
    assert varints(np.frombuffer(raw, np.uint8), len(values) + 1) is None
    if values:
        assert leading_varint(raw, 0) == (values[0], len(varint(values[0])))
        assert varints(np.frombuffer(raw + b"\x80", np.uint8), len(values)) is None


def test_varints_that_are_too_long_are_none() -> None:
    raw = b"\x80" * 9 + b"\1"
    assert varints(np.frombuffer(raw, np.uint8), 1) is None
    assert leading_varint(raw, 0) is None
    assert leading_varint(b"\x80", 0) is None


def test_every_chunk_lies_within_its_bounds(tmp_path: Path) -> None:
    raw = written(tmp_path / "a", some_records(random.Random(5), 50), "group_size:7,snappy")
    spans = [(chunk.offset, len(chunk.data)) for chunk in chunks_of(raw)]
    assert spans[0][0] == 64
    assert all(a + size == b for (a, size), (b, _) in itertools.pairwise(spans))
