"""One epoch of a chain that repeats for ever."""

from __future__ import annotations

from windrow.transforms.nodes.base import STREAM, Node
from windrow.transforms.nodes.following import over
from windrow.transforms.nodes.index import SliceNode
from windrow.transforms.nodes.metadata import pass_length
from windrow.transforms.nodes.planned import over_first
from windrow.transforms.nodes.streams import StreamRepeatNode, as_chain, of_epochs, passes


def first_epoch(node: Node) -> Node:
    """The chain that ends after one epoch of what it repeats for ever."""
    if not node.is_endless():
        return node
    if node.length != STREAM:
        return _first_of_chain(node, 1)
    chain = as_chain(node)
    if chain is not None:
        return over(chain, (_first_of_chain(chain.parent, chain.lanes),))
    parents = tuple(map(first_epoch, node.parents))
    # A stream that is repeated may be endless itself: then its first pass never ends.
    return StreamRepeatNode(parents, 1) if passes(node) != 1 else over(node, parents)


def _first_of_chain(node: Node, lanes: int) -> Node:
    if not node.is_endless():
        return node
    if node.has_gaps:  # an index is not a number of elements
        return over_first(node, pass_length(node.parent))
    if lanes == 1:
        return SliceNode((node,), 0, 1, pass_length(node))
    return of_epochs(node, 1)  # lanes may take runs of each epoch
