"""All conversions, each of something small, for tests of what they have in common; and runs of them
that end badly.

A run that is to end at a certain moment is a program of its own, whose calls on the output are
counted by an audit hook: before the n-th of them it is killed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.processes import Program
from windrow import converters
from windrow.converters.job.job import carry_out
from windrow.converters.job.manifest import MANIFEST_NAME, UNFINISHED, Manifest
from windrow.converters.job.stages import Conversion
from windrow.errors import ConversionError, WindrowError
from windrow.sources import ArrayRecordDataSource, ZarrDataSource

RECORDS = [
    [b"%d of %d " % (at, k) * 30 for at in range(count)] for k, count in enumerate((5, 3, 9))
]
_ROWS = sum(map(len, RECORDS))


@dataclasses.dataclass(frozen=True)
class Case:
    """A conversion, of something small, in more than one file.

    `give` writes the inputs into a folder and tells what names them; `settings` are its arguments,
    `others` those of another plan; `first` is a file of the inputs, which is damaged if its byte at
    `spoil_at` is another.
    """

    name: str
    give: Callable[[Path], str]
    settings: Mapping[str, Any] = dataclasses.field(hash=False)
    others: Mapping[str, Any] = dataclasses.field(hash=False)
    first: str
    spoil_at: int

    @property
    def is_zarr(self) -> bool:
        return self.name.endswith("to_zarr")

    def convert(self, inputs: str, output: Path | str, **run: Any) -> Manifest:
        """Carry it out."""
        run.setdefault("progress", False)
        function = getattr(converters, self.name)
        manifest: Manifest = function(inputs, output, **{**self.settings, **run})
        return manifest

    def opened(self, output: Path | str, **settings: Any) -> Any:
        """Its output, as a source."""
        kind: Any = ZarrDataSource if self.is_zarr else ArrayRecordDataSource
        return kind(str(output), **settings)

    def __str__(self) -> str:
        return self.name


def _tfrecords(folder: Path, encode: Callable[[bytes, int], bytes]) -> str:
    folder.mkdir()
    for k, records in enumerate(RECORDS):
        converters.write_records(
            folder / f"x.tfrecord-{k:05}-of-00003",
            [encode(record, at) for at, record in enumerate(records)],
        )
    return str(folder / "x.tfrecord-*")


def _plain(folder: Path) -> str:
    return _tfrecords(folder, lambda record, at: record)


def _example(record: bytes, at: int) -> bytes:
    pair = np.array([at, len(record)], "f4")
    return converters.encode_example({"a": at, "pair": pair.tolist(), "text": b"x" * (at % 4)})


def _examples(folder: Path) -> str:
    return _tfrecords(folder, _example)


def _rows() -> list[list[dict[str, Any]]]:
    return [
        [
            {"a": at, "pair": [at, len(record)], "text": "x" * (at % 4)}
            for at, record in enumerate(records)
        ]
        for records in RECORDS
    ]


def _json_lines(folder: Path) -> str:
    folder.mkdir()
    for k, rows in enumerate(_rows()):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"x.jsonl-{k:05}-of-00003").write_text(lines)
    return str(folder / "x.jsonl-*")


def _parquet(folder: Path) -> str:
    import pyarrow
    import pyarrow.parquet

    folder.mkdir()
    kinds = {"a": pyarrow.int64(), "pair": pyarrow.list_(pyarrow.int64(), 2)}
    kinds |= {"text": pyarrow.string()}
    for k, rows in enumerate(_rows()):
        table = pyarrow.Table.from_pylist(rows, schema=pyarrow.schema(kinds))
        path = folder / f"x.parquet-{k:05}-of-00003"
        pyarrow.parquet.write_table(table, path, row_group_size=4)
    return str(folder / "x.parquet-*")


def _array_records(folder: Path, records: Callable[[Path], str]) -> str:
    with tempfile.TemporaryDirectory() as apart:
        converters.tfrecord_to_array_record(
            records(Path(apart) / "in"), folder, progress=False, writer_options="group_size:2"
        )
    (folder / MANIFEST_NAME).unlink()  # as if another program had written it
    return str(folder / "x.array_record-*")


def _zarr(folder: Path) -> str:
    import zarr

    group = zarr.create_group(str(folder))
    for name, dtype in (("a", "i8"), ("b", "f4")):
        values = np.arange(_ROWS * 6).reshape(_ROWS, 2, 3).astype(dtype)
        array = group.create_array(name, shape=values.shape, chunks=(3, 2, 2), dtype=dtype)
        array[...] = values
    return str(folder)


_LAYOUT = {"chunk_rows": 2, "shard_rows": 4}
_OTHER_LAYOUT = {"chunk_rows": 3, "shard_rows": 0}
_TFRECORD, _ARRAY_RECORD = "x.tfrecord-00000-of-00003", "x.array_record-00000-of-00003"
_JSON_LINES, _PARQUET = "x.jsonl-00000-of-00003", "x.parquet-00000-of-00003"
_ALL = (
    Case("tfrecord_to_array_record", _plain, {}, {"writer_options": "zstd:1"}, _TFRECORD, 40),
    Case("tfrecord_to_zarr", _examples, _LAYOUT, _OTHER_LAYOUT, _TFRECORD, 40),
    Case(
        "array_record_to_array_record",
        functools.partial(_array_records, records=_plain),
        {"files": 4, "shuffle_seed": 3},
        {"files": 2},
        _ARRAY_RECORD,
        130,
    ),
    Case(
        "array_record_to_zarr",
        functools.partial(_array_records, records=_examples),
        _LAYOUT,
        _OTHER_LAYOUT,
        _ARRAY_RECORD,
        130,
    ),
    Case(
        "zarr_to_zarr",
        _zarr,
        {"chunks": 2, "shards": 4},
        {"chunks": 3, "shards": 0},
        "a/c/0/0/0",
        0,
    ),
    Case("zarr_to_array_record", _zarr, {}, {"writer_options": "zstd:1"}, "a/c/0/0/0", 0),
    Case("json_lines_to_zarr", _json_lines, _LAYOUT, _OTHER_LAYOUT, _JSON_LINES, 0),
    Case(
        "json_lines_to_array_record",
        _json_lines,
        {},
        {"writer_options": "zstd:1"},
        _JSON_LINES,
        0,
    ),
    Case("parquet_to_zarr", _parquet, _LAYOUT, _OTHER_LAYOUT, _PARQUET, 4),
    Case(
        "parquet_to_array_record",
        _parquet,
        {},
        {"writer_options": "zstd:1"},
        _PARQUET,
        4,
    ),
)
CASES = tuple(case for case in _ALL if hasattr(converters, case.name))
BY_NAME = {case.name: case for case in CASES}


def tree(folder: Path) -> dict[str, bytes]:
    """All files of a folder, by their names in it."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def contents(source: Any) -> list[Any]:
    """All that a source holds, to be compared."""
    found = [source[at] for at in range(len(source))]
    return [
        {key: np.asarray(value).tolist() for key, value in one.items()}
        if isinstance(one, Mapping)
        else one
        for one in found
    ]


