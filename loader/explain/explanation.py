"""Explanations: the nodes and costs of a chain as plain values, as text and as HTML.

Invariant: nothing is read here; every value can be printed, pickled and made JSON.
"""

from __future__ import annotations

import dataclasses
import json
import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from windrow.core.text import (
    ABSENT,
    TextTable,
    counted,
    notebook_html,
    shortened,
)
from windrow.sources.base import ArraySpec
from windrow.stats.costs import Amount, SourceCosts, column_text
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
        source: The number of the source that it reads, as in `Explanation.epoch`; None for other
            nodes.
        is_endless: Whether its elements never end.
    """

    number: int
    label: str
    runs: str
    spec: Any
    length: int | None
    element_bytes: Amount | None
    parents: tuple[int, ...]
    source: int | None = None
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
        return tuple(
            _summed(own).times(more)
            for own in zip(*(process.epoch for process in self.processes), strict=True)
        )

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
        later_epoch: The same for each epoch after it, in a chain that repeats.
        batch: The same for an element of the chain, on average over the first epoch.
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
    later_epoch: tuple[SourceCosts, ...]
    batch: tuple[SourceCosts, ...]
    buffers: Amount
    buffers_by: Mapping[str, Amount]
    quality: Any = None
    advice: tuple[Advice, ...] = ()
    unknown: tuple[str, ...] = ()
    across: AcrossProcesses | None = None

    def to_json(self) -> dict[str, Any]:
        """All of it, as values that `json.dumps` takes: specs as strings, and a `version` of the keys."""
        found = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        found["spec"] = None if self.spec is None else spec_text(self.spec)
        found["nodes"] = [
            {
                **dataclasses.asdict(node),
                "spec": None if node.spec is None else spec_text(node.spec),
            }
            for node in self.nodes
        ]
        for name in ("epoch", "later_epoch", "batch"):
            found[name] = [_costs_json(costs) for costs in found[name]]
        quality = self.quality
        if quality is not None:
            found["quality"] = quality.to_json()
        if self.across is None:
            del found["across"]
        plain: dict[str, Any] = json.loads(json.dumps(found, default=_plain))
        return {"version": JSON_VERSION, **plain}

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


def in_numbers(amount: Amount | None) -> str:
    """An amount as a number, marked with ≈ unless it is exact."""
    return column_text("", amount)


def in_bytes(amount: Amount | None) -> str:
    """Bytes in units that people read, marked in the same way."""
    return _UNKNOWN if amount is None else column_text("_bytes", amount)


def _count(number: int | None) -> str:
    return _UNKNOWN if number is None else f"{number:,}"


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
    return ", ".join(
        f"{in_bytes(getattr(costs, name))} {name.removesuffix('_bytes')}" for name in _BYTES
    )


def _slow(explanation: Explanation) -> str:
    """What takes time, where there is no advice."""
    calls = [node for node in explanation.nodes if node.runs.startswith("one by one")]
    if calls:
        return f"{shortened(calls[0].label, 40)} is called for each element: {calls[0].runs}"
    return "nothing that the plan shows"


# --- as tables -------------------------------------------------------------------------------------


def tables_of(explanation: Explanation) -> Iterator[TextTable]:
    """Yield a table of the nodes, one of the whole chain, and one of each source."""
    yield _of_nodes(explanation)
    yield _of_whole(explanation)
    yield from _of_sources(explanation)
    if explanation.across is not None and explanation.across.alone:
        yield _of_processes(explanation.across)


def _of_nodes(explanation: Explanation) -> TextTable:
    rows = []
    for node in explanation.nodes:
        above = [str(number) for number in node.parents]
        spec = _UNKNOWN if node.spec is None else spec_text(node.spec)
        size = _UNKNOWN if node.element_bytes is None else in_bytes(node.element_bytes)
        rows.append(
            [
                str(node.number),
                ", ".join(above) or ABSENT,
                shortened(node.label, _LABEL),
                node.runs,
                "endless" if node.is_endless else _count(node.length),
                spec,
                size,
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
        ["element", _UNKNOWN if explanation.spec is None else spec_text(explanation.spec)],
        ["bytes per element", in_bytes(explanation.batch_bytes)],
        ["elements per epoch", number_of(explanation.batches)],
        ["epochs", "for ever" if explanation.is_endless else "1"],
        ["buffers at most", in_bytes(explanation.buffers)],
    ]
    rows += [
        [f"of them {name}", in_bytes(amount)]
        for name, amount in explanation.buffers_by.items()
        if amount.high
    ]
    return TextTable("", [], rows)


_COLUMNS: Final = ("records", "chunks", "reads", "hits")
_BYTES: Final = ("stored_bytes", "decoded_bytes", "delivered_bytes")


def _of_sources(explanation: Explanation) -> Iterator[TextTable]:
    later = explanation.later_epoch
    for number, epoch in enumerate(explanation.epoch):
        columns = {
            "epoch": epoch,
            "batch": explanation.batch[number] if explanation.batch else None,
        }
        if later and later[number] != epoch:
            columns = {"first epoch": epoch, "later epoch": later[number], **columns}
            del columns["epoch"]
        known = {title: costs for title, costs in columns.items() if costs is not None}
        rows = [
            [name, *(in_numbers(getattr(costs, name)) for costs in known.values())]
            for name in _COLUMNS
        ]
        for name in _BYTES:
            title = name.replace("_bytes", "") + (", about" if name == "stored_bytes" else "")
            rows.append([title, *(in_bytes(getattr(costs, name)) for costs in known.values())])
        ratios = [in_numbers(costs.decoded_per_delivered) for costs in known.values()]
        rows.append(["decoded per delivered", *ratios])
        if epoch.held_bytes.high:
            held = [ABSENT if title == "batch" else in_bytes(epoch.held_bytes) for title in known]
            rows.append(["held of its chunks, at most", *held])
        yield TextTable(f"source {number}: {shortened(epoch.source, _TITLE)}", ["", *known], rows)


def _of_processes(found: AcrossProcesses) -> TextTable:
    columns: list[tuple[str, SourceCosts, Amount | None]] = [
        (f"process {each.process}", _summed(each.epoch), each.buffers) for each in found.processes
    ]
    columns.append((f"all {found.count:,}", _summed(found.epoch), None))
    columns.append(("one alone", _summed(found.alone), None))
    rows = []
    for name, costs, buffers in columns:
        ratio = costs.decoded_per_delivered
        rows.append(
            [
                name,
                in_numbers(costs.chunks),
                in_numbers(costs.reads),
                in_bytes(costs.decoded_bytes),
                in_bytes(costs.delivered_bytes),
                ABSENT if ratio is None else in_numbers(ratio),
                ABSENT if buffers is None else in_bytes(buffers),
            ]
        )
    heads = ["", "chunks", "reads", "decoded", "delivered", "decoded per delivered"]
    times = [in_numbers(each) for each in found.times_read if each is not None]
    each_chunk = f": a chunk is read {' or '.join(times)} times in all" if times else ""
    title = f"processes, in the first epoch{each_chunk}"
    return TextTable(title, [*heads, "buffers at most"], rows)


def _summed(costs: Sequence[SourceCosts]) -> SourceCosts:
    """The sum of costs; a figure that one of them does not know is unknown."""
    sums: dict[str, Any] = {}
    for field in dataclasses.fields(SourceCosts):
        values = [getattr(each, field.name) for each in costs]
        if field.name != "source":
            sums[field.name] = None if None in values else sum(values, start=Amount.exactly(0))
    return dataclasses.replace(costs[0], **sums)


def _lists(explanation: Explanation) -> Iterator[tuple[str, list[str]]]:
    if explanation.quality is not None:
        yield "shuffle quality", [line.strip() for line in str(explanation.quality).splitlines()]
    if explanation.advice:
        yield "advice", list(map(str, explanation.advice))
    if explanation.unknown:
        yield "not known", list(explanation.unknown)


# --- as JSON -------------------------------------------------------------------------------------


def _costs_json(costs: SourceCosts) -> dict[str, Any]:
    ratio = costs.decoded_per_delivered
    return {
        **dataclasses.asdict(costs),
        "decoded_per_delivered": None if ratio is None else dataclasses.asdict(ratio),
    }


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return str(value)
