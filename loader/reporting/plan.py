"""Draws the plan of a chain: sources at the top, the training loop at the bottom.

Invariant: a node of the chain is drawn once; further uses only name it. If very many datasets come
together, only the first are drawn, with the number of the others.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Final

from windrow.core.text import counted, shortened
from windrow.explain.explanation import Explanation, NodeLine, in_bytes
from windrow.reporting.html import text
from windrow.stats.costs import Amount, SourceCosts, known
from windrow.transforms.nodes import STREAM, Node, ToStreamNode
from windrow.transforms.options import ReadOptions

_MOST_LABEL: Final = 120
_MOST_STORE: Final = 120
_MOST_PLACE: Final = 36
_MOST_PARENTS: Final = 16
MADE: Final = "judged by the first"
MEASURED: Final = "measured"
_THINNEST_PX: Final = 3.0
_THICKEST_PX: Final = 22.0

# The text of sources over files: a kind, the number of records, and the path.
_PLACED: Final = re.compile(
    r"(\w+)\(([\d,]+ (?:records|examples|windows)) of .* in (.+?)(?:, decoded \w+)?\)", re.DOTALL
)


@dataclasses.dataclass(frozen=True, slots=True)
class ElementBytes:
    """Actual bytes of elements that have no spec.

    Args:
        by_node: Bytes of one element, by the number of the node.
        how: `MEASURED` by an iterator, or `MADE` for the page.
    """

    by_node: Mapping[int, float] = dataclasses.field(default_factory=dict)
    how: str = MEASURED


def element_bytes(node: Node, explanation: Explanation, top_bytes: float, how: str) -> ElementBytes:
    """Infer the bytes of elements inside a chain from the bytes of the chain's elements.

    Args:
        node: The chain.
        explanation: The explanation of the same chain.
        top_bytes: Bytes of one of its elements.
        how: As in `ElementBytes`.
    """
    found: dict[int, float] = {}
    line = explanation.nodes[-1]
    if node.length != STREAM:  # the explanation is of its stream
        node = ToStreamNode((node,), ReadOptions())
    # Continue to the function that made the elements; its inputs have another size.
    while line.element_bytes is None and line.label == node.written:
        found[line.number] = top_bytes
        if len(node.parents) != 1 or not node.keeps_values:
            break
        if node.group_size is not None:
            top_bytes /= max(1, node.group_size)
        node, line = node.parent, explanation.nodes[line.parents[0]]
    return ElementBytes(found, how)


def plan_html(explanation: Explanation, loop: str, seen: ElementBytes | None = None) -> str:
    """Return the plan as HTML, with bytes on its arrows.

    Args:
        explanation: The explanation to draw.
        loop: A remark on the loop that takes the elements.
        seen: Bytes of elements that the explanation does not have.
    """
    plan = _Drawing(explanation, seen or ElementBytes())
    top = explanation.nodes[-1]
    above, *trunk = _branch(plan, top)
    last = _flow(*_sized(plan, top), explanation.batches)
    loop_html = f'<div class="loop">your loop<small>{text(loop)}</small></div>'
    words = f"The plan: {counted(len(explanation.nodes), 'node')}, from the sources to your loop"
    return (
        '<p class="soft hint">The plan is wider than the page: scroll it sideways.</p>'
        f'<div class="plan" tabindex="0" role="group" aria-label="{text(words)}">'
        f'<div class="branch">{above}'
        f'<div class="trunk">{"".join(trunk)}{last}{loop_html}</div></div></div>'
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Drawing:
    explanation: Explanation
    seen: ElementBytes
    drawn: set[int] = dataclasses.field(default_factory=set)


def _branch(plan: _Drawing, top: NodeLine) -> list[str]:
    """Draw a node and everything above it in the picture, nested only below several parents.

    Only the first part may be wide: it shows what flows into the uppermost node.
    """
    chain = [top]
    while len(chain[-1].parents) == 1 and chain[-1].number not in plan.drawn:
        chain.append(plan.explanation.nodes[chain[-1].parents[0]])
    parts = []
    for line in reversed(chain):
        if line.number in plan.drawn:
            parts.append(f'<div class="node"><code>{text(_name(line))}</code>'
                         f"<small>node {line.number} again</small></div>")  # fmt: skip
            continue
        plan.drawn.add(line.number)
        parts.append(_above(plan, line))
        parts.append(_node(plan.explanation, line))
    return parts


def _above(plan: _Drawing, line: NodeLine) -> str:
    """Draw what flows into a node."""
    if line.source is not None:
        costs = plan.explanation.epoch[line.source]
        several = [other.source for other in plan.explanation.nodes].count(line.source) > 1
        return _store(costs) + _arrow(_flowing(costs), _read(costs, several))
    flows = [_out_of(plan, plan.explanation.nodes[number]) for number in line.parents]
    if len(flows) < 2:
        return "".join(flows)
    branches = [
        f'<div class="branch">{"".join(_branch(plan, plan.explanation.nodes[number]))}{flow}</div>'
        for number, flow in zip(line.parents[:_MOST_PARENTS], flows, strict=False)
    ]
    if len(flows) > _MOST_PARENTS:
        more = f"and {len(flows) - _MOST_PARENTS:,} more"
        branches.append(f'<div class="branch"><div class="more">{more}</div></div>')
    return f'<div class="parents">{"".join(branches)}</div>'


def _node(explanation: Explanation, line: NodeLine) -> str:
    parts = [f"<code>{text(_name(line))}</code>"]
    if line.runs:
        parts.append(f"<small>{text(line.runs)}</small>")
    if line.length is not None:
        parts.append(f"<small>{counted(line.length, 'element')} per epoch</small>")
    about = [n for n, advice in enumerate(explanation.advice, 1) if advice.node == line.number]
    parts += [f'<small><a href="#advice-{n}">see advice {n}</a></small>' for n in about]
    return f'<div class="node{" advised" if about else ""}">{"".join(parts)}</div>'


def _name(line: NodeLine) -> str:
    """Return the label of a node; a source itself is drawn above its node."""
    return "source" if line.source is not None else shortened(line.label, _MOST_LABEL)


def _store(costs: SourceCosts) -> str:
    """Draw a source: its kind, path and records; its full text is the tooltip."""
    found = _PLACED.fullmatch(costs.source)
    kind, records, place = found.groups() if found else (costs.source, "", "")
    parts = [f"<code>{text(shortened(kind, _MOST_STORE))}</code>"]
    if place:
        # A long path may wrap at its slashes.
        shown = text(_end_of(place)).replace("/", "/<wbr/>")
        parts.append(f'<small class="mono">{shown}</small>')
    if records:
        parts.append(f"<small>{text(records)}</small>")
    chunks = f"{costs.chunks} chunks" if costs.chunks.high else "in memory, or record by record"
    parts.append(f"<small>{text(chunks)}</small>")
    return f'<div class="store" title="{text(costs.source)}">{"".join(parts)}</div>'


def _end_of(place: str) -> str:
    """Return the path, or its last parts if it is long."""
    if len(place) <= _MOST_PLACE:
        return place
    return ".../" + "/".join(place.rstrip("/").split("/")[-2:])


def _flowing(costs: SourceCosts) -> Amount:
    decoded = known(costs.decoded_bytes)
    return decoded if decoded.high else known(costs.delivered_bytes)


def _read(costs: SourceCosts, several: bool) -> list[str]:
    """Describe the bytes read from a source per epoch, over all nodes of the chain that read it."""
    parts = []
    if costs.stored_bytes is not None and costs.stored_bytes.high:
        parts.append(f"{in_bytes(costs.stored_bytes)} stored")
    if known(costs.decoded_bytes).high:
        parts.append(f"{in_bytes(costs.decoded_bytes)} decoded")
    elif known(costs.delivered_bytes).high:  # from memory, or from a source that reads by itself
        parts.append(f"{in_bytes(costs.delivered_bytes)} delivered")
    when = "per epoch, over all nodes that read it" if several else "per epoch"
    return [*parts, when] if parts else ["bytes unknown"]


def _out_of(plan: _Drawing, line: NodeLine) -> str:
    length = None if line.length is None else Amount.exactly(line.length)
    return _flow(*_sized(plan, line), length)


def _sized(plan: _Drawing, line: NodeLine) -> tuple[Amount | None, list[str]]:
    """Return the bytes of an element of a node, and how they are known if not by prediction."""
    found = plan.seen.by_node.get(line.number)
    if line.element_bytes is not None or found is None:
        return line.element_bytes, []
    return Amount.exactly(found), [plan.seen.how]


def _flow(each: Amount | None, how: list[str], count: Amount | None) -> str:
    """Draw the arrow under a node, with a width by the bytes that flow in an epoch."""
    if each is None:
        return _arrow(None, ["bytes unknown"])
    parts = [f"{in_bytes(each)} per element", *how]
    if count is None:
        return _arrow(each, parts)
    whole = Amount(each.low * count.low, each.high * count.high)
    return _arrow(whole, [f"{in_bytes(whole)} per epoch", *parts])


def _arrow(flow: Amount | None, parts: list[str]) -> str:
    """Draw an arrow whose width grows with the logarithm of the bytes: 3 px for 1 KB, 22 for 1 TB."""
    size = 0.0 if flow is None else max(flow.middle, 1.0)
    share = math.log10(max(size, 1e3) / 1e3) / 9
    width = min(_THICKEST_PX, _THINNEST_PX + share * (_THICKEST_PX - _THINNEST_PX))
    head, half = width / 2 + 4.5, width / 2
    points = (
        f"{20 - half:.1f},0 {20 + half:.1f},0 {20 + half:.1f},26 {20 + head:.1f},26"
        f" 20,{26 + head:.1f} {20 - head:.1f},26 {20 - half:.1f},26"
    )
    lines = "<br>".join(map(text, parts))
    return (
        f'<div class="flow"><svg width="40" height="{27 + head:.0f}" aria-hidden="true">'
        f'<polygon points="{points}"/></svg><span>{lines}</span></div>'
    )
