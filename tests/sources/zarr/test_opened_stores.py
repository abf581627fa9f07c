"""Open stores of zarr-python without a path: sessions of Icechunk, and stores of any other class."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
import zarr

from windrow import MapDataset
from windrow.errors import ArgumentError, ReadError, SourceError, StateError
from windrow.sources import Field, WindowDataSource, ZarrDataSource

icechunk: Any = pytest.importorskip("icechunk", reason="needs icechunk")
VALUES = np.arange(200, dtype="f4").reshape(40, 5)


def weather(values: Any = VALUES) -> xarray.Dataset:
    hours = np.datetime64("2019-03-01", "ns") + np.arange(len(values)) * np.timedelta64(1, "h")
    return xarray.Dataset(
        {"t": (("time", "lat"), values), "deep": (("time",), values[:, 0])},
        {"time": hours, "lat": 50.0 + np.arange(5)},
    )


def committed(repository: Any, data: xarray.Dataset, group: str | None = None) -> str:
    """Writes a Dataset in a commit of its own, and returns the name of the snapshot."""
    session = repository.writable_session("main")
    chunks = {"t": {"chunks": (7, 5)}}
    data.to_zarr(session.store, group=group, mode="w", encoding=chunks, consolidated=False)
    return str(session.commit("written"))


@pytest.fixture
def repository(tmp_path: Path) -> Any:
    # Chunks lie in objects of their own, as large ones do.
    config = icechunk.RepositoryConfig(inline_chunk_threshold_bytes=0)
    storage = icechunk.local_filesystem_storage(str(tmp_path / "repo"))
    made = icechunk.Repository.create(storage, config=config)
    committed(made, weather())
    return made


def test_a_session_is_read_as_a_group_an_array_and_by_xarray(repository: Any) -> None:
    store = repository.readonly_session("main").store
    fields = {"x": Field("t", {"time": ["-6h", "0h"]})}
    for given in (
        store,
        zarr.open_group(store, mode="r"),
        xarray.open_zarr(store, chunks=None, consolidated=False),
        {"t": zarr.open_array(store, path="t", mode="r")},
    ):
        windows = WindowDataSource(given, fields=fields, coordinates=["time"])
        for each in (windows, pickle.loads(pickle.dumps(windows))):
            batch: Any = MapDataset.source(each).shuffle(seed=1).batch(5)[2]
            last = ((batch["time"][:, 1] - batch["time"].min()) // np.timedelta64(1, "h")).astype(
                int
            )
            first = int(batch["x"].min()) // 5
            assert np.array_equal(batch["x"][:, 1], VALUES[last + first])
    rows: Any = MapDataset.source(zarr.open_array(store, path="t", mode="r"))
    assert np.array_equal(rows.batch(40)[0], VALUES)
    records: Any = MapDataset.source(store)
    assert records[3]["deep"] == 15
    assert "IcechunkStore(" in repr(ZarrDataSource(store))


def test_groups_in_a_session(repository: Any) -> None:
    committed(repository, weather(VALUES[:8]), group="inner/most")
    store = repository.readonly_session("main").store
    group: Any = zarr.open_group(store, path="inner", mode="r")
    assert ZarrDataSource(group)[7]["most"]["deep"] == 35
    windows = WindowDataSource(group, {"time": 2}, names=["most/t"], coordinates=True)
    assert windows[3]["time"][1] == np.datetime64("2019-03-01T07")


def test_fingerprints_name_the_snapshot(repository: Any) -> None:
    first = repository.readonly_session("main")
    chain = MapDataset.source(ZarrDataSource(first.store)).shuffle(seed=2).to_iter_dataset()
    steps = iter(chain)
    next(steps)
    state = steps.get_state()
    committed(repository, weather(-VALUES))
    now = ZarrDataSource(repository.readonly_session("main").store)
    assert now[1]["deep"] == -5  # of the new snapshot, and the old session still reads its own
    again = ZarrDataSource(repository.readonly_session(snapshot_id=first.snapshot_id).store)
    assert again.fingerprint == ZarrDataSource(first.store).fingerprint != now.fingerprint
    assert f"snapshot {first.snapshot_id}" in again.fingerprint
    with pytest.raises(StateError, match=f"(?s)snapshot {first.snapshot_id}.*snapshot"):
        iter(MapDataset.source(now).shuffle(seed=2).to_iter_dataset()).set_state(state)
    resumed = iter(MapDataset.source(again).shuffle(seed=2).to_iter_dataset())
    resumed.set_state(state)
    assert next(resumed)["deep"] == next(steps)["deep"]


def test_a_session_that_may_be_written_to_is_refused(repository: Any) -> None:
    group = zarr.open_group(repository.writable_session("main").store, mode="r")
    with pytest.raises(ArgumentError, match=r"may be written to.*commit it.*readonly_session"):
        MapDataset.source(group)


def test_a_lost_chunk_is_an_error_that_names_the_records(repository: Any, tmp_path: Path) -> None:
    source = ZarrDataSource(repository.readonly_session("main").store, names=["t"])
    assert source[39]["t"][0] == 195
    for chunk in (tmp_path / "repo" / "chunks").iterdir():
        chunk.unlink()
    with pytest.raises(
        ReadError, match=r"(?s)array 't' in IcechunkStore\(\w+\)/t/.*records 7 to 13"
    ):
        ZarrDataSource(repository.readonly_session("main").store, names=["t"])[8]


class Strange(zarr.storage.WrapperStore[Any]):
    """A store of a class that Windrow does not know, whose text is long."""

    def __str__(self) -> str:
        return "Strange\n" * 9


def test_any_other_store_is_read_by_its_own_methods(tmp_path: Path) -> None:
    stores = []
    for name in ("a", "b"):
        weather().to_zarr(tmp_path / name, consolidated=False)
        stores.append(Strange(zarr.storage.LocalStore(tmp_path / name, read_only=True)))
    assert "Strange(0x" in repr(ZarrDataSource(stores[0]))
    whole = pickle.loads(pickle.dumps(ZarrDataSource(stores[0])))
    np.testing.assert_equal(
        whole.read(np.arange(40)), ZarrDataSource(str(tmp_path / "a")).read(np.arange(40))
    )
    assert whole.fingerprint == ZarrDataSource(str(tmp_path / "a")).fingerprint
    weather().isel(time=slice(None, None, -1)).to_zarr(tmp_path / "b", mode="w", consolidated=False)
    groups = {
        name: zarr.open_group(store, mode="r") for name, store in zip("ab", stores, strict=True)
    }
    with pytest.raises(SourceError, match=r"the stores differ in the labels of 'time'"):
        WindowDataSource(groups, {"time": 2}, fields={"x": "a/t", "y": "b/t"})


class Failing(zarr.storage.WrapperStore[Any]):
    """A store whose chunks raise an error."""

    error: Exception | None = None

    async def get(self, key: str, *arguments: Any, **more: Any) -> Any:
        if self.error is not None and "/c/" in key:
            raise self.error
        return await super().get(key, *arguments, **more)


@pytest.mark.parametrize("in_group", [False, True])
@pytest.mark.parametrize(
    ("error", "is_unanswered"),
    [
        (ConnectionError("the network is down"), True),
        (PermissionError("the credentials have expired"), True),
        (MemoryError("short of memory"), True),
        (RuntimeError("not a codec that is known"), False),
    ],
)
def test_only_what_is_wrong_with_a_chunk_makes_bad_records(
    error: Exception, is_unanswered: bool, in_group: bool, tmp_path: Path
) -> None:
    weather().to_zarr(tmp_path / "a", consolidated=False)
    store = Failing(zarr.storage.LocalStore(tmp_path / "a", read_only=True))
    dataset = MapDataset.source(ZarrDataSource(store, names=["t"])).on_bad("skip")
    assert dataset[3] is not None
    store.error = ExceptionGroup("errors in a TaskGroup", [error]) if in_group else error
    if is_unanswered:
        with pytest.raises(ReadError, match=str(error)):
            dataset[30]
    else:
        assert dataset[30] is None
