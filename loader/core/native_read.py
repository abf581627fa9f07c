"""Reads in progress on the threads of the native core, as futures."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

Made = TypeVar("Made")
Other = TypeVar("Other")


class NativeRead(Future[Made]):
    """A read in progress on the core's own threads. It cannot be cancelled.

    What follows a read runs in the thread that asks for its result, which one thread must do. So
    functions that wait for any of several futures do not work with it, nor does `add_done_callback`.
    """

    def __init__(self, reading: Any, finish: Callable[[], Made], *, inline: bool = False) -> None:
        """Wait for `reading`; the result is what `finish` then returns or raises.

        With `inline` this thread reads, now.
        """
        super().__init__()
        self._reading = reading
        self._finish: Callable[[], Made] | None = finish
        if inline:
            reading.wait(help=True)

    def then(self, change: Callable[[Future[Made]], Other]) -> NativeRead[Other]:
        """Return the read of `change(self)`, which takes the place of this one."""
        return NativeRead(self._reading, lambda: change(self))

    def running(self) -> bool:
        """Whether it runs: from the start until it is done."""
        return not self.done()

    def done(self) -> bool:
        """Whether the result can be had without waiting for a read."""
        return super().done() or bool(self._reading.done())

    def result(self, timeout: float | None = None) -> Made:
        """Wait for the reads; raises the error of `finish`."""
        self._await(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the reads; the error of `finish`."""
        self._await(timeout)
        return super().exception(0)

    def _await(self, timeout: float | None) -> None:
        if super().done():
            return
        if not self._reading.wait(timeout):
            raise TimeoutError
        # Called once: it holds the memory that was read into.
        finish, self._finish = self._finish, None
        if finish is None:
            raise RuntimeError("another thread takes the result of this read")
        try:
            self.set_result(finish())
        except Exception as error:
            self.set_exception(error)
