"""The cases: what each shows, and who takes part.

A case is one layout read in one order. Its sides take turns, each measurement in a process of its
own, so that a busy moment of the machine meets all of them.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable, Iterator, Sequence

from benchmarks import process
from benchmarks.data import Data
from benchmarks.job import STORED, WHOLE, Job, Metrics

OURS = "ours"


@dataclasses.dataclass(frozen=True, slots=True)
class Side:
    """One way to do the work of a case.

    Args:
        name: What it is called in results.
        module: The module of this folder that is the side.
        option: The setting it runs with; empty where there is none.
        tuned: Whether it runs with the quickest of all its settings.
        package: What must be importable, beside what Windrow itself needs; names with spaces between.
        install: What to install for that.
        also_written: A layout that it reads beside that of the case.
    """

    name: str
    module: str
    option: str = ""
    tuned: bool = False
    package: str = ""
    install: str = ""
    also_written: str = ""

    @property
    def missing(self) -> str:
        """Why it cannot take part; empty if it can."""
        if all(importlib.util.find_spec(name) for name in self.package.split()):
            return ""
        return f"{self.name} is left out: pip install {self.install}"


SIDES = {
    side.name: side
    for side in (
        Side(OURS, "ours"),
        Side("ours, no workers", "ours", "no workers"),
        Side("Grain", "grain_side", "default", package="grain", install="grain"),
        Side("Grain, best", "grain_side", tuned=True, package="grain", install="grain"),
        Side("torch", "torch_side", tuned=True, package="torch", install="torch"),
        Side("expert", "expert", tuned=True),
        Side("expert, cache", "expert_cached", tuned=True),
        Side(
            "xbatcher",
            "xbatcher_side",
            tuned=True,
            package="xbatcher xarray zarr torch",
            install="xbatcher xarray zarr torch",
        ),
        Side("ours, global shuffle", "ours", "global shuffle"),
        Side("ours, 4 batches a call", "ours", "4 batches a call"),
        Side("ours, all hashes", "ours", "all hashes"),
        Side("ours, 4 batches a call, all hashes", "ours", "4 batches a call, all hashes"),
        Side("reader, a batch a call", "reader_side", "a batch a call"),
        Side("reader, 4 batches a call", "reader_side", "4 batches a call"),
        Side("one by one", "one_by_one_side"),
        Side("aiohttp", "aiohttp_side", tuned=True, package="aiohttp", install="aiohttp"),
        Side("TensorStore", "tensorstore_side", tuned=True),
        Side("memmap", "memmap_side", also_written="tokens_raw"),
        Side("reader", "reader_side", tuned=True),
        Side(
            "HF datasets",
            "huggingface_side",
            tuned=True,
            package="datasets",
            install="datasets",
            also_written="arrow",
        ),
        Side("bare loop", "bare_side", tuned=True),
        Side("floor", "floor", tuned=True),
    )
}
_USUAL = (OURS, "expert", "torch", "Grain", "Grain, best", "floor")
_OF_CHAIN = (OURS, "Grain", "Grain, best", "floor")
_OF_WORKERS = (OURS, "ours, no workers", "torch", "Grain", "Grain, best")
_WITHOUT_STORE = ("numbers", "calls", "elements", "slow", "start", "large", "compact")


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """One layout in one order.

    Args:
        name: The name it is chosen by; so is what stands before its dot.
        layout: The store, and the function of each side's module.
        order: One of `data.ORDERS`.
        shows: What it shows, in a line.
        sides: Who takes part, by name.
        resident_share: What part of the decoded store may stay in memory; None for the default.
        watched: Whether memory is looked at from outside, for all processes together.
    """

    name: str
    layout: str
    order: str
    shows: str
    sides: tuple[str, ...] = _USUAL
    resident_share: float | None = None
    watched: bool = False

    @property
    def group(self) -> str:
        """The cases that belong together."""
        return self.name.partition(".")[0]

    @property
    def has_store(self) -> bool:
        """Whether it reads anything."""
        return self.layout not in _WITHOUT_STORE

    @property
    def has_workers(self) -> bool:
        """Whether ours runs functions in worker processes."""
        return self.group == "workers"

    @property
    def stored_layout(self) -> str:
        """The store it reads."""
        return STORED.get(self.layout, self.layout)


_IN_ORDER, _BLOCK, _GLOBAL = "in order", "block shuffle", "global shuffle"
_READER = (OURS, "expert", "reader", "torch", "Grain", "Grain, best", "floor")
_WINDOWS = (OURS, "expert", "expert, cache", "floor")
_RAW = (OURS, "expert", "HF datasets", "torch", "Grain", "Grain, best", "floor")

CASES = (
    Case(
        "array_record.order",
        "array_record",
        _IN_ORDER,
        "single records, one after another",
        _READER,
    ),
    Case(
        "array_record.block",
        "array_record_groups",
        _BLOCK,
        "groups of 256 records: each group is decoded once",
        _READER,
    ),
    Case("array_record.global", "array_record", _GLOBAL, "random single records", _READER),
    Case(
        "array_record.direct",
        "array_record_direct",
        _GLOBAL,
        "our own reader of the format against the package, per CPU-second",
        (
            OURS,
            "ours, 4 batches a call",
            "ours, all hashes",
            "ours, 4 batches a call, all hashes",
            "reader, a batch a call",
            "reader, 4 batches a call",
        ),
    ),
    Case("zarr.order", "zarr", _IN_ORDER, "whole chunks, no shuffle"),
    Case(
        "zarr.block",
        "zarr",
        _BLOCK,
        "each chunk is decoded once, its rows go to many batches",
        (*_USUAL[:-1], "bare loop", "floor"),
    ),
    Case("zarr.global", "zarr", _GLOBAL, "every batch needs every chunk: it pays to keep them"),
    Case(
        "zarr.quarter",
        "zarr",
        _GLOBAL,
        "the same where memory holds a quarter of the chunks",
        resident_share=0.25,
    ),
    Case(
        "zarr.budget",
        "zarr",
        _BLOCK,
        "a block shuffle in little memory",
        (OURS, "floor"),
        resident_share=0.25,
    ),
    Case("shards.order", "zarr_shards", _IN_ORDER, "an inner chunk per record: the cost of each"),
    Case("shards.block", "zarr_shards", _BLOCK, "the same: a block is a single record here"),
    Case("shards.global", "zarr_shards", _GLOBAL, "random single records of a few large files"),
    Case("raw.order", "zarr_raw", _IN_ORDER, "nothing to decode: what copying costs", _RAW),
    Case("raw.block", "zarr_raw", _BLOCK, "nothing to decode, near neighbours", _RAW),
    Case("raw.global", "zarr_raw", _GLOBAL, "nothing to decode, random rows", _RAW),
    Case("tokens.order", "tokens", _IN_ORDER, "windows of a long array, one after another"),
    Case("tokens.block", "tokens", _BLOCK, "windows shuffled within some chunks"),
    Case("tokens.global", "tokens", _GLOBAL, "random windows: many share a chunk"),
    Case(
        "tokens.cached",
        "tokens_cached",
        _GLOBAL,
        "the same once the array is in memory",
        (OURS, "memmap", "floor"),
    ),
    Case(
        "fields.global",
        "fields",
        _GLOBAL,
        "random windows of three steps, a chunk per step; memory holds all of them",
        (OURS, "expert", "expert, cache", "xbatcher", "floor"),
    ),
    Case(
        "fields.quarter",
        "fields",
        _GLOBAL,
        "the same where memory holds a quarter of the steps",
        _WINDOWS,
        resident_share=0.25,
    ),
    Case(
        "fields.block",
        "fields",
        _BLOCK,
        "a block shuffle by 16 windows; the expert's loops shuffle globally",
        _WINDOWS,
    ),
    Case(
        "fields.budget",
        "fields",
        _BLOCK,
        "the same in windows of two blocks where memory holds half of the steps",
        _WINDOWS,
        resident_share=0.5,
    ),
    Case(
        "patches.global",
        "patches",
        _GLOBAL,
        "cubes anywhere in a volume, of eight chunks mostly; memory holds all of them",
        _WINDOWS,
    ),
    Case(
        "patches.quarter",
        "patches",
        _GLOBAL,
        "the same where memory holds a quarter of the volume",
        _WINDOWS,
        resident_share=0.25,
    ),
    Case(
        "patches.block",
        "patches",
        _BLOCK,
        "a block shuffle by home chunk; the expert's loops shuffle globally",
        _WINDOWS,
    ),
    Case(
        "remote.global",
        "far_records",
        _GLOBAL,
        "random single records",
        (OURS, "one by one", "aiohttp"),
    ),
    Case(
        "remote.block",
        "far_records",
        _BLOCK,
        "blocks of 256 single records: a request for many of them",
        (OURS, "ours, global shuffle", "one by one"),
    ),
    Case(
        "remote.zarr_order",
        "far_zarr",
        _IN_ORDER,
        "shards of 128 inner chunks, one after another",
        (OURS, "TensorStore"),
    ),
    Case(
        "remote.zarr_block",
        "far_zarr",
        _BLOCK,
        "the same, a request for each inner chunk",
        (OURS, "TensorStore"),
    ),
    Case("remote.open", "far_files", _IN_ORDER, "opening 1,000 files", (OURS, "aiohttp")),
    Case("chain.range", "numbers", _GLOBAL, "nothing to read: order and batches", _OF_CHAIN),
    Case("chain.function", "calls", _GLOBAL, "with a Python function of a microsecond", _OF_CHAIN),
    Case(
        "chain.elements", "elements", _GLOBAL, "without batches: handing elements over", _OF_CHAIN
    ),
    Case(
        "workers.slow_map",
        "slow",
        _IN_ORDER,
        "a function of a millisecond of pure Python per record",
        _OF_WORKERS,
    ),
    Case(
        "workers.large",
        "large",
        _IN_ORDER,
        "batches of 64 MB from memory, a function that does nothing: what handing over costs",
        (OURS, "ours, no workers", "torch", "floor"),
    ),
    Case(
        "workers.small",
        "compact",
        _IN_ORDER,
        "the same with batches of 100 KB: the cost of each",
        (*_OF_WORKERS, "floor"),
    ),
    Case(
        "workers.start",
        "start",
        _IN_ORDER,
        "the first batch of two workers in a new process",
        (OURS, "torch", "Grain"),
    ),
    Case(
        "workers.memory",
        "compact",
        _IN_ORDER,
        "as `workers.small`, with 64 MiB of shared memory",
        (OURS,),
        watched=True,
    ),
    Case(
        "workers.zarr",
        "zarr_workers",
        _BLOCK,
        "a block shuffle in little memory, with 64 MiB of shared memory",
        (OURS,),
        resident_share=0.25,
        watched=True,
    ),
    Case(
        "convert.verify",
        "verify",
        _IN_ORDER,
        "a folder of ArrayRecord, `group_size:1`, and its manifest: all checksums, all records",
        (OURS, "reader", "floor"),
    ),
    Case(
        "convert.verify_zarr",
        "verify_zarr",
        _IN_ORDER,
        "a folder of Zarr, shards of small chunks, and its manifest: all checksums, all chunks",
        (OURS, "floor"),
    ),
    Case("checkpoint", "checkpoint", _GLOBAL, "saving at a step, and restoring", _OF_CHAIN),
)


def chosen(names: Sequence[str]) -> list[Case]:
    """The cases of these names and groups, or all, in their order."""
    return [case for case in CASES if not names or case.name in names or case.group in names]


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """All measurements of one side of one case; the order of `rounds` is that of the run."""

    case: str
    side: str
    setting: str
    rounds: tuple[Metrics, ...]
    tried: Metrics


class Run:
    """The measurements of some cases. A side that fails is left out, and `failed` is then set.

    Args:
        cases: What is measured.
        data: The stores, written before.
        repeats: Measurements of every side.
        is_small: Whether this is a tiny run.
        say: Gets the lines that tell who is left out, and why.
    """

    def __init__(
        self,
        cases: Sequence[Case],
        data: Data,
        *,
        repeats: int,
        is_small: bool,
        say: Callable[[str], None],
    ) -> None:
        self._cases, self._data = cases, data
        self._repeats, self._small, self._say = repeats, is_small, say
        self._told: set[str] = set()
        self._settings: dict[tuple[str, ...], Metrics] = {}
        self.failed = False
        self.skipped: list[str] = []
        self.results: list[Measured] = []

    @property
    def steps(self) -> int:
        """How many measurements there are at most."""
        return self._repeats * sum(len(case.sides) for case in self._cases)

    def go(self) -> Iterator[str]:
        """Measure; yields the name of each measurement before it is made."""
        for case in self._cases:
            yield from self._measure(case)

    def _measure(self, case: Case) -> Iterator[str]:
        jobs = {side.name: job for side, job in self._prepared(case)}
        rounds: dict[str, list[Metrics]] = {name: [] for name in case.sides}
        for _ in range(self._repeats):
            for name in case.sides:
                yield f"{case.name}: {name}"
                if name not in jobs:
                    continue
                try:
                    rounds[name].append(process.ask("measure", jobs[name]))
                except RuntimeError as error:
                    self._fail(case, name, error)
                    del jobs[name]
        for name, job in jobs.items():
            tried = self._settings.get(_tuned_for(case, SIDES[name]), {})
            found = Measured(case.name, name, job.option, tuple(rounds[name]), tried)
            self.results.append(found)

    def _prepared(self, case: Case) -> Iterator[tuple[Side, Job]]:
        """The sides that can take part, and what each is asked."""
        for name in case.sides:
            side = SIDES[name]
            if side.missing:
                self._skip(side.missing)
                continue
            job = Job(
                self._data,
                case.layout,
                case.order,
                side.module,
                side.option,
                case.resident_share,
                self._small,
                case.watched,
            )
            if side.tuned:
                try:
                    job = dataclasses.replace(job, option=self._setting(case, side, job))
                except RuntimeError as error:
                    self._fail(case, name, error)
                    continue
            yield side, job

    def _setting(self, case: Case, side: Side, job: Job) -> str:
        if case.layout == "checkpoint" and side.module == "grain_side":
            # What comes first is a batch that is read when it is asked for.
            return "no threads"
        if case.layout in WHOLE:
            return ""
        key = _tuned_for(case, side)
        if key not in self._settings:
            self._settings[key] = process.ask("tune", job)["tried"]
        tried = self._settings[key]
        return max(tried, key=tried.__getitem__, default="")

    def _fail(self, case: Case, name: str, error: RuntimeError) -> None:
        self.failed = True
        self._say(str(error))
        self._skip(f"{name} is left out of {case.name}: it failed")

    def _skip(self, line: str) -> None:
        if line not in self._told:
            self._told.add(line)
            self.skipped.append(line)
            self._say(line)


def _tuned_for(case: Case, side: Side) -> tuple[str, ...]:
    """Settings of frameworks suit a layout, those of loops that are written for it an order too."""
    if side.module in ("grain_side", "torch_side", "xbatcher_side"):
        return side.name, case.layout, str(case.resident_share)
    return side.name, case.name
