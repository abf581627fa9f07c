"""Agreement on the end of a stream, over a store in memory, with threads as processes."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.hypothesis_profiles import examples
from windrow.devices.agreement import Agreement, store_of_jax
from windrow.errors import PlanError, WorkerError


class Store:
    """The methods of the key-value store that an agreement uses."""

    def __init__(self) -> None:
        self.held: dict[str, str] = {}
        self.sets = 0
        self._changed = threading.Condition()

    def key_value_set(self, key: str, value: str, *, allow_overwrite: bool) -> None:
        with self._changed:
            assert allow_overwrite or key not in self.held
            self.held[key] = value
            self.sets += 1
            self._changed.notify_all()

    def key_value_dir_get(self, folder: str) -> list[tuple[str, str]]:
        with self._changed:
            return [(key, value) for key, value in self.held.items() if key.startswith(folder)]

    def blocking_key_value_get(self, key: str, wait_ms: int) -> str:
        with self._changed:
            if not self._changed.wait_for(lambda: key in self.held, wait_ms / 1000):
                raise RuntimeError("DEADLINE_EXCEEDED: nothing came")
            return self.held[key]

    def key_value_delete(self, folder: str) -> None:
        with self._changed:
            for key in [key for key in self.held if key.startswith(f"{folder}/")]:
                del self.held[key]


def never() -> bool:
    return False


def batches(agreement: Agreement, own: int, *, first: int = 0) -> int:
    """The number of the batch before which all end, if this process has `own` of them."""
    number = first
    while agreement.has(8 * number, number < own, never):
        number += 1
    return number


def agreements(store: Store, count: int, name: str) -> list[Agreement]:
    # Each process counts its own runs, so here each gets a name of its own for one run.
    made = []
    for own in range(count):
        agreement = Agreement(store, own, range(count), name)
        agreement._name = f"windrow/{name}"
        made.append(agreement)
    return made


@given(lengths=st.lists(st.integers(0, 6), min_size=1, max_size=4))
@settings(max_examples=examples(20))
def test_all_end_before_the_first_batch_that_one_lacks(lengths: list[int]) -> None:
    store = Store()
    shards = agreements(store, len(lengths), "end")
    with ThreadPoolExecutor(len(lengths)) as pool:
        ends = list(pool.map(batches, shards, lengths))
        assert ends == [min(lengths)] * len(lengths)
        # Keys of the batches before are gone.
        steps = {key.split("/")[3] for key in store.held}
        assert steps == {str(8 * min(lengths))}
        # What is known is not asked for again: after an error a process reads again.
        sets = store.sets
        assert [batches(shard, 9) for shard in shards] == [min(lengths)] * len(lengths)
        assert store.sets == sets
        for shard in shards:  # all seek to the start
            shard.moved()
        assert list(pool.map(batches, shards, lengths)) == [min(lengths)] * len(lengths)


@pytest.mark.parametrize("own", [0, 1])
def test_a_process_that_does_not_answer_is_named(own: int) -> None:
    agreement = Agreement(Store(), own, (0, 1), "alone", patience_s=0.0)
    with pytest.raises(WorkerError, match=f"process {1 - own} did not say within 0 s"):
        agreement.has(0, True, never)


@pytest.mark.parametrize("own", [0, 1])
def test_waiting_ends_when_the_iterator_stops(own: int) -> None:
    begun, agreement = time.monotonic(), Agreement(Store(), own, (0, 1), "stopped")
    assert not agreement.has(0, True, lambda: time.monotonic() > begun + 0.1)


def test_without_jax_distributed_it_is_refused() -> None:
    made: Any = pytest.raises(PlanError, match=r"call jax.distributed.initialize\(\) first")
    with made:
        store_of_jax()
