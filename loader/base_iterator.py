"""What iterators of Windrow and a user's own iterators share: parents, checkpoints, `with`."""

from __future__ import annotations

import abc
import json
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from windrow.errors import PlanError

if TYPE_CHECKING:
    from windrow import state_files

T_co = TypeVar("T_co", covariant=True)


class BaseIterator(Iterator[T_co], Generic[T_co]):
    """An iterator with a state. A user's own iterator is over `_parents`."""

    _is_own = False
    _parents: tuple[Any, ...] = ()

    @property
    def _parent(self) -> Any:
        from windrow import own_nodes  # few processes have own nodes

        parent: Any = own_nodes.parent_of(self, self._parents)
        return parent

    def _check_is_chain(self, who: str) -> None:
        if self._is_own:
            raise PlanError(
                f"{who}: {type(self).__name__} is an iterator of your own, which has no such method;"
                " define it there, or call it of the iterator of a dataset after it"
            )

    def __iter__(self) -> Self:
        return self

    @abc.abstractmethod
    def get_state(self) -> dict[str, Any]:
        """The state after the element given last."""

    @abc.abstractmethod
    def set_state(self, state: dict[str, Any]) -> None:
        """Resume from a state."""

    @abc.abstractmethod
    def has_lanes_of(self, state: Any) -> bool:
        """Whether a state holds all lanes that this iterator runs."""

    @abc.abstractmethod
    def close(self) -> None:
        """Release everything."""

    async def save(self, directory: Any) -> state_files.Pending:
        """Write the state into a checkpoint of Orbax, which calls this for a checkpointable.

        The state is the one of now, also where it is written later.

        Args:
            directory: A path that Orbax creates.

        Returns:
            A coroutine that writes it.
        """
        from windrow import state_files  # few processes save so

        return state_files.written(directory, json.dumps(self.get_state()))

    async def load(self, directory: Any) -> state_files.Pending:
        """Restore the state in a checkpoint of Orbax, which calls this for a checkpointable.

        The coroutine raises what `set_state` raises, and NotFoundError if there is no state.

        Args:
            directory: The path of the checkpointable.

        Returns:
            A coroutine that reads and restores it.
        """
        from windrow import state_files

        return state_files.read_then(directory, self.has_lanes_of, self.set_state)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except Exception as raised:
            if error is None:
                raise
            error.add_note(f"windrow: closing the iterator raised too: {raised!r}")
