"""The iterators' protocol of torchdata, and `windrow.torch` over a stand-in for PyTorch.

The stand-in has what the module uses of PyTorch. Nothing here ran with PyTorch itself.
"""

from __future__ import annotations

import importlib
import itertools
import json
import sys
import types
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import windrow
from windrow import MapDataset
from windrow.errors import ArgumentError, MissingExtraError, PlanError, StateError

RECORDS = {"x": np.arange(40, dtype=np.float32).reshape(20, 2), "name": np.array(list("ab") * 10)}


class Tensor:
    """Holds the array that it was made of."""

    def __init__(self, array: Any) -> None:
        self.array = array


class WorkerInfo:
    """What a worker of a DataLoader sees."""

    def __init__(self, num_workers: int) -> None:
        self.num_workers = num_workers


def from_numpy(array: Any) -> Tensor:
    if array.dtype.kind not in "biufc":
        raise TypeError(f"can't convert np.ndarray of type {array.dtype.type}")
    if not array.dtype.isnative or any(stride < 0 for stride in array.strides):
        raise ValueError("the memory cannot be shared")
    if not array.flags.writeable:
        warnings.warn("The given NumPy array is not writable", stacklevel=2)
    return Tensor(array)


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the module be imported anew."""
    monkeypatch.delitem(sys.modules, "windrow.torch", raising=False)
    monkeypatch.delattr(windrow, "torch", raising=False)


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A stand-in for PyTorch; `torch.worker` is what `get_worker_info` returns."""
    found: Any = types.ModuleType("torch")
    utils: Any = types.ModuleType("torch.utils")
    data: Any = types.ModuleType("torch.utils.data")
    found.from_numpy, found.worker = from_numpy, None
    found.utils, utils.data = utils, data
    data.IterableDataset = type("IterableDataset", (), {})
    data.get_worker_info = lambda: found.worker
    for module in (found, utils, data):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    forget(monkeypatch)
    yield found
    sys.modules.pop("windrow.torch", None)
    vars(windrow).pop("torch", None)


def test_iterators_have_the_names_of_torchdata() -> None:
    dataset = MapDataset.range(20).shuffle(seed=1).batch(3)
    with iter(dataset) as first:
        next(first)
        state = json.loads(json.dumps(first.state_dict()))
        assert state == first.get_state()
        rest = [batch.tolist() for batch in first]
    with iter(dataset) as second:
        second.load_state_dict(state)
        assert [batch.tolist() for batch in second] == rest
        with pytest.raises(StateError, match="version"):
            second.load_state_dict({})


@pytest.mark.parametrize("kind", ["map", "iter"])
def test_arrays_become_tensors_over_the_same_memory(torch: Any, kind: str) -> None:
    given: list[Any] = []

    def noted(batch: Any) -> Any:
        given.append(batch)
        return batch

    dataset = MapDataset.source(RECORDS).batch(4).map(noted)
    stream: Any = dataset if kind == "map" else dataset.to_iter_dataset()
    batches = list(windrow.torch.IterableDataset(stream))
    assert len(batches) == len(given) == 5
    for batch, array in zip(batches, given, strict=True):
        assert np.shares_memory(batch["x"].array, array["x"])
        assert batch["name"] is array["name"]
    numbers = list(
        itertools.islice(windrow.torch.IterableDataset(MapDataset.source(np.arange(3))), 2)
    )
    assert [int(number.array) for number in numbers] == [0, 1]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", ["reversed", "read-only", "swapped", "strings"])
def test_arrays_that_pytorch_cannot_share_are_copied(torch: Any, kind: str) -> None:
    def changed(columns: Any) -> Any:
        x = columns["x"][:, ::-1] if kind == "reversed" else columns["x"].astype(">f4")
        if kind == "read-only":
            x = np.broadcast_to(np.float32(3), (4, 2))
        return {"x": np.array(columns["name"], ">U1") if kind == "strings" else x}

    batches = MapDataset.source(RECORDS).batch(4).map(changed)
    found = next(iter(windrow.torch.IterableDataset(batches)))["x"]
    expected = changed({name: array[:4] for name, array in RECORDS.items()})["x"]
    if kind == "strings":
        assert np.array_equal(found, expected)
    else:
        assert found.array.dtype == np.float32
        assert np.array_equal(found.array, expected)


def test_a_state_resumes(torch: Any) -> None:
    dataset = windrow.torch.IterableDataset(MapDataset.range(30).shuffle(seed=2).batch(4))
    first = iter(dataset)
    next(first)
    state, rest = first.state_dict(), [batch.array.tolist() for batch in first]
    again = iter(dataset)
    again.load_state_dict(state)
    assert [batch.array.tolist() for batch in again] == rest
    again.close()


def test_several_workers_are_refused(torch: Any) -> None:
    dataset = windrow.torch.IterableDataset(MapDataset.range(5))
    torch.worker = WorkerInfo(1)
    assert len(list(dataset)) == 5
    torch.worker = WorkerInfo(2)
    with pytest.raises(PlanError, match="num_workers=2 would give each element"):
        iter(dataset)
    with pytest.raises(ArgumentError, match="must be a MapDataset or an IterDataset, got"):
        windrow.torch.IterableDataset([1, 2])


def test_without_pytorch_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    forget(monkeypatch)
    with pytest.raises(MissingExtraError, match=r"windrow\.torch needs torch, .*pip install torch"):
        importlib.import_module("windrow.torch")
