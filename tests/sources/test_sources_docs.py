"""The examples of docs/sources.md run as they stand."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from windrow import MapDataset
from windrow.sources import Span

PAGE = Path(__file__).parents[2] / "docs" / "sources.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_source_with_chunks_is_read_chunk_by_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (example,) = (text for text in EXAMPLES if "class NpyRows" in text)
    names: dict[str, Any] = {"np": np, "MapDataset": MapDataset}
    exec(compile(example, str(PAGE), "exec"), names)
    filled: list[int] = []
    fill = names["NpyRows"].fill

    def counted(reader: Any, spans: Sequence[Span]) -> None:
        filled.extend(span.first for span in spans)
        fill(reader, spans)

    def refused(reader: Any, rows: Any) -> None:
        raise AssertionError("rows are read one by one where chunks are planned")

    names["NpyRows"].fill, names["NpyRows"].read = counted, refused
    assert sum(len(batch) for batch in names["shuffled"]) == 40
    assert sorted(filled) == [0, 10, 20, 30]
