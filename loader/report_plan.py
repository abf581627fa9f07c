"""The plan of a chain as a picture: sources at the top, the training loop at the bottom.

Invariant: a node of the chain is drawn once; where one is used several times, the others name it. Of
very many datasets that come together the first are drawn, and how many more there are is told.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Final

from windrow.costs import Amount, SourceCosts, known
from windrow.explanation import Explanation, NodeLine, in_bytes
from windrow.inspection_facts import counted, shortened
from windrow.report_html import text
from windrow.running import label_of
from windrow.transforms.nodes import STREAM, BatchNode, FilterNode, Node, ValueNode
from windrow.transforms.options import ReadOptions
from windrow.transforms.streams import ToStreamNode

_MOST_LABEL: Final = 120
_MOST_STORE: Final = 120
_MOST_PLACE: Final = 36
_MOST_PARENTS: Final = 16
MADE: Final = "judged by the first"
MEASURED: Final = "measured"
_THINNEST_PX: Final = 3.0
_THICKEST_PX: Final = 22.0

# What sources over files call themselves: a kind, how many of what, and where.
_PLACED: Final = re.compile(
    r"(\w+)\(([\d,]+ (?:records|examples|windows)) of .* in (.+?)(?:, decoded \w+)?\)", re.DOTALL
)


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """Bytes of elements that no spec tells, as they were made: by the number of the node.

    Args:
        by_node: Bytes of one element.
        how: `MEASURED` by an iterator, or `MADE` for the page.
    """

    by_node: Mapping[int, float] = dataclasses.field(default_factory=dict)
    how: str = MEASURED


def seen_of(node: Node, explanation: Explanation, top_bytes: float, how: str) -> Seen:
    """What the bytes of a chain's elements tell of what they are made of.

    Args:
        node: The chain.
        explanation: Of the same chain.
        top_bytes: Bytes of one of its elements.
        how: See `Seen`.
    """
    found: dict[int, float] = {}
    line = explanation.nodes[-1]
    if node.length != STREAM:  # it is explained as the stream of it
        node = ToStreamNode((node,), ReadOptions())
    # Down to the function that made them; what goes into that is of another size.
    while line.element_bytes is None and line.label == label_of(node):
        found[line.number] = top_bytes
        if len(node.parents) != 1 or _changes(node):
            break
        if isinstance(node, BatchNode):
            top_bytes /= max(1, node.size)
        node, line = node.parent, explanation.nodes[line.parents[0]]
    return Seen(found, how)


def _changes(node: Node) -> bool:
    return isinstance(node, ValueNode) and not isinstance(node, FilterNode)


def plan_html(explanation: Explanation, loop: str, seen: Seen | None = None) -> str:
    """The plan, with bytes on its arrows.

    Args:
        explanation: What is drawn.
        loop: What is known of the loop that takes the elements, in words.
        seen: Bytes that are not in the explanation.
    """
    plan = _Drawing(explanation, seen or Seen())
    top = explanation.nodes[-1]
    above, *trunk = _branch(plan, top)
    last = _flow(*_sized(plan, top), explanation.batches)
    loop_html = f'<div class="loop">your loop<small>{text(loop)}</small></div>'
    words = f"The plan: {counted(len(explanation.nodes), 'node')}, from the sources to your loop"
    return (
        '<p class="soft hint">The plan goes on to the side: scroll it.</p>'
        f'<div class="plan" tabindex="0" role="group" aria-label="{text(words)}">'
        f'<div class="branch">{above}'
        f'<div class="trunk">{"".join(trunk)}{last}{loop_html}</div></div></div>'
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Drawing:
    explanation: Explanation
    seen: Seen
    drawn: set[int] = dataclasses.field(default_factory=set)


def _branch(plan: _Drawing, top: NodeLine) -> list[str]:
    """A node and all above it in the picture; nested only where nodes have several parents.

    Only the first of its parts may be wide: what flows into the uppermost node.
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
    """What flows into a node."""
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
    told = [f"<code>{text(_name(line))}</code>"]
    if line.runs:
        told.append(f"<small>{text(line.runs)}</small>")
    if line.length is not None:
        told.append(f"<small>{counted(line.length, 'element')} per epoch</small>")
    about = [n for n, advice in enumerate(explanation.advice, 1) if advice.node == line.number]
    told += [f'<small><a href="#advice-{n}">see advice {n}</a></small>' for n in about]
    return f'<div class="node{" advised" if about else ""}">{"".join(told)}</div>'


