"""Explanations: the nodes and costs of a chain as plain values, as text and as HTML.

Invariant: nothing is read here; every value can be printed, pickled and made JSON.
"""

from __future__ import annotations

import dataclasses
import json
import math
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, Final

from windrow.core.text import ABSENT, TextTable, counted, notebook_html, shortened
from windrow.sources.base import ArraySpec
from windrow.stats.costs import Amount, SourceCosts, costs_table, in_bytes, in_numbers
from windrow.transforms.nodes import VAST

JSON_VERSION: Final = 2
"""The version of the keys of `to_json`."""

_UNKNOWN: Final = "unknown"
_LABEL, _TITLE = 60, 100  # characters


@dataclasses.dataclass(frozen=True, slots=True)
class NodeLine:
    """A node of a chain, as written and as run.

    Args:
        number: Counted from 0, parents before their children; the last node ends the chain.
        label: As written.
        runs: How it runs, as text.
        spec: The spec of its elements; None if it is unknown.
        length: Its elements in one epoch; None if the chain is endless, or if the number is
            unknown.
        element_bytes: Bytes of one of its elements; None if they are unknown.
        parents: Numbers of its parents.
        is_endless: Whether its elements never end.
    """

    number: int
    label: str
    runs: str
    spec: Any
    length: int | None
    element_bytes: Amount | None
    parents: tuple[int, ...]
    is_endless: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Advice:
    """A cheaper way to the same elements, or to elements that are as good.

    Args:
        kind: Names the advice, such as 'global-shuffle'; the same for all chains.
        node: Number of the node that it is about.
        now: What it costs now, as text with numbers.
        do: What to do.
        then: What it would cost then.
    """

    kind: str
    node: int
    now: str
    do: str
    then: str

    def __str__(self) -> str:
        return f"{self.now}: {self.do} ({self.then})"


@dataclasses.dataclass(frozen=True, slots=True)
class ProcessCosts:
    """What one of several processes that share a stream reads and holds.

    Args:
        process: Its `jax.process_index()`.
        epoch: The costs of reading each source in the first epoch.
        buffers: A bound of the bytes that Windrow's own buffers hold.
    """

    process: int
    epoch: tuple[SourceCosts, ...]
    buffers: Amount


@dataclasses.dataclass(frozen=True, slots=True)
class AcrossProcesses:
    """The costs of all processes that share a stream, from a short dry run of each.

    Args:
        count: The number of processes.
        processes: The costs of each; of more than 8, of some of them.
        alone: The costs of reading each source in the first epoch, if one process ran all of it.
    """

    count: int
    processes: tuple[ProcessCosts, ...]
    alone: tuple[SourceCosts, ...]

    @property
    def epoch(self) -> tuple[SourceCosts, ...]:
        """The costs of reading each source in the first epoch by all processes together.

        Chunks that several processes read count for each of them.
        """
        more = self.count / len(self.processes)
        by_source = zip(*(process.epoch for process in self.processes), strict=True)
        return tuple(sum(own[1:], start=own[0]).times(more) for own in by_source)

    @property
    def times_read(self) -> tuple[Amount | None, ...]:
        """How often all processes together read a chunk, by source; None for one without chunks.

        Where processes read parts of chunks, it is how often they read a byte of them.
        """
        found = zip(self.epoch, self.alone, strict=True)
        return tuple(_times_read(each, alone) for each, alone in found)


def _times_read(costs: SourceCosts, alone: SourceCosts) -> Amount | None:
    """How often chunks are read; `alone` are the costs of reading the same records once."""
    decoded, whole = costs.decoded_bytes, alone.decoded_bytes
    if decoded is None or whole is None or not whole.high or not alone.chunks.high:
        return None
    stored = alone.chunks.times(whole.high / alone.reads.high)  # bytes of all chunks, once
    return Amount(max(1, decoded.low / stored.high), max(1, decoded.high / max(1, stored.low)))


