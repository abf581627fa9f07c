"""Groups of ArrayRecord files that the core checks without making objects of their records."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import windrow
from tests.array_record_bytes import CODECS, written
from tests.hypothesis_profiles import examples
from windrow.core.native import native
from windrow.errors import SourceError
from windrow.sources import ArrayRecordDataSource

if native() is None:
    pytest.skip("the native core is not built here", allow_module_level=True)


def reports(paths: list[Path], ranges: list[tuple[int, int]]) -> list[Any]:
    """The reports of a check by the core, and of reading all records."""
    from windrow.sources.array_record.records import RecordGroups

    found: list[Any] = []
    for by_core in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            if not by_core:
                patch.setattr(RecordGroups, "checker", lambda _: None)
            files = [f"{path}[{a}:{b}]" for path, (a, b) in zip(paths, ranges, strict=True)]
            try:
                source = ArrayRecordDataSource(files)
            except SourceError as error:  # a damaged index is refused when the file is opened
                found.append(str(error))
                continue
            report = windrow.verify(source)
        found.append(dataclasses.replace(report, elapsed_s=0.0))
    return found


@settings(max_examples=examples(30))
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=3),
    st.integers(2, 9),
    st.sampled_from(CODECS),
    st.data(),
)
def test_reports_are_those_of_reading_all_records(
    tmp_path_factory: pytest.TempPathFactory,
    counts: list[int],
    group: int,
    codec: str,
    data: st.DataObject,
) -> None:
    folder, paths, ranges = tmp_path_factory.mktemp("files"), [], []
    for at, count in enumerate(counts):
        draw = random.Random(at)
        records = [draw.randbytes(draw.choice([0, 1, 50, 3_000])) for _ in range(count)]
        path = folder / f"{at}.array_record"
        raw = bytearray(written(path, records, f"group_size:{group},{codec}"))
        if data.draw(st.booleans(), label="damaged"):
            raw[data.draw(st.integers(64, 64 + 40 * count), label="at")] ^= 1
            path.write_bytes(raw)
        begin = data.draw(st.integers(0, count - 1))
        ranges.append((begin, data.draw(st.integers(begin + 1, count))))
        paths.append(path)
    by_core, by_reading = reports(paths, ranges)
    assert by_core == by_reading
    if isinstance(by_core, str):
        assert "its index cannot be read" in by_core