def _name(line: NodeLine) -> str:
    """As written; the source itself stands above its node."""
    return "source" if line.source is not None else shortened(line.label, _MOST_LABEL)


def _store(costs: SourceCosts) -> str:
    """What a source is, where, and how much; the whole of what it calls itself when pointed at."""
    found = _PLACED.fullmatch(costs.source)
    kind, records, place = found.groups() if found else (costs.source, "", "")
    told = [f"<code>{text(shortened(kind, _MOST_STORE))}</code>"]
    if place:
        # A path is broken at its slashes, where it has to be.
        shown = text(_end_of(place)).replace("/", "/<wbr/>")
        told.append(f'<small class="mono">{shown}</small>')
    if records:
        told.append(f"<small>{text(records)}</small>")
    pieces = f"{costs.pieces} pieces" if costs.pieces.high else "in memory, or record by record"
    told.append(f"<small>{text(pieces)}</small>")
    return f'<div class="store" title="{text(costs.source)}">{"".join(told)}</div>'


def _end_of(place: str) -> str:
    """The last parts of a path that is long."""
    if len(place) <= _MOST_PLACE:
        return place
    return ".../" + "/".join(place.rstrip("/").split("/")[-2:])


def _flowing(costs: SourceCosts) -> Amount:
    decoded = known(costs.decoded_bytes)
    return decoded if decoded.high else known(costs.delivered_bytes)


def _read(costs: SourceCosts, several: bool) -> list[str]:
    """What reading a source comes to in an epoch, for all nodes of the chain that read it."""
    told = []
    if costs.stored_bytes is not None and costs.stored_bytes.high:
        told.append(f"{in_bytes(costs.stored_bytes)} stored")
    if known(costs.decoded_bytes).high:
        told.append(f"{in_bytes(costs.decoded_bytes)} decoded")
    elif known(costs.delivered_bytes).high:  # from memory, or from a source that reads by itself
        told.append(f"{in_bytes(costs.delivered_bytes)} delivered")
    when = "per epoch, of all that read it" if several else "per epoch"
    return [*told, when] if told else ["bytes unknown"]


def _out_of(plan: _Drawing, line: NodeLine) -> str:
    length = None if line.length is None else Amount.exactly(line.length)
    return _flow(*_sized(plan, line), length)


def _sized(plan: _Drawing, line: NodeLine) -> tuple[Amount | None, list[str]]:
    """Bytes of an element of a node, and how they are known where it is not beforehand."""
    found = plan.seen.by_node.get(line.number)
    if line.element_bytes is not None or found is None:
        return line.element_bytes, []
    return Amount.exactly(found), [plan.seen.how]


def _flow(each: Amount | None, how: list[str], count: Amount | None) -> str:
    """The arrow under a node, as thick as what flows in an epoch."""
    if each is None:
        return _arrow(None, ["bytes unknown"])
    told = [f"{in_bytes(each)} per element", *how]
    if count is None:
        return _arrow(each, told)
    whole = Amount(each.low * count.low, each.high * count.high)
    return _arrow(whole, [f"{in_bytes(whole)} per epoch", *told])


def _arrow(flow: Amount | None, told: list[str]) -> str:
    """Its width grows with the logarithm of the bytes: 3 px for a kilobyte, 22 for a terabyte."""
    size = 0.0 if flow is None else max(flow.middle, 1.0)
    share = math.log10(max(size, 1e3) / 1e3) / 9
    width = min(_THICKEST_PX, _THINNEST_PX + share * (_THICKEST_PX - _THINNEST_PX))
    head, half = width / 2 + 4.5, width / 2
    points = (
        f"{20 - half:.1f},0 {20 + half:.1f},0 {20 + half:.1f},26 {20 + head:.1f},26"
        f" 20,{26 + head:.1f} {20 - head:.1f},26 {20 - half:.1f},26"
    )
    lines = "<br>".join(map(text, told))
    return (
        f'<div class="flow"><svg width="40" height="{27 + head:.0f}" aria-hidden="true">'
        f'<polygon points="{points}"/></svg><span>{lines}</span></div>'
    )
