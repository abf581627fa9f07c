"""A node knows itself: nodes of our own, one of each kind, go through all that chains go through.

Nothing in the package knows the nodes of this file. They follow the contract in the header of
`windrow.transforms.nodes.base`, and the tests hold them, and with them the package, to it.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest

import windrow
from tests.workers.test_workers_stream import spread
from windrow import IterDataset, MapDataset
from windrow.errors import PlanError
from windrow.sources import ArraySpec
from windrow.sources.base import IntArray
from windrow.transforms import tables
from windrow.transforms.amounts import Amount
from windrow.transforms.nodes import (
    STREAM,
    EachNode,
    IndexNode,
    Indices,
    LeafNode,
    Node,
    RegroupNode,
    RoutingNode,
    Step,
    StreamNode,
    ValueNode,
)
from windrow.transforms.positions import Positions
from windrow.transforms.row_blocks import Block, Blocks, Inputs, check_inside, marks_in_group
from windrow.transforms.tables import Columnar, Listed, Table

INTEGER = ArraySpec((), np.int64)


# --- the nodes -----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class SquaresNode(LeafNode):
    """The first square numbers."""

    size: int

    def count(self) -> int:
        return self.size

    @property
    def label(self) -> str:
        return f"squares({self.size})"

    def spec(self, parents: Sequence[Any]) -> Any:
        return INTEGER

    def table(self, at: Positions) -> Table:
        return Listed((at.offsets**2).tolist())


@dataclasses.dataclass(frozen=True, eq=False)
class RotatedNode(IndexNode):
    """Each epoch from element `by` on, and then the elements before that."""

    shuffles: ClassVar[bool] = True

    by: int

    def count(self) -> int:
        if self.by < 0:
            raise PlanError(f"rotated: by must be at least 0, got {self.by}")
        return self.parent.length

    @property
    def label(self) -> str:
        return f"rotated({self.by})"

    def to_parent(self, at: Positions) -> Positions:
        return Positions(at.epochs, (at.offsets + self.by) % self.length)


@dataclasses.dataclass(frozen=True, eq=False)
class TurnsNode(RoutingNode):
    """Elements of two parents of one length in turn."""

    def count(self) -> int:
        return 2 * self.parent.length

    @property
    def label(self) -> str:
        return "turns"

    def route(self, at: Positions) -> tuple[IntArray, Positions]:
        return at.offsets % 2, Positions(at.epochs, at.offsets // 2)


@dataclasses.dataclass(frozen=True, eq=False)
class ScaledNode(ValueNode):
    """Each element times a factor, whole columns at a time."""

    factor: int

    @property
    def label(self) -> str:
        return f"scaled({self.factor})"

    def spec(self, parents: Sequence[Any]) -> Any:
        return parents[0]

    def apply(self, table: Table, indices: Indices, cuts: Sequence[int]) -> Table:
        if isinstance(table, Columnar) and table.present is None:
            return Columnar(table.tree * self.factor, table.rows)
        return Listed([None if e is None else e * self.factor for e in tables.elements(table)])


@dataclasses.dataclass(frozen=True, eq=False)
class NumberedNode(ValueNode):
    """Each element plus 1000 times its index."""

    position_width: ClassVar[int] = 1

    @property
    def label(self) -> str:
        return "numbered"

    @property
    def stream_step(self) -> Step:
        return Step.NUMBERED

    def spec(self, parents: Sequence[Any]) -> Any:
        return parents[0]

    def apply(self, table: Table, indices: Indices, cuts: Sequence[int]) -> Table:
        pairs = zip(tables.elements(table), indices.tolist(), strict=True)
        return Listed([None if e is None else e + 1000 * i for e, i in pairs])


@dataclasses.dataclass(frozen=True, eq=False)
class TwiceNode(EachNode):
    """A function of each element, called twice."""

    @property
    def label(self) -> str:
        return "twice"

    def results(self, values: list[Any], indices: Indices) -> Iterator[Any]:
        return map(self.function, map(self.function, values))


@dataclasses.dataclass(frozen=True, eq=False)
class PairsNode(RegroupNode):
    """Each element with the one after it."""

    def count(self) -> int:
        return max(0, self.parent.length - 1)

    @property
    def label(self) -> str:
        return "pairs"

    def spec(self, parents: Sequence[Any]) -> Any:
        return (parents[0], parents[0])

    def to_rows(self, at: Positions) -> tuple[Positions, IntArray]:
        offsets = (at.offsets[:, None] + np.arange(2)).ravel()
        return Positions(np.repeat(at.epochs, 2), offsets), np.arange(0, 2 * len(at) + 1, 2)

    def gather(self, table: Table, bounds: Sequence[int]) -> Table:
        values = tables.elements(table)
        return Listed([tuple(values[start:stop]) for start, stop in itertools.pairwise(bounds)])


@dataclasses.dataclass(frozen=True, eq=False)
class CopiesNode(StreamNode):
    """Each element as often as its remainder by `most` says: none, once or several times.

    Its own integer is the copies that were given of the parent's next element.
    """

    most: int

    position_width: ClassVar[int] = 1

    @property
    def label(self) -> str:
        return f"copies({self.most})"

    def elements(self) -> Amount:
        return Amount(0, (self.most - 1) * self.parent.elements().high)

    def blocks(self, position: Sequence[int], inputs: Inputs, unit: int | None) -> Blocks:
        before, given = np.array(position[:-1], np.int64), position[-1]
        for block in inputs.blocks(0, position[:-1]):
            for value, after in zip(tables.elements(block.table), block.marks, strict=True):
                copies = value % self.most
                if copies:
                    check_inside(given, copies)
                    marks = marks_in_group(before, after, copies)
                    yield Block(Listed([value] * copies), marks).sliced(given, copies)
                before, given = after, 0


# --- chains of them, and what they give ----------------------------------------------------------


def plus_one(number: int) -> int:
    return number + 1


def on(dataset: Any, make: Callable[..., Node], *fields: Any) -> Any:
    """The dataset with one more node."""
    node = make((dataset._node,), *fields)
    return IterDataset(node) if node.length == STREAM else MapDataset(node)


def chain() -> MapDataset[Any]:
    return MapDataset.source(np.arange(23))


def squares() -> MapDataset[Any]:
    return MapDataset(SquaresNode((), 23))


def copies_of(values: Sequence[int]) -> list[int]:
    return [value for value in values for _ in range(value % 4)]


@dataclasses.dataclass(frozen=True)
class Case:
    make: Callable[[], Any]
    wanted: list[Any]
    label: str
    is_known: bool = True  # whether the length is

    @property
    def is_random(self) -> bool:
        """Whether it has random access."""
        return isinstance(self.make(), MapDataset)


ORDER = [*range(5, 23), *range(5)]
CASES = {
    "leaf": Case(squares, [n**2 for n in range(23)], "squares(23)"),
    "index": Case(lambda: on(chain(), RotatedNode, 5), ORDER, "rotated(5)"),
    "routing": Case(
        lambda: MapDataset(TurnsNode((chain()._node, squares()._node))),
        [value for n in range(23) for value in (n, n**2)],
        "turns",
    ),
    "value": Case(
        lambda: on(on(chain(), RotatedNode, 5), ScaledNode, 3), [3 * n for n in ORDER], "scaled(3)"
    ),
    "value with its index": Case(
        lambda: on(on(chain(), RotatedNode, 5), NumberedNode),
        [n + 1000 * i for i, n in enumerate(ORDER)],
        "numbered",
    ),
    "function of each": Case(
        lambda: on(chain(), TwiceNode, plus_one), [n + 2 for n in range(23)], "twice(plus_one)"
    ),
    "regrouping": Case(
        lambda: on(on(chain(), RotatedNode, 5), PairsNode), list(itertools.pairwise(ORDER)), "pairs"
    ),
    "value of a stream with its number": Case(
        lambda: on(chain().filter(_is_odd).to_iter_dataset(), NumberedNode),
        [n + 1000 * i for i, n in enumerate(range(1, 23, 2))],
        "numbered",
        is_known=False,
    ),
    "regrouping of a stream, more": Case(
        lambda: on(chain().to_iter_dataset(), CopiesNode, 4),
        copies_of(range(23)),
        "copies(4)",
        is_known=False,
    ),
    "all together": Case(
        lambda: on(
            on(on(on(chain(), RotatedNode, 5), ScaledNode, 3).to_iter_dataset(), CopiesNode, 4),
            TwiceNode,
            plus_one,
        ).repeat(2),
        [n + 2 for n in copies_of([3 * n for n in ORDER])] * 2,
        "copies(4)",
        is_known=False,
    ),
}


def _is_odd(number: int) -> bool:
    return number % 2 == 1


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def plain(element: Any) -> Any:
    if isinstance(element, (tuple, list)):
        return type(element)(map(plain, element))
    return int(element)


def rest_of(iterator: Any) -> list[Any]:
    return [plain(element) for element in iterator]


# --- through everything --------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name].is_random])
def test_random_access_gives_the_elements_of_any_epoch(name: str) -> None:
    case = CASES[name]
    dataset = case.make()
    assert len(dataset) == len(case.wanted)
    wanted = [-1, 0, 7, 7, 2, len(dataset) + 3]
    got = rest_of(dataset.__getitems__(wanted))
    if case.label != "numbered":  # indices count on over the epochs
        assert got == [case.wanted[n % len(dataset)] for n in wanted]
    assert got == [plain(dataset[n]) for n in wanted]


def test_a_state_restores_at_every_element(case: Case) -> None:
    iterator = iter(case.make())
    for at in range(len(case.wanted) + 1):
        again = iter(case.make())
        again.set_state(json.loads(json.dumps(iterator.get_state())))
        assert rest_of(again) == case.wanted[at:]
        next(iterator, None)


def test_a_function_of_each_applies_to_tables_too() -> None:
    node = TwiceNode((chain()._node,), plus_one)
    made = node.apply(Listed([1, None, 3]), np.arange(3), [0, 3])
    assert tables.elements(made) == [3, None, 5]


def test_other_fields_are_another_chain() -> None:
    state = iter(on(chain(), RotatedNode, 5)).get_state()
    with pytest.raises(windrow.errors.StateError, match=r"rotated\(6\)"):
        iter(on(chain(), RotatedNode, 6)).set_state(state)


def test_workers_give_the_same(case: Case) -> None:
    assert rest_of(spread(case.make(), 2)) == case.wanted


def test_batches_filters_and_windows_after_it(case: Case) -> None:
    dataset = case.make()
    stream = dataset.to_iter_dataset() if isinstance(dataset, MapDataset) else dataset
    shuffled = rest_of(stream.window_shuffle(4, seed=1))
    assert sorted(shuffled) == sorted(plain(case.wanted))
    batches = stream.batch(3, batch_fn=list)
    assert [plain(e) for b in batches for e in b] == case.wanted
    assert rest_of(stream.limit(5).repeat(2)) == case.wanted[:5] * 2


@pytest.mark.parametrize(
    "name", [n for n in CASES if n not in ("function of each", "all together")]
)
def test_the_spec_is_that_of_an_element(name: str) -> None:
    dataset = CASES[name].make()
    assert dataset.element_spec == dataset.read_spec()


def test_a_node_that_declares_nothing_has_no_spec() -> None:
    with pytest.raises(PlanError, match="element_spec: twice has none"):
        _ = on(chain(), TwiceNode, plus_one).batch(2).element_spec


def test_explain_predicts_what_stats_counts(case: Case) -> None:
    dataset = case.make()
    explanation = dataset.explain()
    assert case.label in [line.label for line in explanation.nodes]
    assert all(line.runs for line in explanation.nodes)
    with iter(dataset) as iterator:
        elements = len(list(iterator))
        stats = iterator.stats()
    assert elements == len(case.wanted) == stats.elements
    assert elements in explanation.batches
    assert (explanation.length == elements) == case.is_known
    for predicted, counted in zip(explanation.epoch, stats.sources, strict=True):
        assert counted.records.low in predicted.records


def test_what_a_node_says_of_reading_is_believed() -> None:
    # Too long for a dry run to its end: whether all records are read is known of the node alone.
    records = 10**7
    long = MapDataset.source(np.broadcast_to(np.int8(0), records))
    (known,) = on(long, RotatedNode, 5).explain().epoch
    assert known.records == Amount.exactly(records)
    (seen,) = on(long, PairsNode).explain().epoch
    assert 2 * (records - 1) in seen.records
    assert not seen.records.is_exact


# --- faults --------------------------------------------------------------------------------------


def fails_at_7(number: int) -> int:
    if number == 7:
        raise ValueError("seven")
    return number


@dataclasses.dataclass(frozen=True, eq=False)
class FailingNode(ScaledNode):
    """Fails where a table has a 7."""

    def apply(self, table: Table, indices: Indices, cuts: Sequence[int]) -> Table:
        return Listed([fails_at_7(element) for element in tables.elements(table)])


@pytest.mark.parametrize("workers", [False, True])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("make", "argument"), [(FailingNode, 1), (TwiceNode, fails_at_7)])
def test_an_error_comes_after_all_elements_before_it(
    make: Any, argument: Any, stream: bool, workers: bool
) -> None:
    dataset = on(chain().to_iter_dataset() if stream else chain(), make, argument)
    iterator = spread(dataset, 2) if workers else iter(dataset)
    assert [int(next(iterator)) for _ in range(7)] == list(range(7))
    with pytest.raises(ValueError, match="seven") as raised:
        next(iterator)
    assert any(make((chain()._node,), argument).label in note for note in raised.value.__notes__)


@dataclasses.dataclass(frozen=True, eq=False)
class ShortNode(ScaledNode):
    """Loses a row."""

    def apply(self, table: Table, indices: Indices, cuts: Sequence[int]) -> Table:
        return Listed(tables.elements(table)[1:])


def test_a_table_of_other_rows_is_refused() -> None:
    with pytest.raises(windrow.errors.ElementError, match=r"scaled\(1\).* 3 rows of 4"):
        on(chain(), ShortNode, 1).__getitems__([0, 1, 2, 3])
