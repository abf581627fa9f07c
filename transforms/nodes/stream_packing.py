"""Nodes that pack the sequences of a stream into rows of fixed sizes, as they come.

`FitPackNode` keeps some rows open and closes all of them when a sequence fits into none.
`SplitPackNode` puts sequences end to end and cuts them where a row is full. Order, segment ids and
positions are as in Grain's packers.

Invariant: rows are a function of the parent's rows alone. A restored stream makes the open rows again,
from the parent's position before their first sequence.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np

from windrow.errors import ArgumentError, ElementError, PlanError
from windrow.sources.base import ArraySpec, IntArray
from windrow.transforms import bins, tables
from windrow.transforms.amounts import Amount
from windrow.transforms.arguments import at_least, integer
from windrow.transforms.bins import CutSequence, OpenRows, PackedFeature
from windrow.transforms.made_of import MadeOf, end_to_end
from windrow.transforms.nodes.base import VAST, Node
from windrow.transforms.nodes.idle import watch_of
from windrow.transforms.nodes.streams import StreamNode
from windrow.transforms.row_blocks import Block, Blocks, Inputs, check_inside, marks_in_group
from windrow.transforms.specs import Spec
from windrow.transforms.tables import Listed


class _StreamPackNode(StreamNode):
    """What both packers share: features, and what comes out."""

    features: tuple[PackedFeature, ...]
    needs_many: ClassVar[bool] = True
    packs: ClassVar[bool] = True

    def spec(self, parents: Sequence[Spec]) -> Spec:
        of = parents[0]
        found: dict[str, Any] = {}
        for feature in self.features:
            like = of
            for key in (feature.name, *feature.inside):
                like = like.get(key) if isinstance(like, dict) else None
            if isinstance(like, ArraySpec):
                feature.put(found, ArraySpec((feature.cells, *like.shape[1:]), like.dtype))
            else:
                feature.put(found, np.ndarray)
            if not feature.is_meta:
                for what in ("segment_ids", "positions"):
                    found[f"{feature.name}_{what}"] = ArraySpec((feature.cells,), np.int32)
        return found

    @property
    def features_label(self) -> str:
        """The features, in the label."""
        return ", ".join(_feature_label(feature) for feature in self.features)


def _feature_label(feature: PackedFeature) -> str:
    more = ", meta" if feature.is_meta else ""
    more += "" if feature.padding is None else f", padding={feature.padding!r}"
    more += "" if feature.alignment == 1 else f", alignment={feature.alignment}"
    return f"{feature.written}: {feature.cells}{more}"


class _Incoming(Iterator[tuple[Any, IntArray]]):
    """The elements of a stream, each with its mark; they are counted from 0."""

    def __init__(self, parent: Blocks) -> None:
        self._rows = self._each(parent)
        # What elements are made of, block by block, with the number of the first.
        self._known: collections.deque[tuple[int, MadeOf | None]] = collections.deque()

    def _each(self, parent: Blocks) -> Iterator[tuple[Any, IntArray]]:
        first = 0
        for block in parent:
            self._known.append((first, block.made_of))
            first += len(block)
            yield from zip(tables.elements(block.table), block.marks, strict=True)

    def __next__(self) -> tuple[Any, IntArray]:
        return next(self._rows)

    def made_of(self, rows: Sequence[Sequence[int]]) -> MadeOf | None:
        """What rows of elements are made of.

        Args:
            rows: The numbers of the elements of each row. Elements before all of them are forgotten.
        """
        first = min(map(min, rows))
        while len(self._known) > 1 and self._known[1][0] <= first:
            self._known.popleft()
        known = [each for _, each in self._known if each is not None]
        if len(known) < len(self._known):
            return None
        start = self._known[0][0]
        return end_to_end(known).packed([[n - start for n in row] for row in rows])


@dataclasses.dataclass(frozen=True, eq=False)
class FitPackNode(_StreamPackNode):
    """CutSequence packed into `rows` open rows, each into the first row that has room, or the fullest.

    Its own integers are the rows that were given before the open ones, and those given of them.
    """

    features: tuple[PackedFeature, ...]
    rows: int
    best: bool
    seed: int
    shuffles_rows: bool
    group_by: str | None
    most: int | None
    collected: tuple[str, ...]

    position_width: ClassVar[int] = 2

    @property
    def label(self) -> str:
        method = "best_fit" if self.best else "first_fit"
        more = f", seed={self.seed}" if self.shuffles_rows else ", shuffle_bins=False"
        more += "" if self.group_by is None else f", group_by={self.group_by}"
        more += "" if self.most is None else f", max_sequences_per_bin={self.most}"
        more += f", collected={list(self.collected)}" if self.collected else ""
        return f"pack({method}, {{{self.features_label}}}, num_packing_bins={self.rows}{more})"

    def spec(self, parents: Sequence[Spec]) -> Spec:
        found = super().spec(parents)
        found.update(dict.fromkeys(self.collected, list))
        return found

    def elements(self) -> Amount:
        found = self.parent.elements()
        return Amount(min(1, found.low), found.high)

    def blocks(self, position: Sequence[int], inputs: Inputs, unit: int | None) -> Blocks:
        before, (counter, given) = np.array(position[:-2], np.int64), position[-2:]
        packed: OpenRows | None = None
        last, coming, first = before, _Incoming(inputs.blocks(0, position[:-2])), 0
        watch = watch_of(self, inputs)
        for number, (element, mark) in enumerate(coming):
            packed = self._new(element) if packed is None else packed
            if packed.add(element):
                if watch.is_needed:
                    watch.saw(1, packed.has_new_cells, mark[None])
            else:
                watch.saw(0, used=True, marks=mark[None])
                block = self._closed(packed, before, last, counter, coming, first)
                check_inside(given, len(block))
                yield block.sliced(given, len(block))
                before, counter, given, first = last, counter + len(block), 0, number
                packed = self._new(element)
                packed.add(element)
            last = mark
        if packed is not None:
            block = self._closed(packed, before, last, counter, coming, first)
            check_inside(given, len(block))
            yield block.sliced(given, len(block))

    def _new(self, element: Any) -> OpenRows:
        return OpenRows(
            self.features,
            element,
            self.rows,
            best=self.best,
            most=self.most,
            collected=self.collected,
        )

    def _closed(
        self,
        packed: OpenRows,
        before: IntArray,
        after: IntArray,
        counter: int,
        coming: _Incoming,
        first: int,
    ) -> Block:
        """The open rows in the order in which they are given; `first` is their first element."""
        columns, count = packed.columns(), packed.count
        order = np.arange(count)
        if self.shuffles_rows:
            order = bins.shuffled_rows(columns, count, self.seed + counter, self.group_by)
        elements = [bins.row_of(columns, row) for row in order.tolist()]
        marks = marks_in_group(before, after, count, [counter])
        marks[-1, -2] = counter + count
        rows_of = coming.made_of([[first + n for n in packed.members[r]] for r in order.tolist()])
        return Block(Listed(elements), marks, rows_of)


@dataclasses.dataclass(frozen=True, eq=False)
class SplitPackNode(_StreamPackNode):
    """CutSequence end to end, cut where a row is full in one of the features.

    Its own integers are, for each feature but meta features, where what is left of the next sequence
    begins, and then the rows that were given since.
    """

    features: tuple[PackedFeature, ...]
    splits_whole_rows: bool
    first_token: tuple[tuple[str, int], ...]

    @property
    def label(self) -> str:
        more = "" if self.splits_whole_rows else ", split_full_length_features=False"
        more += "".join(f", {name} begins with {token}" for name, token in self.first_token)
        return f"pack(concat_then_split, {{{self.features_label}}}{more})"

    @property
    def width(self) -> int:
        return self.parent.width + self._own

    @property
    def _own(self) -> int:
        return sum(not feature.is_meta for feature in self.features) + 1

    def elements(self) -> Amount:
        most = self.parent.elements().high
        # CutSequence may be of any length; `VAST` stands for any finite number.
        return Amount(0, min(most * VAST, VAST) if math.isfinite(most) else most)

    def blocks(self, position: Sequence[int], inputs: Inputs, unit: int | None) -> Blocks:
        own, given = list(position[-self._own : -1]), position[-1]
        coming = _Coming(self, inputs, position[: -self._own], own)
        while True:
            begun = coming.place()
            rows, members = coming.next_rows()
            if not rows:
                return
            marks = np.tile(np.array([*begun, 0], np.int64), (len(rows), 1))
            marks[:, -1] = np.arange(1, len(rows) + 1)
            marks[-1] = [*coming.place(), 0]
            check_inside(given, len(rows))
            rows_of = coming.rows.made_of(members)
            yield Block(Listed(rows), marks, rows_of).sliced(given, len(rows))
            given = 0


class _Coming:
    """The sequences to come, and what is left of the one that was cut."""

    def __init__(
        self, node: SplitPackNode, inputs: Inputs, position: Sequence[int], starts: Sequence[int]
    ) -> None:
        self._node, self.rows = node, _Incoming(inputs.blocks(0, position))
        self._number, self._watch = -1, watch_of(node, inputs)
        before = np.array(position, np.int64)
        self._features, self._tokens = node.features, dict(node.first_token)
        # The parent's position before the sequence that is left, or before the next one.
        self._before, self._after = before, before
        self._left: CutSequence | None = None
        if any(starts):
            values = self._taken()
            if values is not None:
                own = iter(starts)
                at = tuple(0 if f.is_meta else next(own) for f in self._features)
                for value, start in zip(values, at, strict=True):
                    check_inside(start, bins.length_of(value) + 1)
                self._left = CutSequence(values, at)

    def place(self) -> list[int]:
        """The parent's position, and where what is left begins."""
        starts = [0] * len(self._features) if self._left is None else self._left.starts
        own = [s for f, s in zip(self._features, starts, strict=True) if not f.is_meta]
        at = self._after if self._left is None else self._before
        return [*at.tolist(), *own]

    def _taken(self) -> list[Any] | None:
        found = next(self.rows, None)
        if found is None:
            return None
        self._number += 1
        element, mark = found
        self._before, self._after = self._after, mark
        values = bins.values_of(element, self._features, all_keys=True)
        if self._watch.is_needed:
            self._watch.saw(1, any(map(bins.length_of, values)), mark[None])
        return values

    def next_rows(self) -> tuple[list[dict[str, Any]], list[list[int]]]:
        """The next row, and rows that were whole already and came while it was filled.

        Returns:
            The rows, and the numbers of the sequences in each.
        """
        parts: list[list[Any]] = []
        members: list[int] = []
        whole_members: list[list[int]] = []
        free = [feature.cells for feature in self._features]
        whole: list[dict[str, Any]] = []
        while True:
            if self._left is None:
                values = self._taken()
                if values is None:
                    break
                self._left = CutSequence(values, (0,) * len(values))
                if not self._node.splits_whole_rows and self._is_whole(values):
                    whole.append(bins.packed_row(self._features, [values], self._tokens))
                    whole_members.append([self._number])
                    self._left = None
                    continue
            fits = self._put(parts, free)
            members += [self._number] * (len(parts) - len(members))
            if not fits:
                break
        rows = [bins.packed_row(self._features, parts, self._tokens)] if parts else []
        return rows + whole, ([members] if parts else []) + whole_members

    def _is_whole(self, values: Sequence[Any]) -> bool:
        sizes = [bins.length_of(value) for value in values]
        cells = [feature.cells for feature in self._features]
        return all(map(int.__le__, sizes, cells)) and any(map(int.__eq__, sizes, cells))

    def _put(self, parts: list[list[Any]], free: list[int]) -> bool:
        """Put what is left into the row; False if it did not fit as a whole."""
        left = self._left
        if left is None:
            return True
        values = [left.taken(at) for at in range(len(self._features))]
        sizes = [bins.length_of(value) for value in values]
        for feature, size, room in zip(self._features, sizes, free, strict=True):
            if feature.is_meta and size > room:
                if not parts and room == feature.cells:
                    self._refuse(feature, size)
                return False
        if all(size <= room for size, room in zip(sizes, free, strict=True)):
            parts.append(values)
            for at, size in enumerate(sizes):
                free[at] -= size
            self._left = None
            return True
        taken = [
            size if feature.is_meta else min(size, room)
            for feature, size, room in zip(self._features, sizes, free, strict=True)
        ]
        starts = [
            0 if feature.is_meta else start + size
            for feature, start, size in zip(self._features, left.starts, taken, strict=True)
        ]
        if any(size for f, size in zip(self._features, taken, strict=True) if not f.is_meta):
            parts.append(
                [v if np.ndim(v) == 0 else v[:n] for v, n in zip(values, taken, strict=True)]
            )
            self._left = CutSequence(left.values, tuple(starts))
        return False

    def _refuse(self, feature: PackedFeature, size: int) -> None:
        raise ElementError(
            f"pack: the meta feature {feature.name!r} of an element has length {size}, and a row has"
            f" {feature.cells} cells for it; meta features are never cut: give length_struct more"
        )


