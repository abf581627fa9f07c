"""Mixtures of streams: the next element is the next one of one of several parents."""

from __future__ import annotations

import copy
import dataclasses
import functools
import heapq
import math
import numbers
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from windrow.errors import ElementError
from windrow.sources.base import ArraySpec, IntArray
from windrow.transforms import tables
from windrow.transforms.amounts import Amount
from windrow.transforms.functions import call_without_stop, name_of
from windrow.transforms.made_of import MadeOf, merged
from windrow.transforms.mixtures import Mixture
from windrow.transforms.moves import Moved, Moves
from windrow.transforms.nodes.base import VAST, Node, split_position
from windrow.transforms.nodes.dealing import over_lane
from windrow.transforms.nodes.metadata import known_spec
from windrow.transforms.nodes.routing import (
    MixNode,
    length_of_mixture,
    mixture_of,
    shares_text,
)
from windrow.transforms.nodes.streams import MixingNode, lane_share
from windrow.transforms.row_blocks import Block, Blocks, Feed, Inputs, joined
from windrow.transforms.tables import Table


@dataclasses.dataclass(frozen=True, eq=False)
class StreamMixNode(MixingNode):
    """Streams in the proportions of `weights`, until the first one ends.

    With `drops_out` a stream that has ended leaves the others, until all have ended. Its own integers
    are the elements that were given and, if streams drop out, one more for each parent: 0 until it has
    dropped out, then one more than the element that it lacked.

    Args:
        sizes: Elements of parent `k` count `sizes[k]` tokens each; None if every element counts 1.
    """

    sizes: tuple[int, ...] | None = None

    looks_at_values: ClassVar[bool] = False
    keeps_elements: ClassVar[bool] = True

    def over_random_access(self, parents: tuple[Node, ...]) -> Node:
        return MixNode(parents, self.weights, self.drops_out, self.sizes)

    @functools.cached_property
    def mixture(self) -> Mixture:
        """The parent of each element, as long as no parent has dropped out."""
        return mixture_of(len(self.parents), self.weights, self.sizes)

    def count(self) -> int:
        mixture_of(len(self.parents), self.weights, self.sizes)
        return super().count()

    @property
    def follows_shard(self) -> bool:
        return self.sizes is None  # which are of whole batches

    @property
    def rules(self) -> str:
        by = "elements" if self.sizes is None else "equal tokens"
        return f"by {by}{', at_end=drop' if self.drops_out else ''}"

    @property
    def integers_of_part(self) -> int:
        return int(self.drops_out)

    @property
    def label(self) -> str:
        drops = ", at_end=drop" if self.drops_out else ""
        tokens = "" if self.sizes is None else f", by=tokens of {self.sizes}"
        return f"mix({shares_text(len(self.parents), self.weights)}{drops}{tokens})"

    def elements(self) -> Amount:
        lengths = [parent.elements() for parent in self.parents]
        if all(math.isinf(length.low) for length in lengths):
            return Amount.exactly(math.inf)
        bounds = [part.low for part in lengths], [part.high for part in lengths]
        low, high = (
            length_of_mixture(self.mixture, [int(min(b, VAST)) for b in side], self.drops_out)
            for side in bounds
        )
        endings = any if self.drops_out else all
        is_endless = endings(map(math.isinf, bounds[1]))
        return Amount(low, math.inf if is_endless else high)

    # --- how it runs -----------------------------------------------------------------------------

    def in_lane(self, lane: int, lanes: int) -> Node:
        moved = copy.copy(over_lane(self, lane, lanes))
        # Its weights change at the lane's own elements.
        dealt = self.mixture.dealt(lambda count: lane_share(count, lane, lanes))
        object.__setattr__(moved, "mixture", dealt)
        return moved

    def _mixture_after(self, ends: Sequence[int], share: Callable[[int], int]) -> Mixture:
        """The mixture of a lane after parents have dropped out.

        Args:
            ends: Integers of the position.
            share: See `Inputs.share`.
        """
        mixture = self.mixture.dealt(share)
        for end, number in sorted((end, number) for number, end in enumerate(ends) if end):
            mixture = mixture.without(number, end - 1)
        return mixture

    def blocks(self, position: Sequence[int], inputs: Inputs, unit: int | None) -> Blocks:
        *of_parents, (given, *ends) = split_position(self, position)
        parts = [np.array([part], np.int64) for part in of_parents]
        feeds = [Feed(inputs.blocks(number, part)) for number, part in enumerate(of_parents)]
        size, mixture = inputs.row_count(), self._mixture_after(ends, inputs.share)
        while mixture.stop is None or given < mixture.stop:
            began_s = inputs.now_s()
            rows = size.next_rows()
            rows = rows if mixture.stop is None else min(rows, mixture.stop - given)
            which, _ = mixture.choose(np.arange(given, given + rows))
            taken, rows, ended = _taken(feeds, which)
            if rows:
                block, parts = _mixture(which[:rows], taken, parts)
                size.saw(rows, tables.nbytes(block.table), inputs.now_s() - began_s)
                own = np.tile(np.array([given, *ends], np.int64), (rows, 1))
                own[:, 0] += np.arange(1, rows + 1)
                yield block.with_marks(own)
            given += rows
            if ended is None:
                continue
            if feeds[ended].error is not None:
                raise feeds[ended].error  # type: ignore[misc]
            if not self.drops_out:
                return
            ends[ended] = given + 1
            mixture = mixture.without(ended, given)

    def position_after(
        self, position: Sequence[int], count: int, moves: Moves, unit: int | None
    ) -> Moved:
        *parts, (given, *ends) = split_position(self, position)
        mixture = self._mixture_after(ends, moves.share)
        before = mixture.counts(given)
        have = [math.inf] * len(parts)  # elements of each parent that has ended
        stop = given + count
        while True:
            stop = stop if mixture.stop is None else min(stop, mixture.stop)
            wanted = [n - b for n, b in zip(mixture.counts(stop), before, strict=True)]
            moved = [
                moves.after(number, part, n) if n else Moved(list(part), 0)
                for number, (part, n) in enumerate(zip(parts, wanted, strict=True))
            ]
            short = [k for k, n in enumerate(wanted) if moved[k].passed < n]
            if not short:
                own = [n for each in moved for n in each.position]
                # What is found to have ended after the last element is found again from there.
                return Moved([*own, stop, *(e if e <= stop else 0 for e in ends)], stop - given)
            for number in short:
                have[number] = before[number] + moved[number].passed
            lengths = [VAST * VAST if math.isinf(n) else int(n) for n in have]
            end = mixture.end(lengths)
            if self.drops_out:
                lacking = int(mixture.choose(np.array([end]))[0][0])
                ends[lacking] = end + 1
                mixture = mixture.without(lacking, end)
            else:
                stop = end


