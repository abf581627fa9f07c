"""Batches on four virtual CPU devices of one process. `test_four_devices.py` runs this in a process of its own."""

from __future__ import annotations

import functools
import gc
import itertools
import json
import os
import threading
import warnings
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from tests.devices.cases import Noting, are_same, is_same
from tests.hypothesis_profiles import examples
from tests.processes import is_left, left, until
from windrow import MapDataset, ReadOptions
from windrow.checkpoint import CheckpointRestore, CheckpointSave
from windrow.devices.arrays import GlobalArrays, Narrowing
from windrow.devices.placement import Placement, RowParts
from windrow.errors import ArgumentError, ClosedError, ElementError, PlanError, StateError

P: Any = PartitionSpec
JAX: Any = jax  # some of its functions have no types
DEVICES = jax.devices()
REBUILDS = int(os.environ.get("WINDROW_REBUILDS", "20"))
SYNCHRONOUS = ReadOptions(num_threads=0, prefetch_buffer_size=0)
X = np.arange(64 * 24, dtype=np.float32).reshape(64, 4, 6)


def mesh(*shape: int, devices: Any = DEVICES) -> Mesh:
    count = int(np.prod(shape))
    return Mesh(np.array(devices[:count]).reshape(shape), ("data", "model")[: len(shape)])


def over(*axes: Any, shape: tuple[int, ...] = (2, 2)) -> NamedSharding:
    return NamedSharding(mesh(*shape), P(*axes))


# --- the same batches ------------------------------------------------------------------------------


class Pair(NamedTuple):
    one: Any
    other: Any


def chain_of(data: st.DataObject) -> Any:
    """A chain with a last batch."""
    size = data.draw(st.sampled_from([4, 8, 16]), "size")
    source = MapDataset.source({"x": X, "n": np.arange(64, dtype=np.int32)})
    source = source.shuffle(seed=data.draw(st.integers(0, 3), "seed"))
    options = data.draw(st.sampled_from([SYNCHRONOUS, ReadOptions(), ReadOptions(2, 3)]), "options")
    chain: Any
    match data.draw(st.sampled_from(["plain", "map", "tree", "lanes", "filter", "pad", "short"])):
        case "plain":
            return source.batch(size).to_iter_dataset(options)
        case "map":
            chain = source.map(lambda r: {**r, "x": r["x"] * 2}).to_iter_dataset(options)
            return chain.batch(size)
        case "tree":
            chain = source.map(lambda r: {"x": Pair(r["x"], (r["x"], r["x"])), "n": r["n"]})
            return chain.batch(size).to_iter_dataset(options)
        case "lanes":
            chain = source.to_iter_dataset(options, lanes=4).window_shuffle(7, seed=1)
            return chain.batch(size)
        case "filter":
            chain = source.to_iter_dataset(options, lanes=2).filter(lambda r: r["n"] % 3)
            return chain.batch(size, remainder="drop")
        case "pad":
            chain = source.to_iter_dataset(options).filter(lambda r: r["n"] % 3)
            return chain.batch(size, remainder="pad")
        case _:
            return source[:60].batch(size).to_iter_dataset(options)


@given(data=st.data())
@settings(max_examples=examples(60))
def test_the_shards_are_the_batches_of_the_plain_iterator(data: st.DataObject) -> None:
    dataset = chain_of(data)
    order = data.draw(st.permutations(DEVICES), "order")
    shape = data.draw(st.sampled_from([(1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4)]), "mesh")
    here = mesh(*shape, devices=order)
    rows = data.draw(st.sampled_from([None, "data", "model", ("data", "model")]), "rows")
    others = [name for name in ("data", "model") if name not in np.atleast_1d(str(rows))]
    if isinstance(rows, tuple):
        others = []
    # Axis 1 has 4 cells, axis 2 has 6: only the first is a multiple of every mesh.
    second = data.draw(st.sampled_from([None, *others]), "second axis")
    wide = NamedSharding(here, P(rows, second))
    flat = NamedSharding(here, P(rows))

    def sharding(path: tuple[Any, ...]) -> NamedSharding:
        return wide if "x" in path else flat

    prefetch = data.draw(st.integers(0, 3), "prefetch")
    plain = iter(dataset)
    expected, states, names = [], [plain.get_state()], []
    for batch in plain:
        expected.append(batch)
        states.append(plain.get_state())
        names.append(plain.records_of_last())
    is_one = second is None and data.draw(st.booleans(), "one for all")
    try:
        devices = dataset.to_jax(flat if is_one else sharding, prefetch=prefetch)
    except PlanError as error:
        message = str(error)  # checked after the block
        devices = None
    if devices is None:
        assert "is not a multiple of" in message
        cut = np.prod([here.shape[name] for name in np.atleast_1d(str(rows)) if name in here.shape])
        count = here.size if isinstance(rows, tuple) else cut
        assert any(len(jax.tree.leaves(batch)[-1]) % count for batch in expected)
        return
    cut = data.draw(st.integers(0, len(expected)), "cut")
    with iter(devices) as iterator:
        held = []
        for number in range(cut):
            held.append(next(iterator))
            assert iterator.get_state() == states[number + 1]
            assert iterator.records_of_last() == names[number]
        state = json.loads(json.dumps(iterator.get_state()))
    with iter(devices) as again:
        again.set_state(state)
        held += list(again)
        assert again.get_state() == states[-1]
    # All at once, at the end: memory of old batches was not used again.
    assert len(held) == len(expected)
    assert all(map(are_same, held, expected))


