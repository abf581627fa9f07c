"""Questions about a whole chain: its seed, its text, its fingerprint."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from typing import Any, Final

from windrow.errors import PlanError
from windrow.sources.base import KnowsEarlier
from windrow.transforms import random
from windrow.transforms.arguments import checked_seed
from windrow.transforms.functions import name_of
from windrow.transforms.nodes.base import STREAM, Node
from windrow.transforms.nodes.following import as_written, group_size
from windrow.transforms.nodes.leaves import SourceNode

# Lanes have other elements in each epoch of a shuffle. If one element of an epoch gives a row, a lane
# that took the elements of 16 epochs has missed it with a probability of e**-16.
EPOCHS: Final = 16


class GivesSeed:
    """A node that gives its seed to the nodes after it."""

    seed: int


def as_node(value: object) -> Node | None:
    """The value, if it is a node."""
    return value if isinstance(value, Node) else None


def walk(node: Node) -> Iterator[Node]:
    """The node and all before it, from the end of the chain, depth first.

    A node comes as often as there are ways to it.
    """
    waiting = [node]
    while waiting:
        each = waiting.pop()
        yield each
        waiting.extend(reversed(each.parents))


def parents_first(node: Node) -> list[Node]:
    """The node and all before it, each once, parents before what is made of them."""
    found: dict[int, Node] = {}
    # Twice on the stack: to see its parents, and to be noted after them.
    waiting = [(node, False)]
    while waiting:
        each, is_open = waiting.pop()
        if id(each) in found:
            continue
        if is_open:
            found[id(each)] = each
            continue
        waiting.append((each, True))
        waiting.extend((parent, False) for parent in reversed(each.parents))
    return list(found.values())


def source_of(node: Node) -> Any | None:
    """The source that the node itself reads; None for a node that reads none."""
    return node.source if isinstance(node, SourceNode) else None


def sources_of(node: Node) -> list[Any]:
    """The sources of the chain, each once, in the order of `walk`."""
    read = map(source_of, walk(node))
    return list({id(source): source for source in read if source is not None}.values())


def seed_for(node: Node, seed: int | None, who: str, stop: int) -> int:
    """The seed of a node after `node`: the one given, in `[0, stop)`, or a derived one.

    Raises:
        ArgumentError: If it is not an integer.
        PlanError: If it is out of range, or the chain has none.
    """
    if seed is not None:
        return checked_seed(seed, who, stop)
    found = default_seed(node)
    if found is None:
        raise PlanError(
            f"{who}: has no seed; pass seed=..., or call .seed(...) earlier in the chain"
        )
    return found


def default_seed(node: Node) -> int | None:
    """The seed that a node after `node` gets when it is given none.

    Derived from the nearest `seed(...)` before it and its depth, breadth first, as Grain does:
    adding a node to the chain changes it. None where the chain has no seed.
    """
    found: list[tuple[int, int]] = []
    queue: list[tuple[Node, int]] = [(node, 1)]
    for before, depth in queue:  # grows while it is walked: breadth first
        if isinstance(before, GivesSeed):
            found.append((before.seed, depth))
        else:
            queue.extend((parent, depth + before.seed_depth) for parent in before.parents)
    return random.default_seed(found) if found else None


def written_parents(node: Node) -> list[Node]:
    """The parents of a node as the user wrote them: `flat_map` and `rebatch` make two nodes."""
    found = [each.parents if each.is_half else (each,) for each in map(as_written, node.parents)]
    return list(itertools.chain.from_iterable(found))


def may_be_absent(node: Node) -> bool:
    """Whether a filter in the chain can make elements absent."""
    return any(each.drops for each in walk(node))


def makers(node: Node) -> list[Node]:
    """The nodes whose functions make elements. One that returns None leaves its element out."""
    return [each for each in walk(node) if each.functions and not each.keeps_values]


def follows_batch(node: Node) -> bool:
    """Whether the elements of a node are made of the elements of a last batch."""
    while node.follows_batch:
        node = node.parent
    return group_size(node) is not None


def function_names(node: Node) -> list[str]:
    """Names of the user's functions in the chain, parents first."""
    names = [name for parent in node.parents for name in function_names(parent)]
    return [*names, *map(name_of, node.functions)]


def described(node: Node, *, as_written: bool = False) -> str:
    """The chain as one line, from the source on; `as_written` by its user, for people alone."""
    parents = [described(parent, as_written=as_written) for parent in node.parents]
    own = node.written if as_written else node.label
    if not parents:
        return own
    before = parents[0] if len(parents) == 1 else "[" + "; ".join(parents) + "]"
    return f"{before} > {own}"


def fingerprint(node: Node, batch: Node | None = None, *, earlier: bool = False) -> str:
    """Name the chain and its data: 16 hex digits of a hash over every node's label and length.

    Args:
        node: The end of the chain.
        batch: Its last batch, to leave out that batch, on which later lengths depend.
        earlier: Whether the first records of a source count as the source when it had no more.
    """
    rest = node if batch is None else batch.parent
    inside = _canonical(rest, earlier=earlier)
    named = inside if batch is None else _without_batch(node, batch, inside)
    return hashlib.sha256(named.encode()).hexdigest()[:16]


def _canonical(node: Node, *, earlier: bool) -> str:
    if node.is_unseen:
        return _canonical(node.parent, earlier=earlier)
    before = getattr(node, "earlier_label", None) if earlier else None
    if before is not None:
        return f"{before}#{node.length}()"
    inside = ",".join(_canonical(parent, earlier=earlier) for parent in node.parents)
    return f"{node.label}#{node.length}({inside})"


def _without_batch(node: Node, batch: Node, inside: str) -> str:
    if node is batch:
        return inside
    if node.is_unseen:
        return _without_batch(node.parent, batch, inside)
    length = node.length if node.length == STREAM else "batches"
    return f"{node.label}#{length}({_without_batch(node.parent, batch, inside)})"


def earlier_source(node: Node, records: int) -> str | None:
    """The label of a node that reads a source, when that ended after its first records.

    None if the node does not read a source, or the source cannot have ended there.
    """
    source: Any = source_of(node)
    knows = isinstance(source, KnowsEarlier) and 0 <= records < node.length
    named = source.fingerprint_of_first(records) if knows else None
    return None if named is None else node.label.replace(source.fingerprint, named)
