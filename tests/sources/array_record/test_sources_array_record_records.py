"""ArrayRecord files as chunks: where records lie, what groups weigh, and reading whole groups."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.array_record_bytes import write
from tests.hypothesis_profiles import examples
from windrow.errors import ArgumentError, PlanError, ReadError, SourceError
from windrow.sources import ArrayRecordDataSource, LaidOutSource, ListPart
from windrow.sources.base import IntArray


def numbered(count: int, name: str = "") -> list[bytes]:
    return [f"{name} {number}".encode() for number in range(count)]


def part_of(source: LaidOutSource) -> ListPart:
    (part,) = source.parts
    assert isinstance(part, ListPart)
    return part


def started(part: ListPart, chunks: Sequence[int]) -> list[list[Any]]:
    with ThreadPoolExecutor(2) as pool:
        return list(map(list, part.start(chunks, pool).result()))


def everything(source: ArrayRecordDataSource) -> IntArray:
    return np.arange(len(source))


@st.composite
def files(draw: st.DrawFn) -> list[tuple[int, int, int | None, int | None]]:
    """Per file: its records, its group size, and the range wanted of it, if not all."""
    out: list[tuple[int, int, int | None, int | None]] = []
    for _ in range(draw(st.integers(1, 4))):
        count, group = draw(st.integers(0, 150)), draw(st.integers(1, 70))
        if draw(st.booleans()):
            first = draw(st.integers(0, count))
            out.append((count, group, first, draw(st.integers(first, count))))
        else:
            out.append((count, group, None, None))
    return out


@settings(deadline=None, max_examples=examples(60))
@given(wanted=files(), data=st.data())
def test_chunks_agree_with_read(
    wanted: list[tuple[int, int, int | None, int | None]], data: Any
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        paths, records, bounds = [], [], [0]
        for number, (count, group, first, stop) in enumerate(wanted):
            own = numbered(count, f"file {number}")
            path = write(Path(folder) / str(number), own, f"group_size:{group}")
            paths.append(str(path) if first is None else f"{path}[{first}:{stop}]")
            skip, end = first or 0, count if stop is None else stop
            # Group by group, as the writer made them.
            for begin in range(0, count, group):
                kept = own[max(begin, skip) : min(begin + group, end)]
                if kept:
                    records += kept
                    bounds.append(len(records))
        source = ArrayRecordDataSource(paths)
        part = part_of(source)
        assert source.read(everything(source)) == records
        assert source.blocks().tolist() == bounds
        assert part.chunk_count == len(bounds) - 1
        if not records:
            return
        places = st.integers(0, len(records) - 1)
        indices = np.asarray(data.draw(st.lists(places, max_size=60)), np.int64)
        needs, inside = part.needs(indices), part.places(indices)
        assert needs.records.tolist() == list(range(len(indices)))
        assert (
            needs.chunks.tolist() == (np.searchsorted(bounds, indices, side="right") - 1).tolist()
        )
        decoded = started(part, needs.chunks.tolist())
        picked = [group[place] for group, place in zip(decoded, inside.tolist(), strict=True)]
        assert source.assembled([picked], indices) == source.read(indices)
        once = started(part, range(part.chunk_count))
        assert [record for group in once for record in group] == records


def test_a_damaged_header_gives_no_wild_weight(tmp_path: Path) -> None:
    path = write(tmp_path / "a", [bytes(100)] * 80, "group_size:40,uncompressed")
    content = bytearray(path.read_bytes())
    content[96:104] = (2**62).to_bytes(8, "little")  # what the first chunk says of its records
    path.write_bytes(content)
    part = part_of(ArrayRecordDataSource(path))
    assert part.decoded_bytes(np.array([1]))[0] < 1000 * os.path.getsize(path)
    with pytest.raises(ReadError, match=r"record 0 of .*stored with records 0 to 39"):
        started(part, [0])
    assert started(part, [1]) == [[bytes(100)] * 40]


# --- lengths --------------------------------------------------------------------------------------


def of_sizes(path: Path, sizes: list[int], options: str = "group_size:1") -> str:
    return str(write(path, [bytes([number % 256]) * n for number, n in enumerate(sizes)], options))


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.lists(st.sampled_from([0, 2, 4, 300, 70_000]), min_size=1, max_size=9),
        min_size=1,
        max_size=3,
    ),
    st.sampled_from(["group_size:1", "group_size:1,uncompressed", "group_size:1,zstd:1"]),
)
def test_lengths_are_those_of_the_records(
    tmp_path_factory: Any, sizes: list[list[int]], options: str
) -> None:
    folder = tmp_path_factory.mktemp("records")
    paths = [of_sizes(folder / f"{n}.array_record", some, options) for n, some in enumerate(sizes)]
    source = ArrayRecordDataSource([*paths, f"{paths[0]}[0:1]"])
    records = source.__getitems__(range(len(source)))
    assert source.lengths().tolist() == list(map(len, records))
    assert source.lengths("<u2").tolist() == [len(record) // 2 for record in records]


def test_what_has_no_lengths_says_so(tmp_path: Path) -> None:
    grouped = ArrayRecordDataSource(of_sizes(tmp_path / "g.array_record", [4, 4], "group_size:2"))
    message = r"groups of 2 records, .* group_size:1, give lengths=, or count .* windrow\.lengths"
    with pytest.raises(PlanError, match=message):
        grouped.lengths()
    path = of_sizes(tmp_path / "x.array_record", [4, 3])
    source = ArrayRecordDataSource(path)
    with pytest.raises(SourceError, match=r"record 1 has 3 bytes, .* items of uint16 \(2 bytes\)"):
        source.lengths("uint16")
    for wrong in ("tokens", "S0"):
        with pytest.raises(ArgumentError, match=r"in items of a dtype.*, got '(tokens|S0)'"):
            source.lengths(wrong)
    os.remove(path)
    of_sizes(tmp_path / "x.array_record", [4, 3, 2])
    with pytest.raises(SourceError, match=r"has changed since the source was made"):
        source.lengths()
