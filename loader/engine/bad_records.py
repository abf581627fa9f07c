"""The bad records that a process meets: counted, logged, and limited by `max_bad`.

A bad row counts when it is met, which is ahead of the loop. Counts begin at 0 where an iterator is made
or moved, and no state holds them. An element that is made again counts again.

Invariant: nothing here decides which elements come.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from windrow.engine.bad_rows import BadRow
from windrow.engine.record_trace import leaves_of, trace
from windrow.engine.stages import Result
from windrow.errors import ReadError
from windrow.transforms.nodes import Node, parents_first, random_access_parts

# The bad records that an error lists, and the records of one that a message names.
_SHOWN = 8
# The fewest elements in which a share of bad records is judged.
_WINDOW = 1000
_log = logging.getLogger("windrow.bad_records")


@dataclasses.dataclass(slots=True)
class _Count:
    """What was met of the bad rows of one `on_bad` node.

    Args:
        node: The node.
        total: All of them.
        windows: For each chain, or None for later stages, the elements since a share was last judged
            anew, and the bad rows among these.
        first: The first bad rows, each with the number of its chain.
        is_unwritten: Whether the last lines could not be appended to the log.
        is_cut_short: Whether the log ends in a part of a line.
    """

    node: Any
    total: int = 0
    windows: dict[int | None, tuple[int, int]] = dataclasses.field(default_factory=dict)
    first: list[tuple[int | None, BadRow]] = dataclasses.field(default_factory=list)
    is_unwritten: bool = False
    is_cut_short: bool = False

    def allows(self, chain: int | None, rows: int, elements: int) -> bool:
        """Whether `rows` more bad rows may be among `elements` more elements."""
        most = self.node.max_bad
        if most is None or isinstance(most, int):
            return most is None or self.total + rows <= most
        before, recent = self.windows.get(chain, (0, 0))
        share: float = most
        return recent + rows <= share * max(_WINDOW, before + elements)

    def add(self, chain: int | None, rows: int, elements: int) -> None:
        """Count bad rows among some elements."""
        before, recent = self.windows.get(chain, (0, 0))
        is_over = before + elements >= _WINDOW
        self.windows[chain] = (0, 0) if is_over else (before + elements, recent + rows)
        self.total += rows


class BadRecords:
    """Counts the bad records of an iterator, in the thread that makes its elements."""

    def __init__(self, node: Node) -> None:
        """Begin to count for the chain that an iterator runs."""
        self._chains = random_access_parts(node)
        self._inside = {
            (number, each.token): each
            for number, chain in enumerate(self._chains)
            for each in _on_bad_nodes(chain)
        }
        self._counts = {each.token: _Count(each) for each in _on_bad_nodes(node)}

    def totals(self) -> dict[str, int]:
        """The bad records that were met, by the label of the node."""
        totals: dict[str, int] = {}
        for count in self._counts.values():
            totals[count.node.label] = totals.get(count.node.label, 0) + count.total
        return totals

    def count(self, chain: int | None, result: Result) -> None:
        """Count and log the bad rows of a result.

        Args:
            chain: The number of the chain that was read, or None for a later stage.
            result: The result.

        Raises:
            ReadError: If a node allows fewer. Nothing is counted then, and smaller parts of the work
                may be tried.
        """
        elements = result.rows
        by_token: dict[int, list[BadRow]] = {token: [] for token in self._counts}
        for row in result.bad:
            by_token[row.token].append(row)
        for token, rows in by_token.items():
            count = self._counts[token]
            if not count.allows(chain, len(rows), elements):
                raise self._too_many(count, chain, rows)
        for token, rows in by_token.items():
            count, before = self._counts[token], self._counts[token].total
            count.add(chain, len(rows), elements)
            if rows:
                count.first += [(chain, row) for row in rows[: _SHOWN - len(count.first)]]
                self._warn(count, chain, rows[-1], before)
                self._append(count, [self._line(count.node, chain, row) for row in rows])

    def _too_many(self, count: _Count, chain: int | None, rows: Sequence[BadRow]) -> ReadError:
        most = count.node.max_bad
        what = "records" if isinstance(most, int) else f"of {_WINDOW:,} elements"
        first = [*count.first, *((chain, row) for row in rows)][:_SHOWN]
        shown = "".join(
            f"\n  element {self._element(number, row)}, {self._records(number, row)}: {row.reason}"
            for number, row in first
        )
        return ReadError(
            f"{count.node.label}: more than max_bad={most} {what} are bad. The first that this run"
            f" found:{shown}\nCheck the data with windrow verify, or allow more"
        )

    def _warn(self, count: _Count, chain: int | None, last: BadRow, before: int) -> None:
        """Log a warning at the first bad record, the tenth, the hundredth and so on."""
        if before == 0 or len(str(count.total)) > len(str(before)):
            many = f"{count.total:,} bad record{'s' if count.total > 1 else ''}"
            what = f"{self._records(chain, last)}: {last.reason}"
            _log.warning("%s: %s so far, the last %s", count.node.label, many, what)

    def _append(self, count: _Count, lines: Sequence[dict[str, Any]]) -> None:
        """Append lines to the log of a node; a full disk does not end the run."""
        if count.node.log is None:
            return
        rest = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
        if count.is_cut_short:
            rest = b"\n" + rest
        try:
            # In one write, so that lines of several processes do not mix.
            with open(count.node.log, "ab", buffering=0) as file:
                while rest:
                    rest = rest[file.write(rest) :]
                    count.is_cut_short = True
        except OSError as error:
            if not count.is_unwritten:
                _log.warning(
                    "%s: cannot append to log=%r: %s", count.node.label, count.node.log, error
                )
            count.is_unwritten = True
        else:
            count.is_unwritten = count.is_cut_short = False

    def _elements(self, chain: int | None, row: BadRow) -> list[tuple[Node, int]]:
        """The elements that a bad row is made of, each with a chain; none if they are not known."""
        if row.made_of is not None:
            return [(self._chains[item[1]], item[2]) for item in row.made_of.items.tolist()]
        if chain is None:
            return []
        return [(self._inside.get((chain, row.token), self._chains[chain]), row.place)]

    def _element(self, chain: int | None, row: BadRow) -> int | None:
        """The index of the element, of the first where it is made of several."""
        found = self._elements(chain, row)
        return found[0][1] if found else None

    def _records(self, chain: int | None, row: BadRow) -> str:
        shown = "; ".join(
            f"record{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers[:_SHOWN]))} of {source}"
            for source, numbers in _records_of(self._elements(chain, row)).items()
        )
        return shown or "of unknown records"

    def _line(self, node: Any, chain: int | None, row: BadRow) -> dict[str, Any]:
        """What the log of a node holds of a bad row."""
        found = self._elements(chain, row)
        instead: dict[str, Any] = {}
        if row.instead is not None:
            instead = {"instead": _listed([(found[0][0], row.instead)])}
        return {
            "node": node.label,
            "element": self._element(chain, row),
            "sources": _listed(found),
            **instead,
            "file": row.reason.file,
            "error": row.reason.kind,
            "reason": row.reason.message,
        }


def _on_bad_nodes(node: Node) -> list[Any]:
    """The `on_bad` nodes of a chain, parents first."""
    return [each for each in parents_first(node) if each.takes_bad]


def _records_of(elements: Sequence[tuple[Node, int]]) -> dict[str, list[int]]:
    """The records that elements are made of, by source."""
    found: dict[str, list[int]] = {}
    for node, element in elements:
        leaves = leaves_of(node)
        for taken in trace(node, np.array([element]), uneven=True).taken:
            found.setdefault(leaves[id(taken.leaf)].text, []).extend(taken.records.tolist())
    return found


def _listed(elements: Sequence[tuple[Node, int]]) -> list[dict[str, Any]]:
    found = _records_of(elements)
    return [{"source": source, "records": records} for source, records in found.items()]