# --- of the user's arguments ---------------------------------------------------------------------

_FIT_OPTIONS: Final[Mapping[str, Any]] = {
    "num_packing_bins": None,
    "seed": 0,
    "shuffle_bins": True,
    "shuffle_bins_group_by_feature": None,
    "meta_features": (),
    "pack_alignment_struct": None,
    "padding_struct": None,
    "max_sequences_per_bin": None,
}
_SPLIT_OPTIONS: Final[Mapping[str, Any]] = {
    "meta_features": (),
    "split_full_length_features": True,
    "bos_token_id": None,
    "bos_features": (),
}
_OPTIONS = {
    "first_fit": _FIT_OPTIONS,
    "best_fit": _FIT_OPTIONS,
    "concat_then_split": _SPLIT_OPTIONS,
}


def pack_node(
    parent: Node, length_struct: Mapping[str, Any], method: str, options: Mapping[str, Any]
) -> Node:
    """The node of `IterDataset.pack`.

    Raises:
        PlanError: If the method or an option is unknown, or a number is out of range.
        ArgumentError: If an argument has another type.
    """
    known = _OPTIONS.get(method)
    if known is None:
        raise PlanError(f"pack: method must be one of {', '.join(_OPTIONS)}, got {method!r}")
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise PlanError(f"pack: {method} has no option {unknown[0]!r}; it has {', '.join(known)}")
    if not isinstance(length_struct, Mapping) or not length_struct:
        raise ArgumentError(
            f"pack: length_struct must be a dict of the cells of each feature, got {length_struct!r}"
        )
    given = {**known, **options}
    features = _features(length_struct, given)
    if method == "concat_then_split":
        for feature in features:
            if feature.inside:
                raise PlanError(f"pack: {method} takes no dicts such as {feature.name!r}")
        return SplitPackNode(
            (parent,), features, bool(given["split_full_length_features"]), _first_tokens(given)
        )
    if given["num_packing_bins"] is None:
        raise PlanError(f"pack: {method} needs num_packing_bins, the number of rows that are open")
    most, group_by = given["max_sequences_per_bin"], given["shuffle_bins_group_by_feature"]
    if group_by is not None and group_by not in {f.name for f in features if not f.inside}:
        raise PlanError(f"pack: shuffle_bins_group_by_feature {group_by!r} is not in length_struct")
    return FitPackNode(
        (parent,),
        features,
        at_least(1, given["num_packing_bins"], "pack: num_packing_bins"),
        method == "best_fit",
        at_least(0, given["seed"], "pack: seed"),
        bool(given["shuffle_bins"]),
        group_by,
        None if most is None else at_least(1, most, "pack: max_sequences_per_bin"),
        tuple(key for key in given["meta_features"] if key not in length_struct),
    )


