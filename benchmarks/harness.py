"""The harness: cases, their sides, and rounds in which the sides take turns.

A case is declared once, in a module of its topic: who takes part, what is written before, and how a
side is measured. Every measurement has a process of its own (`benchmarks.measure`), so that nothing of
another side is loaded and memory is a side's own. Sides take turns within a round, and ratios are of
one round: what slows the whole machine falls out.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

Metrics: TypeAlias = dict[str, float]
OURS: Final = "ours"
FLOOR: Final = "floor"


class Regime(enum.Enum):
    """How a side is measured, and what its `open` returns.

    EPOCH: an iterable of batches, read once to its end in a process that has decoded nothing before.
    STEADY: an endless iterable of batches, read for a while after it has run for a while.
    WHOLE: a function that does the work once and returns how many records it has done.
    FIGURES: figures that the side has measured itself.
    """

    EPOCH = "epoch"
    STEADY = "steady"
    WHOLE = "whole"
    FIGURES = "figures"


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where the data of a run lie, and whether they are tiny."""

    folder: Path
    small: bool = False

    def path(self, name: str) -> Path:
        """The file or folder of that name."""
        return self.folder / name

    def size(self, full: int, tiny: int) -> int:
        """One of two sizes."""
        return tiny if self.small else full


@dataclasses.dataclass(frozen=True, slots=True)
class Side:
    """One way to do the work of a case.

    Args:
        name: What it is called in results.
        open: Prepares the work, which is not timed, and returns what the regime of the case measures.
            It gets the place, and its setting if there are some.
        settings: The settings it is tried with, by name; the quickest one is measured.
        needs: Packages that are imported before, whose memory does not count. A side whose packages are
            not installed is left out.
    """

    name: str
    open: Callable[..., Any]
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    needs: tuple[str, ...] = ()

    @property
    def missing(self) -> list[str]:
        """The packages that are not installed."""
        return [name for name in self.needs if importlib.util.find_spec(name) is None]

    def tried(self, place: Place) -> list[str]:
        """The names of the settings to try; the first one where data are tiny."""
        return list(self.settings)[: 1 if place.small else None]

    def opened(self, place: Place, setting: str) -> Any:
        """What is measured."""
        return self.open(place, self.settings[setting]) if self.settings else self.open(place)


@dataclasses.dataclass(frozen=True, slots=True)
class Bound:
    """What is wanted of a metric, or of its ratio to another side's.

    Args:
        what: In words.
        metric: Its name.
        over: The side that it is divided by; empty for the metric itself.
        at_least: The bound below.
        at_most: The bound above.
        side: The side that is judged.
    """

    what: str
    metric: str = "records_per_s"
    over: str = ""
    at_least: float | None = None
    at_most: float | None = None
    side: str = OURS

    def is_met(self, value: float) -> bool:
        """Whether a value is within the bounds."""
        least, most = self.at_least, self.at_most
        return (least is None or value >= least) and (most is None or value <= most)


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """A case.

    Args:
        name: The name it is chosen by; so is what stands before its dot.
        shows: What it shows, in a line.
        sides: Who takes part.
        regime: How they are measured.
        stores: Writes each store that the sides read, unless it is there, by its name in the place.
        bounds: What is wanted.
        seconds: How long a measurement takes at most, as a multiple of what is usual.
        warm: Batches that come before the clock starts; without a number, a steady state runs for
            `settle` times as long as it is measured.
        settle: See `warm`.
        latency_ms: Of the server that the place is read from; None for the file system.
        rounds: The most rounds; 0 for the number that the run asks for.
    """

    name: str
    shows: str
    sides: tuple[Side, ...]
    regime: Regime = Regime.EPOCH
    stores: Mapping[str, Callable[[Place, Path], None]] = dataclasses.field(default_factory=dict)
    bounds: tuple[Bound, ...] = ()
    seconds: float = 1.0
    warm: int = 0
    settle: float = 0.25
    latency_ms: float | None = None
    rounds: int = 0

    @property
    def group(self) -> str:
        """The cases that belong together."""
        return self.name.partition(".")[0]

    def side(self, name: str) -> Side:
        """The side of that name."""
        return next(side for side in self.sides if side.name == name)

    def write(self, place: Place) -> None:
        """Write the stores. They are in the page cache afterwards."""
        for name, writer in self.stores.items():
            if not place.path(name).exists():
                writer(place, place.path(name))


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """What came of one side of a case: each metric by round."""

    setting: str
    tried: Metrics
    rounds: tuple[Metrics, ...]

    def values(self, metric: str) -> list[float]:
        """The values of a metric."""
        return [found[metric] for found in self.rounds if metric in found]

    def to_json(self) -> dict[str, Any]:
        """Metrics by name, each a list."""
        names = dict.fromkeys(name for found in self.rounds for name in found)
        values = {name: [float(f"{v:.6g}") for v in self.values(name)] for name in names}
        return {"setting": self.setting, "tried": self.tried, "values": values}

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Measured:
        """What `to_json` told."""
        values = told["values"]
        most = max(map(len, values.values()), default=0)
        rounds = tuple(
            {name: each[at] for name, each in values.items() if at < len(each)}
            for at in range(most)
        )
        return cls(told["setting"], told["tried"], rounds)


