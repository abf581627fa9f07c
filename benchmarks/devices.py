"""`python -m benchmarks.devices`: what processes with JAX devices read, hold and wait for.

Each case runs one, two or four processes with virtual CPU devices on this machine. Bytes are those that the
system counts per process for reads of files. The first cases count, so their figures are the same on a busy
machine; the others measure times, and are run alone or not at all.

It prints a JSON line per figure and then a table. `--page docs/jax.md` also puts that into the page. Cases may be run one by
one, and `--from-json` takes the lines of such runs together.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import zarr

from benchmarks import report

ROOT: Final = Path(__file__).parents[1]
ROW: Final = 768  # cells of a row of 3 KB
_LIMIT_S: Final = 280
_BEGIN, _END = "<!-- devices -->", "<!-- end of devices -->"


@dataclasses.dataclass(frozen=True, slots=True)
class Sizes:
    """How much is stored and read.

    Args:
        times, levels: Fields are `(times, levels, 720, 1440)` float32 in chunks of (1, 1, 91, 180).
        cells: Cells of the volume along each axis, uint8 in chunks of 32^3.
        patch: Cells of a patch along each axis, at most half of `cells`.
        rows: Rows of 3 KB, in chunks of 100.
    """

    times: int = 8
    levels: int = 4
    cells: int = 512
    patch: int = 128
    rows: int = 40_960


SMALL: Final = Sizes(times=1, levels=1, cells=128, patch=64, rows=8_192)


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """A line of the table.

    Args:
        case: The case.
        figure: What was measured of it.
        measured: The figures, as text.
        wanted: The bound, as text.
        is_met: Whether the figures keep it.
    """

    case: str
    figure: str
    measured: str
    wanted: str
    is_met: bool


# --- data ----------------------------------------------------------------------------------------


def write(sizes: Sizes, folder: Path) -> None:
    """Write the stores of all cases."""
    rng = np.random.default_rng(0)
    (folder / "sizes.json").write_text(json.dumps(dataclasses.asdict(sizes)))
    shape = (sizes.times, sizes.levels, 720, 1440)
    fields = zarr.create_array(
        folder / "fields.zarr", shape=shape, chunks=(1, 1, 91, 180), dtype="f4"
    )
    for time in range(sizes.times):
        fields[time] = rng.integers(0, 1000, shape[1:]).astype("f4")
    volume = zarr.create_array(
        folder / "volume.zarr",
        shape=(sizes.cells,) * 3,
        chunks=(32,) * 3,
        dtype="u1",
        dimension_names=list("zyx"),
    )
    for first in range(0, sizes.cells, 32):
        volume[first : first + 32] = rng.integers(0, 16, (32, sizes.cells, sizes.cells), "u1")
    half = sizes.cells // 2
    corners = half * np.stack(np.meshgrid(*[[0, 1]] * 3, indexing="ij"), -1).reshape(-1, 3)
    # No chunk has cells of two patches, so that no patch finds chunks of another one.
    np.save(folder / "bounds.npy", corners + sizes.patch // 2)
    moved = rng.integers(0, half - sizes.patch + 1, corners.shape)
    np.save(folder / "random.npy", corners + moved + sizes.patch // 2)
    rows = rng.random((sizes.rows, ROW), "f4")
    rows = np.round(rows, 2)
    zarr.create_array(folder / "rows.zarr", data=rows, chunks=(100, ROW))
    _write_records(folder / "rows.array_record", rows)


def _write_records(path: Path, rows: Any) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(path), "group_size:1")
    for row in rows:
        writer.write(row.tobytes())
    writer.close()


def chunk_bytes(store: Path) -> dict[tuple[int, ...], int]:
    """Bytes of each stored chunk."""
    folder = store / "c"
    return {
        tuple(map(int, path.relative_to(folder).parts)): path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file()
    }


# --- processes -----------------------------------------------------------------------------------


def run(case: str, folder: Path, count: int, devices: int) -> list[dict[str, Any]]:
    """The figures of each process of a case.

    Raises:
        RuntimeError: If one of them fails.
    """
    with contextlib.closing(socket.socket()) as found:
        found.bind(("localhost", 0))
        port = found.getsockname()[1]
    command = [sys.executable, "-m", "benchmarks.devices_side", case, str(folder)]
    started = [
        subprocess.Popen(
            [*command, *map(str, (index, count, devices, port))],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(count)
    ]
    try:
        ended = [process.communicate(timeout=_LIMIT_S) for process in started]
    finally:
        for process in started:
            process.kill()
    for process, (_, errors) in zip(started, ended, strict=True):
        if process.returncode:
            raise RuntimeError(f"benchmark: a process of {case} failed:\n{errors[-3000:]}")
    return [json.loads(output.splitlines()[-1]) for output, _ in ended]


def of_fields(folder: Path, sizes: Sizes) -> Iterator[Line]:
    """4-D fields with latitude over two processes."""
    found, stored = run("fields", folder, 2, 1), chunk_bytes(folder / "fields.zarr")
    touched = [
        [size for at, size in stored.items() if at[2] * 91 < stop and (at[2] + 1) * 91 > start]
        for start, stop in ((0, 360), (360, 720))
    ]
    pairs = list(zip(found, touched, strict=True))
    ratio = max(each["bytes"] / sum(own) for each, own in pairs)
    others = max(each["chunks"] - len(own) for each, own in pairs)
    yield Line(
        f"fields ({sizes.times}, {sizes.levels}, 720, 1440), latitude over 2 processes",
        "bytes read per byte of the chunks that a box touches; other chunks",
        f"{ratio:.3f}; {others:g}",
        "1.05; 0",
        ratio <= 1.05 and not others,
    )


def of_volume(folder: Path, sizes: Sizes) -> Iterator[Line]:
    """Patches of a volume, split over four processes."""
    what = f"volume of {sizes.cells}^3 uint8, 8 patches of {sizes.patch}^3, 2 x 2 over z and y in 4 processes"
    for kind, where, most_all, most_own in (
        ("bounds", "on chunk bounds", 1.0, 0.25),
        ("random", "at random", 1.45, 0.37),
    ):
        (alone,) = run(f"volume:{kind}", folder, 1, 4)
        found = [each["bytes"] / alone["bytes"] for each in run(f"volume:{kind}", folder, 4, 1)]
        yield Line(
            f"{what}, {where}",
            "bytes of all, and of one of them, per byte of one process alone",
            f"{sum(found):.3f}; {max(found):.3f}",
            f"{most_all}; {most_own}",
            # Metadata and messages are bytes, too.
            sum(found) <= 1.01 * most_all and max(found) <= 1.01 * most_own,
        )


def of_rows(folder: Path, sizes: Sizes) -> Iterator[Line]:
    """Rows over four processes, by random access and in lanes."""
    chunks = -(-sizes.rows // 100)
    plain, lanes = (run(f"rows:{kind}", folder, 4, 1) for kind in ("plain", "lanes"))
    times = [sum(each["reads"] for each in found) / chunks for found in (plain, lanes)]
    said = [max(found[0]["explained"]) for found in (plain, lanes)]
    advised = ["lanes" in found[0]["advice"] for found in (plain, lanes)]
    yield Line(
        "rows of a block_shuffle over 4 processes, random access",
        "reads of a chunk (explain says); lanes advised",
        f"{times[0]:.2f} ({said[0]:.2f}), {'yes' if advised[0] else 'no'}",
        "explained, yes",
        advised[0] and abs(times[0] - said[0]) < 0.1 * said[0],
    )
    yield Line(
        "the same in 8 lanes",
        "the same",
        f"{times[1]:.2f} ({said[1]:.2f}), {'yes' if advised[1] else 'no'}",
        "1 by one process, no",
        times[1] <= 1 and not advised[1],
    )
    worst = max(plain + lanes, key=lambda each: each["peak_bytes"] / each["allowed_bytes"])
    yield Line(
        "each process of these",
        "memory, MB (budget + 2 batches of its share + 80 MB)",
        f"{worst['peak_bytes'] / 1e6:.0f} ({worst['allowed_bytes'] / 1e6:.0f})",
        "less",
        worst["peak_bytes"] <= worst["allowed_bytes"],
    )


def of_training(folder: Path, _: Sizes) -> Iterator[Line]:
    """A loop whose step waits."""
    for kind, rows, what in (
        ("decoded", 16_384, "block_shuffle, chunks decoded each epoch"),
        ("decoded", 4_096, "the same"),
        ("kept", 4_096, "global shuffle, chunks kept in memory"),
    ):
        (found,) = run(f"training:{kind}:{rows}", folder, 1, 4)
        yield Line(
            f"loop on 4 devices, {rows:,} rows of 3 KB a step, {what}",
            f"a step waits {found['step_ms']:.0f} ms (80% of the loader): more time than without a loader"
            " (with the same reading in another process)",
            f"{100 * found['more']:+.1f}% ({100 * found['beside']:+.1f}%)",
            "5%",
            found["more"] <= 0.05,
        )


def of_rebuilding(folder: Path, _: Sizes) -> Iterator[Line]:
    """Iterators built again and again."""
    (found,) = run("rebuilding", folder, 1, 4)
    yield Line(
        "1,000 iterators of one process, on two meshes of 4 devices in turn",
        "threads, open files and MB more after the last than after 250",
        f"{found['threads']}, {found['files']}, {found['mb']:.1f}",
        "no growth (4 MB)",
        found["threads"] <= 0 and found["files"] <= 0 and found["mb"] < 4,
    )


def of_grain(folder: Path, _: Sizes) -> Iterator[Line]:
    """Ours and Grain in two processes."""
    rates = run("grain", folder, 2, 1)
    summed = {name: sum(each[name] for each in rates) for name in rates[0]}
    ours = {name: summed.pop(name) for name in ("kept", "decoded")}
    best = max(summed, key=lambda name: summed[name])
    for name, what in (
        ("kept", "global shuffle, chunks kept in memory"),
        ("decoded", "block_shuffle, chunks decoded each epoch"),
    ):
        yield Line(
            f"rows of 3 KB in 2 processes, {what}",
            f"rows/s over Zarr; Grain over ArrayRecord, global shuffle, {best}",
            f"{ours[name]:,.0f}; {summed[best]:,.0f} ({ours[name] / summed[best]:.1f} times)",
            "10 times",
            ours[name] >= 10 * summed[best],
        )


def of_restoring(folder: Path, _: Sizes) -> Iterator[Line]:
    """States of two and of four processes."""
    for count in (2, 4):
        states = [each["state"] for each in run("saving", folder, count, 4 // count)]
        (folder / f"state-{count}.json").write_text(json.dumps(states))
    restored = run("restoring", folder, 2, 2)
    ratio = max(each["state-4"] / each["state-2"] for each in restored)
    yield Line(
        "2 processes restore a state of 4 processes",
        "time to the first batch per time from a state of 2",
        f"{ratio:.2f} ({1e3 * restored[0]['state-2']:.0f} ms)",
        "1.2 times",
        ratio <= 1.2,
    )


CASES: Final[dict[str, Callable[[Path, Sizes], Iterator[Line]]]] = {
    "fields": of_fields,
    "volume": of_volume,
    "rows": of_rows,
    "training": of_training,
    "rebuilding": of_rebuilding,
    "grain": of_grain,
    "restoring": of_restoring,
}


def table(lines: Sequence[Line]) -> str:
    """The table."""
    rows = [
        (each.case, each.figure, each.measured, each.wanted, "yes" if each.is_met else "no")
        for each in lines
    ]
    return report.table(("case", "figure", "measured", "wanted", "met"), rows, left=2)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.devices")
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], help="some cases [all]")
    parser.add_argument("--small", action="store_true", help="a tiny run; its times say nothing")
    parser.add_argument("--page", type=Path, metavar="FILE", help="put the table into a page")
    parser.add_argument(
        "--from-json", type=Path, nargs="+", metavar="FILE", help="use the lines of such runs"
    )
    args = parser.parse_args(argv)
    if args.from_json:
        read = (line for path in args.from_json for line in path.read_text().splitlines())
        lines = [Line(**json.loads(line)) for line in read if line.startswith("{")]
    else:
        lines = list(measured(args.cases or list(CASES), SMALL if args.small else Sizes()))
    text = table(lines)
    print(text)
    if args.page:
        report.put_into_page(args.page, text, begin=_BEGIN, end=_END)
    return 0


def measured(cases: Sequence[str], sizes: Sizes) -> Iterator[Line]:
    """The lines of some cases; each is printed as JSON, too."""
    with tempfile.TemporaryDirectory(prefix="windrow-devices-") as name:
        folder = Path(name)
        write(sizes, folder)
        for case in cases:
            for line in CASES[case](folder, sizes):
                print(json.dumps(dataclasses.asdict(line)), flush=True)
                yield line


if __name__ == "__main__":
    raise SystemExit(main())