def test_one_device_and_a_tree_of_shardings() -> None:
    dataset = MapDataset.source({"x": X, "deep": {"a": X, "b": X[:, 0]}}).batch(8)
    one = SingleDeviceSharding(DEVICES[2])
    for batch, plain in zip(dataset.to_jax(one), dataset, strict=True):
        assert are_same(batch, plain)
        assert batch["x"].devices() == {DEVICES[2]}
    given = {"x": over("data", None, "model"), "deep": over("model")}
    for batch, plain in zip(dataset.to_jax(given), dataset, strict=True):
        assert are_same(batch, plain)
        assert batch["x"].sharding == given["x"]
        assert batch["deep"]["b"].sharding == given["deep"]


def test_packed_rows_and_a_map_of_whole_batches() -> None:
    documents = [np.full(n % 7 + 1, n, np.int32) for n in range(60)]
    packed = MapDataset.source(documents).repeat().pack(8).batch(4)
    plain = list(itertools.islice(packed, 3))
    for axes in (("data",), ("data", "model")):  # rows, and rows cut along the sequence
        with iter(packed.to_jax(over(*axes))) as batches:
            assert all(are_same(next(batches), batch) for batch in plain)
    halves = MapDataset.source(X).batch(8).map(lambda batch: batch / 2)
    assert all(map(is_same, halves.to_jax(over("data", "model")), halves))


def test_nothing_is_asked_about_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("to_jax asked which process this is")

    dataset = MapDataset.source(X).shuffle(seed=1).batch(8)
    expected = list(dataset)
    for name in (
        "process_index",
        "process_count",
        "local_devices",
        "local_device_count",
        "devices",
    ):
        monkeypatch.setattr(jax, name, refuse)
    assert all(map(is_same, dataset.to_jax(over("data", "model")), expected))


def test_a_batch_goes_through_jit_and_shard_map() -> None:
    dataset = MapDataset.source({"x": X, "n": np.arange(64, dtype=np.int32)}).batch(16)
    sharding = over("data")
    here = dataset.to_jax(sharding)
    step = jax.jit(lambda batch: batch["x"].sum() + batch["n"].sum())
    compiled = step.lower(here.element_spec).compile()
    for batch, plain in zip(here, dataset, strict=True):
        assert float(compiled(batch)) == float(plain["x"].sum() + plain["n"].sum())
    each = jax.shard_map(
        lambda x: JAX.lax.psum(x.sum(keepdims=True), "data"),
        mesh=sharding.mesh,
        in_specs=P("data"),
        out_specs=P(None),
    )
    assert float(jax.jit(each)(batch["x"])[0, 0, 0]) == float(plain["x"].sum())


# --- memory ----------------------------------------------------------------------------------------


def test_memory_of_old_batches_is_not_used_again() -> None:
    x = np.arange(2**20, dtype=np.float32).reshape(64, -1)  # batches come from the buffer pool
    dataset = MapDataset.source(x).shuffle(seed=2).repeat().batch(32)
    with iter(dataset.to_jax(over("data"))) as batches, iter(dataset) as plain:
        pairs = [(next(batches), np.array(next(plain))) for _ in range(10)]
    assert all(is_same(batch, expected) for batch, expected in pairs)


