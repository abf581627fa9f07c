"""Conversions for tests of where they run: small, counted, and with a moment to hold them at."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorstore as ts

from tests.processes import until
from windrow.converters.job.folder import FinishedPart, OutputFolder
from windrow.converters.job.job import planned
from windrow.converters.job.manifest import Manifest, OutputFile
from windrow.converters.job.stages import Conversion, ConversionStage, Expected, Report
from windrow.converters.zarr.layout import ArrayLayout, encode_parts

Work = Callable[[OutputFolder, Any, Report], Any]


def conversion(
    *stages: ConversionStage, finish: Callable[[OutputFolder, list[Any]], None] | None = None
) -> Conversion:
    """A conversion of these stages."""
    return Conversion(
        name="tfrecord_to_zarr",
        plan=planned("numbers", (), {}),
        stages=stages,
        finish=finish or write_manifest,
        expected=Expected(None, 0, None, None),
        sources=("in",),
        flags=("--to", "numbers"),
    )


def stage(items: Sequence[Any], work: Work, *, at_once: int | None = None) -> ConversionStage:
    """A stage whose items are known, each of weight 1."""
    return ConversionStage("work", functools.partial(given, items), work, weight, at_once)


def given(items: Sequence[Any], folder: OutputFolder, results: list[Any]) -> Sequence[Any]:
    return items


def weight(item: Any) -> int:
    return 1


def write_number(folder: OutputFolder, number: int, report: Report) -> FinishedPart:
    """Writes a number to a file of its own, if no earlier run has."""

    def make() -> FinishedPart:
        tell(folder, "made", number)
        file = written(folder, f"{number:03}", b"%d" % number)
        return FinishedPart(f"number-{number}", 1, (file,))

    part = folder.part(f"number-{number}", make)
    report(1, 1)
    return part


def written(folder: OutputFolder, name: str, data: bytes) -> OutputFile:
    """Write a finished file of one record."""
    with folder.target.incoming(name) as path:
        Path(path).write_bytes(data)
        return folder.publish(path, name, records=1)


def encode(layout: ArrayLayout, origin: Sequence[int], block: Any) -> dict[str, bytes]:
    """The stored files that hold a block of an array, by name in the group."""
    return {
        name: b"".join(parts)
        for name, parts in encode_parts(layout, origin, block, ahead_bytes=1 << 25)
    }


def store(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files, by their names in a folder."""
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def values_in(folder: Path, name: str = "") -> Any:
    """The values of an array of Zarr v3, as TensorStore reads them."""
    spec = {
        "driver": "zarr3",
        "kvstore": f"file://{folder}/{name}/" if name else f"file://{folder}/",
    }
    return ts.open(spec, open=True).result().read().result()


def write_manifest(folder: OutputFolder, parts: list[FinishedPart]) -> None:
    files = tuple(file for part in parts for file in part.files)
    folder.finish(Manifest("numbers", (), {}, files))


# What happens in the processes of a run, told by files beside its folder.


def tell(folder: OutputFolder, what: str, number: int) -> None:
    Path(_beside(folder, f"{what}-{number}-{os.getpid()}")).touch()


def told(root: Path, what: str) -> list[tuple[int, int]]:
    """Of each file that tells of `what`, the number and the process."""
    found = (path.name.split("-") for path in root.parent.glob(f"{root.name}.{what}-*"))
    return sorted((int(number), int(process)) for _, number, process in found)


def wait_for(folder: OutputFolder, what: str, count: int) -> None:
    """Wait until so many files tell of `what`."""
    root = Path(str(folder.target.local))
    assert until(lambda: len(told(root, what)) >= count)


def _beside(folder: OutputFolder, name: str) -> str:
    return f"{folder.target.local}.{name}"
