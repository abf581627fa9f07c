"""Advice of `explain()`: where it is given, what it says, and that it is gone once it is followed."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest

from tests.laid_out import PiecedSource, pieced
from windrow import IterDataset, MapDataset, ReadOptions
from windrow.explain.explanation import Advice

# Runs are compared with predictions, which takes long. A part of `make test-brief`.
pytestmark = pytest.mark.jobs

# Makes a dataset from the options of its stream.
Make: TypeAlias = Callable[[ReadOptions], IterDataset[Any]]

LITTLE = ReadOptions(prefetch_buffer_size=8, memory_bytes=4_000)


def group(records: int, **chunk_rows: int) -> PiecedSource:
    """A source of several arrays with 32 bytes a row; `chunk_rows` has the rows per chunk of each."""
    array = np.arange(4 * records).reshape(records, 4)
    return PiecedSource(dict.fromkeys(chunk_rows, array), chunk_rows)


def rows(records: int = 400, chunk_rows: int = 10, **more: Any) -> MapDataset[Any]:
    return MapDataset.source(pieced(records, chunk_rows, **more))


def kinds(dataset: Any) -> list[str]:
    return [each.kind for each in dataset.explain().advice]


def told(dataset: Any, kind: str) -> Advice:
    found: dict[str, Advice] = {each.kind: each for each in dataset.explain().advice}
    assert kind in found, found
    return found[kind]


# --- following the number in the advice ----------------------------------------------------------


def advised_bytes(advice: Advice) -> int | None:
    found = re.search(r"ReadOptions\(memory_bytes=([\d_]+)\)", advice.do)
    return None if found is None else int(found[1])


def counted(dataset: IterDataset[Any]) -> float:
    """Chunks read in an epoch."""
    with iter(dataset) as iterator:
        for _ in iterator:
            pass
        return sum(costs.reads.low for costs in iterator.stats().sources)


def one(chain: MapDataset[Any]) -> Make:
    return lambda options: chain.batch(8).to_iter_dataset(options)


def shuffled(*named: PiecedSource) -> list[MapDataset[Any]]:
    return [MapDataset.source(each).shuffle(seed=seed) for seed, each in enumerate(named)]


FOLLOWED: dict[str, tuple[str, Make]] = {
    "one array": ("memory-bytes", one(rows().shuffle(seed=1))),
    "several arrays": ("memory-bytes", one(shuffled(group(400, x=10, y=25, z=40))[0])),
    "two sources of one stream": (
        "memory-bytes",
        one(MapDataset.mix(shuffled(group(400, x=10), group(300, x=40)))),
    ),
    "epochs of one stream": ("memory-bytes", one(rows().repeat(3))),
    "windows": ("window-room", one(rows().block_shuffle(seed=1, window_blocks=30))),
    "windows of several arrays": (
        "window-room",
        one(MapDataset.source(group(400, x=10, y=20)).block_shuffle(seed=1, window_blocks=30)),
    ),
    "blocks that are parts of chunks": (
        "window-room",
        one(rows(chunk_rows=40).block_shuffle(seed=1, block=4)),
    ),
}


@pytest.mark.parametrize("name", FOLLOWED)
def test_who_follows_the_number_that_is_told_reads_less(name: str) -> None:
    kind, make = FOLLOWED[name]
    advice = told(make(LITTLE), kind)
    number = advised_bytes(advice)
    assert number is not None
    dataset = make(dataclasses.replace(LITTLE, memory_bytes=number))
    assert kind not in kinds(dataset)
    assert counted(dataset) < counted(make(LITTLE))


# --- each kind -----------------------------------------------------------------------------------


def test_passes_are_no_reads_too_many() -> None:
    roomy = ReadOptions(prefetch_buffer_size=8, memory_bytes=200_000)
    assert kinds(rows().shuffle(seed=1).batch(8).to_iter_dataset(roomy).repeat(3)) == []
    blocks = rows().block_shuffle(seed=1, window_blocks=2).batch(8)
    assert kinds(blocks.to_iter_dataset(LITTLE).repeat(3)) == []
    # Nor do they hide those that are.
    again = rows().shuffle(seed=1).batch(8).to_iter_dataset(LITTLE).repeat(3)
    advice = told(again, "global-shuffle")
    assert "each is decoded once in each pass" in advice.then
    assert kinds(again) == ["global-shuffle", "memory-bytes"]


def test_a_source_that_is_shuffled_in_one_of_its_places() -> None:
    source = pieced(400, 10)
    twice = MapDataset.concatenate(
        [MapDataset.source(source), MapDataset.source(source).shuffle(seed=1)]
    )
    assert "shuffle(seed=1)" in told(twice.batch(8).to_iter_dataset(LITTLE), "global-shuffle").now


def test_block_shuffle_stands_where_there_are_blocks() -> None:
    def shown(chain: MapDataset[Any]) -> str:
        return told(chain.batch(8).to_iter_dataset(LITTLE), "global-shuffle").do

    assert "use block_shuffle, or" in shown(rows().shuffle(seed=1))
    mixed = MapDataset.mix([rows(), rows()])
    assert "use block_shuffle on each of the datasets below" in shown(mixed.shuffle(seed=1))
    windows = rows(size=3)  # which share rows, so that they cannot be stored one by one
    assert "convert" in shown(windows.shuffle(seed=1))


def test_blocks_that_are_smaller_than_chunks() -> None:
    def shown(**more: Any) -> str:
        blocks = rows(chunk_rows=40).block_shuffle(seed=1, **more).batch(8)
        return told(blocks.to_iter_dataset(LITTLE), "window-room").do

    assert "window_blocks" not in shown(block=4)
    assert "leave block out, for the source's own blocks" in shown(block=4)
    large = shown(block=40, window_blocks=8)
    assert "leave block out" in large
    assert "choose a smaller window_blocks" in large
    assert "leave block out" not in shown(window_blocks=8)


@pytest.mark.parametrize(
    "chain",
    [
        rows()[:3],
        rows()[5:300],
        rows()[7:2:-1],
        rows()[::-1],
        rows()[::40][:1],
        rows().slice([3, 5, 4, 6]),
        rows(stride=30, size=2)[:9],
    ],
    ids=["short", "long", "back", "all back", "one", "a list", "sparse windows"],
)
def test_consecutive_records_are_no_strides(chain: MapDataset[Any]) -> None:
    assert kinds(chain.batch(2)) == []


def test_a_shuffle_of_whole_batches() -> None:
    numbers = MapDataset.range(4000)
    advice = told(numbers.batch(8).shuffle(seed=1), "shuffled-batches")
    assert advice.now.startswith("shuffle(seed=1) shuffles whole batches, and each holds 8 neighb")
    assert advice.do == "shuffle before batch(8)"
    for chain in (
        numbers.shuffle(seed=1).batch(8),
        numbers.shuffle(seed=1).batch(8).shuffle(seed=2),
        numbers.batch(8),
        numbers.batch(1).shuffle(seed=1),
    ):
        assert kinds(chain) == []


def test_strides() -> None:
    advice = told(rows()[::5].batch(8), "strides")
    assert advice.do.startswith("take consecutive records, as [a:b]")
    assert "convert with one record per inner chunk" in advice.do
    assert "5 bytes are decoded for each one delivered" in advice.now
    assert kinds(rows()[:80].batch(8)) == []
    assert kinds(rows()[::-5].batch(8)) == ["strides"]
    assert kinds(rows().slice(np.arange(0, 400, 5)).batch(8)) == ["strides"]
    # A part of a shuffled dataset is not a run of records, however it is cut.
    below = told(rows().shuffle(seed=1)[::8].batch(8), "strides")
    assert below.do.startswith("below shuffle(seed=1) take consecutive records")
    assert kinds(rows()[:50].shuffle(seed=1).batch(8)) == []


@pytest.mark.parametrize(
    "names", [["num_threads"], ["prefetch_buffer_size"], ["num_threads", "prefetch_buffer_size"]]
)
def test_who_leaves_out_what_is_named_reads_ahead(names: list[str]) -> None:
    chain = rows().batch(8)
    given: dict[str, Any] = dict.fromkeys(names, 0)
    advice = told(chain.to_iter_dataset(ReadOptions(**given)), "no-threads")
    assert advice.do == f"leave {' and '.join(names)} out"
    assert kinds(chain.to_iter_dataset(ReadOptions())) == []
