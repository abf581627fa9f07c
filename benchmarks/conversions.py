"""What conversions cost, beside their peers and floors.

A side that flushes its files to the disk does so within its time.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from benchmarks import loops, stores
from benchmarks.harness import FLOOR, OURS, Bound, Case, Place, Regime, Side
from windrow import converters
from windrow.sources.tf_example.features import Array, Feature

_part = functools.partial
_THREADS: Final = 2
Work = Callable[[], int]
Columns = Mapping[str, npt.NDArray[Any]]


def _output(place: Place) -> Path:
    """Where a side writes, empty."""
    path = place.path("output")
    shutil.rmtree(path, ignore_errors=True)
    return path


# --- TFRecord to ArrayRecord ---------------------------------------------------------------------

_RECORD_BYTES, _FILES = 3_072, 8
_WRITER_OPTIONS: Final = "group_size:1,zstd:3"


def tfrecords(place: Place, path: Path) -> None:
    """TFRecord files whose values compress by a quarter."""
    path.mkdir()
    records = place.size(200_000, 64)
    for at in range(_FILES):
        random = np.random.default_rng(at)
        count = records * (at + 1) // _FILES - records * at // _FILES
        rows = (random.integers(0, 64, _RECORD_BYTES, dtype=np.uint8) for _ in range(count))
        name = path / f"x.tfrecord-{at:05}-of-{_FILES:05}"
        converters.write_records(name, (row.tobytes() for row in rows))


def _inputs(place: Place) -> list[str]:
    return sorted(map(str, place.path("tfrecords").iterdir()))


def our_records(place: Place) -> Work:
    """`tfrecord_to_array_record`."""
    paths, output = _inputs(place), _output(place)

    def work() -> int:
        converters.tfrecord_to_array_record(
            paths, output, writer_options=_WRITER_OPTIONS, progress=False
        )
        return _written(output)

    return work


def bare_loop(place: Place, threads: int) -> Work:
    """Our reader, with all checksums, and the package's writer, which holds the GIL.

    It does not flush what it wrote; ours does.
    """
    from array_record.python.array_record_module import ArrayRecordWriter

    paths, output = _inputs(place), _output(place)
    output.mkdir()

    def copy(path: str) -> None:
        writer = ArrayRecordWriter(_copied(path, output), _WRITER_OPTIONS)
        for record in converters.read_records(path):
            writer.write(record)
        writer.close()

    def work() -> int:
        for _ in loops.on_threads(copy, paths, threads):
            pass
        return _written(output)

    return work


def _copied(path: str, output: Path) -> str:
    return str(output / Path(path).name.replace("tfrecord", "array_record"))


def _written(output: Path) -> int:
    files = [path for path in output.iterdir() if "record" in path.name]
    return sum(int(stores.open_array_record(path).num_records()) for path in files)


# --- Examples to columns -------------------------------------------------------------------------

_SIDE: Final = 32
EXAMPLE: Final = {
    "image": Feature("uint8", (_SIDE, _SIDE, 3), raw=True),
    "label": Feature("int64"),
    "box": Feature("float32", (8,)),
}


def examples_of(place: Place) -> list[bytes]:
    """Examples of a picture, a label and 8 floats."""
    from windrow.converters.zarr.example_encode import encode_examples

    draw, count = np.random.default_rng(0), place.size(20_000, 100)
    columns: dict[str, Any] = {
        "image": draw.integers(0, 256, (count, _SIDE, _SIDE, 3), np.uint8),
        "label": draw.integers(0, 100, count),
        "box": draw.random((count, 8), np.float32),
    }
    return encode_examples(columns, EXAMPLE)


def by_upb(records: list[bytes]) -> dict[str, Array]:
    """A loop that parses each record and puts its values into arrays made beforehand."""
    from windrow.sources.tf_example.message import example_class

    parse = example_class().FromString
    columns = {
        name: np.empty((len(records), *feature.item_shape), feature.numpy_dtype)
        for name, feature in EXAMPLE.items()
    }
    image, label, box = columns["image"], columns["label"], columns["box"]
    shape = image.shape[1:]
    for number, record in enumerate(records):
        found = parse(record).features.feature
        data = found["image"].bytes_list.value[0]
        image[number] = np.frombuffer(data, np.uint8).reshape(shape)
        label[number] = found["label"].int64_list.value[0]
        box[number] = found["box"].float_list.value
    return columns


def our_columns(records: list[bytes]) -> Any:
    """Windrow's."""
    from windrow.sources.tf_example.columns import decode_examples

    return decode_examples(records, EXAMPLE)


