"""One CheckpointManager step holds the parameters and the iterator, by our handler and by Grain's."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import grain
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

import windrow
from windrow.checkpoint import CheckpointHandler, CheckpointRestore, CheckpointSave
from windrow.errors import ArgumentError, NotFoundError, StateError

HANDLERS = [
    pytest.param(CheckpointSave, CheckpointRestore, id="windrow"),
    pytest.param(grain.checkpoint.CheckpointSave, grain.checkpoint.CheckpointRestore, id="grain"),
]


def chain(seed: int = 42) -> windrow.MapDataset[Any]:
    return windrow.MapDataset.range(100).shuffle(seed=seed).batch(7).repeat(2)


def stream(seed: int = 42) -> windrow.IterDataset[Any]:
    below = windrow.MapDataset.range(100).shuffle(seed=seed).filter(lambda n: n % 3)
    return below.to_iter_dataset().window_shuffle(8, seed=1).batch(7).repeat(2)


def rest(iterator: windrow.DatasetIterator[Any]) -> list[list[int]]:
    return [batch.tolist() for batch in iterator]


@pytest.mark.parametrize(("save", "restore"), HANDLERS)
@pytest.mark.parametrize("dataset", [chain(), stream()], ids=["chain", "stream"])
def test_a_step_holds_parameters_and_iterator(
    save: Any, restore: Any, dataset: Any, tmp_path: Path
) -> None:
    whole = rest(iter(dataset))
    iterator = iter(dataset)
    params = {"w": jnp.arange(3.0)}
    with ocp.CheckpointManager(tmp_path) as manager:
        for step in range(4):
            next(iterator)
            parts = {"params": ocp.args.StandardSave(params), "data": save(iterator)}
            manager.save(step, args=ocp.args.Composite(**parts))
        manager.wait_until_finished()
        for step in (3, 0, 2):
            again = iter(dataset)
            empty = {"w": jnp.zeros(3)}
            parts = {"params": ocp.args.StandardRestore(empty), "data": restore(again)}
            restored = manager.restore(step, args=ocp.args.Composite(**parts))
            assert np.array_equal(restored["params"]["w"], params["w"])
            assert rest(again) == whole[step + 1 :]


def test_another_number_of_processes_restores_where_all_had_one_state(tmp_path: Path) -> None:
    iterator = iter(chain())
    next(iterator)
    with ocp.CheckpointManager(tmp_path) as manager:
        manager.save(0, args=ocp.args.Composite(data=CheckpointSave(iterator)))
        manager.wait_until_finished()
        folder = tmp_path / "0" / "data"
        text = (folder / "process_0-of-1.json").read_text()
        (folder / "process_0-of-1.json").unlink()
        for process in range(2):
            (folder / f"process_{process}-of-2.json").write_text(text)
        again = iter(chain())
        manager.restore(0, args=ocp.args.Composite(data=CheckpointRestore(again)))
        assert again.get_state() == iterator.get_state()

        next(iterator)
        (folder / "process_1-of-2.json").write_text(json.dumps(iterator.get_state()))
        with pytest.raises(
            StateError,
            match=r"2 states in .* cannot be joined: .*different steps: rows is 1 in state",
        ):
            manager.restore(0, args=ocp.args.Composite(data=CheckpointRestore(again)))


@pytest.mark.parametrize("saved", [1, 2, 3, 8])
def test_shards_of_lanes_restore_under_any_number_of_processes(
    saved: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = windrow.MapDataset.range(300).to_iter_dataset(lanes=8).filter(lambda n: n % 3)
    batches = chain.window_shuffle(5, seed=1).repeat().batch(24)
    whole = iter(batches)
    expected = [next(whole).tolist() for _ in range(5)]
    handler = CheckpointHandler()

    def on_all(count: int, do: Any) -> list[list[int]]:
        """The global batches that all processes take."""
        parts = []
        monkeypatch.setattr("jax.process_count", lambda: count)
        for process in range(count):
            monkeypatch.setattr("jax.process_index", lambda process=process: process)
            with iter(batches.shard(process, count)) as iterator:
                parts.append(do(iterator))
        return [[row for part in batch for row in part] for batch in zip(*parts, strict=True)]

    def save(iterator: windrow.DatasetIterator[Any]) -> list[list[int]]:
        found = [next(iterator).tolist() for _ in range(2)]
        handler.save(tmp_path, CheckpointSave(iterator))
        return found

    def restore(iterator: windrow.DatasetIterator[Any]) -> list[list[int]]:
        handler.restore(tmp_path, CheckpointRestore(iterator))
        return [next(iterator).tolist() for _ in range(3)]

    assert on_all(saved, save) == expected[:2]
    for count in (1, 2, 3, 4, 8):
        assert on_all(count, restore) == expected[2:]
    if saved > 1:
        (tmp_path / f"process_0-of-{saved}.json").unlink()
        with pytest.raises(StateError, match="have no position of lanes"):
            on_all(1, restore)


@pytest.mark.parametrize("kind", [CheckpointSave, CheckpointRestore])
def test_a_dataset_in_place_of_its_iterator_is_refused_at_once(kind: Any) -> None:
    with pytest.raises(ArgumentError, match=r"got a MapDataset; pass iter\(dataset\)"):
        kind(chain())


# --- checkpointables, and iterators of a DataLoader ----------------------------------------------


class Creating:
    """A path as Orbax passes it to `save`: it is there only after `await_creation`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def await_creation(self) -> Path:
        self._path.mkdir()
        return self._path


