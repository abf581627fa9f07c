"""The prefetcher: the same elements under any budget, each chunk read once, at an even pace."""

from __future__ import annotations

import gc
import itertools
import json
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.laid_out import CountingRows, PiecedSource, pieced
from tests.room import room_for
from windrow import MapDataset, ReadOptions
from windrow.engine import streams
from windrow.engine.context import RunContext
from windrow.errors import ReadError
from windrow.sources import LaidOutSource, ListPart, Needs, Span
from windrow.sources.base import IntArray
from windrow.transforms.nodes import ToStreamNode

ROW_BYTES = 32  # of `pieced`: four int64


def budget(rows: int) -> ReadOptions:
    return room_for(rows * ROW_BYTES)


def starts_by_batch(
    dataset: MapDataset[Any], source: PiecedSource, options: ReadOptions
) -> list[int]:
    """Chunks whose reads were started for each batch, the next batch being made on demand."""
    node = dataset.to_iter_dataset(options)._node
    run = RunContext(node)
    counts, before = [], 0
    for block in streams.blocks(node, [0], run, None):
        counts += [len(source.started) - before, *(len(block) - 1) * [0]]
        before = len(source.started)
    run.end_threads()
    return counts


# --- the same elements ---------------------------------------------------------------------------


@given(data=st.data())
def test_the_stream_is_the_same_under_any_budget(data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, 90), "rows")
    size = data.draw(st.none() | st.integers(1, min(rows, 9)), "size")
    source = pieced(
        rows,
        data.draw(st.integers(1, 24), "chunk_rows"),
        shift=data.draw(st.integers(0, 30), "shift"),
        size=size,
        stride=data.draw(st.integers(1, 5), "stride") if size else 1,
    )
    dataset: MapDataset[Any] = MapDataset.source(source)
    order = data.draw(st.sampled_from(["in order", "shuffle", "blocks", "backwards"]), "order")
    if order == "shuffle":
        dataset = dataset.shuffle(seed=3)
    elif order == "blocks":
        dataset = dataset.block_shuffle(
            seed=3, block=data.draw(st.integers(1, 20), "block"), window_blocks=2
        )
    elif order == "backwards":
        dataset = dataset[::-1]
    dataset = dataset.repeat(data.draw(st.integers(1, 3), "epochs"))
    options = budget(data.draw(st.integers(1, 200), "room"))
    batch = data.draw(st.integers(1, 40), "batch")
    start = data.draw(st.integers(0, len(dataset) - 1), "start")
    wanted = dataset.read(np.arange(start, len(dataset)))
    iterator = iter(dataset.to_iter_dataset(options).batch(batch))
    state = iterator.get_state()
    iterator.set_state({**state, "rows": start, "lanes": [[start]]})
    with iterator:
        got = np.concatenate(list(iterator))
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("order", ["shuffle", "block_shuffle"])
def test_the_least_memory_is_enough(order: str) -> None:
    dataset: MapDataset[Any] = getattr(MapDataset.source(pieced(30, 2)), order)(seed=0)
    least = list(dataset.batch(4).to_iter_dataset(ReadOptions(memory_bytes=1)))
    np.testing.assert_array_equal(np.concatenate(least), dataset.read(np.arange(30)))


def two_arrays(records: int = 300) -> PiecedSource:
    arrays = {"x": np.arange(records * 6).reshape(records, 6), "y": np.arange(records) % 7}
    return PiecedSource(arrays, {"x": 16, "y": 100})


