"""Datasets and iterators for people: one line, and HTML for notebooks.

Invariant: nothing is read. The only functions of the user that are called are methods `output_spec`.
"""

from __future__ import annotations

from typing import Any

from windrow.core.text import ABSENT, TextTable, counted, notebook_html, shortened
from windrow.explain.explanation import spec_text
from windrow.stats.stats import Stats
from windrow.transforms import nodes
from windrow.transforms.nodes import STREAM, Node, parents_first
from windrow.transforms.nodes.metadata import known_spec

_LINE = 100  # characters of a spec in a line


def text(kind: str, node: Node) -> str:
    """A dataset in one line: its class, its chain, its length and the spec of its elements."""
    chain = nodes.described(node, as_written=True)
    return f"{kind}({chain}, {shortened(_elements(node), _LINE)})"


def html(kind: str, node: Node) -> str:
    """A dataset as HTML: the same, with a row for each node."""
    order = parents_first(node)
    numbers = {id(each): str(number) for number, each in enumerate(order)}
    rows = [
        (
            numbers[id(each)],
            ", ".join(numbers[id(parent)] for parent in each.parents) or ABSENT,
            each.written,
            _length(each),
            _spec(each) or ABSENT,
        )
        for each in order
    ]
    table = TextTable("", ("", "of", "as written", "length", "element"), rows)
    return notebook_html(f"{kind}: {_elements(node)}", [table])


def iterator_html(node: Node, stats: Stats) -> str:
    """An iterator as HTML: its chain, and what it has done so far."""
    chain = nodes.described(node, as_written=True)
    return notebook_html(f"DatasetIterator: {chain}") + stats._repr_html_()


def _elements(node: Node) -> str:
    spec = _spec(node)
    if node.length == STREAM:
        found = "stream"
    elif node.is_endless():
        found = "endless elements"
    else:
        found = counted(node.length, "element")
    return found if spec is None else f"{found} of {spec}"


def _length(node: Node) -> str:
    if node.length == STREAM:
        return "stream"
    return "endless" if node.is_endless() else f"{node.length:,}"


def _spec(node: Node) -> str | None:
    spec: Any = known_spec(node)
    return None if spec is None else spec_text(spec)