def test_memory_of_workers_is_not_used_again() -> None:
    x = np.arange(2**18, dtype=np.float32).reshape(64, -1)
    mapped = MapDataset.source(x).shuffle(seed=2).map(lambda row: row + 1).repeat().batch(32)
    with iter(mapped.mp_prefetch(1).to_jax(over("data"))) as batches, iter(mapped) as plain:
        pairs = [(next(batches), np.array(next(plain))) for _ in range(8)]
        assert batches.get_state()["rows"] == plain.get_state()["rows"]
    assert all(is_same(batch, expected) for batch, expected in pairs)


def test_old_batches_can_be_donated() -> None:
    x = np.arange(2**18, dtype=np.float32).reshape(64, -1)
    dataset = MapDataset.source(x).shuffle(seed=2).repeat().batch(16)
    scaled = jax.jit(lambda batch: batch * 0 - 1, donate_argnums=0)
    for sharding in (over("data"), over(None, "model")):
        with iter(dataset.to_jax(sharding)) as batches, iter(dataset) as plain:
            for _ in range(4):
                batch, expected = next(batches), next(plain)
                assert is_same(batch, expected)
                donated = scaled(batch)
                assert bool((donated == -1).all())


def test_rows_that_were_not_read_are_never_made_up() -> None:
    rows = np.arange(8, dtype=np.float32).reshape(4, 2)
    parts = RowParts((0, 3), 4)  # as in a process that has two of four devices
    for axes in ((None,), ("data",), (("data", "model"),)):
        arrays = GlobalArrays(Placement(over(*axes)), parts, Narrowing())
        with pytest.raises(ElementError, match="needs rows that this process did not read"):
            arrays.of(rows, list)
        with pytest.raises(ElementError, match="3 rows in this process, which takes 2 equal parts"):
            arrays.of(rows[:3], list)


def test_records_are_read_once_for_all_replicas() -> None:
    for axes in ((None,), ("data",), (("data", "model"),)):
        source = Noting(32)
        list(MapDataset.source(source).batch(8).to_jax(over(*axes)))
        assert sorted(source.indices) == list(range(32))


def test_few_batches_are_on_their_way() -> None:
    taken = threading.Semaphore(0)
    made: list[int] = []

    class Slow(GlobalArrays):
        def of(self, batch: Any, records: Any) -> Any:
            made.append(len(made))
            taken.release()
            return super().of(batch, records)

    dataset = MapDataset.source(X).repeat().batch(8)
    for prefetch, size_bytes, ahead in ((2, 1 << 30, 2), (8, 2 * X[:8].nbytes, 2), (8, 1, 1)):
        devices = dataset.to_jax(over("data"), prefetch=prefetch, prefetch_bytes=size_bytes)
        plan = devices._plan
        object.__setattr__(
            plan, "arrays", Slow(plan.arrays.placement, plan.arrays.parts, Narrowing())
        )
        with iter(devices) as batches:
            for given in range(1, 4):
                next(batches)
                assert until(functools.partial(lambda count: len(made) >= count, given + ahead))
                assert len(made) == given + ahead
            assert batches.stats().elements == 3
        made.clear()


def test_nothing_remains_of_many_iterators() -> None:
    meshes = [mesh(2, 2), mesh(4, 1), mesh(1, 2), mesh(2, 1, devices=DEVICES[::-1])]
    source = {"x": X, "n": np.arange(64, dtype=np.int32)}
    stream = MapDataset.source(source).to_iter_dataset(lanes=4).filter(lambda r: r["n"] % 5)
    stream = stream.repeat().batch(8)
    state: Any = None

    def rebuilt(number: int) -> Any:
        iterator = iter(stream.to_jax(NamedSharding(meshes[number % 4], P("data"))))
        if state is not None:
            iterator.set_state(state)
        next(iterator)
        return iterator

    def rebuild(numbers: range) -> None:
        nonlocal state
        for number in numbers:
            iterator = rebuilt(number)
            state = iterator.get_state()
            if number % 2:  # or it is only forgotten
                iterator.close()
            del iterator
        gc.collect()

    first = 4 + REBUILDS // 10  # what is made once: meshes, caches, memory that is used again
    rebuild(range(first))
    before, arrays = left(), len(JAX.live_arrays())
    memory = psutil.Process().memory_info().rss
    rebuild(range(first, first + REBUILDS))
    assert until(lambda: not is_left(before))
    assert until(lambda: len(JAX.live_arrays()) <= arrays)
    assert state["rows"] == (first + REBUILDS) * 8
    grown = psutil.Process().memory_info().rss - memory
    print(f"{REBUILDS} rebuilds: {grown / 2**20:.2f} MiB more")
    assert grown < 4 << 20  # an iterator has more than 4 KiB


