"""The cases: what each shows, who takes part, and which figure is compared.

A result is a flat dict, ready for JSON, with units in its keys; `ratio` says how many times better
ours is than Grain with its default options, whichever way the figure points.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TypeAlias

from benchmarks import import_time, orders, setting
from benchmarks.process import Measured, Side, measure
from benchmarks.setting import Setting

Result: TypeAlias = dict[str, object]

_OURS = "ours"
_DEFAULT = "default"
_WORKERS = "2 workers"


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """One chain, run by several sides.

    Args:
        name: The name it is chosen by, and of the function of each side.
        chain: What is run, in words.
        tried: Grain's settings beside its default, see `peer.SETTINGS`.
        metrics: The figures that come out; those that end in `_per_s` are better when larger.
        expert: Whether there is a loop written by hand.
    """

    name: str
    chain: str
    tried: tuple[str, ...]
    metrics: tuple[str, ...] = ("records_per_s",)
    expert: bool = False

    def at_small_size(self) -> Case:
        """The same with one of Grain's settings: most of a tiny run is starting processes."""
        return dataclasses.replace(self, tried=self.tried[-1:])

    def sides(self) -> list[Side]:
        """Ours, Grain's, the floor and the expert's."""
        grains = [
            Side(option, "peer", self.name, option, workers=option == _WORKERS)
            for option in (_DEFAULT, *self.tried)
        ]
        others = ("floor", "expert") if self.expert else ("floor",)
        floors = [Side(other, "floor", f"{other}_{self.name}") for other in others]
        return [Side(_OURS, "ours", self.name), *grains, *floors]


CASES = (
    # Random access to single records: what a read per record costs, and Python per record.
    Case(
        "array_record",
        "ArrayRecord: shuffle, map, batch",
        ("no threads", "2 threads", _WORKERS),
        expert=True,
    ),
    # No Python per record at all: what reading by rows costs where chunks hold 256.
    Case(
        "zarr",
        "Zarr: in order, batch",
        ("no threads", "2 threads", _WORKERS),
        expert=True,
    ),
    # No data: the cost of the chain.
    Case("chain", "range: shuffle, map, batch", ("no threads", "2 threads")),
    # No batches: the cost of handing an element over.
    Case("elements", "range: shuffle, map", ("no threads", "2 threads")),
    # A restart: its cost, and that of saving at every step.
    Case(
        "checkpoint",
        "ArrayRecord, restored",
        ("no threads", "2 threads"),
        metrics=("first_batch_ms", "set_state_us", "get_state_us"),
    ),
)
NAMES = (*(case.name for case in CASES), "orders", "import")


def run(
    name: str, where: Setting, *, repeats: int, is_small: bool, said: Callable[[str], None]
) -> list[Result]:
    """Results of the case of that name, one for each figure that it compares."""
    if name == "orders":
        return [_of_orders(found) for found in orders.run(small=is_small, repeats=repeats)]
    if name == "import":
        return [import_time.run(1 if is_small else 2 * repeats)]
    case = next(case for case in CASES if case.name == name)
    if is_small:
        case = case.at_small_size()
    found = measure(case.sides(), where, repeats=repeats, said=lambda what: said(f"{name}: {what}"))
    return [_result(case, metric, found, repeats) for metric in case.metrics]


def needs_data(names: list[str]) -> bool:
    """Whether one of the cases reads records."""
    return bool({"array_record", "zarr", "checkpoint"} & set(names))


def sizes(*, folder: str, is_small: bool) -> Setting:
    """How much is measured over."""
    return setting.small(folder) if is_small else Setting(folder)


def _of_orders(found: Mapping[str, object]) -> Result:
    name = f"index shuffle, {found['length']:.3g}, blocks of {found['block']}"
    return {"case": "orders", "chain": name, **found}


def _result(case: Case, metric: str, found: Mapping[str, Measured], repeats: int) -> Result:
    upward = metric.endswith("_per_s")
    figures = {name: side.medians[metric] for name, side in found.items() if metric in side.medians}
    grains = {name: figures[name] for name in (_DEFAULT, *case.tried)}
    best = (max if upward else min)(grains, key=grains.__getitem__)
    ours = figures[_OURS]

    def ratio(other: float) -> float:
        return round(ours / other if upward else other / ours, 2)

    result: Result = {
        "case": case.name,
        "chain": case.chain,
        "metric": metric,
        f"ours_{metric}": round(ours, 1),
        f"peer_{metric}": round(grains[_DEFAULT], 1),
        "peer": "grain, default ReadOptions",
        "ratio": ratio(grains[_DEFAULT]),
        "peer_best": f"grain, {best}",
        f"peer_best_{metric}": round(grains[best], 1),
        "ratio_to_peer_best": ratio(grains[best]),
        f"peer_tried_{metric}": {name: round(value, 1) for name, value in grains.items()},
    }
    for other in ("expert", "floor"):
        if other in figures:
            result[f"{other}_{metric}"] = round(figures[other], 1)
            result[f"ratio_to_{other}"] = ratio(figures[other])
    for key, name in (
        (_OURS, _OURS),
        ("peer", _DEFAULT),
        ("peer_best", best),
        ("expert", "expert"),
    ):
        if name in found:
            result[f"{key}_peak_mb"] = round(found[name].peak_mb, 1)
            result[f"{key}_above_imports_mb"] = round(found[name].above_imports_mb, 1)
    return result | {
        "ours_spread": round(found[_OURS].spreads[metric], 2),
        "peer_spread": round(found[_DEFAULT].spreads[metric], 2),
        "repeats": repeats,
        "page_cache": "warm",
    }