def _features(
    length_struct: Mapping[str, Any], given: Mapping[str, Any]
) -> tuple[PackedFeature, ...]:
    paddings = given.get("padding_struct") or {}
    alignments = given.get("pack_alignment_struct") or {}
    for name, of in (("padding_struct", paddings), ("pack_alignment_struct", alignments)):
        strange = sorted(set(of) - set(length_struct))
        if strange:
            raise PlanError(f"pack: {name} has {strange[0]!r}, which is not in length_struct")
    return tuple(
        PackedFeature(
            name,
            at_least(1, cells, f"pack: length_struct[{name!r}]"),
            name in given["meta_features"],
            padding,
            at_least(1, alignment, f"pack: pack_alignment_struct[{name!r}]"),
            inside,
        )
        for name in length_struct
        for inside, cells, padding, alignment in _leaves(
            name, length_struct[name], paddings.get(name), alignments.get(name, 1), given
        )
    )


def _leaves(
    name: str, cells: Any, padding: Any, alignment: Any, given: Mapping[str, Any]
) -> Iterator[tuple[tuple[str, ...], Any, Any, Any]]:
    """The keys, cells, padding and alignment of a feature, or of all in a meta feature that is a dict."""
    if not isinstance(cells, Mapping):
        yield (), cells, padding, alignment
        return
    if name not in given["meta_features"]:
        raise PlanError(
            f"pack: {name!r} is a dict, which has no one row of segment ids; name it in meta_features,"
            " or map its values to keys of the element before"
        )
    for key, inner in cells.items():
        own = padding.get(key) if isinstance(padding, Mapping) else padding
        begins = alignment.get(key, 1) if isinstance(alignment, Mapping) else alignment
        for inside, *rest in _leaves(name, inner, own, begins, given):
            yield (key, *inside), *rest


def _first_tokens(given: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    names, token = given["bos_features"], given["bos_token_id"]
    if token is None:
        if names:
            raise PlanError("pack: bos_features need bos_token_id, the token that they begin with")
        return ()
    if not names:
        raise PlanError("pack: bos_token_id needs bos_features, the features that begin with it")
    both = sorted(set(names) & set(given["meta_features"]))
    if both:
        raise PlanError(f"pack: {both[0]!r} is in bos_features and in meta_features; choose one")
    return tuple((name, integer(token, "pack: bos_token_id")) for name in names)