@pytest.mark.parametrize("resident", [1, 40, 10_000])
def test_arrays_in_chunks_of_different_sizes_stay_together(resident: int) -> None:
    dataset = MapDataset.source(two_arrays()).shuffle(seed=1)
    batches = list(dataset.batch(32).to_iter_dataset(budget(resident)))
    order = dataset.map(lambda r: r["x"][0] // 6).read(np.arange(300))
    np.testing.assert_array_equal(np.concatenate([b["x"][:, 0] for b in batches]), order * 6)
    np.testing.assert_array_equal(np.concatenate([b["y"] for b in batches]), order % 7)


def test_one_source_twice_in_a_chain_is_read_once() -> None:
    source = pieced(128, 16)
    halves = [MapDataset.source(source)[64:], MapDataset.source(source)[:64]]
    for batch in MapDataset.zip(halves).batch(8):
        np.testing.assert_array_equal(batch[0] - 64, batch[1])
    assert sorted(source.started) == list(range(0, 128, 16))


# --- each chunk once -----------------------------------------------------------------------------


@pytest.mark.parametrize("records", [1, 15, 16, 17, 257])
@pytest.mark.parametrize("batch", [1, 7, 16, 40])
def test_in_order_each_chunk_is_read_once(records: int, batch: int) -> None:
    source = pieced(records, 16)
    assert sum(len(b) for b in MapDataset.source(source).batch(batch)) == records
    assert source.started == list(range(0, records, 16))


def test_restoring_reads_nothing_that_the_rest_does_not_need() -> None:
    source = pieced(64 * 16, 16)
    dataset = MapDataset.source(source).block_shuffle(seed=2, window_blocks=4).batch(8)
    whole = list(dataset)
    iterator = iter(dataset)
    for _ in range(45):  # in the middle of a window and of a chunk
        next(iterator)
    state = json.loads(json.dumps(iterator.get_state()))
    iterator.close()
    source.started.clear()
    again = iter(dataset)
    again.set_state(state)
    assert source.started == []
    for got, wanted in itertools.zip_longest(again, whole[45:]):
        np.testing.assert_array_equal(got, wanted)
    needed = {16 * (row // 16) for batch in whole[45:] for row in batch[:, 0].tolist()}
    assert sorted(source.started) == sorted(needed)


# --- copies --------------------------------------------------------------------------------------


def test_chunks_are_read_into_one_allocation_that_no_batch_is_part_of() -> None:
    source = pieced(160, 16)
    batches = list(MapDataset.source(source).shuffle(seed=1).batch(16))
    into = source.readers[""].into
    assert into[0].base is into[-1].base
    assert not any(np.shares_memory(b, into[0].base) for b in batches)


def slots_used(source: PiecedSource) -> int:
    """Different places that chunks were read into."""
    return len({span.__array_interface__["data"][0] for span in source.readers[""].into})


def test_memory_for_chunks_keeps_to_its_budgets() -> None:
    source = pieced(100 * 16, 16)
    dataset = MapDataset.source(source).shuffle(seed=1).batch(16)
    list(dataset.to_iter_dataset(budget(20 * 4 * 16)))
    assert slots_used(source) == 20


@pytest.mark.parametrize("resident", [100, 100_000])
@pytest.mark.parametrize("shuffled", [False, True])
def test_what_was_given_out_is_not_kept_alive(shuffled: bool, resident: int) -> None:
    source = pieced(400, 16)
    dataset = MapDataset.source(source)
    dataset = dataset.shuffle(seed=1) if shuffled else dataset
    alive: list[weakref.ref[Any]] = []
    gc.disable()  # nothing may wait for a collection of cycles
    try:
        for batch in dataset.batch(16).to_iter_dataset(budget(resident)):
            source.readers[""].into.clear()
            alive = [memory for memory in alive if memory() is not None]
            alive.append(weakref.ref(batch if batch.base is None else batch.base))
            assert len(alive) <= 20  # as much as is made ahead
    finally:
        gc.enable()


class Letters(ListPart):
    """Chunks of ten records, the later ones large; counts the lists of records that are alive."""

    name = ""
    alone = False
    chunk_count = 300

    def __init__(self) -> None:
        self.alive: list[weakref.ref[Letters.Chunk]] = []
        self.most = 0

    class Chunk(list[bytes]):
        """A list that can be watched."""

    def needs(self, indices: IntArray) -> Needs:
        return Needs(np.arange(len(indices)), indices // 10)

    def places(self, indices: IntArray) -> IntArray:
        return indices % 10

    def decoded_bytes(self, chunks: IntArray) -> IntArray:
        return np.where(chunks < 100, 10, 10_000)

    def stored_bytes(self, chunks: IntArray) -> IntArray:
        return self.decoded_bytes(chunks)

    def read(self, indices: IntArray) -> list[bytes]:
        return [b"%d" % index for index in indices.tolist()]

    def start(self, chunks: Sequence[int], pool: Executor) -> Future[list[list[Any]]]:
        made = [self.Chunk(self.read(np.arange(10 * p, 10 * p + 10))) for p in chunks]
        self.alive = [chunk for chunk in self.alive if chunk() is not None]
        self.alive += map(weakref.ref, made)
        self.most = max(self.most, len(self.alive))
        done: Future[list[list[Any]]] = Future()
        done.set_result(list(made))
        return done


class LetterSource(LaidOutSource):
    def __init__(self) -> None:
        self.letters = Letters()

    @property
    def parts(self) -> Sequence[Letters]:
        return [self.letters]

    def __len__(self) -> int:
        return 3_000

    def read(self, indices: IntArray) -> list[bytes]:
        return self.letters.read(indices)

    def assembled(self, columns: Sequence[Any], indices: IntArray) -> Any:
        return columns[0]

    def blocks(self) -> IntArray:
        return np.arange(0, 3_001, 10)

    @property
    def fingerprint(self) -> str:
        return "letters"


def test_lists_of_records_are_let_go_with_their_slots() -> None:
    source = LetterSource()
    dataset = MapDataset.source(source).shuffle(seed=1).batch(5)
    # The budget has room for six large chunks, which is not the room for small chunks.
    options = room_for(240_000)
    got = [record for batch in dataset.to_iter_dataset(options) for record in batch]
    assert sorted(map(int, got)) == list(range(3_000))
    assert source.letters.most <= 6 + 2


# --- errors --------------------------------------------------------------------------------------


def test_an_error_is_of_the_batches_that_need_the_record_and_of_no_other() -> None:
    # Chunks of a few bytes are read many to a task, and the task fails as a whole.
    source = pieced(200, 10, broken=105)
    dataset = MapDataset.source(source).slice([*range(100), *range(110, 200), 105]).batch(10)
    iterator = iter(dataset.to_iter_dataset(ReadOptions(memory_bytes=1)))
    assert [int(next(iterator)[0, 0]) for _ in range(19)] == [
        *range(0, 100, 10),
        *range(110, 200, 10),
    ]
    with pytest.raises(ReadError, match=r"record 105 is broken"):
        next(iterator)
    iterator.close()


class Passing(CountingRows):
    """The first read fails once; another read that began with it ends during a later one."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        super().__init__(array)
        self._late: tuple[Sequence[Span], Future[None]] | None = None

    def start(self, spans: Sequence[Span], pool: Executor) -> Future[None]:
        first, future = not self.started, Future[None]()
        done = super().start(spans, pool)
        if first:
            future.set_exception(ReadError("no connection"))
            return future
        if self._late is None and len(self.started) == 2:
            self._late = spans, future
            return future
        if self._late is not None and not self._late[1].done():
            super().start(self._late[0], pool)
            self._late[1].set_result(None)
        return done


def test_a_chunk_that_a_dropped_round_wanted_too_is_read_whole() -> None:
    source = pieced(32, 16)
    node = MapDataset.source(source).to_iter_dataset(budget(1_000))._node
    assert isinstance(node, ToStreamNode)
    run = RunContext(node)
    ahead = run.prefetcher(node)
    assert ahead is not None
    part = ahead.of(source, source.parts[0])
    assert part is not None
    part.plan(0, np.arange(8))
    finish = part.plan(1, np.arange(8, 16))
    ahead.drop(0)
    np.testing.assert_array_equal(finish(), source.readers[""].array[8:16])
    run.end_threads()


def test_memory_that_is_being_read_into_is_not_used_again_after_an_error() -> None:
    source = pieced(8 * 16, 16, width=4096)  # large enough for a task of its own
    reader = Passing(source.readers[""].array)
    object.__setattr__(source.parts[0], "reader", reader)
    rows = np.arange(8 * 16).reshape(4, 32)[:, ::-1].ravel()  # backwards: none is read straight
    dataset = MapDataset.source(source).slice(rows).batch(32)
    two_slots = ReadOptions(memory_bytes=1)
    got = np.concatenate(list(dataset.to_iter_dataset(two_slots)))
    np.testing.assert_array_equal(got[:, 0], rows)


# --- side by side --------------------------------------------------------------------------------


class Meeting(CountingRows):
    """Rows whose first read ends only when a first read of every other such array is under way."""

    def __init__(self, array: npt.NDArray[Any], barrier: threading.Barrier) -> None:
        super().__init__(array)
        self._barrier = barrier
        self._met = False

    def start(self, spans: Sequence[Span], pool: Executor) -> Future[None]:
        future = super().start(spans, pool)
        if not self._met:
            self._met = True
            done: Future[None] = Future()
            threading.Thread(target=self._meet, args=(future, done)).start()
            return done
        return future

    def _meet(self, future: Future[None], done: Future[None]) -> None:
        self._barrier.wait(timeout=300)
        future.result()
        done.set_result(None)


@pytest.mark.parametrize("combine", [MapDataset.mix, MapDataset.zip])
def test_sources_of_one_chain_are_read_side_by_side(combine: Any) -> None:
    barrier = threading.Barrier(3)
    sources = [pieced(64, 16) for _ in range(3)]
    for source in sources:
        reader = Meeting(source.readers[""].array, barrier)
        source.readers[""] = reader
        object.__setattr__(source.parts[0], "reader", reader)
    dataset = combine([MapDataset.source(source) for source in sources]).batch(8)
    assert len(list(dataset)) > 0


def test_windows_share_the_chunks_they_lie_in() -> None:
    source = pieced(500, 20, size=30, stride=7)
    dataset = MapDataset.source(source)
    got = np.concatenate(list(dataset.batch(9)))
    np.testing.assert_array_equal(got[:, 0, 0], np.arange(0, 471, 7))
    np.testing.assert_array_equal(got[:, -1, 0], np.arange(29, 500, 7))
    assert source.started == list(range(0, 500, 20))
    # So many chunks each that the native core leaves the plan to NumPy.
    wide = np.concatenate(list(MapDataset.source(pieced(100, 1, size=80)).batch(9)))
    np.testing.assert_array_equal(wide[..., 0], np.arange(21)[:, None] + np.arange(80))


# --- against the best there is -------------------------------------------------------------------


def test_a_global_shuffle_in_a_quarter_of_the_store_reads_as_seldom_as_it_can() -> None:
    chunks, rows, kept = 100, 64, 25
    width = 512  # of which the indices of a row are little
    source = pieced(chunks * rows, rows, width=width)
    dataset = MapDataset.source(source).shuffle(seed=1).repeat(6).batch(2 * rows)
    horizon = 3 * kept // 2
    options = room_for(4 * kept * rows * width * 8)
    counts = starts_by_batch(dataset, source, options)[2 * horizon : -horizon]
    # Nearly every batch needs nearly every chunk. Those with a slot are there; each read of another
    # serves the batches of one horizon and no more.
    fewest = (chunks - kept) / horizon
    assert np.mean(counts) <= 1.1 * fewest
