"""`python -m benchmarks.advice`: chains before and after following the advice of `explain()`.

Each pair is a chain to which `explain()` gives a piece of advice, and the chain that follows it,
which does not get the same advice. The benchmark reads an epoch of each in turns, and compares the
decoded bytes with the prediction. `--page` writes the table into docs/explain.md.

Stores here are small, so that a run takes a minute. The budgets of the prefetcher are small too, and
the page cache is warm.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import tensorstore as ts
import zarr
from array_record.python.array_record_module import ArrayRecordWriter
from tqdm import tqdm

from benchmarks.figures import placed
from benchmarks.report import table
from windrow import IterDataset, MapDataset, ReadOptions
from windrow.sources import ArrayRecordDataSource, ArraySpec, ZarrDataSource
from windrow.stats.costs import known

_PAGE: Final = Path(__file__).parents[1] / "docs" / "explain.md"
_BATCH: Final = 64


@dataclasses.dataclass(frozen=True, slots=True)
class Sizes:
    """Records of a store, values of a record, and records of a chunk or group."""

    records: int = 20_000
    values: int = 512
    chunk: int = 128

    @property
    def little(self) -> ReadOptions:
        """A fifth of the store may be held, as of one that is larger than memory."""
        store_bytes = self.records * self.values * 4
        return ReadOptions(resident_bytes=store_bytes // 5, in_flight_bytes=store_bytes // 40)


SMALL = Sizes(records=2_000, values=128, chunk=20)


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
    """A chain, the advice it gets, and the chain that follows it."""

    kind: str
    what: str
    before: IterDataset[Any]
    after: IterDataset[Any]


class Rows:
    """Somebody's source: rows of an array that zarr-python reads, one call each."""

    def __init__(self, path: Path) -> None:
        self.rows = zarr.open_array(str(path), mode="r")

    def __len__(self) -> int:
        return int(self.rows.shape[0])

    @property
    def spec(self) -> ArraySpec:
        """A row."""
        return ArraySpec(self.rows.shape[1:], self.rows.dtype)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]


class ManyRows(Rows):
    """The same, which reads many at once."""

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        return list(np.asarray(self.rows.oindex[np.asarray(indices)]))


