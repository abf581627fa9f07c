"""Reads that fail for some of their records alone: the others are not read again."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.chain.test_on_bad import DAMAGED, RECORDS, number_in
from windrow import MapDataset, ReadOptions
from windrow.core.native import native
from windrow.engine.execute import Values
from windrow.errors import ReadError

pytestmark = pytest.mark.skipif(native() is None, reason="the native core says which ones failed")


@pytest.mark.parametrize("kind", DAMAGED)
def test_good_records_are_not_read_again(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, lost = DAMAGED[kind](tmp_path)

    def again(self: Any, source: Any, records: Any) -> Any:
        raise AssertionError("records are read again")

    monkeypatch.setattr(Values, "read_alone", again)
    for options in (ReadOptions(), ReadOptions(0, 0)):
        stream = MapDataset.source(source).on_bad("skip").to_iter_dataset(options)
        found = [number_in(record) for record in stream]
        assert found == [n for n in range(RECORDS) if n not in lost]


def test_the_rest_of_a_read_never_leaves_the_process(tmp_path: Path) -> None:
    source, lost = DAMAGED["records"](tmp_path)
    with pytest.raises(ReadError, match="cannot be read") as caught:
        source.read(np.arange(RECORDS))
    rest = caught.value.rest
    assert set(rest.errors) == lost
    assert [n for n, record in enumerate(rest.found) if record is None] == sorted(lost)
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.rest is None
    assert (str(again), again.records) == (str(caught.value), caught.value.records)
