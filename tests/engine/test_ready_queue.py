"""The queue between a prefetch thread and a loop: when the thread begins the next block."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from windrow.engine import prefetch_thread
from windrow.engine.prefetch_thread import ReadyBlock, ReadyQueue


class Stopped(threading.Event):
    """Notes for how long it was waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        return False


def block() -> ReadyBlock:
    row: Any = ["a row"]
    return ReadyBlock(row, 8, None)


@pytest.mark.parametrize(("blocks", "waits"), [(2, [0.0]), (1, [])])
def test_a_slow_loop_begins_its_step_before_the_thread_goes_on(
    monkeypatch: pytest.MonkeyPatch, blocks: int, waits: list[float]
) -> None:
    """If no block is left, the loop will wait: then the thread begins at once."""
    monkeypatch.setattr(prefetch_thread, "_STEP_BEGINS_S", 0.0)  # any wait was a long one
    stopped = Stopped()
    queue = ReadyQueue(blocks, 1 << 20, stopped)
    for _ in range(blocks):
        assert queue.put(block())
    thread = threading.Thread(target=queue.wait_for_room, args=(1, 8))
    thread.start()
    queue.get()
    thread.join(10.0)
    assert not thread.is_alive()
    assert stopped.waits == waits