def state(case: Case, output: Path) -> str:
    """As `state_of`, of a folder."""
    names = {path.name for path in output.iterdir()} if output.exists() else set()
    return state_of(case, output, names)


def state_of(case: Case, output: Path | str, names: Collection[str], **settings: Any) -> str:
    """'nothing', 'unfinished' or 'finished': what a source makes of a folder with these names.

    It asserts that it is what lies there: a marker is refused by a source, which names what goes
    on; without marker and manifest there is nothing to open.
    """
    refused: Exception | None = None
    try:
        contents(case.opened(output, **settings))
    except (WindrowError, OSError) as error:
        refused = error
    if isinstance(refused, ConversionError):
        assert UNFINISHED in names, names
        told = str(refused)
        assert "has not finished" in told
        assert "windrow convert " in told or f"converters.{case.name}" in told
        return "unfinished"
    if refused is not None:
        assert not {UNFINISHED, MANIFEST_NAME} & set(names), names
        return "nothing"
    assert UNFINISHED not in names, names
    assert MANIFEST_NAME in names, names
    return "finished"


class StoppedError(Exception):
    """Raised by tests in the middle of the work."""


def planned(case: Case, inputs: str, **others: Any) -> Conversion:
    """The conversion, not begun."""
    function = getattr(converters, case.name)
    conversion: Conversion = function.conversion(inputs, **{**case.settings, **others})
    return conversion


class Counted:
    """The work of all stages, one item after the other, until so many items are done."""

    def __init__(self, conversion: Conversion, last: int | None = None) -> None:
        self._done, self._last = 0, last
        stages = [
            dataclasses.replace(stage, at_once=1, work=functools.partial(self._work, stage.work))
            for stage in conversion.stages
        ]
        self.conversion = dataclasses.replace(conversion, stages=tuple(stages), finish=self._finish)

    def _work(self, work: Any, folder: Any, item: Any, report: Any) -> Any:
        result = work(folder, item, report)
        self._done += 1
        if self._done == self._last:
            raise StoppedError
        return result

    def _finish(self, folder: Any, results: Any) -> None:
        raise StoppedError

    def run(self, output: Path | str, **run: Any) -> int:
        """Carry it out; how many items were done."""
        with pytest.raises(StoppedError):
            carry_out(self.conversion, output, progress=False, **run)
        return self._done