def write(folder: Path, sizes: Sizes) -> None:
    """The same records in every store; in the group, half of the values of each in two arrays."""
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 1_000, (sizes.records, sizes.values)).astype("f4")
    _write_zarr(folder / "chunks", rows, sizes.chunk, None)
    _write_zarr(folder / "small", rows, sizes.chunk // 2, None)
    _write_zarr(folder / "alone", rows, 1, sizes.chunk)
    zarr.open_group(str(folder / "group"), mode="w")
    for name, half, chunk in zip("xy", np.hsplit(rows, 2), (1, 2), strict=True):
        _write_zarr(folder / "group" / name, half, chunk * sizes.chunk, None)
    for size in (1, sizes.chunk):
        name = "single" if size == 1 else "groups"
        writer = ArrayRecordWriter(
            str(folder / f"{name}.array_record"), f"group_size:{size},zstd:3"
        )
        for row in rows:
            writer.write(row.tobytes())
        writer.close()


def _write_zarr(path: Path, rows: Any, chunk: int, shard: int | None) -> None:
    inner = {"name": "regular", "configuration": {"chunk_shape": [chunk, rows.shape[1]]}}
    codecs: list[Any] = [{"name": "bytes"}, {"name": "zstd", "configuration": {"level": 1}}]
    if shard is not None:
        own = {"chunk_shape": [chunk, rows.shape[1]], "codecs": codecs}
        codecs = [{"name": "sharding_indexed", "configuration": own}]
        inner = {"name": "regular", "configuration": {"chunk_shape": [shard, rows.shape[1]]}}
    spec = {
        "driver": "zarr3",
        "kvstore": {"driver": "file", "path": str(path)},
        "metadata": {
            "shape": list(rows.shape),
            "data_type": "float32",
            "chunk_grid": inner,
            "codecs": codecs,
        },
        "create": True,
    }
    ts.open(spec).result().write(rows).result()


def pairs(folder: Path, sizes: Sizes) -> list[Pair]:
    """Every way that a piece of advice names, from a chain that gets the advice."""
    return [
        *_of_shuffles(folder, sizes),
        *_of_room(folder, sizes),
        *_of_parts(folder, sizes),
        *_of_waiting(folder, sizes),
    ]


def _stored(folder: Path) -> MapDataset[Any]:
    return MapDataset.source(ZarrDataSource(folder))


def _files(folder: Path, name: str) -> MapDataset[Any]:
    return MapDataset.source(ArrayRecordDataSource(folder / f"{name}.array_record"))


def _read(chain: MapDataset[Any], options: ReadOptions | None = None) -> IterDataset[Any]:
    return chain.batch(_BATCH).to_iter_dataset(options)


def _of_shuffles(folder: Path, sizes: Sizes) -> list[Pair]:
    def shuffled(*chains: MapDataset[Any]) -> IterDataset[Any]:
        every = [chain.shuffle(seed=seed) for seed, chain in enumerate(chains)]
        return _read(MapDataset.mix(every), sizes.little)

    def in_blocks(*chains: MapDataset[Any]) -> IterDataset[Any]:
        every = [
            chain.block_shuffle(seed=seed, window_blocks=2) for seed, chain in enumerate(chains)
        ]
        return _read(MapDataset.mix(every), sizes.little)

    chunks, group = _stored(folder / "chunks"), _stored(folder / "group")
    two = chunks, _stored(folder / "small")
    alone = shuffled(_stored(folder / "alone"))
    files = [shuffled(_files(folder, name)) for name in ("groups", "single")]
    kind = "global-shuffle"
    return [
        Pair(kind, "Zarr: block_shuffle", shuffled(chunks), in_blocks(chunks)),
        Pair(kind, "two arrays: block_shuffle", shuffled(group), in_blocks(group)),
        Pair(kind, "two stores: block_shuffle of each", shuffled(*two), in_blocks(*two)),
        Pair(kind, "Zarr: one record per inner chunk", shuffled(chunks), alone),
        Pair(kind, "ArrayRecord: group_size:1", *files),
    ]


def _of_room(folder: Path, sizes: Sizes) -> list[Pair]:
    def with_room(kind: str, what: str, chain: MapDataset[Any]) -> Pair:
        """The chain, and the same with the room that is advised."""
        before = _read(chain, sizes.little)
        given = next(advice for advice in before.explain().advice if advice.kind == kind)
        number = re.search(r"resident_bytes=([\d_]+)", given.do)
        if number is None:
            raise SystemExit(f"benchmarks.advice: {what}: no room is advised: {given}")
        roomy = dataclasses.replace(sizes.little, resident_bytes=int(number[1]))
        return Pair(kind, what, before, _read(chain, roomy))

    chunks, group = _stored(folder / "chunks"), _stored(folder / "group")
    two = MapDataset.mix([chunks.shuffle(seed=1), _stored(folder / "small").shuffle(seed=2)])
    wide = chunks.block_shuffle(seed=1, window_blocks=64)
    narrow = chunks.block_shuffle(seed=1, window_blocks=2)
    return [
        with_room("resident-bytes", "room for the store", chunks.shuffle(seed=1)),
        with_room("resident-bytes", "room for two arrays", group.shuffle(seed=1)),
        with_room("resident-bytes", "room for two stores", two),
        Pair(
            "window-room",
            "a window of 2 blocks, not 64",
            _read(wide, sizes.little),
            _read(narrow, sizes.little),
        ),
        with_room("window-room", "room for 64 blocks", wide),
    ]


def _of_parts(folder: Path, sizes: Sizes) -> list[Pair]:
    chunks, alone = _stored(folder / "chunks"), _stored(folder / "alone")
    some = slice(sizes.records // 8)
    strided = _read(chunks[::8])
    files = [_read(_files(folder, name)[::8]) for name in ("groups", "single")]
    return [
        Pair("strides", "consecutive records", strided, _read(chunks[some])),
        Pair("strides", "Zarr: one record per inner chunk", strided, _read(alone[::8])),
        Pair("strides", "ArrayRecord: group_size:1", *files),
    ]


def _of_waiting(folder: Path, sizes: Sizes) -> list[Pair]:
    waiting = _stored(folder / "chunks").shuffle(seed=1)
    some = slice(sizes.records // 10)
    by_record = _read(MapDataset.source(Rows(folder / "chunks"))[some])
    many = MapDataset.source(ManyRows(folder / "chunks"))[some]
    kind = "record-by-record"
    return [
        *(
            Pair(
                "no-threads",
                f"without {name}=0",
                _read(waiting, options),
                _read(waiting),
            )
            for name, options in (
                ("num_threads", ReadOptions(num_threads=0)),
                ("prefetch_buffer_size", ReadOptions(prefetch_buffer_size=0)),
            )
        ),
        Pair(kind, "many records in one call", by_record, _read(many)),
        Pair(kind, "converted to Zarr", by_record, _read(_stored(folder / "chunks")[some])),
        Pair(kind, "converted to ArrayRecord", by_record, _read(_files(folder, "single")[some])),
    ]


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """An epoch: records per second, and bytes decoded."""

    records_per_s: float
    decoded_bytes: float


def predicted_bytes(dataset: IterDataset[Any]) -> tuple[float, float]:
    """The bytes that `explain()` says are decoded in an epoch, at least and at most."""
    found = [known(costs.decoded_bytes) for costs in dataset.explain().epoch]
    return sum(amount.low for amount in found), sum(amount.high for amount in found)


def measured(dataset: IterDataset[Any]) -> Measured:
    """Read an epoch, and use the first values of each batch a little, as a loop would."""
    began = time.perf_counter()
    with iter(dataset) as iterator:
        for batch in iterator:
            for array in batch.values() if isinstance(batch, dict) else (batch,):
                if not isinstance(array, list):
                    float(array[:, 0].sum())
        took_s = time.perf_counter() - began
        stats = iterator.stats()
    records = sum(costs.records.low for costs in stats.sources)
    decoded_bytes = sum(known(costs.decoded_bytes).low for costs in stats.sources)
    return Measured(records / took_s, decoded_bytes)


def check(pair: Pair) -> None:
    """That the one chain gets the advice and the other does not.

    Raises:
        SystemExit: If it is not so.
    """
    given = [
        [advice.kind for advice in side.explain().advice] for side in (pair.before, pair.after)
    ]
    if pair.kind not in given[0] or pair.kind in given[1]:
        raise SystemExit(f"benchmarks.advice: {pair.what}: {pair.kind} is not as expected: {given}")


def run(sizes: Sizes, repeats: int) -> list[dict[str, Any]]:
    """Medians of all pairs; both sides take turns."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), sizes)
        for pair in tqdm(pairs(Path(folder), sizes), unit="pair", disable=None):
            check(pair)
            sides: tuple[list[Measured], list[Measured]] = [], []
            for _ in range(repeats):
                sides[0].append(measured(pair.before))
                sides[1].append(measured(pair.after))
            rates = [statistics.median(one.records_per_s for one in side) for side in sides]
            ratios = [a.records_per_s / b.records_per_s for b, a in zip(*sides, strict=True)]
            rows.append(
                {
                    "kind": pair.kind,
                    "what": pair.what,
                    "before_records_per_s": rates[0],
                    "after_records_per_s": rates[1],
                    "times": statistics.median(ratios),
                    "before_predicted_bytes": predicted_bytes(pair.before),
                    "before_bytes": sides[0][-1].decoded_bytes,
                    "after_predicted_bytes": predicted_bytes(pair.after),
                    "after_bytes": sides[1][-1].decoded_bytes,
                }
            )
    return rows


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as a table."""
    head = (
        "advice",
        "followed by",
        "records/s",
        "then",
        "times",
        "MB decoded",
        "then",
    )
    cells = [
        (
            f"`{row['kind']}`",
            row["what"],
            f"{row['before_records_per_s']:,.0f}",
            f"{row['after_records_per_s']:,.0f}",
            f"{row['times']:.2f}x",
            _bytes(row, "before"),
            _bytes(row, "after"),
        )
        for row in rows
    ]
    return table(head, cells, left=2)


def _bytes(row: dict[str, Any], side: str) -> str:
    return f"{row[f'{side}_bytes'] / 1e6:,.1f}"


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.advice", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="epochs of each chain [5]")
    parser.add_argument("--small", action="store_true", help="seconds; the figures say nothing")
    parser.add_argument("--json", type=Path, help="write the figures to a file")
    parser.add_argument("--page", action="store_true", help=f"write the table into {_PAGE.name}")
    given = parser.parse_args(argv)
    rows = run(SMALL if given.small else Sizes(), given.repeats)
    if given.json is not None:
        given.json.write_text(json.dumps(rows, indent=1))
    found = markdown(rows)
    sys.stdout.write(found + "\n")
    if given.page:
        page = _PAGE.read_text(encoding="utf-8")
        _PAGE.write_text(placed(found, page, "advice"), encoding="utf-8")


if __name__ == "__main__":
    main()
