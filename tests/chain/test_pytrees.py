"""Elements of classes that JAX knows as trees: batches stack their leaves, as Grain does."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import grain
import jax
import numpy as np
import pytest

import windrow
from windrow.errors import ElementError
from windrow.sources import ArraySpec

MapDataset = windrow.MapDataset


@dataclasses.dataclass
class Plain:
    """What no library knows."""

    tokens: Any
    mask: Any = None


@dataclasses.dataclass
class Known(Plain):
    """A dataclass that JAX knows; `name` belongs to the tree."""

    name: str = "n"


jax.tree_util.register_dataclass(Known, ["tokens", "mask"], ["name"])


class Build(windrow.transforms.Map):
    def map(self, n: int) -> Any:
        return {"of": Known(np.full(3, n), (np.ones(2, bool), n)), "n": n}


class Noisy(windrow.transforms.RandomMap):
    def random_map(self, element: Any, rng: np.random.Generator) -> Any:
        return element


def check(batch: Any, numbers: list[int]) -> None:
    of = batch["of"]
    assert type(of) is Known
    assert of.name == "n"
    assert of.tokens.tolist() == [[n] * 3 for n in numbers]
    assert of.mask[0].shape == (len(numbers), 2)
    assert of.mask[1].tolist() == numbers
    assert batch["n"].tolist() == numbers


def loader(workers: int, *operations: Any) -> Any:
    sampler = windrow.samplers.IndexSampler(6, num_epochs=1, seed=0)
    batch = windrow.transforms.Batch(2)
    return windrow.DataLoader(
        data_source=range(6),
        sampler=sampler,
        operations=[Build(), *operations, batch],
        worker_count=workers,
    )


def numbers() -> windrow.MapDataset[Any]:
    return MapDataset.range(6).map(Build())


class GrainBuild(grain.transforms.Map):  # type: ignore[misc]
    def map(self, n: int) -> Any:
        return Build().map(n)


BATCHES: dict[str, Callable[[], Any]] = {
    "random access": lambda: numbers().batch(2),
    "stream": lambda: numbers().to_iter_dataset().batch(2),
    "of columns": lambda: numbers().map(lambda columns: columns, batched=True).batch(2),
    "rebatched": lambda: numbers().batch(3).to_iter_dataset().rebatch(2),
    "in lanes": lambda: MapDataset.range(6).map(Build()).to_iter_dataset(lanes=1).batch(2),
    "in a worker": lambda: numbers().batch(2).mp_prefetch(1),
    "DataLoader": lambda: loader(0),
    "DataLoader with generators": lambda: loader(0, Noisy()),
    "DataLoader with a worker": lambda: loader(1, Noisy()),
    "from_grain": lambda: windrow.from_grain(
        grain.MapDataset.range(6).map(GrainBuild()).batch(2).to_iter_dataset()
    ),
}


@pytest.mark.parametrize("name", BATCHES)
def test_batches_stack_the_leaves(name: str) -> None:
    got = list(BATCHES[name]())
    for batch, first in zip(got, range(0, 6, 2), strict=True):
        check(batch, [first, first + 1])


def test_they_are_the_batches_of_grain() -> None:
    theirs = grain.MapDataset.range(6).map(GrainBuild()).batch(2)
    for one, other in zip(numbers().batch(2), theirs, strict=True):
        structures: list[Any] = [jax.tree.structure(each) for each in (one, other)]
        assert structures[0] == structures[1]
        assert jax.tree.all(jax.tree.map(np.array_equal, one, other))


def test_padded_batches_and_specs() -> None:
    rows = MapDataset.source([Known(np.arange(n)) for n in (1, 3, 2)])
    last = list(rows.batch(2, remainder="pad", pad_to=3))[1]
    assert last[0].tokens.tolist() == [[0, 1, 0], [0, 0, 0]]
    assert last[1].tolist() == [True, False]
    found = windrow.experimental.batch_and_pad([Known(np.arange(2))], batch_size=3, pad_value=7)
    assert found.tokens.tolist() == [[0, 1], [7, 7], [7, 7]]
    spec = numbers().batch(2).read_spec()["of"]
    assert spec.tokens == ArraySpec((2, 3), np.int64)
    assert spec.mask[1] == ArraySpec((2,), np.int64)


def test_global_arrays_of_a_batch() -> None:
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    rows = MapDataset.source([Known(np.arange(3, dtype=np.int32), np.float32(n)) for n in range(4)])
    for sharding in (device, Known(device, device)):
        got = next(iter(rows.batch(2).to_jax(sharding)))
        assert isinstance(got.tokens, jax.Array)
        assert (got.tokens.shape, got.mask.tolist()) == ((2, 3), [0.0, 1.0])
    kept = next(iter(rows.batch(2).to_jax(device, host=["mask"])))
    assert isinstance(kept.mask, np.ndarray)


def test_trees_that_differ_are_refused() -> None:
    for other in (Known(np.zeros(3), np.ones(1)), Known(np.zeros(3), name="other")):
        rows = MapDataset.source([Known(np.zeros(3)), other])
        with pytest.raises(ElementError, match=r"elements differ in structure\n.*Known\(tokens="):
            rows.batch(2)[0]
    with pytest.raises(ElementError, match=r"element 0 has shape \(3,\)"):
        MapDataset.source([Known(np.zeros(3)), Known(np.zeros(2))]).batch(2)[0]
    for pair in ([Known(np.zeros(3)), 3], ["text", Known(np.zeros(3))]):
        with pytest.raises(ElementError, match=r"elements differ in structure\n.*\n.*\nMake"):
            MapDataset.source(pair).batch(2)[0]


def test_shards_without_rows_have_the_same_tree() -> None:
    whole = numbers().batch(4)
    last = list(whole.shard(1, 2))[1]
    check_empty = jax.tree.map(lambda leaf: (leaf.dtype, leaf.shape[1:]), last)
    assert check_empty == jax.tree.map(lambda leaf: (leaf.dtype, leaf.shape[1:]), whole[0])
    assert {len(leaf) for leaf in jax.tree.leaves(last)} == {0}


def test_lists_of_trees_are_containers() -> None:
    rows = build_local().map(lambda element: [element])
    batches = rows.batch(2)
    assert [each.tokens.tolist() for each in batches[1]] == [[[2, 2], [3, 3]]]
    stream = batches.to_iter_dataset().rebatch(3)
    for chain in (stream, stream.mp_prefetch(1)):
        (batch,) = next(iter(chain))
        assert batch.tokens.tolist() == [[0, 0], [1, 1], [2, 2]]


def test_other_objects_stay_as_they_are() -> None:
    batch: Any = MapDataset.source([Plain(np.zeros(3)), Plain(np.zeros(3))]).batch(2)[0]
    assert [type(each) for each in batch] == [Plain, Plain]
    # A function of columns has the objects, also where they are trees.
    kinds = numbers().map(
        lambda columns: {"n": [type(each) for each in columns["of"]]}, batched=True
    )
    assert kinds[0] == {"n": Known}


def build_local() -> Any:
    """A class that worker processes get by value, so that JAX does not know it there."""

    @dataclasses.dataclass
    class Local:
        tokens: Any

    jax.tree_util.register_dataclass(Local, ["tokens"], [])
    return MapDataset.range(4).map(lambda n: Local(np.full(2, n)))


def test_a_worker_need_not_know_the_class() -> None:
    rows = build_local()
    got = list(rows.batch(2).mp_prefetch(1).map(lambda batch: batch.tokens.tolist()))
    assert got == [[[0, 0], [1, 1]], [[2, 2], [3, 3]]]
    twice = rows.batch(2).batch(2)
    assert next(iter(twice.mp_prefetch(1))).tokens.tolist() == twice[0].tokens.tolist()


@pytest.mark.parametrize(
    "then",
    [
        lambda ds: ds.batch(2).map(len),
        lambda ds: ds.batch(2, pad_to=4),
    ],
)
def test_functions_of_batches_of_unknown_classes_are_refused_in_workers(then: Any) -> None:
    with pytest.raises(ElementError, match=r"does not know whether JAX has Local as a tree.*jax"):
        list(then(build_local()).mp_prefetch(1))


def test_jax_is_not_imported() -> None:
    program = """
        import dataclasses, json, sys
        import numpy as np, windrow

        @dataclasses.dataclass
        class Plain:
            tokens: object

        if __name__ == "__main__":
            rows = windrow.MapDataset.range(4).map(lambda n: Plain(np.full(2, n))).batch(2)
            here = [[type(each).__name__ for each in batch] for batch in rows]
            lengths = list(rows.map(len).mp_prefetch(1))
            print(json.dumps([here, lengths, "jax" in sys.modules]))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == [[["Plain", "Plain"]] * 2, [2, 2], False]