# --- one controller --------------------------------------------------------------------------------


def colocated_chains() -> dict[str, Any]:
    source = {"x": X, "n": np.arange(64, dtype=np.int32)}
    rows = MapDataset.source(source).shuffle(seed=3)
    stream = rows.to_iter_dataset(lanes=4).filter(lambda r: r["n"] % 3).repeat().batch(8)
    return {
        "finite": rows.map(lambda r: {"x": Pair(r["x"], r["x"] * 2), "n": r["n"]}).batch(16),
        "lanes": stream,
        "packed": MapDataset.source([np.full(n % 7 + 1, n) for n in range(60)]).repeat().pack(8),
    }


@pytest.mark.filterwarnings("ignore:to_jax. leaves of 64 bits")
@pytest.mark.parametrize("name", list(colocated_chains()))
def test_hosts_of_a_controller_give_the_same_batches_and_states(name: str) -> None:
    chain = colocated_chains()[name]
    chain = chain.batch(8) if name == "packed" else chain

    def sharding(path: Any) -> NamedSharding:
        return over("data", "model") if "x" in path else over("data")

    given: Any = over("data") if name == "lanes" else sharding
    with iter(chain.to_jax(given, colocated=True)) as hosts, iter(chain.to_jax(given)) as plain:
        hosts.start_prefetch()
        for batch, expected in itertools.islice(zip(hosts, plain, strict=True), 4):
            assert are_same(sorted_keys(batch), jax.tree.map(np.asarray, expected))
            leaves = zip(jax.tree.leaves(batch), jax.tree.leaves(expected), strict=True)
            assert all(one.sharding == other.sharding for one, other in leaves)
            assert hosts.get_state() == plain.get_state()
        assert (next(hosts, None) is None) == (name == "finite")
    again = iter(chain.to_jax(given, colocated=True))
    with iter(chain) as whole:
        state = [next(whole), next(whole), whole.get_state()][-1]
        again.set_state(json.loads(json.dumps(state)))
        assert again.get_state() == state
        assert are_same(sorted_keys(next(again)), narrow(next(whole)))
    again.close()
    again.close()
    with pytest.raises(ClosedError, match="was closed"):
        next(again)


def sorted_keys(batch: Any) -> Any:
    """Dicts in JAX's order of keys. Before 0.10.1, JAX leaves the order where one process has all devices."""
    return jax.tree.map(lambda leaf: leaf, batch)


def narrow(batch: Any) -> Any:
    """The leaves that JAX has in place of leaves of 64 bits."""
    return jax.tree.map(lambda leaf: np.asarray(jax.numpy.asarray(leaf)), batch)


class Read:
    """Records that are numbers, and how many of them were read here: copies count for themselves."""

    fingerprint = "read"

    def __init__(self) -> None:
        self.count = 0

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        self.count += 1
        return np.float32(index)


def test_a_controller_reads_nothing_and_saves_one_state(tmp_path: Any) -> None:
    source, one = Read(), SingleDeviceSharding(DEVICES[1])
    chain = MapDataset.source(source).repeat().batch(8)
    with iter(MapDataset.range(64).repeat().batch(8)) as plain:
        wrong = plain.get_state()
    devices = chain.to_jax(one, colocated=True)
    with ocp.CheckpointManager(tmp_path) as manager, iter(devices) as batches:
        assert next(batches).tolist() == list(range(8))
        manager.save(1, args=ocp.args.Composite(data=CheckpointSave(batches)))
        manager.wait_until_finished()
        with iter(devices) as again:
            manager.restore(1, args=ocp.args.Composite(data=CheckpointRestore(again)))
            assert next(again).tolist() == list(range(8, 16))
            with pytest.raises(StateError):
                again.set_state(wrong)
            assert next(again).tolist() == list(range(16, 24))
    if jax.__version_info__ >= (
        0,
        10,
        1,
    ):  # an older one runs no copy where one process has all devices
        assert source.count == 0


class Announced(Read):
    """Says that a record is read, by all copies of this process."""

    fingerprint = "announced"
    is_read: ClassVar = threading.Event()

    def __getitem__(self, index: int) -> Any:
        self.is_read.set()
        return super().__getitem__(index)


