"""Chains of Grain as public programs build them: written by us, after the files that each names."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grain
import numpy as np
import numpy.typing as npt
import pytest
from grain import experimental as more
from hypothesis import given, settings
from hypothesis import strategies as st

import windrow
from tests.array_record_bytes import written
from tests.hypothesis_profiles import examples
from windrow.errors import StateError

ROW, ROWS = 32, 4


def stored(folder: Path, sets: int, count: int = 40) -> list[Path]:
    """ArrayRecord files of token ids, int32 of 1 to 24 each."""
    draw = np.random.default_rng(0)
    paths = [folder / f"set{number}.array_record" for number in range(sets)]
    for path in paths:
        sizes = draw.integers(1, 25, count)
        records = [draw.integers(1, 1000, size).astype(np.int32).tobytes() for size in sizes]
        written(path, records, "group_size:4")
    return paths


# --- like MaxText -----------------------------------------------------------------------------------


class Tokens(grain.transforms.Map):  # type: ignore[misc]
    """Inputs and targets of a record."""

    def map(self, record: bytes) -> dict[str, npt.NDArray[np.int32]]:
        tokens = np.frombuffer(record, np.int32)
        return {"inputs": tokens, "targets": tokens}


class Renamed(grain.transforms.Map):  # type: ignore[misc]
    def map(self, element: dict[str, Any]) -> dict[str, Any]:
        names = {"segment_ids": "segmentation", "positions": "position"}
        return {
            functools.reduce(lambda key, end: key.replace(*end), names.items(), key): value
            for key, value in element.items()
        }


class Shifted(grain.transforms.Map):  # type: ignore[misc]
    """The inputs are the targets one token before."""

    def map(self, element: dict[str, Any]) -> dict[str, Any]:
        before = np.roll(element["inputs"], 1, axis=1)
        before[:, 0] = 0
        return {**element, "inputs": before}


def like_maxtext(folder: Path, *, packing: str = "best_fit", sets: int = 3, epochs: int = 2) -> Any:
    """As src/maxtext/input_pipeline/grain_data_processing.py: pretraining, files mixed by weights."""
    streams = []
    for path in stored(folder, sets):
        dataset = grain.MapDataset.source(grain.sources.ArrayRecordDataSource(path))
        dataset = dataset.shuffle(seed=0).repeat(epochs)[0::2]
        streams.append(dataset.to_iter_dataset())
    dataset = grain.IterDataset.mix(streams, [1 / (number + 1) for number in range(sets)])
    dataset = dataset.map(Tokens())
    lengths = {"inputs": ROW, "targets": ROW}
    if packing == "concat_then_split":
        dataset = more.ConcatThenSplitIterDataset(dataset, length_struct=lengths)
    else:
        maker = (
            more.BestFitPackIterDataset if packing == "best_fit" else more.FirstFitPackIterDataset
        )
        dataset = maker(dataset, length_struct=lengths, num_packing_bins=ROWS)
    pad = functools.partial(more.batch_and_pad, batch_size=ROWS, pad_value=0)
    return dataset.map(Renamed()).batch(ROWS, batch_fn=pad).map(Shifted())


# --- like torchtitan ---------------------------------------------------------------------------------


def like_torchtitan(folder: Path) -> Any:
    """As torchtitan/components/data/dataset.py and packing.py: a rank's part of each set, mixed, packed."""
    parts: dict[str, Any] = {}
    for name, path in zip(("web", "code"), stored(folder, 2), strict=True):
        dataset = grain.MapDataset.source(grain.sources.ArrayRecordDataSource(path)).shuffle(seed=7)
        half = len(dataset) // 2
        part = dataset[half : 2 * half].repeat(3, reseed_each_epoch=False)
        parts[name] = part.map(Tokens()).to_iter_dataset(grain.ReadOptions(2, 8))
    mixed = grain.IterDataset.mix(parts, {"web": 0.7, "code": 0.3}).filter(has_many)
    lengths = {"inputs": ROW, "targets": ROW}
    packed = more.FirstFitPackIterDataset(mixed, length_struct=lengths, num_packing_bins=8, seed=3)
    return packed.batch(ROWS, drop_remainder=True)


def has_many(element: dict[str, Any]) -> bool:
    return len(element["inputs"]) > 2


PIPELINES: dict[str, Callable[[Path], Any]] = {
    "maxtext, best fit": like_maxtext,
    "maxtext, first fit": functools.partial(like_maxtext, packing="first_fit"),
    "maxtext, concat": functools.partial(like_maxtext, packing="concat_then_split"),
    "torchtitan": like_torchtitan,
}


def plain(element: Any) -> Any:
    if isinstance(element, dict):
        return {key: plain(element[key]) for key in sorted(element)}
    if isinstance(element, (list, tuple)):
        return [plain(each) for each in element]
    return (element.dtype.str, element.tolist())