def _taken(feeds: Sequence[Feed], which: IntArray) -> tuple[list[list[Block]], int, int | None]:
    """The rows that come from each parent, up to the first that a parent lacks.

    Returns:
        The rows of each parent, the number of rows of the mixture, and the parent that has ended.
    """
    rows, ended = len(which), None
    taken: list[list[Block]] = []
    for number, feed in enumerate(feeds):
        wanted = np.flatnonzero(which == number)
        taken.append(feed.take(len(wanted)))
        have = sum(map(len, taken[-1]))
        if have < len(wanted) and wanted[have] < rows:
            rows, ended = int(wanted[have]), number
    if ended is not None:
        for number, feed in enumerate(feeds):
            used = int(np.count_nonzero(which[:rows] == number))
            taken[number] = feed.keep(taken[number], used)
    return taken, rows, ended


def _mixture(
    which: IntArray, taken: Sequence[Sequence[Block]], before: Sequence[IntArray]
) -> tuple[Block, list[IntArray]]:
    """The rows of parents in the order of `which`, and the parents' positions after them."""
    merging: list[tuple[Table, IntArray]] = []
    marks: list[IntArray] = []
    known: list[tuple[MadeOf, IntArray]] = []
    for number, (parts, start) in enumerate(zip(taken, before, strict=True)):
        mine = which == number
        wanted = np.flatnonzero(mine)
        own = start
        if len(wanted):
            block = joined(parts)
            merging.append((block.table, wanted))
            known += [] if block.made_of is None else [(block.made_of, wanted)]
            own = np.concatenate([start, block.marks])
        marks.append(own[np.cumsum(mine)])
    table = tables.merged(merging, len(which))
    rows_of = merged(known, len(which)) if len(known) == len(merging) else None
    return Block(table, np.column_stack(marks), rows_of), [own[-1:] for own in marks]