def test_hosts_of_a_controller_read_ahead_when_told() -> None:
    one = SingleDeviceSharding(DEVICES[1])
    chain = MapDataset.source(Announced()).map(int).batch(8)
    with iter(chain.to_jax(one, colocated=True)) as batches:
        assert not Announced.is_read.is_set()
        batches.start_prefetch()
        assert Announced.is_read.wait(60)
        assert next(batches).tolist() == list(range(8))


def test_what_a_controller_cannot_run_is_refused() -> None:
    rows = MapDataset.source({"x": X})
    for chain, message in (
        (rows[:60].batch(8), "needs batches of one shape"),
        (rows.to_iter_dataset().filter(bool).batch(8, remainder="drop"), "whose end metadata show"),
        (rows, "needs a batch that ends the chain"),
    ):
        with pytest.raises(PlanError, match=message):
            chain.to_jax(over(), colocated=True)
    with pytest.raises(ArgumentError, match="returns arrays of devices alone"):
        rows.batch(8).to_jax(over("data"), host=("x",), colocated=True)


# --- moves, errors, the end ------------------------------------------------------------------------


def test_skip_and_seek_move_without_the_batches_on_their_way() -> None:
    source = Noting(64)
    dataset = MapDataset.source(source).shuffle(seed=3).batch(8)
    expected = [batch["n"].tolist() for batch in dataset]
    with iter(dataset.to_jax(over("data"))) as batches:
        assert next(batches)["n"].tolist() == expected[0]
        assert batches.skip(2) == 2
        assert next(batches)["n"].tolist() == expected[3]
        batches.seek(1)
        assert [batch["n"].tolist() for batch in batches] == expected[1:]
        assert batches.skip(1) == 0
    with pytest.raises(ClosedError, match="was closed"):
        next(batches)


def test_a_failed_read_comes_after_the_batches_before_it_and_is_tried_again() -> None:
    for options in (SYNCHRONOUS, ReadOptions(1, 2)):
        source = Noting(32, fails_at=17)
        dataset = MapDataset.source(source).to_iter_dataset(options).batch(8)
        iterator = iter(dataset.to_jax(over("data")))
        assert [next(iterator)["n"].tolist()[0] for _ in range(2)] == [0, 8]
        with pytest.raises(OSError, match="disk is away"):
            next(iterator)
        source.fails_at = None
        assert [batch["n"].tolist()[0] for batch in iterator] == [16, 24]


# --- leaves ----------------------------------------------------------------------------------------


def test_leaves_of_the_host_stay_in_numpy() -> None:
    rows = [{"x": np.float32(n), "name": f"r{n}", "deep": {"key": b"k", "n": n}} for n in range(8)]
    dataset = MapDataset.source(rows).batch(4)
    devices = dataset.to_jax(over("data"), host=("name", "deep"))
    for batch, plain in zip(devices, dataset, strict=True):
        assert is_same(batch["x"], plain["x"])
        assert isinstance(batch["name"], np.ndarray)
        assert batch["name"].tolist() == plain["name"]
        assert batch["deep"]["key"].tolist() == plain["deep"]["key"]
        assert batch["deep"]["n"].dtype == np.int64
    with pytest.raises(
        ElementError, match=r"leaf 'name' holds values of type str.*host=\('name',\)"
    ):
        next(iter(dataset.to_jax(over("data"), host=("deep",))))
    with pytest.raises(ArgumentError, match=r"host names 'nam', but batches have .*'name'"):
        next(iter(dataset.to_jax(over("data"), host="nam")))