@dataclasses.dataclass(frozen=True, slots=True)
class Explanation:
    """The nodes and costs of a chain, predicted before anything is read.

    An epoch is one pass over the elements of a dataset, or over the elements that an endless dataset
    repeats. An amount whose two bounds are equal is exact. All others are estimates: printed with ≈,
    and from half of the number to twice the number, or to more. Bytes of memory count Windrow's own buffers, not
    the user's functions. `print` shows what matters most; `details()` has the tables.

    Args:
        nodes: The chain, parents before their children.
        spec: The spec of an element; None where it is not known.
        length: Elements in one epoch; None where it is not known.
        is_endless: Whether epochs follow each other without end.
        batch_bytes: Bytes of an element of the chain, a batch where it batches; None where they are
            not known.
        batches: Elements of the chain in one epoch; an interval where a filter decides.
        epoch: The costs of reading each source in the first epoch. The order is the order in which
            a walk from the last node meets the sources.
        buffers: A bound of the bytes that Windrow's own buffers hold: no run holds more.
        buffers_by: The same by kind of buffer, as in `Stats.peak_by`.
        quality: The quality of the order (`windrow.shuffle_quality`); None if it is unknown.
        advice: Cheaper ways, in the order of a few rules.
        unknown: Messages about unknown figures.
        across: The costs of each process, with `explain(sharding=...)` where several processes share
            the stream; otherwise None.
    """

    nodes: tuple[NodeLine, ...]
    spec: Any
    length: int | None
    is_endless: bool
    batch_bytes: Amount | None
    batches: Amount
    epoch: tuple[SourceCosts, ...]
    buffers: Amount
    buffers_by: Mapping[str, Amount]
    quality: Any = None
    advice: tuple[Advice, ...] = ()
    unknown: tuple[str, ...] = ()
    across: AcrossProcesses | None = None

    def to_json(self) -> dict[str, Any]:
        """All of it, as values that `json.dumps` takes: specs as strings, and a `version` of the keys."""
        nodes = [dataclasses.replace(node, spec=_spec_json(node.spec)) for node in self.nodes]
        plain = dataclasses.replace(self, spec=_spec_json(self.spec), nodes=tuple(nodes))
        found: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(plain)))
        if self.across is None:
            del found["across"]
        return {"version": JSON_VERSION, **found}

    def __str__(self) -> str:
        return "\n".join(_summary(self))

    def details(self) -> str:
        """Return the tables: every node, the costs of every source, memory by kind, and all advice."""
        parts = [f"{table.title}\n{table.to_text()}".lstrip("\n") for table in tables_of(self)]
        for title, lines in _lists(self):
            parts.append("\n".join([title, *(f"  - {line}" for line in lines)]))
        return "\n\n".join(parts)

    def _repr_html_(self) -> str:
        return notebook_html("", tables_of(self), _lists(self))


# --- as text -------------------------------------------------------------------------------------


def spec_text(spec: Any) -> str:
    """A spec in one line: `{image: uint8 (28, 28), label: int64}`."""
    match spec:
        case ArraySpec():
            sizes = ", ".join("?" if n is None else str(n) for n in spec.shape)
            comma = "," if len(spec.shape) == 1 else ""
            return f"{spec.dtype} ({sizes}{comma})" if spec.shape else str(spec.dtype)
        case Mapping():
            return "{" + ", ".join(f"{k}: {spec_text(v)}" for k, v in spec.items()) + "}"
        case list():
            return "[" + ", ".join(map(spec_text, spec)) + "]"
        case tuple():
            return "(" + ", ".join(map(spec_text, spec)) + ")"
        case type():
            return spec.__name__
        case _:
            return str(spec)


# --- in a few lines --------------------------------------------------------------------------------

_COLUMNS_WIDE: Final = 80
_INDENT: Final = 10
_MOST_SOURCES: Final = 3


def _summary(explanation: Explanation) -> Iterator[str]:
    """Yield what matters most, in at most 20 lines of at most 80 columns."""
    elements = number_of(explanation.batches)
    if explanation.is_endless:
        elements += " an epoch, for ever"
    if explanation.batch_bytes is not None:
        elements += f", {in_bytes(explanation.batch_bytes)} each"
    if explanation.spec is not None:
        elements += f": {spec_text(explanation.spec)}"
    yield from _item("elements", elements)
    for costs in explanation.epoch[:_MOST_SOURCES]:
        yield from _item("source", costs.source)
        yield from _item("", _read(costs))
        yield from _item("", _sizes(costs))
    if not explanation.epoch:
        yield from _item("source", "none: nothing is read")
    if len(explanation.epoch) > _MOST_SOURCES:
        yield from _item("", f"and {len(explanation.epoch) - _MOST_SOURCES:,} more sources")
    kinds = [
        f"{kind} {in_bytes(size)}" for kind, size in explanation.buffers_by.items() if size.high
    ]
    yield from _item("memory", f"at most {in_bytes(explanation.buffers)}: {', '.join(kinds)}", 2)
    first = next(iter(explanation.advice), None)
    yield from _item("slow", first.now if first is not None else _slow(explanation), 3)
    if first is not None:
        yield from _item("advice", first.do, 3)
    others = len(explanation.advice[1:]) + len(explanation.unknown)
    more = f"; {counted(others, 'more note')}" if others else ""
    yield from _item("", f"(details() has the tables{more})")