# --- by tokens -----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class TokenMixNode(MixingNode):
    """Streams whose tokens, as far as they were given, are in the proportions of `weights`.

    The next element comes from the stream that has given the fewest tokens for its share, and of
    several such streams from the first. Its own integers are the elements that were given, and for
    each parent its tokens since the weights last changed.

    Args:
        tokens: Counts the tokens of an element, or the key of what is counted; None for the first
            leaf.
    """

    tokens: Any = None

    # A new parent would have given no tokens, and come alone until it has.
    keeps_integers: ClassVar[bool] = False

    def over_random_access(self, parents: tuple[Node, ...]) -> Node:
        return MixNode(parents, self.weights)

    @functools.cached_property
    def mixture(self) -> Mixture:
        """The shares of all parents, and where they change."""
        return mixture_of(len(self.parents), self.weights)

    def count(self) -> int:
        mixture_of(len(self.parents), self.weights)
        return super().count()

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        return (self.tokens,) if callable(self.tokens) else ()

    @property
    def rules(self) -> str:
        by = self.tokens if isinstance(self.tokens, str) else callable(self.tokens)
        return f"by tokens {by}{', at_end=drop' if self.drops_out else ''}"

    @property
    def integers_of_part(self) -> int:
        return 1

    @property
    def label(self) -> str:
        drops = ", at_end=drop" if self.drops_out else ""
        own = "" if self.tokens is None else " of a function"
        own = f" of {self.tokens!r}" if isinstance(self.tokens, str) else own
        return f"mix({shares_text(len(self.parents), self.weights)}{drops}, by=tokens{own})"

    def elements(self) -> Amount:
        found = [parent.elements() for parent in self.parents]
        low, high = sum(part.low for part in found), sum(part.high for part in found)
        return Amount(low if self.drops_out else 0, high)

    def blocks(self, position: Sequence[int], inputs: Inputs, unit: int | None) -> Blocks:
        *of_parents, (given, *amounts) = split_position(self, position)
        parts = [np.array([part], np.int64) for part in of_parents]
        rows = [_CountedRows(self, inputs, number, part) for number, part in enumerate(of_parents)]
        size, left = inputs.row_count(), set(range(len(rows)))
        segments = self.mixture.dealt(inputs.share).segments
        while True:
            began_s = inputs.now_s()
            *_, segment = (each for each in segments if each.start <= given)
            later = [each.start for each in segments if each.start > given]
            wanted = min([size.next_rows(), *(start - given for start in later[:1])])
            which, own, ended = _by_tokens(rows, segment.shares, left, amounts, wanted)
            if len(which):
                own[:, 0] += given + np.arange(1, len(which) + 1)
                given += len(which)
                if given in later:  # the tokens of each segment are counted by themselves
                    own[-1, 1:] = 0
                amounts = own[-1, 1:].tolist()
                block, parts = _mixture(which, [each.used() for each in rows], parts)
                size.saw(len(which), tables.nbytes(block.table), inputs.now_s() - began_s)
                yield block.with_marks(own)
            if ended is not None:
                rows[ended].check()
                left.discard(ended)
            if (ended is not None and not self.drops_out) or not any(
                segment.shares[number] for number in left
            ):
                return