def loader() -> windrow.DataLoader:
    return windrow.load(range(40), shuffle=True, seed=3, num_epochs=1, batch_size=4, worker_count=0)


def elastic(shards: int) -> windrow.experimental.ElasticIterator:
    shard = windrow.sharding.ShardOptions(1, shards)
    return windrow.experimental.ElasticIterator(windrow.MapDataset.range(48), 8, shard)


@pytest.mark.parametrize(
    "make", [lambda: iter(chain()), lambda: iter(loader()), lambda: elastic(2)]
)
def test_an_iterator_is_a_checkpointable(make: Any, tmp_path: Path) -> None:
    iterator, again = make(), make()
    next(iterator)

    async def saved() -> None:
        writing = await iterator.save(Creating(tmp_path / "data"))
        next(iterator)  # after the state was taken
        await writing

    async def loaded() -> None:
        await (await again.load(tmp_path / "data"))

    asyncio.run(saved())
    assert (tmp_path / "data" / "process_0-of-1.json").exists()
    asyncio.run(loaded())
    next(again)
    assert again.get_state() == iterator.get_state()
    with pytest.raises(NotFoundError, match="no state of an iterator"):
        asyncio.run(_loaded_from(again, tmp_path))


async def _loaded_from(iterator: Any, path: Path) -> None:
    await (await iterator.load(path))


def test_orbax_saves_checkpointables(tmp_path: Path) -> None:
    v1 = pytest.importorskip("orbax.checkpoint.experimental.v1")
    iterator, again = iter(chain()), iter(chain())
    next(iterator)
    v1.save_checkpointables(tmp_path / "step", {"data": iterator})
    v1.load_checkpointables(tmp_path / "step", {"data": again})
    assert again.get_state() == iterator.get_state()


@pytest.mark.parametrize("library", [windrow, grain], ids=["windrow", "grain"])
def test_a_data_loader_is_saved_with_either_handler(library: Any, tmp_path: Path) -> None:
    iterator, again = iter(loader()), iter(loader())
    next(iterator)
    kinds = library.checkpoint
    with ocp.CheckpointManager(tmp_path) as manager:
        manager.save(0, args=ocp.args.Composite(data=kinds.CheckpointSave(iterator)))
        manager.wait_until_finished()
        manager.restore(0, args=ocp.args.Composite(data=kinds.CheckpointRestore(again)))
    assert again.get_state() == iterator.get_state()
    assert next(again).tolist() == next(iterator).tolist()


def test_an_elastic_iterator_is_restored_with_another_number_of_processes(tmp_path: Path) -> None:
    iterator, again = elastic(2), elastic(4)
    next(iterator)
    with ocp.CheckpointManager(tmp_path) as manager:
        manager.save(0, args=ocp.args.Composite(data=CheckpointSave(iterator)))
        manager.wait_until_finished()
        folder = tmp_path / "0" / "data"
        (folder / "process_0-of-1.json").rename(folder / "process_1-of-2.json")
        (folder / "process_0-of-2.json").write_text(json.dumps(iterator.get_state()))
        manager.restore(0, args=ocp.args.Composite(data=CheckpointRestore(again)))
    assert next(again).tolist() == [9, 13]
