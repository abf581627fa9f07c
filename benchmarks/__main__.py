"""`python -m benchmarks`: ours, its peers and the floor, from the root of the repository.

    python -m benchmarks                      what the pages about speed show
    python -m benchmarks steady zarr.block    some groups or cases
    python -m benchmarks all --small          every case on tiny data, to see that it runs
    python -m benchmarks --page               also keep the figures in docs, and make its tables anew

The tables go to stdout, progress and what is left out to stderr.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tqdm import tqdm

from benchmarks import cases, measure, pictures, report
from benchmarks.harness import Case, Metrics, Place, Results, Run

USUAL: Final = (
    "steady", "array_record", "zarr", "shards", "raw", "remote", "chain", "workers", "state",
    "lanes", "packing", "planned", "from_grain",
)  # fmt: skip
"""What is measured where nothing is chosen; the rest needs more than two cores, or is about other things."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run cases."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("cases", nargs="*", metavar="case", help='groups or cases, or "all"')
    parser.add_argument("--small", action="store_true", help="a tiny run; its figures say nothing")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of every side [3]")
    parser.add_argument("--seconds", type=float, default=1.5, help="of a measurement [1.5]")
    parser.add_argument("--folder", type=Path, help="keeps the stores; else a new one")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything as JSON")
    parser.add_argument(
        "--page",
        action="store_true",
        help="keep the figures, and write tables and pictures of docs",
    )
    given = parser.parse_args(argv)
    if given.rounds < 1 or given.seconds <= 0:
        parser.error("--rounds must be at least 1, and --seconds above 0")
    try:
        names = list(cases.every()) if given.cases == ["all"] else given.cases or USUAL
        wanted = cases.chosen(names)
    except ValueError as error:
        parser.error(str(error))
    if given.small and given.page:
        parser.error(
            "--page writes figures into pages, and --small measures nothing of use: leave one of them out"
        )
    if given.small:
        given.rounds, given.seconds = 1, 0.1
    with tempfile.TemporaryDirectory(prefix="windrow-benchmarks-") as folder:
        place = Place(given.folder or Path(folder), given.small)
        place.folder.mkdir(parents=True, exist_ok=True)
        run, failed = _run(wanted, place, given.rounds, given.seconds)
    print(report.markdown(run, {name: case for name, (_, case) in wanted.items()}))
    if given.small:
        print("A tiny run: its figures say nothing.")
    if given.json:
        given.json.write_text(json.dumps(run, indent=1) + "\n")
    if given.page:
        report.keep(run)
        pictures.draw_all(run)
    return int(failed)


def _run(
    wanted: Mapping[str, tuple[str, Case]], place: Place, rounds: int, seconds: float
) -> tuple[report.Told, bool]:
    """The figures of a run, ready for JSON, and whether a side failed."""
    where, failed, found = report.machine(), False, dict[str, Results]()
    left_out: list[str] = []
    for name, (topic, case) in (bar := tqdm(wanted.items(), unit="case", disable=None)):
        bar.set_description(f"{name}: stores")
        # A store that only absent sides read may need what is absent, too.
        if all(side.missing for side in case.sides):
            left_out.append(f"{name} is left out: pip install {' '.join(case.sides[0].missing)}")
            continue
        case.write(place)
        ask = functools.partial(_ask, topic, place)
        run = Run(case, place, ask, rounds=rounds, seconds=seconds)
        for step in run.go():
            bar.set_description(step)
        left_out += [line for line in run.left_out if line not in left_out]
        failed = failed or run.failed
        found[name] = run.results
    for line in left_out:
        _say(line)
    return report.told(found, where), failed


def _ask(topic: str, place: Place, case: Case, side: str, setting: str, seconds: float) -> Metrics:
    return measure.ask(topic, case, side, setting, seconds, place)


def _say(what: str) -> None:
    tqdm.write(what, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
