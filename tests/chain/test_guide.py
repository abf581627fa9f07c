"""The programs of the Grain guide, with `import windrow as grain` and nothing else changed."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from array_record.python import array_record_module

import windrow as grain

RECORDS = 1000


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file of 1,000 records, each 16 int32 of its number."""
    file = tmp_path_factory.mktemp("guide") / "cifar10-train.array_record-00000-of-00001"
    writer = array_record_module.ArrayRecordWriter(str(file), "group_size:1")
    for i in range(RECORDS):
        writer.write(np.full(16, i, np.int32).tobytes())
    writer.close()
    return str(file)


def parse_and_transform(record: bytes) -> dict[str, Any]:
    return {"record": np.frombuffer(record, np.int32)}


def test_random_access_program(path: str) -> None:
    data_source = grain.sources.ArrayRecordDataSource([path])
    dataset = (
        grain.MapDataset.source(data_source)
        .shuffle(seed=42)
        .map(parse_and_transform)
        .batch(batch_size=32, drop_remainder=True)
    )
    data_iterator = iter(dataset)
    seen, states = [], []
    for batch in data_iterator:
        assert batch["record"].shape == (32, 16)
        assert (batch["record"] == batch["record"][:, :1]).all()
        seen.append(batch["record"][:, 0])
        states.append(data_iterator.get_state())
    assert len(seen) == RECORDS // 32
    assert len(set(np.concatenate(seen).tolist())) == 31 * 32
    data_iterator.set_state(json.loads(json.dumps(states[4])))
    assert np.array_equal(next(data_iterator)["record"][:, 0], seen[5])


def test_transforms_as_classes(path: str) -> None:
    class Parse(grain.transforms.Map):
        def map(self, element: bytes) -> Any:
            return np.frombuffer(element, np.int32)

    class Jitter(grain.transforms.RandomMap):
        def random_map(self, element: Any, rng: np.random.Generator) -> Any:
            return element + rng.integers(10)

    class Even(grain.transforms.Filter):
        def filter(self, element: Any) -> bool:
            return bool(element[0] % 2 == 0)

    chain = grain.MapDataset.source(grain.sources.ArrayRecordDataSource(path)).seed(3)
    applied = chain.apply([Parse(), Jitter(), Even()]).to_iter_dataset()
    batches = list(applied.apply(grain.transforms.Batch(16)))
    firsts = np.concatenate([batch[:, 0] for batch in batches])
    assert 300 < len(firsts) < 700
    assert (firsts % 2 == 0).all()
