"""Lines of JSON Lines: cut anywhere, compressed or not, each comes once and in its order."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.hypothesis_profiles import examples
from tests.texts import packed
from windrow.converters.job.inputs import find_inputs
from windrow.converters.records.record_files import RecordBlock, cut
from windrow.converters.texts import lines
from windrow.converters.texts.lines import JsonLinesFiles, read_lines
from windrow.errors import ReadError

ENDINGS = ["", ".gz", ".zst"]
LINES = st.lists(
    st.sampled_from([b"{}", b'{"a": 1}', b"", b" \t", b"\r", b" x ", b"\xff\r", b"y" * 300]),
    max_size=40,
)


@pytest.fixture(autouse=True, scope="module")
def small_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "_BLOCK_BYTES", 64)
        patch.setattr(lines, "_PACKED_BYTES", 16)
        patch.setattr("windrow.converters.texts.lines.STRIDE_RECORDS", 4)
        patch.setattr("windrow.converters.records.record_files.STRIDE_RECORDS", 4)
        yield


def expected(data: bytes) -> list[tuple[int, bytes]]:
    """Where each record begins, and the record, by the rule said once more."""
    found, at = [], 0
    for line in data.split(b"\n"):
        if line.strip():
            found.append((at, line.removesuffix(b"\r")))
        at += len(line) + 1
    return found


def read(files: JsonLinesFiles, path: Path, start: int, stop: int, counted: Any) -> list[Any]:
    bounds = [0, start, stop, counted.good]
    (_, part, _) = cut([counted], bounds)
    blocks: list[RecordBlock] = list(files.blocks(part.spans, 100))
    return [
        (block.place(row)[1:], record)
        for block in blocks
        for row, record in enumerate(block.records)
    ]


@settings(max_examples=examples(60))
@given(LINES, st.booleans(), st.sampled_from(ENDINGS), st.data())
def test_any_span_of_any_file(
    found: list[bytes], ended: bool, ending: str, data: st.DataObject
) -> None:
    content = b"\n".join(found) + b"\n" * ended
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"a.jsonl{ending}"
        path.write_bytes(packed(path.name, content))
        files, (source,) = JsonLinesFiles(), find_inputs(str(path))
        (counted,) = files.count([source])
        records = expected(content)
        assert counted.records == len(records)
        assert (counted.cuts is None) == (ending == "")
        start = data.draw(st.integers(0, len(records)))
        stop = data.draw(st.integers(start, len(records)))
        assert read(files, path, start, stop, counted) == [
            ((number, *records[number][:1]), records[number][1]) for number in range(start, stop)
        ]


def test_marks_of_byte_order_are_no_part_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\xef\xbb\xbf{}\n\xef\xbb\xbf{}\n")
    (found,) = read_lines(path)
    assert found.records(0, 2) == [b"{}", b"\xef\xbb\xbf{}"]


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_several_members_and_what_is_cut_off(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.jsonl{ending}"
    one, two = packed(path.name, b"{}\n" * 500), packed(path.name, b'{"a": 2}')
    path.write_bytes(one + two)
    assert sum(map(len, read_lines(path))) == 501
    for size in (len(one) // 2, len(one) - 1, len(one) + len(two) - 1):
        path.write_bytes((one + two)[:size])
        with pytest.raises(ReadError, match=r"a\.jsonl.*: cannot be read after byte \d+: .*anew"):
            list(read_lines(path))
    path.write_bytes(one[:-9] + bytes([one[-9] ^ 255]) + one[-8:] + two)
    with pytest.raises(ReadError, match="cannot be read after byte"):
        list(read_lines(path))


def test_a_few_bytes_of_zstd_do_not_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(zstandard.ZstdCompressor().compress(b"\0" * (1 << 22)))
    monkeypatch.setattr(lines, "LONGEST_LINE_BYTES", 1 << 20)
    with pytest.raises(ReadError, match=r"a line has more than 1,048,576 bytes, so this is not"):
        list(read_lines(path))
