"""Bad rows: elements that cannot be read, or for which a function raised, are left out or replaced.

With random access `skip` is a filter and `replace` a map. The engine isolates the rows before the node
that raise (`windrow.engine.bad_rows`); the node says which errors it takes, and what comes instead.

On a stream each node before it that calls a function on elements drops those for which this raises
(`windrow.transforms.nodes.caught.Catch`), and the node itself changes nothing.

Invariant: what comes is a function of the chain, its seed and its data. An undamaged element is not
changed, and no state counts bad rows.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

import numpy as np

from windrow.errors import ArgumentError, PlanError, ReadError
from windrow.sources.base import IntArray
from windrow.transforms.amounts import Amount
from windrow.transforms.arguments import one_of
from windrow.transforms.lengths import RecordLengths
from windrow.transforms.nodes.base import STREAM, Indices, Node
from windrow.transforms.nodes.caught import NEVER, Catch, is_bad
from windrow.transforms.nodes.following import JoinsLanes, check_shards, joined, over
from windrow.transforms.nodes.streams import as_chain
from windrow.transforms.nodes.values import ValueNode
from windrow.transforms.nodes.whole_chain import walk
from windrow.transforms.options import ON_BAD, OnBad, checked_max_bad
from windrow.transforms.positions import Positions
from windrow.transforms.random import IndexedRandom
from windrow.transforms.row_blocks import Step
from windrow.transforms.specs import Spec
from windrow.transforms.tables import Table

BAD_ERRORS: Final[tuple[type[Exception], ...]] = (ReadError, ValueError)
"""The errors that make a record a bad one, by default."""

# The records that are tried in place of a bad one.
TRIES: Final = 16
# Numbers of nodes in this process. Copies of a node, in workers too, keep its number.
_tokens = itertools.count()


@dataclasses.dataclass(frozen=True, eq=False)
class OnBadNode(ValueNode):
    """The parent's elements, with a way to continue where one of them raises.

    Args:
        errors: The classes of errors that it takes.
        max_bad: The most bad records that a process may meet, or their share of each 1,000 elements;
            None for no limit.
        log: The file that they are appended to, if any.
        token: Names the node in this run, also in its workers.
    """

    errors: tuple[type[Exception], ...]
    max_bad: float | None
    log: str | None
    token: int = dataclasses.field(default_factory=lambda: next(_tokens), kw_only=True)

    takes_bad: ClassVar[bool] = True
    keeps_values: ClassVar[bool] = True
    looks_at_values: ClassVar[bool] = False
    # The seeds that later nodes derive do not change when it is added to a chain.
    seed_depth: ClassVar[int] = 0
    functions: ClassVar[tuple[Callable[..., Any], ...]] = ()

    action: ClassVar[OnBad]
    """What becomes of a bad record."""

    @property
    def label(self) -> str:
        names = ", ".join(sorted(error.__name__ for error in self.errors))
        return f"on_bad({self.action}, errors=[{names}])"

    def takes(self, error: BaseException) -> bool:
        """Whether a row that raised this error is a bad one."""
        return is_bad(error, self.errors)

    def spec(self, parents: Sequence[Spec]) -> Spec:
        return parents[0]

    def apply(self, table: Table, indices: Indices, cuts: Sequence[int]) -> Table:
        return table

    def lengths_of(self, at: Positions, known: RecordLengths) -> IntArray:
        raise PlanError(
            "lengths: on_bad decides by reading which elements are there; write it after what needs"
            " lengths"
        )


@dataclasses.dataclass(frozen=True, eq=False)
class SkipBadNode(OnBadNode):
    """Makes bad elements absent; the length stays. On a stream nodes before it drop them."""

    action: ClassVar[OnBad] = "skip"
    drops: ClassVar[bool] = True
    stream_step: ClassVar[Step] = Step.NOTHING

    def elements(self) -> Amount:
        found = super().elements()
        return Amount(0, found.high) if self.length == STREAM else found


@dataclasses.dataclass(frozen=True, eq=False)
class ReplaceBadNode(OnBadNode):
    """Has other elements of the parent in place of bad ones.

    Args:
        seed: Decides, with the index, which.
        spare: The parent with its sources, in a worker process, whose parent gets tables instead.
    """

    seed: int
    spare: Node | None = None

    action: ClassVar[OnBad] = "replace"

    @property
    def label(self) -> str:
        return f"{super().label[:-1]}, seed={self.seed})"

    def sent_over(self, parents: tuple[Node, ...]) -> Node:
        """The node in the half of a chain that is sent to workers, over parents of the same lengths."""
        return dataclasses.replace(self, parents=parents, spare=self.spare or self.parent)

    def other(self, at: Positions, tried: int) -> Positions:
        """The positions to try in place of some, after `tried` others."""
        draw = IndexedRandom(self.seed).at
        offsets = [
            draw(index).integers(self.length, size=tried + 1)[-1]
            for index in at.flat(self.length).tolist()
        ]
        return Positions(at.epochs, np.array(offsets, np.int64))


# --- on a stream ---------------------------------------------------------------------------------


def _catching(node: Node, settings: tuple[Any, ...], token: int) -> Node:
    """A stream whose nodes drop bad elements, back to its start or an `on_bad` node."""
    if node.takes_bad or node.hides_parents:
        return node
    if as_chain(node) is not None:
        if node.parent.has_gaps:  # rows that are planned from lengths need every element
            return node
        return over(node, (SkipBadNode(node.parents, *settings, token=token),))
    node = over(node, tuple(_catching(parent, settings, token) for parent in node.parents))
    if getattr(node, "of_lanes", None) is not None:  # a limit checks again what each lane has
        node = dataclasses.replace(node)
    if not node.functions or node.stream_step is Step.OWN:
        return node
    moved = copy.copy(node)
    object.__setattr__(moved, "caught", Catch(settings[0], token))
    return moved


# --- the method ----------------------------------------------------------------------------------


def on_bad_node(
    parent: Node, action: Any, errors: Any, max_bad: Any, log: Any, seed: int | None
) -> Node:
    """The chain that continues after bad records, in one of the ways of `ON_BAD`.

    Raises:
        ArgumentError: If an argument is of a wrong type.
        PlanError: If `action` is something else, `errors` is empty or has an error of the chain itself,
            or none of the parent's elements can be left out or replaced.
    """
    given = one_of(action, ON_BAD, "on_bad: action")
    kinds = _checked_errors(errors)
    most = checked_max_bad(max_bad, "on_bad: max_bad")
    path = None if log is None else os.fspath(log)
    if given == "raise":
        return parent
    if parent.length == STREAM:
        if given == "replace":
            raise PlanError(
                "on_bad: a stream has no other element that could come in place of a bad one; write"
                " on_bad('replace') before to_iter_dataset, or use 'skip'"
            )
        check_shards((parent,), who=f"on_bad({given!r})")
        parent = joined(parent)
        _check_batch_functions(parent)
        token, settings = next(_tokens), (kinds, most, path)
        return SkipBadNode((_catching(parent, settings, token),), *settings, token=token)
    if parent.has_gaps:
        raise PlanError(
            f"on_bad: {parent.label} plans rows from lengths, and needs every document; leave out bad"
            " records when the data are converted"
        )
    if given == "skip":
        return SkipBadNode((parent,), kinds, most, path)
    return ReplaceBadNode((parent,), kinds, most, path, seed or 0)


def _check_batch_functions(node: Node) -> None:
    """Refuse functions of batches of lanes, which are not left out alone."""
    for each in walk(node):
        if isinstance(each, JoinsLanes) and each.functions:
            raise PlanError(
                f"on_bad: {each.written} makes batches of the rows of {each.run_lanes[1]} lanes by a"
                " function, and one for which it raises cannot be left out; write it as map after batch"
            )


def _checked_errors(errors: Any) -> tuple[type[Exception], ...]:
    given = errors if isinstance(errors, (tuple, list)) else (errors,)
    if not given or not all(isinstance(e, type) and issubclass(e, Exception) for e in given):
        raise ArgumentError(
            f"on_bad: errors must be a class of exceptions, or a tuple of some, got {errors!r}"
        )
    own = [error.__name__ for error in given if issubclass(error, NEVER)]
    if own:
        raise PlanError(
            f"on_bad: {', '.join(own)} concerns the chain or the machine, not a record, and is always"
            " raised; leave it out of errors"
        )
    return tuple(given)
