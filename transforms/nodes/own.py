"""A user's own nodes: subclasses of `MapDataset` and `IterDataset`.

They see datasets and iterators, not tables and positions. An own `MapDataset` is a function of its
index, and runs as one. An own `IterDataset` runs as the iterator that it makes. The position of its
stream is what that iterator returns from `get_state`, which includes what it asks of its parents.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from windrow.core.text import with_article
from windrow.errors import ElementError, PlanError, StateError
from windrow.transforms.amounts import Amount
from windrow.transforms.arguments import integer
from windrow.transforms.columns import PythonInts
from windrow.transforms.nodes.base import STREAM, VAST, Indices, Node, split_position
from windrow.transforms.nodes.leaves import LeafNode
from windrow.transforms.nodes.streams import StreamNode, lanes_of
from windrow.transforms.nodes.values import EachNode
from windrow.transforms.positions import Positions
from windrow.transforms.row_blocks import Block, Blocks, Inputs
from windrow.transforms.specs import Spec
from windrow.transforms.tables import Columnar, Listed, Table


@dataclasses.dataclass(frozen=True, eq=False)
class OwnIndicesNode(LeafNode):
    """The indices of an own `MapDataset`, whose parents read nothing by themselves."""

    size: Any

    is_half: ClassVar[bool] = True
    seed_depth: ClassVar[int] = 0
    hides_parents: ClassVar[bool] = True
    label: ClassVar[str] = "indices"

    def count(self) -> int:
        found = integer(self.size, "__len__")
        if found < 0:
            raise PlanError(f"__len__ must not be negative, got {found}")
        return found

    def is_endless(self) -> bool:
        return False

    def table(self, at: Positions) -> Table:
        return Columnar(at.offsets.view(PythonInts), len(at))


@dataclasses.dataclass(frozen=True, eq=False)
class OwnMapNode(EachNode):
    """The elements of an own `MapDataset`: `function` is its `__getitem__`."""

    name: str

    @property
    def label(self) -> str:
        return self.name

    @property
    def written(self) -> str:
        return self.name

    def spec(self, parents: Sequence[Spec]) -> Spec:
        raise PlanError(
            f"element_spec: {self.name} is a node of your own; read an element with ds.read_spec()"
        )

    def results(self, values: list[Any], indices: Indices) -> Iterator[Any]:
        return map(self.function, indices.tolist())


@dataclasses.dataclass(frozen=True, eq=False)
class OwnStreamNode(StreamNode):
    """The elements of an own `IterDataset`. Its integer is a number of `OwnStates`."""

    dataset: Any
    name: str

    position_width: ClassVar[int] = 1
    needs_many: ClassVar[bool] = True
    hides_parents: ClassVar[bool] = True

    def count(self) -> int:
        if lanes_of(self.parents, self.name) > 1:
            raise PlanError(
                f"{self.name}: a node of your own runs over one stream, and this one has lanes; leave"
                " out lanes= of to_iter_dataset"
            )
        return STREAM

    @property
    def label(self) -> str:
        return self.name

    def elements(self) -> Amount:
        return Amount(0, VAST)

    def never_ends(self) -> bool:
        return False

    def blocks(self, position: Sequence[int], inputs: Inputs, unit: int | None) -> Blocks:
        states, size, count = inputs.own_states(), inputs.row_count(), 0
        run = collections.deque[int]()
        with inputs.calling():
            iterator = self._iterator()
            if position[-1]:
                kept = states.of(position[-1])
                count, run = kept.elements, kept.run
                iterator.set_state(kept.value())
        try:
            while True:
                began, rows = inputs.now_s(), size.next_rows()
                with inputs.calling():
                    keep = functools.partial(states.add, run=run)
                    values, marks, error = self._taken(iterator, keep, count, rows)
                block = Block(Listed(values), np.array(marks, np.int64).reshape(-1, 1))
                count += len(values)
                if values:
                    size.saw(len(values), 0, inputs.now_s() - began)
                    yield block
                if error is not None:
                    raise error
                if len(values) < rows:
                    return
        finally:
            close = getattr(iterator, "close", None)  # a class of another library may have none
            if close is not None:
                close()

    def _iterator(self) -> Any:
        iterator = self.dataset.__iter__()  # `iter` would not name the class
        wanted = ("__next__", "get_state", "set_state")
        missing = [name for name in wanted if not callable(getattr(iterator, name, None))]
        if missing:
            raise ElementError(
                f"{self.name}: __iter__ returned {with_article(type(iterator).__name__)}, which has no"
                f" {' and no '.join(missing)}; return an instance of a subclass of"
                " windrow.DatasetIterator"
            )
        if getattr(iterator, "_is_own", True) is None:
            raise ElementError(
                f"{self.name}: the __init__ of {type(iterator).__name__} must call"
                " super().__init__(parents)"
            )
        return iterator

    def _taken(
        self, iterator: Any, keep: Callable[[int, str], int], count: int, rows: int
    ) -> tuple[list[Any], list[int], Exception | None]:
        """The next elements, the number of the state after each, and the error of the next one."""
        values, marks = list[Any](), list[int]()
        try:
            while len(values) < rows:
                value = next(iterator)
                text = self._text(iterator, is_first=not marks)
                marks.append(keep(count + len(marks) + 1, text))
                values.append(value)
        except StopIteration:
            return values, marks, None
        except Exception as error:
            error.add_note(f"windrow: raised in {self.name} for its element {count + len(values)}")
            return values, marks[: len(values)], error
        return values, marks, None

    def _text(self, iterator: Any, is_first: bool) -> str:
        state = iterator.get_state()
        if is_first and _has_other_keys(state):
            raise self._no_json(iterator, state, "JSON would make other keys of them")
        try:
            return json.dumps(state)
        except (TypeError, ValueError) as error:
            raise self._no_json(iterator, state, str(error)) from error

    def _no_json(self, iterator: Any, state: Any, why: str) -> StateError:
        return StateError(
            f"{self.name}: get_state of {type(iterator).__name__} must return JSON: dicts whose keys"
            f" are str, lists, str, int, float, bool and None; got {str(state)[:200]} ({why})"
        )


def _has_other_keys(state: Any) -> bool:
    """Whether a dict in a state has keys that are not str."""
    if isinstance(state, dict):
        return any(not isinstance(key, str) or _has_other_keys(state[key]) for key in state)
    return isinstance(state, (list, tuple)) and any(map(_has_other_keys, state))


def own_numbers(node: Node, position: Sequence[int]) -> list[int]:
    """The integers of own nodes in a position of a stream without lanes, parents first."""
    if node.hides_parents:
        return [position[-1]]
    parts = zip(node.parents, split_position(node, position), strict=False)
    return [n for parent, part in parts if parent.width for n in own_numbers(parent, part)]


def with_own_numbers(node: Node, position: Sequence[int], numbers: Iterator[int]) -> list[int]:
    """The position with other integers of own nodes, in the order of `own_numbers`."""
    if node.hides_parents:
        return [next(numbers)]
    *parts, own = split_position(node, position)
    found = list[int]()
    for parent, part in zip(node.parents, parts, strict=True):
        found += with_own_numbers(parent, part, numbers) if parent.width else part
    return [*found, *own]