def _item(title: str, text: str, lines: int = 1) -> Iterator[str]:
    found = textwrap.wrap(
        " ".join(text.split()), _COLUMNS_WIDE - _INDENT, max_lines=lines, placeholder=" ..."
    )
    for number, line in enumerate(found):
        yield f"{'' if number else title:<{_INDENT}}{line}"


def _read(costs: SourceCosts) -> str:
    if not costs.chunks.high:
        return f"{in_numbers(costs.records)} records, without chunks"
    each = costs.reads.middle / costs.chunks.middle
    times = Amount.exactly(each) if costs.reads.is_exact else Amount(each / 2, each * 2)
    return (
        f"{in_numbers(costs.records)} records in {in_numbers(costs.chunks)} chunks:"
        f" {in_numbers(costs.reads)} reads, {in_numbers(times)} each"
    )


def _sizes(costs: SourceCosts) -> str:
    stored, decoded, delivered = costs.stored_bytes, costs.decoded_bytes, costs.delivered_bytes
    return (
        f"{in_bytes(stored)} stored, {in_bytes(decoded)} decoded, {in_bytes(delivered)} delivered"
    )


def _slow(explanation: Explanation) -> str:
    """What takes time, where there is no advice."""
    calls = [node for node in explanation.nodes if node.runs.startswith("one by one")]
    if calls:
        return f"{shortened(calls[0].label, 40)} is called for each element: {calls[0].runs}"
    return "nothing that the plan shows"


# --- as tables -------------------------------------------------------------------------------------


def tables_of(explanation: Explanation) -> Iterator[TextTable]:
    """Yield a table of the nodes, one of the whole chain, and one of the sources in an epoch."""
    yield _of_nodes(explanation)
    yield _of_whole(explanation)
    if explanation.epoch:
        named = [(shortened(costs.source, _TITLE), costs) for costs in explanation.epoch]
        yield costs_table("sources, in an epoch", named)
    if explanation.across is not None and explanation.across.alone:
        yield _of_processes(explanation.across)


def _of_nodes(explanation: Explanation) -> TextTable:
    rows = []
    for node in explanation.nodes:
        above = [str(number) for number in node.parents]
        spec = _UNKNOWN if node.spec is None else spec_text(node.spec)
        length = _UNKNOWN if node.length is None else f"{node.length:,}"
        rows.append(
            [
                str(node.number),
                ", ".join(above) or ABSENT,
                shortened(node.label, _LABEL),
                node.runs,
                "endless" if node.is_endless else length,
                spec,
                in_bytes(node.element_bytes),
            ]
        )
    headers = ["", "of", "as written", "as run", "length", "element", "bytes"]
    return TextTable("chain", headers, rows)


def number_of(elements: Amount) -> str:
    """Return the number of elements as text."""
    if VAST <= elements.high < math.inf:
        return _UNKNOWN
    return str(elements) if elements.is_exact else f"at most {Amount.exactly(elements.high)}"


def _of_whole(explanation: Explanation) -> TextTable:
    rows = [
        ["elements per epoch", number_of(explanation.batches)],
        ["buffers at most", in_bytes(explanation.buffers)],
    ]
    rows += [
        [f"of them {name}", in_bytes(amount)]
        for name, amount in explanation.buffers_by.items()
        if amount.high
    ]
    return TextTable("", [], rows)


def _of_processes(found: AcrossProcesses) -> TextTable:
    rows = [(f"process {each.process}", each.epoch) for each in found.processes]
    rows += [(f"all {found.count:,}", found.epoch), ("one alone", found.alone)]
    times = [in_numbers(each) for each in found.times_read if each is not None]
    each_chunk = f": a chunk is read {' or '.join(times)} times in all" if times else ""
    return costs_table(
        f"processes, in the first epoch{each_chunk}",
        [(name, sum(costs[1:], start=costs[0])) for name, costs in rows],
    )


def _lists(explanation: Explanation) -> Iterator[tuple[str, list[str]]]:
    if explanation.quality is not None:
        yield "shuffle quality", [line.strip() for line in str(explanation.quality).splitlines()]
    if explanation.advice:
        yield "advice", list(map(str, explanation.advice))
    if explanation.unknown:
        yield "not known", list(explanation.unknown)


# --- as JSON -------------------------------------------------------------------------------------


def _spec_json(spec: Any) -> str | None:
    return None if spec is None else spec_text(spec)