@dataclasses.dataclass(frozen=True)
class Reference:
    """A case's inputs, not to be changed, its undisturbed outputs, and how many items it works on."""

    inputs: str
    whole: dict[str, bytes]
    other: dict[str, bytes]
    items: int


@functools.cache
def _kept() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="windrow-cases-")


@functools.cache
def reference(case: Case) -> Reference:
    """Made once in a process."""
    folder = Path(_kept().name) / case.name
    folder.mkdir()
    inputs = case.give(folder / "in")
    case.convert(inputs, folder / "whole")
    case.convert(inputs, folder / "other", **case.others)
    items = Counted(planned(case, inputs)).run(folder / "unfinished")
    return Reference(inputs, tree(folder / "whole"), tree(folder / "other"), items)


def stopped(case: Case, inputs: str, output: Path, *, share: float = 1.0) -> None:
    """Begin a conversion and break it off when a share of its items is done; 1: before the end."""
    last = None if share == 1.0 else max(1, int(reference(case).items * share))
    stopped_behind(case, inputs, output, last)
    assert state(case, output) == "unfinished"


def stopped_behind(
    case: Case, inputs: str, output: Path | str, items: int | None, **run: Any
) -> None:
    """Begin a conversion and break it off when so many items are done; None: before the end."""
    assert Counted(planned(case, inputs), items).run(output, **run) == (
        items or reference(case).items
    )


def spoilt(folder: Path) -> tuple[str, Path, bytes]:
    """TFRecord files with a spoilt last one: what names them, that file, and its bytes before."""
    inputs = BY_NAME["tfrecord_to_array_record"].give(folder)
    last = max(folder.iterdir())
    whole = last.read_bytes()
    last.write_bytes(whole[:-20] + b"#" + whole[-19:])
    return inputs, last, whole


# Programs that are killed.

_HOOK = """
import atexit, os, signal, sys, threading

def begin():
    role = os.environ.get("WINDROW_TEST_ROLE", "parent")
    os.environ["WINDROW_TEST_ROLE"] = "worker"
    out, who = os.environ["WINDROW_TEST_OUT"], os.environ["WINDROW_TEST_WHO"]
    moment = int(os.environ["WINDROW_TEST_MOMENT"])
    if who.partition(" ")[0] != role:
        return
    events = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.listdir", "os.scandir"}
    lock, count = threading.Lock(), 0

    def hook(event, arguments):
        nonlocal count
        if event in events and any(isinstance(a, str) and a.startswith(out) for a in arguments):
            with lock:
                count += 1
                now = count
            if now == moment:
                os.kill(os.getppid() if who == "worker kills parent" else os.getpid(), 9)

    def end():
        print("moments", count, flush=True)

    atexit.register(end)
    sys.addaudithook(hook)

begin()
"""

_PROGRAM = """
import ast, sys
from tests.conversion_cases import BY_NAME
name, inputs, output, run = sys.argv[1:]
BY_NAME[name].convert(inputs, output, **ast.literal_eval(run))
"""


@contextlib.contextmanager
def running(
    case: Case,
    inputs: str,
    output: Path | str,
    folder: Path,
    *,
    moment: int = 0,
    who: str = "parent",
    **run: Any,
) -> Iterator[Program]:
    """A program that converts; killed before its `moment`-th call on the output, 0 for never.

    Args:
        case: The conversion.
        inputs: What names its inputs.
        output: The folder to write.
        folder: A folder for files of this test.
        moment: The number of the call, from 1.
        who: 'parent' is killed by its own calls, 'worker' by its own, and by 'worker kills parent' the
            parent by the calls of a worker.
        **run: Arguments of the conversion.
    """
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(_HOOK)
    root = str(Path(__file__).resolve().parent.parent)
    environment = {
        "PYTHONPATH": os.pathsep.join([str(folder), root]),
        "WINDROW_TEST_OUT": str(output),
        "WINDROW_TEST_WHO": who,
        "WINDROW_TEST_MOMENT": str(moment),
    }
    command = ["-c", _PROGRAM, case.name, inputs, str(output), repr(run)]
    with Program(folder, command, environment=environment) as program:
        yield program


def moments_of(program: Program) -> int:
    """How many calls on its output a program has made that has ended."""
    return int(program.out.split("moments ")[1].split()[0])