@pytest.mark.parametrize("name", [*PIPELINES])
def test_pipeline_is_grains_from_each_checkpoint(name: str, tmp_path: Path) -> None:
    theirs = PIPELINES[name](tmp_path)
    expected = [plain(each) for each in theirs]
    ours = windrow.from_grain(theirs)
    assert [plain(each) for each in ours] == expected
    for at in sorted({1, len(expected) // 2, len(expected) - 1, len(expected)}):
        saved = iter(theirs)
        for _ in range(at):
            next(saved)
        restored = iter(theirs)
        restored.set_state(json.loads(json.dumps(saved.get_state())))
        if "concat" not in name:  # which, in Grain, does not survive JSON
            assert [plain(each) for each in windrow.from_grain(restored)] == expected[at:]
        assert [plain(each) for each in windrow.from_grain(saved)] == expected[at:]


# --- data loaders -----------------------------------------------------------------------------------


class Noisy(grain.transforms.RandomMap):  # type: ignore[misc]
    def random_map(self, element: int, rng: np.random.Generator) -> float:
        return element + float(rng.random())


class NotThird(grain.transforms.Filter):  # type: ignore[misc]
    def filter(self, element: float) -> bool:
        return int(element) % 3 != 0


def loader(workers: int, *, operations: list[Any], shuffle: bool, shards: int = 1) -> Any:
    sampler = grain.samplers.IndexSampler(
        23,
        grain.sharding.ShardOptions(shards - 1, shards, drop_remainder=True),
        shuffle=shuffle,
        num_epochs=2,
        seed=4,
    )
    return grain.DataLoader(
        data_source=range(100, 123),
        sampler=sampler,
        operations=operations,
        worker_count=workers,
    )


def in_turn(workers: int, **given: Any) -> list[Any]:
    """What Grain's loader gives in workers, made in threads of this process."""
    chain = loader(0, **given)._dataset._parent._parent
    iterator = iter(more.multithread_prefetch(chain, workers, 1))
    found = [plain(np.asarray(each)) for each in iterator]
    iterator.close()  # Grain's threads keep a process alive
    return found


@given(
    workers=st.integers(0, 3),
    kinds=st.lists(st.sampled_from(["noise", "filter", "batch"]), max_size=3),
    shuffle=st.booleans(),
    shards=st.integers(1, 3),
)
@settings(max_examples=examples(20))
def test_loader_is_grains(workers: int, kinds: list[str], shuffle: bool, shards: int) -> None:
    operations: list[Any] = [Noisy()] if "noise" in kinds else []
    operations += [NotThird()] if "filter" in kinds else []
    operations += [grain.transforms.Batch(3)] if "batch" in kinds else []
    given: dict[str, Any] = {"operations": operations, "shuffle": shuffle, "shards": shards}
    expected = in_turn(workers, **given)
    ours = windrow.from_grain(loader(workers, **given))
    assert isinstance(ours, windrow.DataLoader)
    assert ours.multiprocessing_options.num_workers == workers
    alone: Any = ours.dataset
    if workers:
        alone = windrow.IterDataset(alone._node.parent)  # the order does not depend on our workers
    assert [plain(np.asarray(each)) for each in alone] == expected


@pytest.mark.parametrize("taken", [0, 1, 3, 8])
def test_loader_continues_where_grains_is(taken: int) -> None:
    given: dict[str, Any] = {"operations": [Noisy(), grain.transforms.Batch(3)], "shuffle": True}
    theirs = iter(loader(0, **given))
    for _ in range(taken):
        next(theirs)
    ours = windrow.from_grain(theirs)
    assert isinstance(ours, windrow.DataLoaderIterator)
    assert [plain(each) for each in ours] == [plain(each) for each in theirs]


def state_of_workers(workers: int, rows: list[int], last: int) -> bytes:
    """Grain's state after its workers have taken these numbers of records."""
    seen = {str(worker): worker + workers * (n - 1) for worker, n in enumerate(rows)}
    found = {"version": 2, "last_seen_indices": seen, "last_worker_index": last}
    found |= {"worker_count": workers, "sampler": "", "data_source": ""}
    return json.dumps(found).encode()


def test_loader_takes_the_place_of_each_worker() -> None:
    given: dict[str, Any] = {"operations": [grain.transforms.Batch(3)], "shuffle": True}
    expected = in_turn(2, **given)
    ours = windrow.from_grain(loader(2, **given))
    iterator = windrow.DataLoaderIterator(
        ours, state_of_workers(2, [6, 3], 0), validate_state=False
    )
    iterator._iterator = iter(windrow.IterDataset(ours.dataset._node.parent))
    iterator.set_state(state_of_workers(2, [6, 3], 0))
    assert [plain(each) for each in iterator] == expected[3:]
    with pytest.raises(StateError, match="this loader has the order of 2: give it worker_count=3"):
        iterator.set_state(state_of_workers(3, [1, 1, 1], 2))


def test_elastic_iterator_continues() -> None:
    shard = grain.sharding.ShardOptions(1, 2)
    theirs = more.ElasticIterator(grain.MapDataset.range(24).shuffle(seed=1), 8, shard)
    first = next(theirs)
    ours = windrow.from_grain(theirs)
    assert len(first) == 4
    assert [each.tolist() for each in ours] == [next(theirs).tolist(), next(theirs).tolist()]
