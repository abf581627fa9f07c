"""A store that grew after a state was taken: refused with both lengths, restored on the old one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from array_record.python.array_record_module import ArrayRecordWriter

import windrow
from windrow import MapDataset
from windrow.errors import StateError
from windrow.sources import ArrayRecordDataSource, RaggedDataSource, ZarrDataSource


class Store:
    """A store of records that can grow; `open` reads what it has now."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.folder, self.records = kind, folder, 0
        if kind == "ragged":
            zarr.create_group(folder)
        self.grow(7)

    def grow(self, count: int) -> None:
        more, self.records = np.arange(self.records, self.records + count), self.records + count
        if self.kind == "zarr":
            self._append("x", more)
        elif self.kind == "ragged":
            rows = [np.full(n % 4, n) for n in more.tolist()]
            self._append("values", np.concatenate(rows))
            ends = np.cumsum([n % 4 for n in range(self.records)])
            self._append("offsets", ends[-count:] if self.records > count else [0, *ends])
        elif self.kind == "array_record":
            writer = ArrayRecordWriter(str(self.folder / f"{self.records:05}"), "group_size:1")
            for n in more.tolist():
                writer.write(b"%d" % n)
            writer.close()

    def _append(self, name: str, rows: Any) -> None:
        if not (self.folder / name).exists():
            zarr.create_array(self.folder / name, data=np.array(rows), chunks=(3,))
            return
        zarr.open_array(self.folder / name).append(np.array(rows))

    def open(self) -> Any:
        match self.kind:
            case "zarr":
                return ZarrDataSource(self.folder / "x")
            case "ragged":
                return RaggedDataSource(self.folder)
            case "array_record":
                return ArrayRecordDataSource(sorted(map(str, self.folder.iterdir())))
            case "array":
                return np.arange(self.records)
            case _:
                return list(range(self.records))


CHAINS: dict[str, Callable[[MapDataset[Any]], Any]] = {
    "in order": lambda records: records,
    "shuffled": lambda records: records.seed(3).shuffle().repeat(2).map(lambda record: record),
    "in lanes": lambda records: (
        records.shuffle(seed=1).to_iter_dataset(lanes=2).filter(lambda _: True)
    ),
    "batched": lambda records: records.shuffle(seed=1).batch(3, batch_fn=list),
}


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("kind", ["zarr", "ragged", "array_record", "array", "list"])
def test_a_state_of_a_store_that_grew_restores_on_the_old_length(
    tmp_path: Path, kind: str, chain: str
) -> None:
    store, made = Store(kind, tmp_path), CHAINS[chain]
    before = iter(made(MapDataset.source(store.open())))
    next(before)
    state = before.get_state()
    expected = list(map(repr, before))
    store.grow(4)
    records = MapDataset.source(store.open())
    assert len(records) == 11
    hint = r"state: (.|\n)*this run: (.|\n)*grown since, from 7 records to 11: \[:7\] right after"
    with pytest.raises(StateError, match=hint):
        iter(made(records)).set_state(state)
    for other in (records[:6], records[:8], records[1:8], records[:7].shuffle(seed=9)):
        with pytest.raises(StateError, match="another chain or other data"):
            iter(made(other)).set_state(state)
    iterator = iter(made(records[:7]))
    iterator.set_state(state)
    assert list(map(repr, iterator)) == expected
    # A state that is taken now has the records of the store of now.
    again = iter(made(records[:7]))
    again.set_state(iterator.get_state())
    assert list(again) == []


def test_only_the_source_that_grew_is_named(tmp_path: Path) -> None:
    store, fixed = Store("ragged", tmp_path), np.arange(20)

    def chain(records: MapDataset[Any]) -> Any:
        return MapDataset.concatenate([MapDataset.source(fixed), records.map(len)]).shuffle(seed=1)

    state = iter(chain(MapDataset.source(store.open()))).get_state()
    store.grow(2)
    records = MapDataset.source(store.open())
    with pytest.raises(StateError, match="grown since, from 7 records to 9") as raised:
        iter(chain(records)).set_state(state)
    assert "20 records" not in str(raised.value)
    iter(chain(records[:7])).set_state(state)


def test_packed_rows_of_a_store_that_grew(tmp_path: Path) -> None:
    store = Store("ragged", tmp_path)
    before = iter(MapDataset.source(store.open()).pack(4))
    next(before)
    state, expected = before.get_state(), list(map(repr, before))
    store.grow(5)
    records = MapDataset.source(store.open())
    with pytest.raises(StateError, match="from 7 records to 12"):
        iter(records.pack(4)).set_state(state)
    iterator = iter(records[:7].pack(4))
    iterator.set_state(state)
    assert list(map(repr, iterator)) == expected


def test_other_data_has_no_hint_of_growth() -> None:
    state = iter(MapDataset.source(np.arange(9))).get_state()
    for other in (np.arange(8), np.arange(12.0)):
        with pytest.raises(StateError, match="Restore with the chain and data it was taken from"):
            iter(MapDataset.source(other)).set_state(state)
    with pytest.raises(windrow.errors.StateError, match="with the chain and data"):
        iter(MapDataset.source(np.arange(12)).shuffle(seed=1).map(abs)[2:]).set_state(
            {**state, "chain": "cut"}
        )
