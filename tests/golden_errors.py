"""Bad input of every kind, for the class and the message of the error that it comes to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests import golden_chains
from tests.golden_records import error_of
from windrow import (
    IterDataset,
    MapDataset,
    MultiprocessingOptions,
    ReadOptions,
    converters,
    inspect,
    shuffle_quality,
    sources,
    transforms,
    verify,
)

# Their messages end with what a library says, which changes with its version.
_BY_LIBRARIES = frozenset(
    {"zarr: scheme", "zarr: damaged chunk", "array_record: options", "examples: bytes"}
)
TEN = MapDataset.range(10)
STREAM = TEN.to_iter_dataset()


def _restored(change: dict[str, Any]) -> Any:
    iterator = iter(TEN.shuffle(1))
    next(iterator)
    iterator.set_state({**iterator.get_state(), **change})


def _closed() -> Any:
    iterator = iter(TEN)
    iterator.close()
    return next(iterator)


def _chain() -> dict[str, Callable[[], Any]]:
    bad: Any = None
    return {
        "range: step": lambda: MapDataset.range(0, 5, 0),
        "range: size": lambda: MapDataset.range(2**62),
        "range: float": lambda: MapDataset.range(2.0),  # type: ignore[arg-type]
        "shuffle: no seed": TEN.shuffle,
        "shuffle: large seed": lambda: TEN.shuffle(2**32),
        "shuffle: float": lambda: TEN.shuffle(1.5),  # type: ignore[arg-type]
        "seed: negative": lambda: TEN.seed(-1),
        "seed: large": lambda: STREAM.seed(2**64),
        "random_map: no seed": lambda: TEN.random_map(max),  # type: ignore[arg-type]
        "random_map: stream": lambda: STREAM.random_map(max),  # type: ignore[arg-type]
        "window_shuffle: size": lambda: TEN.window_shuffle(0, 1),
        "window_shuffle: stream": lambda: STREAM.window_shuffle(3),
        "block_shuffle: no layout": lambda: TEN.block_shuffle(1),
        "block_shuffle: block": lambda: TEN.block_shuffle(1, block=0),
        "block_shuffle: window": lambda: TEN.block_shuffle(1, block=2, window_blocks=0),
        "block_shuffle: endless": lambda: TEN.repeat().block_shuffle(1, block=2),
        "slice: out of range": lambda: TEN.slice([3, -11]),
        "slice: float": lambda: TEN.slice([1.5]),  # type: ignore[list-item]
        "slice: two axes": lambda: TEN.slice(np.zeros((2, 2), int)),
        "slice: step": lambda: TEN[::0],
        "repeat: 0": lambda: TEN.repeat(0),
        "repeat: endless": lambda: TEN.repeat().repeat(2),
        "repeat: stream": lambda: STREAM.repeat(-1),
        "limit: 0": lambda: STREAM.limit(0),
        "batch: 0": lambda: TEN.batch(0),
        "batch: text": lambda: TEN.batch("3"),  # type: ignore[call-overload]
        "batch: bool": lambda: TEN.batch(True),
        "batch: after a filter": lambda: TEN.filter(bool)[:3].batch(2),
        "batch: transform": lambda: transforms.Batch(0),
        "concatenate: none": lambda: MapDataset.concatenate([]),
        "concatenate: endless": lambda: MapDataset.concatenate([TEN, TEN.repeat()]),
        "concatenate: one": lambda: MapDataset.concatenate(TEN),  # type: ignore[arg-type]
        "mix: none": lambda: MapDataset.mix([]),
        "mix: weights": lambda: MapDataset.mix([TEN], [1, 2]),
        "mix: zero": lambda: IterDataset.mix([STREAM, STREAM], [1, 0]),
        "mix: empty": lambda: MapDataset.mix([TEN, MapDataset.range(0)]),
        "mix: names": lambda: IterDataset.mix({"a": STREAM}, {"b": 1.0}),
        "mix: kinds": lambda: MapDataset.mix([TEN, STREAM]),  # type: ignore[list-item]
        "select: none": lambda: MapDataset.select_from_datasets([], golden_chains.Zigzag(3)),
        "select: map": lambda: MapDataset.select_from_datasets([TEN], 3),  # type: ignore[arg-type]
        "select: unknown": lambda: MapDataset.select_from_datasets([TEN], [(1, 0)])[0],
        "zip: lengths": lambda: MapDataset.zip([TEN, TEN[:3]]),
        "map: no function": lambda: TEN.map(3),  # type: ignore[call-overload]
        "map: kind": lambda: TEN.map(transforms.Batch(3)),  # type: ignore[call-overload]
        "map: StopIteration": lambda: list(TEN.map(golden_chains.stops)),
        "map: spec": lambda: TEN.map(golden_chains.bump).element_spec,
        "map: batched rows": lambda: list(TEN.map(golden_chains.loses_rows, batched=True)),
        "filter: no function": lambda: TEN.filter(None),  # type: ignore[arg-type]
        "apply: function": lambda: TEN.apply(abs),  # type: ignore[arg-type]
        "index: text": lambda: TEN["a"],  # type: ignore[call-overload]
        "index: large": lambda: TEN[2**63],
        "index: empty": lambda: TEN[:0][3],
        "read: two axes": lambda: TEN.read(np.zeros((1, 1), int)),
        "options: threads": lambda: ReadOptions(-1),
        "options: bytes": lambda: ReadOptions(prefetch_bytes=0),
        "options: dict": lambda: TEN.to_iter_dataset({"num_threads": 3}),  # type: ignore[call-overload]
        "options: workers": lambda: MultiprocessingOptions(-1),
        "source: number": lambda: MapDataset.source(3),  # type: ignore[call-overload]
        "read_spec: empty": lambda: TEN[:0].read_spec(),
        "quality: number": lambda: shuffle_quality(3),
        "quality: endless": lambda: shuffle_quality(STREAM.repeat()),
        "state: version": lambda: _restored({"version": 9}),
        "state: fingerprint": lambda: _restored({"fingerprint": "0" * 16}),
        "state: position": lambda: _restored({"lanes": [[-1]]}),
        "state: width": lambda: _restored({"lanes": [[1, 2]]}),
        "state: beyond": lambda: _restored({"rows": 11, "lanes": [[11]]}),
        "state: text": lambda: iter(TEN).set_state("no JSON"),  # type: ignore[arg-type]
        "state: keys": lambda: iter(TEN).set_state({"a": 1}),
        "state: none": lambda: iter(TEN).set_state(bad),
        "state: another chain": lambda: iter(TEN).set_state(iter(TEN.shuffle(1)).get_state()),
        "closed": _closed,
    }


def _sources(folder: Path) -> dict[str, Callable[[], Any]]:
    def all_of(source: Any) -> Any:
        return list(MapDataset.source(source))

    def windows(*args: Any, **more: Any) -> Any:
        return sources.WindowDataSource(str(folder / "field"), *args, **more)

    def array_record(name: str, **more: Any) -> Any:
        return sources.ArrayRecordDataSource(str(folder / name), **more)

    def zarr(name: Any, **more: Any) -> Any:
        return sources.ZarrDataSource(str(folder / name), **more)

    counts = str(folder / "counts" / "1.0.0")
    example: Any = {"a": object()}
    return {
        "zarr: no place": lambda: zarr("missing"),
        "zarr: no array": lambda: zarr("nothing.txt"),
        "zarr: names": lambda: zarr("group", names=["q"]),
        "zarr: names of an array": lambda: zarr("chunks", names=["q"]),
        "zarr: lengths": lambda: sources.ZarrDataSource(
            {"a": str(folder / "chunks"), "b": str(folder / "raw")}
        ),
        "zarr: index": lambda: zarr("chunks")[200],
        "zarr: cut chunk": lambda: all_of(zarr("damaged")),
        "zarr: damaged chunk": lambda: all_of(zarr("damaged-zstd")),
        "zarr: scheme": lambda: sources.ZarrDataSource("nowhere://bucket/array"),
        "windows: dimension": lambda: windows({"q": 2}),
        "windows: too large": lambda: windows({"t": 99}),
        "windows: stride": lambda: windows({"t": 2}, {"t": 0}),
        "windows: pad": lambda: windows({"t": 2}, pad="mirror"),
        "windows: fill": lambda: windows({"t": 2}, pad="constant", fill=0.5),
        "windows: bounds": lambda: windows({"t": 2}, start={"t": 9}, stop={"t": 3}),
        "windows: field": lambda: windows({"t": 2}, fields={"a": sources.Field("q")}),
        "windows: anchors": lambda: windows({"t": 2}, anchors={"t": [99]}),
        "windows: decode": lambda: windows({"t": 2}, select={"q": 1}),
        "array_record: no place": lambda: array_record("missing.array_record"),
        "array_record: no match": lambda: array_record("missing-*.array_record"),
        "array_record: no file of that kind": lambda: len(array_record("nothing.txt")),
        "array_record: cut": lambda: len(array_record("cut.array_record")),
        "array_record: damaged": lambda: all_of(array_record("damaged.array_record", direct=True)),
        "array_record: index": lambda: array_record("groups.array_record")[100],
        "array_record: options": lambda: array_record(
            "groups.array_record", reader_options={"q": "1"}
        ),
        "tfds: no place": lambda: sources.TFDSDataSource(str(folder / "missing"), split="train"),
        "tfds: split": lambda: sources.TFDSDataSource(counts, split="valid"),
        "tfds: part": lambda: sources.TFDSDataSource(counts, split="train[20:"),
        "tfds: names": lambda: sources.TFDSDataSource(counts, split="train", names=["q"]),
        "tfds: no split": lambda: sources.TFDSDataSource(counts),
        "splits: none": lambda: sources.even_splits("train", 0),
        "arrays: lengths": lambda: sources.ArrayDataSource({"a": np.zeros(3), "b": np.zeros(4)}),
        "arrays: no axis": lambda: sources.ArrayDataSource(np.zeros(())),
        "examples: object": lambda: converters.encode_example(example),
        "examples: bytes": lambda: converters.decode_example(b"\xff\xff"),
        "examples: features": lambda: converters.decode_examples(
            [b""], {"a": converters.Feature("int64", (3,))}
        ),
        "feature: dtype": lambda: converters.Feature("number"),
        "records: damaged": lambda: list(converters.read_records(str(folder / "damaged.tfrecord"))),
        "records: no place": lambda: list(converters.read_records(str(folder / "missing"))),
        "inspect: no place": lambda: inspect(str(folder / "missing")),
        "verify: number": lambda: verify(3, progress=False),
        "verify: missing": lambda: verify(zarr("chunks"), missing="q", progress=False),  # type: ignore[arg-type]
        "verify: raise_if_bad": lambda: verify(zarr("damaged"), progress=False).raise_if_bad(),
        "check: no place": lambda: converters.check(str(folder / "missing"), progress=False),
        "check: no conversion": lambda: converters.check(str(folder / "raw"), progress=False),
    }


def errors(folder: Path) -> dict[str, Any]:
    """Of each bad input the class and the message; also the notes, where there are some."""
    found: dict[str, list[Any]] = {}
    for name, call in {**_chain(), **_sources(folder)}.items():
        try:
            call()
        except Exception as error:
            notes = getattr(error, "__notes__", None)
            found[name] = error_of(error, folder)[: 1 if name in _BY_LIBRARIES else 2]
            found[name] += [notes] if notes else []
        else:
            found[name] = ["none"]
    return found