class _CountedRows:
    """The rows of one parent, with the tokens of each."""

    def __init__(
        self, node: TokenMixNode, inputs: Inputs, number: int, position: Sequence[int]
    ) -> None:
        self._tokens, self._inputs = node.tokens, inputs
        self._feed = Feed(inputs.blocks(number, position))
        self._blocks: list[
            Block
        ] = []  # those with rows that are not used; the last has the next row
        self._next = 0  # row of the last block
        self._counts: Iterator[int] = iter(())
        self._error: Exception | None = None

    def next_tokens(self) -> int | None:
        """Take the next row, and return its tokens; None at the end or at an error."""
        try:
            while (count := self._next_count()) is None:
                block = self._feed.next_block()
                if block is None:
                    self._error = self._feed.error
                    return None
                self._blocks.append(block)
                elements = tables.elements(block.table)
                self._next, self._counts = 0, (tokens_of(e, self._tokens) for e in elements)
        except Exception as error:
            self._error = error
            return None
        self._next += 1
        return count

    def _next_count(self) -> int | None:
        if not callable(self._tokens):
            return next(self._counts, None)
        with self._inputs.calling():
            return next(self._counts, None)

    def used(self) -> list[Block]:
        """The rows taken since the last call."""
        if not self._blocks:
            return []
        *whole, last = self._blocks
        self._blocks = [last.sliced(self._next, len(last))]
        used, self._next = [*whole, last.sliced(0, self._next)], 0
        return [block for block in used if len(block)]

    def check(self) -> None:
        """Raise the error that ended the parent, if one did."""
        if self._error is not None:
            raise self._error


def _by_tokens(
    rows: Sequence[_CountedRows],
    shares: Sequence[int],
    left: Iterable[int],
    amounts: Sequence[int],
    wanted: int,
) -> tuple[IntArray, IntArray, int | None]:
    """Take up to `wanted` rows, each from the parent with the fewest tokens for its share.

    Returns:
        The parent of each row; int64 `(rows, 1 + parents)`, the tokens of each parent after it,
        behind a 0; and the parent that has no more rows.
    """
    whole = math.lcm(*(share for share in shares if share))
    cost = [whole // share if share else 0 for share in shares]
    tokens = list(amounts)
    waiting = [(tokens[number] * cost[number], number) for number in left if shares[number]]
    heapq.heapify(waiting)
    which: list[int] = []
    own: list[list[int]] = []
    ended: int | None = None
    while waiting and len(which) < wanted:
        number = waiting[0][1]
        count = rows[number].next_tokens()
        if count is None:
            ended = number
            break
        tokens[number] += count
        heapq.heapreplace(waiting, (tokens[number] * cost[number], number))
        which.append(number)
        own.append([0, *tokens])
    table = np.array(own, np.int64).reshape(len(own), 1 + len(tokens))
    return np.array(which, np.int64), table, ended


def tokens_of(element: Any, tokens: Any = None) -> int:
    """The tokens of an element: see `IterDataset.mix`.

    Raises:
        ElementError: If they cannot be counted.
    """
    if callable(tokens):
        count = call_without_stop(tokens, element)
    elif tokens is None:
        count = _rows_of(_first_leaf(element))
    else:
        found = _at_key(element, tokens)
        count = found.item() if getattr(found, "ndim", None) == 0 else found
        count = count if isinstance(count, numbers.Integral) else _rows_of(count)
    if isinstance(count, bool) or not isinstance(count, numbers.Integral) or count < 0:
        what = name_of(tokens) if callable(tokens) else "the first leaf"
        what = f"key {tokens!r}" if isinstance(tokens, str) else what
        raise ElementError(
            f"mix: the tokens of an element must be an integer of at least 0, got {count!r} from"
            f" {what}; give tokens= a function, or the key of an array or of a number"
        )
    return int(count)


def _at_key(element: Any, key: str) -> Any:
    try:
        return element[key]
    except (KeyError, TypeError, IndexError):
        raise ElementError(
            f"mix: tokens={key!r} is not a key of an element of type {type(element).__name__}"
        ) from None


def _rows_of(leaf: Any) -> int | None:
    """The length of the first axis; None for a number."""
    try:
        return len(leaf)
    except TypeError:
        return None


def _first_leaf(tree: Any) -> Any:
    """The first leaf of an element or of a spec; None if the tree is empty."""
    while isinstance(tree, (Mapping, list, tuple)):
        tree = next(iter(tree.values() if isinstance(tree, Mapping) else tree), None)
    return tree


def token_sizes(parents: Sequence[Node]) -> tuple[int, ...] | None:
    """The tokens of every element of each parent; None where they are not known to be equal."""
    leaves = [_first_leaf(known_spec(parent)) for parent in parents]
    sizes = [leaf.shape[0] for leaf in leaves if isinstance(leaf, ArraySpec) and leaf.shape]
    if len(sizes) < len(leaves) or not all(sizes):
        return None
    return tuple(size for size in sizes if size)
