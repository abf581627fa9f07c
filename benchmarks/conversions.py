"""`python -m benchmarks.conversions`: what conversions cost, beside their peers and floors.

Each case has a module of its own, whose sides take turns in every round. The table goes to stdout,
and with `--page` between the marks of docs/performance.md. Verifying what was converted is a case of
`python -m benchmarks`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks import (
    example_side,
    rechunk_side,
    records_to_zarr_side,
    to_array_record_side,
)
from benchmarks.figures import PAGE, Figure, markdown, placed

FIGURES: Final = (
    Figure("TFRecord to ArrayRecord", "of a bare loop", "of_bare_loop", 0.95),
    Figure("TFRecord to ArrayRecord", "times array_record's own pipeline", "times_pipeline", 6),
    Figure("TFRecord to ArrayRecord", "MB of memory at most", "peak_mb", 400, most=True),
    Figure("Examples to columns", "times upb in a loop", "ratio", 5),
    Figure("rechunk, one pass", "of reading and writing alone", "ratio", 0.7),
    Figure("rechunk, one pass", "MiB of memory at most", "peak_mb", 512, most=True),
    Figure("rechunk, two passes", "of reading and writing alone", "ratio", 0.35),
    Figure("rechunk, two passes", "MiB of memory at most", "peak_mb", 512, most=True),
    Figure("plain ArrayRecord to Zarr", "of writing the columns alone", "ratio_to_encoder", 0.8),
    Figure("plain ArrayRecord to Zarr", "of TensorStore writing them", "ratio_to_tensorstore", 0.8),
    Figure("zstd ArrayRecord to Zarr", "of writing the columns alone", "ratio_to_encoder", 0.8),
)


def _to_array_record(folder: Path, share: float) -> Mapping[str, Any]:
    records = max(16, int(to_array_record_side.RECORDS * share))
    found = to_array_record_side.measured(folder, records, repeats=1)
    return {**found, "peak_mb": found["peak_mb"]["ours"]}


def _examples(folder: Path, share: float) -> Mapping[str, Any]:
    return example_side.run("one layout", records=max(16, int(20_000 * share)), rounds=3)


def _rechunk(at: int) -> Callable[[Path, float], Mapping[str, Any]]:
    def run(folder: Path, share: float) -> Mapping[str, Any]:
        return rechunk_side.measured(folder, rechunk_side.CASES[at].scaled(share))

    return run


def _to_zarr(writer_options: str) -> Callable[[Path, float], Mapping[str, Any]]:
    def run(folder: Path, share: float) -> Mapping[str, Any]:
        records = max(16, int(records_to_zarr_side.Case.records * share))
        case = records_to_zarr_side.Case(records, writer_options)
        return records_to_zarr_side.measured(folder, case, rounds=1)

    return run


CASES: Final[Mapping[str, Callable[[Path, float], Mapping[str, Any]]]] = {
    "TFRecord to ArrayRecord": _to_array_record,
    "Examples to columns": _examples,
    "rechunk, one pass": _rechunk(0),
    "rechunk, two passes": _rechunk(1),
    "plain ArrayRecord to Zarr": _to_zarr("group_size:1,uncompressed"),
    "zstd ArrayRecord to Zarr": _to_zarr("group_size:1,zstd:3"),
}


def measured(
    folder: Path, *, cases: Sequence[str], rounds: int, share: float
) -> dict[str, list[Mapping[str, Any]]]:
    """What each case gives, round by round; `share` is that of the full size."""
    found: dict[str, list[Mapping[str, Any]]] = {case: [] for case in cases}
    for _ in range(rounds):
        for case in cases:
            place = folder / case.replace(" ", "-").replace(",", "")
            place.mkdir(parents=True, exist_ok=True)
            found[case].append(CASES[case](place, share))
            print(json.dumps({"case": case, **found[case][-1]}), file=sys.stderr, flush=True)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases and print the table."""
    parser = argparse.ArgumentParser(prog="benchmarks.conversions", description=__doc__)
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}; by default all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--share", type=float, default=1.0, help="of the full sizes [1]")
    parser.add_argument("--folder", type=Path, help="keeps the data written for it; else a new one")
    parser.add_argument(
        "--page", action="store_true", help="put the table into docs/performance.md"
    )
    given = parser.parse_args(argv)
    unknown = set(given.cases) - set(CASES)
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory(prefix="windrow-conversions-") as temporary:
        found = measured(
            given.folder or Path(temporary),
            cases=given.cases or list(CASES),
            rounds=given.rounds,
            share=given.share,
        )
    text = markdown(FIGURES, found)
    print(text)
    if given.page:
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(placed(text, page, "conversions"), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
