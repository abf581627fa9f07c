"""`python -m benchmarks`: ours, its peers and the floor in one run, from the root of the repository.

The tables go to stdout, progress and what is left out to stderr.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks import cases, criteria, data, import_time, orders, report

_OTHERS = ("orders", "import")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases named, or all."""
    args = _parsed(argv)
    wanted = cases.chosen(args.cases) if set(args.cases) - set(_OTHERS) or not args.cases else []
    others = [name for name in _OTHERS if not args.cases or name in args.cases]
    document, failed = _run(wanted, others, args)
    text = report.markdown(document)
    print(text)
    if args.json:
        args.json.write_text(json.dumps(document, indent=1) + "\n")
    if args.markdown:
        page = args.markdown.read_text() if args.markdown.exists() else ""
        args.markdown.write_text(report.placed(text, page))
    return int(failed)


def _parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    names = [case.name for case in cases.CASES]
    groups = [*dict.fromkeys(case.group for case in cases.CASES), *_OTHERS]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "cases", nargs="*", metavar="case", help=f"any of {', '.join([*groups, *names])} [all]"
    )
    parser.add_argument("--small", action="store_true", help="a tiny run; its figures say nothing")
    parser.add_argument("--repeats", type=int, default=3, help="measurements of every side [3]")
    parser.add_argument("--records", type=int, help="records of every store [200,000]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything as JSON")
    parser.add_argument(
        "--markdown",
        type=Path,
        metavar="FILE",
        help="write the tables; in a page that has them, in their place",
    )
    args = parser.parse_args(argv)
    unknown = sorted(set(args.cases) - {*names, *groups})
    if unknown:
        choices = ", ".join(dict.fromkeys([*groups, *names]))
        parser.error(f"no such case: {', '.join(unknown)}; choose from {choices}")
    for name in ("repeats", "records"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(args, name)}")
    return args


def _run(
    wanted: Sequence[cases.Case], others: Sequence[str], args: argparse.Namespace
) -> tuple[dict[str, Any], bool]:
    """The document of a run, and whether a side failed."""
    where = report.machine()
    with tempfile.TemporaryDirectory(prefix="windrow-benchmarks-") as folder:
        sizes = data.small(folder) if args.small else data.Data(folder)
        if args.records:
            sizes = dataclasses.replace(sizes, records=args.records)
        for layout in _layouts(wanted):
            _say(f"writing {layout}: {sizes.count(layout):,} records")
            data.write(sizes, layout)
        run = cases.Run(wanted, sizes, repeats=args.repeats, is_small=args.small, say=_say)
        # tqdm writes to stderr, and leaves it alone where that is a file of a log.
        for name in (bar := tqdm(run.go(), total=run.steps, unit="run", disable=None)):
            bar.set_description(name)
    found: list[dict[str, object]] = []
    if "orders" in others:
        few = 1 if args.small else args.repeats
        found += [{"case": "orders", **o} for o in orders.run(small=args.small, repeats=few)]
    if "import" in others:
        found.append(import_time.run(1 if args.small else 2 * args.repeats))
    facts = {name: value for name, value in dataclasses.asdict(sizes).items() if name != "folder"}
    document = report.document(
        run.results,
        criteria.judged(run.results),
        found,
        where=where,
        skipped=run.skipped,
        sizes={**facts, "repeats": args.repeats, "is_small": args.small},
    )
    return document, run.failed


def _layouts(wanted: Sequence[cases.Case]) -> list[str]:
    """The stores that these cases read, also for single sides that are there."""
    layouts = [case.stored_layout for case in wanted if case.has_store]
    sides = [cases.SIDES[name] for case in wanted for name in case.sides]
    also = [side.also_written for side in sides if side.also_written and not side.missing]
    return list(dict.fromkeys([*layouts, *also]))


def _say(what: str) -> None:
    tqdm.write(what, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
