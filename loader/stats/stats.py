"""Stats: what an iterator has done so far, in time, bytes and records, and who waited for whom.

Invariant: plain values only, so that what was measured can be printed, compared, pickled and made
JSON. Nothing is measured here.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from windrow.core.text import TextTable, counted, in_units, notebook_html
from windrow.stats.costs import SourceCosts, column_text
from windrow.transforms.amounts import PackCounts

JSON_VERSION = 1
"""The version of the keys of `to_json`."""

NOTHING_YET = "nothing was asked for yet"

# The names of `Stats.requests` in a table.
_REQUESTS = {
    "requests": "made",
    "retries": "made again",
    "p50_s": "time of a request, median",
    "p95_s": "time of a request, 95th percentile",
    "p99_s": "time of a request, 99th percentile",
}

# Below this share a user would not notice that the loop waits.
_NOTICED = 0.005


@dataclasses.dataclass(frozen=True, slots=True)
class BlockTimes:
    """Times at which a block was made and taken, in seconds since the first `next`.

    Args:
        elements: Elements of the block.
        started_s: When the thread began to make it; negative if that was before the first `next`.
        reading_s: Seconds of making it that were spent reading.
        mapping_s: Seconds in functions and in stacking batches, also in workers.
        taken_s: When the loop received it.
        waited_s: How long the loop had waited for it.
    """

    elements: int
    started_s: float
    reading_s: float
    mapping_s: float
    taken_s: float
    waited_s: float


@dataclasses.dataclass(frozen=True, slots=True)
class ChosenWorkers:
    """The number of workers that an `mp_prefetch("auto")` has decided, or uses until then.

    Args:
        workers: Worker processes; 0 for none, where functions run in this process.
        threads: Threads that functions ran on in this process when it decided.
        reason: Why it decided so.
    """

    workers: int
    threads: int
    reason: str

    def __str__(self) -> str:
        where = counted(self.workers, "worker process") if self.workers else "this process"
        threads = f", on {self.threads} threads" if self.threads > 1 else ""
        return f"{where}{threads}: {self.reason}"


@dataclasses.dataclass(frozen=True, slots=True)
class Stats:
    """What an iterator has done since it was made, see `DatasetIterator.stats`.

    Elements are made in blocks, by a thread that works ahead of the loop. Some times
    belong to the loop (`passed_s`, which is `waited_s` plus `loop_s`), others to that thread
    (`reading_s`, `mapping_s`, `blocked_s`). The two run at the same time.

    Args:
        elements: Elements that the loop was given.
        passed_s: Seconds since the first was asked for, up to the end or to now.
        waited_s: The seconds of `passed_s` in which the loop waited in `next`.
        loop_s: The other seconds of `passed_s`, in which the loop did its own work.
        reading_s: Seconds in which the thread waited for reads and gathered records.
        mapping_s: Seconds by function, as `map(f)`, and by batch, as `batch(32)`, in which it ran on
            at least one thread. For worker processes, the sum over all workers.
        blocked_s: Seconds in which the thread made no elements, since enough were ready.
        waited_for: Seconds by activity while the loop waited: the parts of `waited_s`.
        delivered_bytes: Bytes of the elements that the loop was given.
        sources: The costs of reading each source, in the order from the end of the chain. Reads
            are ahead of the elements given.
        buffers_bytes: Memory of Windrow's own buffers now.
        peak_buffers_bytes: The largest value of `buffers_bytes`.
        buffers_by: `buffers_bytes` by kind: `chunks` in the chunk cache, `planned` read batches
            with their indices, `rounds` (read batches being made or given), and the `queue` of
            blocks that are ready.
        peak_by: The largest value of each kind; the peaks may be at different times.
        timeline: The last blocks that the loop was given.
        packing: Documents and tokens of the windows that were planned from lengths so far, for rows
            or batches, and what became of documents that were too long; None without such a plan.
            A window that was resumed in its middle counts as a whole.
        bad_records: Records that `on_bad` nodes left out or replaced since the iterator was made or
            moved, by node, ahead of the elements given; None without such a node.
        chosen: The number of workers of each `mp_prefetch("auto")`, and why, from the end of the chain.
        requests: Network requests of this process for the sources since these were opened, also by other
            iterators; None if no source is remote. `requests`, which includes `retries`, and once one was
            answered `p50_s`, `p95_s` and `p99_s`, the seconds of the last 1,024 of each source by percentile.
    """

    elements: int
    passed_s: float
    waited_s: float
    loop_s: float
    reading_s: float
    mapping_s: Mapping[str, float]
    blocked_s: float
    waited_for: Mapping[str, float]
    delivered_bytes: int
    sources: tuple[SourceCosts, ...]
    buffers_bytes: int
    peak_buffers_bytes: int
    buffers_by: Mapping[str, int]
    peak_by: Mapping[str, int]
    timeline: tuple[BlockTimes, ...]
    packing: PackCounts | None = None
    bad_records: Mapping[str, int] | None = None
    requests: Mapping[str, float] | None = None
    chosen: tuple[ChosenWorkers, ...] = ()

    @property
    def sentence(self) -> str:
        """Who waits for whom, in a sentence."""
        if not self.passed_s:
            return NOTHING_YET
        share = self.waited_s / self.passed_s
        if share < _NOTICED:
            return "the loop does not wait for data: it is slower than the loader"
        said = f"the loop waits for data {share:.0%} of the time"
        if not any(self.waited_for.values()):
            return said
        most = max(self.waited_for, key=self.waited_for.__getitem__)
        part = self.waited_for[most] / sum(self.waited_for.values())
        return f"{said}; {part:.0%} of that is {most}"

    def to_json(self) -> dict[str, Any]:
        """All of it and the sentence, as values that `json.dumps` takes; a `version` of the keys."""
        found: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        for name in ("packing", "bad_records", "requests", "chosen"):
            if found[name] in (None, []):
                del found[name]
        return {"version": JSON_VERSION, **found, "sentence": self.sentence}

    def __str__(self) -> str:
        return "\n\n".join([self.sentence, *(f"{t.title}\n{t.to_text()}" for t in tables_of(self))])

    def _repr_html_(self) -> str:
        return notebook_html(self.sentence, tables_of(self))


def tables_of(stats: Stats) -> list[TextTable]:
    """What is printed, as tables; none before the first element was asked for."""
    if not stats.passed_s:
        return []
    tables = [TextTable("time", (), _times(stats)), TextTable("memory", (), _memory(stats))]
    if stats.sources:
        heads = tuple(name.replace("_", " ") for name, _ in _columns(stats.sources[0]))
        rows = [[text for _, text in _columns(source)] for source in stats.sources]
        tables.append(TextTable("sources", heads, rows))
    if stats.chosen:
        numbers = [("functions run in", str(each)) for each in stats.chosen]
        tables.append(TextTable("workers", (), numbers))
    if stats.packing is not None:
        tables.append(TextTable("packing", (), [("planned", stats.packing.text())]))
    if stats.bad_records is not None:
        bad = [(name, f"{count:,}") for name, count in stats.bad_records.items()]
        tables.append(TextTable("bad records", (), bad))
    if stats.requests is not None:
        told = [(_REQUESTS[name], _figure(name, n)) for name, n in stats.requests.items()]
        tables.append(TextTable("requests", (), told))
    return tables


def _times(stats: Stats) -> list[tuple[str, str, str]]:
    passed_s = stats.passed_s
    times = {
        "since the first was asked for": passed_s,
        "the loop waited": stats.waited_s,
        **{f"waited for {name}": spent_s for name, spent_s in stats.waited_for.items()},
        "the loop's own": stats.loop_s,
        "reading": stats.reading_s,
        **stats.mapping_s,
        "ready, with no room for more": stats.blocked_s,
    }
    return [
        (name, f"{spent_s:.3f} s", f"{spent_s / passed_s:.0%}") for name, spent_s in times.items()
    ]


def _memory(stats: Stats) -> list[tuple[str, str]]:
    rows = {
        "elements": f"{stats.elements:,}",
        "given to the loop": in_units(stats.delivered_bytes),
        "buffers now": in_units(stats.buffers_bytes),
        "buffers at most": in_units(stats.peak_buffers_bytes),
        **{f"{kind} at most": in_units(size) for kind, size in stats.peak_by.items()},
    }
    return list(rows.items())


def _figure(name: str, value: float) -> str:
    return f"{value:.3f} s" if name.endswith("_s") else f"{value:,.0f}"


def _columns(costs: SourceCosts) -> list[tuple[str, str]]:
    """The columns of a source, with their names."""
    names = [field.name for field in dataclasses.fields(costs)[1:]]
    texts = [(name, column_text(name, getattr(costs, name))) for name in names]
    return [("source", costs.source), *texts]