def decoding(place: Place, *, decode: Callable[[list[bytes]], Any]) -> Work:
    """All Examples to columns, after some that load what is loaded on first use."""
    records = examples_of(place)
    decode(records[:10])

    def work() -> int:
        decode(records)
        return len(records)

    return work


# --- rechunking ----------------------------------------------------------------------------------

_MEMORY_BYTES: Final = 512 << 20
_SLAB_BYTES: Final = 64 << 20


def cube(place: Place, path: Path, *, chunk: tuple[int, int, int]) -> None:
    """A source to rechunk: 2.1 GB of float32, as of a measurement, which compress by half."""
    from windrow.converters.zarr.layout import ArrayLayout

    records = place.size(2_048, 32)
    shape = (records, place.size(512, 32), place.size(512, 32))
    steps = np.random.default_rng(0).normal(size=(16, *shape[1:])).cumsum(axis=1)
    field = (np.round(steps * 8) / 64).astype(np.float32)
    values = np.empty(shape, np.float32)
    for first in range(0, records, len(field)):
        part = values[first : first + len(field)]
        part[...] = field[: len(part)] + np.float32(first / 64)
    least = tuple(min(pair) for pair in zip(chunk, shape, strict=True))
    _write_array(path, ArrayLayout("", "float32", shape, least), values)


def _write_array(folder: Path, layout: Any, values: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "zarr.json").write_text(json.dumps(layout.metadata()))
    _write_shards(folder, [(layout, values)])


def _write_shards(folder: Path, arrays: Sequence[tuple[Any, Any]]) -> None:
    """Write whole shards of arrays by TensorStore, two under way; in a transaction each once."""
    import tensorstore as ts

    starts = []
    for layout, values in arrays:
        kvstore = f"file://{folder / layout.name}/" if layout.name else f"file://{folder}/"
        spec = {"driver": "zarr3", "kvstore": kvstore, "store_data_equal_to_fill_value": True}
        array, rows = ts.open(spec, open=True).result(), layout.file_shape[0]
        for first in range(0, layout.shape[0], rows):
            cut = slice(first, min(first + rows, layout.shape[0]))
            starts.append(_part(_committed, array, cut, values))
    for done in loops.ahead((start() for start in starts), _THREADS - 1):
        assert done is None


def _committed(array: Any, cut: slice, values: Any) -> Callable[[], None]:
    import tensorstore as ts

    transaction = ts.Transaction()
    array.with_transaction(transaction)[cut].write(values[cut]).result()
    waiting = transaction.commit_async()

    def wait() -> None:
        waiting.result()

    return wait


def our_rechunked(place: Place, *, store: str) -> Work:
    """`zarr_to_zarr`."""
    from windrow.converters.zarr.rechunk import zarr_to_zarr

    source, output = place.path(store), _output(place)

    def work() -> int:
        zarr_to_zarr(source, output, memory_bytes=_MEMORY_BYTES, progress=False)
        return place.size(2_048, 32)

    return work


