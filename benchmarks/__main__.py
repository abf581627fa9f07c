"""`python -m benchmarks`: ours, Grain and the floor in one run, from the root of the repository.

The table and a line of JSON per figure go to stdout, progress to stderr.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence

from benchmarks import cases, report, setting


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases named, or all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "cases", nargs="*", metavar="case", help=f"any of {', '.join(cases.NAMES)} [all]"
    )
    parser.add_argument("--small", action="store_true", help="a tiny run; its figures say nothing")
    parser.add_argument("--repeats", type=int, default=5, help="rounds that count [5]")
    parser.add_argument("--json", action="store_true", help="only the lines of JSON")
    args = parser.parse_args(argv)
    unknown = sorted(set(args.cases) - set(cases.NAMES))
    if unknown:
        parser.error(f"no such case: {', '.join(unknown)}; choose from {', '.join(cases.NAMES)}")
    if args.repeats < 1:
        parser.error(f"--repeats must be at least 1, got {args.repeats}")
    results = _run(args.cases or list(cases.NAMES), repeats=args.repeats, is_small=args.small)
    if not args.json:
        print(report.header(repeats=args.repeats, is_small=args.small))
        print(report.table(results))
        print()
    for result in results:
        print(json.dumps(result))
    return 0


def _run(names: list[str], *, repeats: int, is_small: bool) -> list[cases.Result]:
    with tempfile.TemporaryDirectory(prefix="windrow-benchmarks-") as folder:
        where = cases.sizes(folder=folder, is_small=is_small)
        if cases.needs_data(names):
            _say(f"writing {where.records:,} records of {where.record_bytes:,} bytes, twice")
            setting.write(where)
        results = []
        for name in names:
            _say(name)
            results += cases.run(name, where, repeats=repeats, is_small=is_small, said=_say)
    return results


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