Results: TypeAlias = dict[str, Measured]
"""By side."""


def in_turns(names: Sequence[str], number: int) -> list[str]:
    """The order of the sides in a round: the other way round in every second one."""
    return list(names) if number % 2 == 0 else list(names)[::-1]


def ratios(metric: str, one: Measured, other: Measured) -> list[float]:
    """One side's metric over the other's, round by round."""
    return [
        mine[metric] / theirs[metric]
        for mine, theirs in zip(one.rounds, other.rounds, strict=False)
        if metric in mine and theirs.get(metric)
    ]


def judged(bound: Bound, results: Mapping[str, Measured]) -> list[float]:
    """The values that a bound is about, round by round; none where it was not measured."""
    ours = results.get(bound.side)
    if ours is None:
        return []
    if not bound.over:
        return ours.values(bound.metric)
    other = results.get(bound.over)
    return [] if other is None else ratios(bound.metric, ours, other)


def beside_the_floor(found: Mapping[str, Metrics]) -> dict[str, Metrics]:
    """The metrics of the sides of a round, with those that are shares of the floor's."""
    floor = found.get(FLOOR)
    if floor is None:
        return dict(found)
    shares = {"of_floor": "mb_per_s", "cpu_of_floor": "cpu_s_per_gb"}
    return {
        side: metrics
        | {
            name: metrics[metric] / floor[metric]
            for name, metric in shares.items()
            if metrics.get(metric) and floor.get(metric)
        }
        for side, metrics in found.items()
    }


Ask: TypeAlias = Callable[[Case, str, str, float], Metrics]
"""Measures a side of a case with a setting for some seconds, in a process of its own."""


class Run:
    """The measurements of a case. A side that fails is left out, and `failed` is then set.

    Args:
        case: What is measured.
        place: Where its data are, written before.
        ask: Measures.
        rounds: Measurements of every side.
        seconds: How long one takes at most.
    """

    def __init__(self, case: Case, place: Place, ask: Ask, *, rounds: int, seconds: float) -> None:
        self._case, self._place, self._ask = case, place, ask
        self._rounds = min(rounds, case.rounds or rounds)
        self._seconds = seconds * case.seconds
        self._settings: dict[str, str] = {}
        self._tried: dict[str, Metrics] = {}
        self._found: list[dict[str, Metrics]] = []
        self.left_out: list[str] = []
        self.failed = False

    @property
    def results(self) -> Results:
        """What was measured."""
        return {
            name: Measured(
                self._settings[name],
                self._tried[name],
                tuple(found[name] for found in self._found if name in found),
            )
            for name in self._settings
        }

    def go(self) -> Iterator[str]:
        """Measure; yields the name of each measurement before it is made."""
        for side in self._case.sides:
            if side.missing:
                packages = " ".join(side.missing)
                self.left_out.append(f"{side.name} is left out: pip install {packages}")
                continue
            yield f"{self._case.name}: {side.name}, settings"
            self._tune(side)
        for number in range(self._rounds):
            found: dict[str, Metrics] = {}
            for name in in_turns(list(self._settings), number):
                yield f"{self._case.name}: {name}"
                setting = self._settings[name]
                metrics = self._measured(name, setting, self._seconds)
                if metrics is not None:
                    found[name] = metrics
            if self._is_whole(found):
                self._found.append(beside_the_floor(found))

    def _tune(self, side: Side) -> None:
        tried: Metrics = {}
        choices = side.tried(self._place)
        for setting in choices if len(choices) > 1 else ():
            metrics = self._measured(side.name, setting, self._seconds / 3)
            if metrics is None:
                return
            tried[setting] = metrics["records_per_s"]
        self._settings[side.name] = max(tried, key=lambda name: tried[name]) if tried else ""
        if len(choices) == 1:
            self._settings[side.name] = choices[0]
        self._tried[side.name] = tried

    def _measured(self, name: str, setting: str, seconds: float) -> Metrics | None:
        try:
            return self._ask(self._case, name, setting, seconds)
        except RuntimeError as error:
            self.failed = True
            self._settings.pop(name, None)
            self.left_out.append(f"{name} is left out of {self._case.name}: {error}")
            return None

    def _is_whole(self, found: Mapping[str, Metrics]) -> bool:
        """Whether all epochs that ended had as many records: one that lacks some is no figure."""
        ended = {name: m["ended_after"] for name, m in found.items() if "ended_after" in m}
        if len(set(ended.values())) <= 1:
            return True
        self.failed = True
        self.left_out.append(f"a round of {self._case.name} is left out: epochs differ: {ended}")
        return False