def reading_and_writing(place: Place, *, store: str) -> Work:
    """Every chunk decoded once, and then the layout that ours chooses stored from memory."""
    from windrow.converters.zarr.rechunk import zarr_to_zarr

    source, output = place.path(store), _output(place)
    array = stores.open_zarr(source)
    values = array.read().result()
    conversion: Any = zarr_to_zarr.conversion(source, memory_bytes=_MEMORY_BYTES)
    layout = conversion.stages[-1].items.__self__.jobs[0].converted.layout
    chunk = array.chunk_layout.read_chunk.shape
    depth = max(1, _SLAB_BYTES // (math.prod(chunk) * 4))

    def work() -> int:
        lines = [range(0, n, c) for n, c in zip(array.shape, chunk, strict=True)]
        cuts = (
            tuple(slice(f, min(f + c, n)) for f, c, n in zip(at, chunk, array.shape, strict=True))
            for at in itertools.product(*lines)
        )
        for _ in loops.ahead((array[cut].read().result for cut in cuts), depth):
            pass
        _write_array(output, layout, values)
        return len(values)

    return work


# --- ArrayRecord to Zarr -------------------------------------------------------------------------

_FEATURES: Final = {"image": EXAMPLE["image"], "label": EXAMPLE["label"]}


def _columns(place: Place) -> Columns:
    """Pictures that compress a little, all different, and labels."""
    count = place.size(100_000, 64)
    steps = np.random.default_rng(0).integers(-2, 3, (min(count, 1000), _SIDE * _SIDE * 3))
    base = steps.cumsum(axis=1).astype(np.uint8).reshape(-1, _SIDE, _SIDE, 3)
    shifts = np.arange(-(-count // len(base)), dtype=np.uint8)
    images = (base[None] + shifts[:, None, None, None, None]).reshape(-1, _SIDE, _SIDE, 3)
    return {"image": images[:count], "label": np.arange(count, dtype=np.int64) % 10}


def examples(place: Place, path: Path, *, options: str) -> None:
    """The same as Examples in ArrayRecord files."""
    from array_record.python.array_record_module import ArrayRecordWriter

    columns = _columns(place)
    path.mkdir()
    for number, rows in enumerate(np.array_split(np.arange(len(columns["label"])), 4)):
        writer = ArrayRecordWriter(str(path / f"x.array_record-{number:05}-of-00004"), options)
        for row in rows.tolist():
            image, label = columns["image"][row].tobytes(), int(columns["label"][row])
            writer.write(converters.encode_example({"image": image, "label": label}))
        writer.close()


def our_zarr(place: Place, *, store: str) -> Work:
    """`array_record_to_zarr`."""
    source, output = place.path(store), _output(place)

    def work() -> int:
        converters.array_record_to_zarr(source, output, features=_FEATURES, progress=False)
        return place.size(100_000, 64)

    return work


def columns_alone(place: Place) -> Work:
    """The same columns from memory in the same layout, by TensorStore."""
    from windrow.converters.zarr.layout import metadata_files
    from windrow.converters.zarr.rows import Storage

    columns, output = _columns(place), _output(place)
    layouts = Storage().layouts(_FEATURES, 0, len(columns["label"]))

    def work() -> int:
        for name, data in metadata_files(layouts).items():
            (output / name).parent.mkdir(parents=True, exist_ok=True)
            (output / name).write_bytes(data)
        _write_shards(output, [(layout, columns[layout.name]) for layout in layouts])
        return len(columns["label"])

    return work


# --- cases ---------------------------------------------------------------------------------------

_MEMORY: Final = _part(Bound, "MB of memory at most", "peak_mb")


def _case(name: str, shows: str, sides: Any, stored: Any, *bounds: Bound) -> Case:
    return Case(f"convert.{name}", shows, sides, Regime.WHOLE, stored, bounds)


def _rechunked(name: str, shows: str, chunk: tuple[int, int, int], at_least: float) -> Case:
    sides = (
        Side(OURS, _part(our_rechunked, store=name)),
        Side(FLOOR, _part(reading_and_writing, store=name)),
    )
    bound = Bound("of reading and writing alone", over=FLOOR, at_least=at_least)
    written = {name: _part(cube, chunk=chunk)}
    return _case(name, shows, sides, written, bound, _MEMORY(at_most=540))


def _to_zarr(name: str, options: str) -> Case:
    sides = (
        Side(OURS, _part(our_zarr, store=name)),
        Side("TensorStore alone", columns_alone),
    )
    return _case(
        name,
        f"ArrayRecord to Zarr, {options}",
        sides,
        {name: _part(examples, options=options)},
        Bound("of TensorStore writing them", over="TensorStore alone", at_least=0.8),
    )


CASES: Final = (
    _case(
        "array_record",
        "TFRecord to ArrayRecord, 200,000 records of 3 KB",
        (
            Side(OURS, our_records),
            Side("bare loop", bare_loop, {"in turn": 0, "2 threads": 2}),
        ),
        {"tfrecords": tfrecords},
        Bound("of a bare loop", over="bare loop", at_least=0.95),
        _MEMORY(at_most=400),
    ),
    _case(
        "columns",
        "Examples to columns",
        (
            Side(OURS, _part(decoding, decode=our_columns)),
            Side("upb in a loop", _part(decoding, decode=by_upb)),
        ),
        {},
        Bound("times upb in a loop", over="upb in a loop", at_least=5),
    ),
    _rechunked("one_pass", "rechunk in one pass", (16, 512, 512), 0.7),
    _rechunked("two_passes", "rechunk in two passes", (2_048, 16, 16), 0.35),
    _to_zarr("plain", "group_size:1,uncompressed"),
    _to_zarr("zstd", "group_size:1,zstd:3"),
)