def test_leaves_of_64_bits_become_leaves_of_32_with_one_warning() -> None:
    leaves = {"a": np.arange(16), "b": np.arange(16) / 3, "c": np.arange(16, dtype=np.uint64)}
    dataset = MapDataset.source(leaves).batch(4)
    with pytest.warns(UserWarning, match=r"a \(int64 to int32\), b \(float64 to float32\), c"):
        devices = dataset.to_jax(over("data"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batches = [*devices, *devices]
    for batch, plain in zip(batches[:4], dataset, strict=True):
        assert is_same(batch["a"], plain["a"].astype(np.int32))
        assert is_same(batch["b"], plain["b"].astype(np.float32))
        assert is_same(batch["c"], plain["c"].astype(np.uint32))
    unknown = MapDataset.range(16).map(lambda n: {"n": n}).batch(4)
    with pytest.warns(UserWarning, match=r"n \(int64 to int32\)") as seen:
        list(unknown.to_jax(over("data")))
    assert len(seen) == 1


def test_an_integer_that_does_not_fit_names_leaf_and_record() -> None:
    n = np.arange(32)
    n[21] = -(2**31) - 1
    dataset = MapDataset.source({"n": n}).shuffle(seed=1).batch(8)
    with pytest.warns(UserWarning, match="32 bits"):
        iterator = iter(dataset.to_jax(over("data")))
    message = (
        r"leaf 'n' has the value -2147483649 in row \d.*record=21\); it does not fit into int32"
    )
    with pytest.raises(ElementError, match=message):
        list(iterator)


def test_other_dtypes_are_kept() -> None:
    kinds: list[Any] = [np.bool_, np.int8, np.uint16, np.float16, np.complex64, jax.numpy.bfloat16]
    leaves = {np.dtype(kind).name: np.arange(8).astype(kind) for kind in kinds}
    leaves["swapped"] = np.arange(8).astype(">f4")
    dataset = MapDataset.source(leaves).batch(4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = list(dataset.to_jax(over("data")))
    assert found[1]["swapped"].tolist() == [4, 5, 6, 7]
    for batch, plain in zip(found, dataset, strict=True):
        assert all(is_same(batch[name], plain[name]) for name in leaves if name != "swapped")


# --- what is refused before anything is read -------------------------------------------------------


SHORT = MapDataset.source({"x": X}).slice(slice(61))
REFUSED: list[Any] = [
    lambda s: MapDataset.source(s).to_jax(over("data")),
    lambda s: MapDataset.source(s).batch(8).repeat().to_jax(over("data")),
    lambda s: MapDataset.source({"x": X}).batch(6).to_jax(over("data", shape=(4, 1))),
    lambda s: MapDataset.source({"x": X}).batch(8).to_jax(over(None, None, "data", shape=(4, 1))),
    lambda s: MapDataset.source({"y": X[:, 0, 0]}).batch(8).to_jax(over("data", "model")),
    lambda s: SHORT.batch(8).to_jax(over("data")),
    lambda s: SHORT.to_iter_dataset(lanes=4).batch(8).to_jax(over("data")),
    lambda s: (
        MapDataset.source({"t": np.array(["2020"] * 4, "M8[D]")}).batch(2).to_jax(over("data"))
    ),
    lambda s: MapDataset.source({"s": np.array(["a"] * 4)}).batch(2).to_jax(over("data")),
    lambda s: MapDataset.source({"s": np.array(["a"] * 4)}).batch(2).to_jax(over("data"), host="s"),
]


@pytest.mark.parametrize("make", REFUSED)
def test_what_does_not_fit_is_refused_before_anything_is_read(make: Any) -> None:
    source = Noting(64)
    with pytest.raises(PlanError):
        make(source)
    assert source.indices == []


def test_a_shape_that_no_spec_showed_is_refused_at_its_batch() -> None:
    ragged = MapDataset.range(8).map(lambda n: np.zeros(5, np.float32)).batch(4)
    with pytest.raises(ElementError, match=r"the batch has the global shape \(4, 5\); axis 1"):
        next(iter(ragged.to_jax(over("data", "model"))))


def test_a_function_is_asked_for_leaves_that_only_reading_shows() -> None:
    source = Noting(64)
    paths: list[Any] = []

    def sharding(path: Any) -> Any:
        paths.append(path)
        return over("data") if path == ("n",) else over(None, "data")

    for dataset in (
        MapDataset.source(source).batch(16),
        MapDataset.source(source).to_iter_dataset(lanes=4).filter(bool).repeat().batch(16),
    ):
        devices = dataset.map(lambda batch: batch, batched=True).to_jax(sharding)
        assert set(paths) == {("x",), ("n",)}
        with iter(devices) as found, iter(dataset) as plain:
            assert are_same(next(found), next(plain))


def test_a_short_last_batch_that_no_axis_cuts_is_given() -> None:
    stream = SHORT.to_iter_dataset(lanes=4).batch(8)
    assert all(map(are_same, stream.to_jax(over(None, "data")), stream))
    even = MapDataset.source({"x": X}).slice(slice(62)).batch(8)
    assert [batch["x"].shape[0] for batch in even.to_jax(over("data"))] == [8] * 7 + [6]
