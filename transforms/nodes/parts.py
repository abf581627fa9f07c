"""Parts of elements: a chain whose elements have only some cells of each leaf.

Boxes go down the chain as indices do. `boxes_of_parents` says which boxes of its parents' elements a node needs
for boxes of its own. A source that can be narrowed reads only these. Where a node needs whole
elements, `CutNode` cuts what it makes: that is right, and costs the reading of all of them.

Invariant: an element of the narrowed chain is the boxes of the element of the whole chain, bit for bit, and
its fingerprint, order and positions are the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

import numpy as np

from windrow.errors import ElementError
from windrow.sources.base import ArraySpec
from windrow.sources.cells import Box, Boxes, Path, cut
from windrow.transforms import tables
from windrow.transforms.amounts import Amount
from windrow.transforms.columns import rebuilt
from windrow.transforms.locality import are_whole, array_leaves, children, some_of, whole_box
from windrow.transforms.nodes.base import Indices, Node
from windrow.transforms.nodes.dealing import boxes_of_parents
from windrow.transforms.nodes.following import over
from windrow.transforms.nodes.metadata import element_bytes, known_spec
from windrow.transforms.nodes.values import ValueNode, grid_spec
from windrow.transforms.nodes.whole_chain import source_of
from windrow.transforms.record_sizes import spec_bytes
from windrow.transforms.specs import Spec
from windrow.transforms.tables import Columnar, Listed, Table

_PROMISE: Final = (
    "a map with local= keeps the leaves and axes of elements unless its function declares others by"
    " output_spec; declare them, or leave local= out"
)


def narrowed(node: Node, boxes: Boxes) -> Node:
    """The chain whose elements have only these boxes of their leaves."""
    return _BoxesOfParents().of(node, some_of(boxes))


class _BoxesOfParents:
    """Narrows chains; what several nodes have in common stays common."""

    def __init__(self) -> None:
        self._made: dict[Any, Node] = {}

    def of(self, node: Node, boxes: Boxes) -> Node:
        if not boxes:
            return node
        key = id(node), frozenset(boxes.items())
        if key not in self._made:
            self._made[key] = self._new(node, boxes)
        return self._made[key]

    def _new(self, node: Node, boxes: Boxes) -> Node:
        if not node.parents:
            leaf: Any = node
            own = leaf.with_boxes(boxes) if source_of(node) is not None else None
            return own or _cut(node, node, boxes)
        found = boxes_of_parents(node, boxes)
        if found is None:
            return _cut(node, node, boxes)
        asked, made = found
        parents = zip(node.parents, asked, strict=True)
        moved = over(node, tuple(self.of(parent, some_of(each)) for parent, each in parents))
        if made == boxes and not node.functions:
            return moved
        return _cut(node, moved, boxes, made)


def _cut(node: Node, moved: Node, boxes: Boxes, made: Boxes | None = None) -> Node:
    """Boxes of the elements of a node, out of the boxes `made` that `moved` makes, or of whole ones."""
    grid = grid_spec(node)
    whole = {path: whole_box(leaf) for path, leaf in array_leaves(grid)}
    have = {path: (made or {}).get(path, whole[path]) for path in {**boxes, **(made or {})}}
    want = {path: boxes.get(path, whole[path]) for path in have}
    return CutNode((moved,), grid, have, want)


@dataclasses.dataclass(frozen=True, eq=False)
class CutNode(ValueNode):
    """Boxes of the leaves of elements.

    Args:
        grid: The spec of whole elements, as `grid_spec` has it.
        have: The box of each leaf that the parent's elements have.
        want: The box of each of these leaves to cut.
    """

    grid: Spec
    have: Boxes
    want: Boxes

    is_unseen: ClassVar[bool] = True
    keeps_values: ClassVar[bool] = True
    label: ClassVar[str] = "part"
    functions: ClassVar[tuple[Callable[..., Any], ...]] = ()
    follows_batch: ClassVar[bool] = True
    follows_shard: ClassVar[bool] = True

    def spec(self, parents: Sequence[Spec]) -> Spec:
        return self._narrow_spec(parents[0], ())

    def _narrow_spec(self, spec: Spec, path: Path) -> Spec:
        box = self.want.get(path)
        if box is not None and isinstance(spec, ArraySpec):
            sizes = zip(spec.shape, self.have[path], box, strict=True)
            shape = [n if are_whole(h, w) else len(w) for n, h, w in sizes]
            return ArraySpec(shape, spec.dtype, spec.dims)
        found = [self._narrow_spec(child, (*path, key)) for key, child in children(spec)]
        return rebuilt(spec, found) if found else spec

    def element_bytes(self) -> Amount | None:
        size = spec_bytes(known_spec(self))
        return element_bytes(self.parent) if size is None else Amount.exactly(size)

    def apply(self, table: Table, indices: Indices, cuts: Sequence[int]) -> Table:
        table = tables.single(table)
        if isinstance(table, Columnar):
            return dataclasses.replace(table, tree=self._cut(table.tree, self.grid, (), 1))
        cut_each = [
            None if each is None else self._cut(each, self.grid, (), 0) for each in table.elements
        ]
        return Listed(cut_each)

    def _cut(self, tree: Any, grid: Spec, path: Path, first: int) -> Any:
        """The boxes of a tree, whose `first` leading axes count elements."""
        expected = children(grid)
        if not expected:
            if isinstance(tree, dict | tuple) and len(tree):
                raise self._another_tree(path, tree)
            box = self.want.get(path)
            if box is None:
                return tree
            if first and not isinstance(tree, np.ndarray):  # rows that are not one array
                return [self._leaf(row, path, box, 0) for row in tree]
            return self._leaf(tree, path, box, first)
        given, inside = children(tree), dict(expected)
        if {key for key, _ in given} != inside.keys():
            raise self._another_tree(path, tree)
        found = [self._cut(child, inside[key], (*path, key), first) for key, child in given]
        return rebuilt(tree, found)

    def _leaf(self, leaf: Any, path: Path, box: Box, first: int) -> Any:
        have, shape = self.have[path], np.shape(leaf)[first:]
        pairs = zip(shape, have, box, strict=False)
        fits = all(n == len(h) or are_whole(h, w) for n, h, w in pairs)
        if not fits or len(shape) != len(have):
            raise ElementError(
                f"{self.parent.written} made leaf {'/'.join(map(str, path))!r} of shape {shape} from a"
                f" part of an element, and {tuple(map(len, have))} was expected; {_PROMISE}"
            )
        return cut(np.asarray(leaf), box, have, first)

    def _another_tree(self, path: Path, tree: Any) -> ElementError:
        keys = [key for key, _ in children(tree)]
        where = f" at {'/'.join(map(str, path))!r}" if path else ""
        return ElementError(
            f"{self.parent.written} made the leaves {keys}{where} of a part of an element, and they"
            f" were expected as in {self.grid}; {_PROMISE}"
        )
