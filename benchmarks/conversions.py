"""`python -m benchmarks.conversions`: what conversions cost, beside their peers and floors.

Each case has a module of its own, whose sides take turns in every round. The table goes to stdout,
and with `--page` between the marks of docs/measurements.md. Verifying what was converted is a case of
`python -m benchmarks`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks import (
    example_side,
    rechunk_side,
    records_to_zarr_side,
    to_array_record_side,
)
from benchmarks.figures import Figure, Run, command

FIGURES: Final = (
    Figure("TFRecord to ArrayRecord", "of our own writer alone", "of_encoder", 0.85),
    Figure("TFRecord to ArrayRecord", "of a bare loop", "of_bare_loop", 0.95),
    Figure("TFRecord to ArrayRecord", "of one that syncs its files too", "of_synced_loop", None),
    Figure("TFRecord to ArrayRecord", "times array_record's own pipeline", "times_pipeline", 6),
    Figure("TFRecord to ArrayRecord", "MB of memory at most", "peak_mb", 400, most=True),
    Figure("Examples to columns", "times upb in a loop", "ratio", 5),
    Figure("rechunk, one pass", "of reading and writing alone", "ratio", 0.7),
    Figure("rechunk, one pass", "MiB of memory at most", "peak_mb", 512, most=True),
    Figure("rechunk, two passes", "of reading and writing alone", "ratio", 0.35),
    Figure("rechunk, two passes", "MiB of memory at most", "peak_mb", 512, most=True),
    Figure("plain ArrayRecord to Zarr", "of our own encoder alone", "ratio_to_encoder", 0.85),
    Figure("plain ArrayRecord to Zarr", "of TensorStore writing them", "ratio_to_tensorstore", 0.8),
    Figure("zstd ArrayRecord to Zarr", "of our own encoder alone", "ratio_to_encoder", 0.85),
    Figure("zstd ArrayRecord to Zarr", "of TensorStore writing them", "ratio_to_tensorstore", 0.8),
)


def _to_array_record(folder: Path, share: float) -> Mapping[str, Any]:
    records = max(16, int(to_array_record_side.RECORDS * share))
    found = to_array_record_side.measured(folder, records, repeats=1)
    return {**found, "peak_mb": found["peak_mb"]["ours"]}


def _examples(folder: Path, share: float) -> Mapping[str, Any]:
    return example_side.run("one layout", records=max(16, int(20_000 * share)), rounds=3)


def _rechunk(at: int) -> Run:
    def run(folder: Path, share: float) -> Mapping[str, Any]:
        return rechunk_side.measured(folder, rechunk_side.CASES[at].scaled(share))

    return run


def _to_zarr(writer_options: str) -> Run:
    def run(folder: Path, share: float) -> Mapping[str, Any]:
        records = max(16, int(records_to_zarr_side.Case.records * share))
        case = records_to_zarr_side.Case(records, writer_options)
        return records_to_zarr_side.measured(folder, case, rounds=1)

    return run


CASES: Final[Mapping[str, Run]] = {
    "TFRecord to ArrayRecord": _to_array_record,
    "Examples to columns": _examples,
    "rechunk, one pass": _rechunk(0),
    "rechunk, two passes": _rechunk(1),
    "plain ArrayRecord to Zarr": _to_zarr("group_size:1,uncompressed"),
    "zstd ArrayRecord to Zarr": _to_zarr("group_size:1,zstd:3"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases and print the table."""
    return command("conversions", __doc__, cases=CASES, figures=FIGURES, argv=argv)


if __name__ == "__main__":
    sys.exit(main())
