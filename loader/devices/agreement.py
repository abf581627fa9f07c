"""Agreement: processes end a stream together, before the first batch that one of them lacks.

Metadata do not show how many batches a filter leaves, and each process runs its own lanes. So before each batch every process says whether it has it. That goes through the
key-value store of `jax.distributed`, ahead of the loop: no device takes part, and no array is sent.

Contract:
1. All processes ask about the same batches in the same order; a batch is named by the number of rows
   before it. One process, the first by name, collects the answers and publishes the result.
2. A process that reads again after an error asks about batches again; it knows those results.
3. After a move (`set_state`, `skip`, `seek`), which all processes make together, names begin anew.
4. Keys of a batch are deleted when all processes have asked about the next one.
"""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from windrow.errors import PlanError, WorkerError

_PATIENCE_S: Final = 600.0
_PAUSE_S: Final = (0.001, 0.05)  # the first and the longest wait between two looks
_WAIT_MS: Final = 500

_lock = threading.Lock()
_runs: Final[collections.Counter[str]] = collections.Counter()


def store_of_jax() -> Any:
    """The client of the key-value store of `jax.distributed`.

    Raises:
        PlanError: If this process has no store.
    """
    from jax._src import distributed  # JAX has no public name for it

    client = distributed.global_state.client
    if client is None:
        raise PlanError(
            "to_jax: the processes must agree where this stream ends, through the key-value store of"
            " jax.distributed, and this process has none; call jax.distributed.initialize() first, or"
            " write repeat() before the batch"
        )
    return client


class Agreement:
    """What the processes of one iterator agree on."""

    def __init__(
        self,
        store: Any,
        own: int,
        all_of_them: Sequence[int],
        name: str,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        """Begin a run. Processes begin runs of one name in the same order.

        Args:
            store: The key-value store.
            own: The name of this process.
            all_of_them: The names of all processes that take part.
            name: The same in all of them: of the devices and the chain.
            patience_s: How long a process waits for the others.
        """
        whole = f"{name}/{','.join(map(str, all_of_them))}"
        with _lock:
            _runs[whole] += 1
            self._name = f"windrow/{whole}/{_runs[whole]}"
        self._store, self._own, self._all, self._patience_s = store, own, all_of_them, patience_s
        self._moves = 0
        self._begin()

    def _begin(self) -> None:
        self._agreed, self._end = -1, -1
        self._asked: str | None = None

    def moved(self) -> None:
        """Note that the iterator, in all processes, continues elsewhere."""
        self._moves += 1
        self._begin()

    def has(self, rows: int, has_batch: bool, stopped: Callable[[], bool]) -> bool:
        """Whether all processes have the batch that follows `rows` rows of the stream.

        Args:
            rows: Names the batch.
            has_batch: Whether this process has it.
            stopped: Whether to give up; the result is False then.

        Raises:
            WorkerError: If a process does not answer.
        """
        if 0 <= self._end <= rows:
            return False
        if rows <= self._agreed:
            return True
        found = self._exchange(f"{self._name}/{self._moves}/{rows}", has_batch, stopped)
        if found:
            self._agreed = rows
        elif not stopped():
            self._end = rows
        return found

    def _exchange(self, key: str, has_batch: bool, stopped: Callable[[], bool]) -> bool:
        self._store.key_value_set(
            f"{key}/has/{self._own}", str(int(has_batch)), allow_overwrite=True
        )
        if self._own == self._all[0]:
            result = self._collected(f"{key}/has/", stopped)
            if result is None:
                return False
            if self._asked is not None:
                self._store.key_value_delete(self._asked)
            self._asked = key
            self._store.key_value_set(f"{key}/all", str(int(result)), allow_overwrite=True)
            return result
        return self._published(f"{key}/all", stopped)

    def _collected(self, folder: str, stopped: Callable[[], bool]) -> bool | None:
        """Whether all have answered yes; None if this was stopped."""
        until_s, pause_s = time.monotonic() + self._patience_s, _PAUSE_S[0]
        while not stopped():
            answers = dict(self._store.key_value_dir_get(folder))
            if len(answers) >= len(self._all):
                return all(answer == "1" for answer in answers.values())
            if time.monotonic() > until_s:
                known = {key.rpartition("/")[2] for key in answers}
                raise _no_answer([n for n in self._all if str(n) not in known], self._patience_s)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S[1])
        return None

    def _published(self, key: str, stopped: Callable[[], bool]) -> bool:
        until_s = time.monotonic() + self._patience_s
        while not stopped():
            try:
                answer: str = self._store.blocking_key_value_get(key, _WAIT_MS)
            except Exception as error:  # of the runtime; its class has no public name
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise
                if time.monotonic() > until_s:
                    raise _no_answer(self._all[:1], self._patience_s) from error
                continue
            return answer == "1"
        return False


def _no_answer(missing: Sequence[int], patience_s: float) -> WorkerError:
    names = ", ".join(map(str, missing[:8])) + ("..." if len(missing) > 8 else "")
    return WorkerError(
        f"to_jax: process {names} did not say within {patience_s:g} s whether it has the next batch;"
        " see whether it runs, and whether all processes iterate the same chain and call set_state,"
        " skip and seek together"
    )
