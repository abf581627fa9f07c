"""Agreement on the end of a stream, over a store in memory, with threads as processes."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

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
