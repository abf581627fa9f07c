"""Agreement on the end of a stream with processes that say nothing."""

from __future__ import annotations

import time
from typing import Any

import pytest

from windrow.devices.agreement import Agreement, store_of_jax
from windrow.errors import PlanError, WorkerError


class Alone:
    """The key-value store where no other process says anything."""

    def __init__(self) -> None:
        self._held: dict[str, str] = {}

    def key_value_set(self, key: str, value: str, *, allow_overwrite: bool) -> None:
        self._held[key] = value

    def key_value_dir_get(self, folder: str) -> list[tuple[str, str]]:
        return list(self._held.items())

    def blocking_key_value_get(self, key: str, wait_ms: int) -> str:
        raise RuntimeError("DEADLINE_EXCEEDED: nothing came")

    def key_value_delete(self, folder: str) -> None:
        pass


def never() -> bool:
    return False


@pytest.mark.parametrize("own", [0, 1])
def test_a_process_that_does_not_answer_is_named(own: int) -> None:
    agreement = Agreement(Alone(), own, (0, 1), "alone", patience_s=0.0)
    with pytest.raises(WorkerError, match=f"process {1 - own} did not say within 0 s"):
        agreement.has(0, True, never)


@pytest.mark.parametrize("own", [0, 1])
def test_waiting_ends_when_the_iterator_stops(own: int) -> None:
    begun, agreement = time.monotonic(), Agreement(Alone(), own, (0, 1), "stopped")
    assert not agreement.has(0, True, lambda: time.monotonic() > begun + 0.1)


def test_without_jax_distributed_it_is_refused() -> None:
    made: Any = pytest.raises(PlanError, match=r"call jax.distributed.initialize\(\) first")
    with made:
        store_of_jax()
