"""Lines of JSON Lines: cut anywhere, compressed or not, each comes once and in its order."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.hypothesis_profiles import examples
from tests.texts import packed
from windrow.converters import json_lines_to_array_record
from windrow.converters.texts import lines
from windrow.converters.texts.lines import read_lines
from windrow.errors import ReadError
from windrow.sources import ArrayRecordDataSource

ENDINGS = ["", ".gz", ".zst"]
LINES = st.lists(
    st.sampled_from(
        [b"{}", b'{"a": 1}', b"", b" \t", b"\r", b" {} ", b"{}\r", b'{"b": "%s"}' % (b"y" * 300)]
    ),
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


@settings(max_examples=examples(60))
@given(LINES, st.booleans(), st.sampled_from(ENDINGS), st.integers(1, 5), st.integers(0, 60))
def test_each_line_is_a_record_of_one_of_any_number_of_files(
    found: list[bytes], ended: bool, ending: str, files: int, spoilt: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder) / f"a.jsonl{ending}", Path(folder) / "out"
        path.write_bytes(packed(path.name, b"\n".join(found) + b"\n" * ended))
        json_lines_to_array_record(path, out, files=files, progress=False)
        source = ArrayRecordDataSource(out)
        records = [line.removesuffix(b"\r") for line in found if line.strip()]
        assert [source[at] for at in range(len(source))] == records
        if spoilt <= len(found):
            path.write_bytes(
                packed(path.name, b"\n".join([*found[:spoilt], b"[", *found[spoilt:]]))
            )
            with pytest.raises(ReadError, match="is not JSON") as caught:
                json_lines_to_array_record(path, Path(folder) / "no", files=files, progress=False)
            number = sum(1 for line in found[:spoilt] if line.strip())
            assert caught.value.records == (number, number + 1)
            assert caught.value.offset == sum(len(line) + 1 for line in found[:spoilt])


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
