"""TFRecord to a Zarr group: one array per field, one row per record.

The work is cut by the chunks (or shards) of the output, not by the files of the input: each is
written whole, once, by one worker, which reads the records of its rows from wherever they lie.

Invariant: no two workers write one chunk or shard; a stored array has all of its chunks, so that a
chunk that is missing later is damage and not a run of zeros.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from typing import Any

import tensorstore as ts

from windrow.converters.folder import OutputFolder, Part, output_file, publish
from windrow.converters.inputs import Input, Paths, find_inputs
from windrow.converters.job import Job, carry_out, finished_part, planned
from windrow.converters.manifest import InputFile, Manifest, OutputFile, Plan, read_json
from windrow.converters.pipeline import Progress, run_pipeline
from windrow.converters.rows import (
    Column,
    Counted,
    Decode,
    Field,
    Piece,
    columns,
    count,
    cut,
    fields_of_first,
)
from windrow.errors import ConversionError

_FORMAT = "zarr"
_METADATA = "zarr.json"
_ZSTD_LEVEL = 1
# Rows of one piece, decoded: small enough for every worker of a laptop, large enough to be worth
# the way to the records.
_PIECE_BYTES = 64 << 20


def tfrecord_to_zarr(
    inputs: Paths,
    output: str | os.PathLike[str],
    *,
    decode: Decode,
    chunk_rows: int = 256,
    shard_rows: int | None = None,
    overwrite: bool = False,
    runner: object | None = None,
    progress: Progress | None = None,
) -> Manifest:
    """Convert TFRecord files to one Zarr v3 group, an array per field, by Beam pipelines.

    Row `i` of every array comes from record `i`, counted through all inputs in their order. A run
    that was stopped goes on when it is called again with the same arguments; one that was finished
    is not done again.

    Args:
        inputs: A path, glob or URL, or a list of them; gzip if it ends in `.gz` (which is slower:
            gzip has to be read from its beginning).
        output: A local folder, new, empty, or of an earlier run. The group has consolidated
            metadata, chunks compressed by zstd at level 1.
        decode: From the bytes of a record to a dict of arrays or numbers by field name. All records
            agree in names, dtypes and shapes. It is pickled by value, and must not depend on
            anything but the record.
        chunk_rows: Rows per chunk, the unit that is compressed and decoded.
        shard_rows: Rows per shard, a stored file of many chunks, and a multiple of `chunk_rows`; by
            default each chunk is a file.
        overwrite: Whether to remove what another conversion has left in `output`. Files that no
            conversion wrote are never touched.
        runner: A Beam runner or its name; by default one that works in this process.
        progress: Called with the number of pieces done and of all; a piece is some 64 MB of rows.

    Returns:
        The manifest, which also lies in the folder.

    Raises:
        NotFoundError: If an input does not exist.
        ReadError: If an input is damaged; the message names file, record and offset.
        ConversionError: If a record does not decode or differs in shape, if there is no record, if
            `output` cannot be written or holds another conversion.
        MissingExtraError: If the packages of `windrow[beam]` are not installed.
    """
    _check_rows(chunk_rows, shard_rows)
    found = find_inputs(inputs)
    plan = _plan(found, decode, chunk_rows, shard_rows)

    def prepare(folder: OutputFolder) -> Job:
        files = _count_all(folder, found, runner=runner)
        fields = _agreed_fields(folder, fields_of_first(files, decode))
        return _job(_Store(folder, fields, chunk_rows, shard_rows), plan, files, decode)

    return carry_out(plan, output, prepare, overwrite=overwrite, runner=runner, progress=progress)


def _plan(
    found: tuple[Input, ...], decode: Decode, chunk_rows: int, shard_rows: int | None
) -> Plan:
    settings = {
        "chunk_rows": chunk_rows,
        "shard_rows": shard_rows,
        "compression": f"zstd:{_ZSTD_LEVEL}",
        "decode": getattr(decode, "__qualname__", type(decode).__qualname__),
    }
    return planned(_FORMAT, found, settings)


def _job(store: _Store, plan: Plan, files: list[Counted], decode: Decode) -> Job:
    """The rows of `files` as pieces to write into `store`, whose arrays are made."""
    sizes = [file.records for file in files]
    store.create(sum(sizes))
    return Job(
        cut(files, rows_per_piece=store.rows_per_piece),
        functools.partial(_convert_piece, store, decode),
        functools.partial(_write_manifest, store, plan, sizes),
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Store:
    """The arrays being written. Each lies in the work folder until all of it is there. Picklable."""

    folder: OutputFolder
    fields: tuple[Field, ...]
    chunk_rows: int
    shard_rows: int | None

    @property
    def file_rows(self) -> int:
        """Rows per stored file, which has one writer."""
        return self.shard_rows or self.chunk_rows

    @property
    def rows_per_piece(self) -> int:
        row_bytes = sum(field.row_bytes for field in self.fields)
        return max(1, _PIECE_BYTES // (row_bytes * self.file_rows)) * self.file_rows

    @property
    def unfinished(self) -> str:
        """The folder of the arrays that have no final name yet."""
        return os.path.join(self.folder.work, "store")

    def place(self, name: str) -> str:
        """Where the file `name` of the group lies now."""
        # A run that was killed while it gave final names leaves some arrays here, some there.
        field = name.split("/")[0]
        moved = os.path.exists(self.folder.final(f"{field}/{_METADATA}"))
        return self.folder.final(name) if moved else os.path.join(self.unfinished, name)

    def create(self, rows: int) -> None:
        """Write the metadata of all arrays, or find that an earlier run has."""
        for field in self.fields:
            if os.path.exists(self.place(f"{field.name}/{_METADATA}")):
                continue
            spec = {**self._spec(field), "create": True, "metadata": self._metadata(field, rows)}
            _stored(ts.open(spec), self.place(field.name))

    def write(self, piece: Piece, values: dict[str, Column]) -> None:
        """Write the rows of `piece` into every array."""
        for field in self.fields:
            where = self.place(field.name)
            array = _stored(ts.open(self._spec(field)), where)
            # In a transaction each shard is written once, not once per chunk.
            transaction = ts.Transaction()
            target = array.with_transaction(transaction)[piece.start : piece.stop]
            _stored(target.write(values[field.name]), where)
            _stored(transaction.commit_async(), where)

    def files(self, piece: Piece) -> tuple[OutputFile, ...]:
        """The stored files that hold the rows of `piece`."""
        out = []
        for field in self.fields:
            for start in range(piece.start, piece.stop, self.file_rows):
                key = "/".join([str(start // self.file_rows), *("0" for _ in field.shape)])
                name = f"{field.name}/c/{key}"
                records = min(start + self.file_rows, piece.stop) - start
                out.append(output_file(self.place(name), name, records=records))
        return tuple(out)

    def _spec(self, field: Field) -> dict[str, Any]:
        return {
            "driver": "zarr3",
            "kvstore": {"driver": "file", "path": self.place(field.name) + "/"},
            "open": True,
            "store_data_equal_to_fill_value": True,
        }

    def _metadata(self, field: Field, rows: int) -> dict[str, Any]:
        codecs: list[dict[str, Any]] = [
            {"name": "bytes", "configuration": {"endian": "little"}},
            {"name": "zstd", "configuration": {"level": _ZSTD_LEVEL, "checksum": False}},
        ]
        if self.shard_rows is not None:
            inner = {"chunk_shape": [self.chunk_rows, *field.shape], "codecs": codecs}
            codecs = [{"name": "sharding_indexed", "configuration": inner}]
        grid = {"chunk_shape": [self.file_rows, *field.shape]}
        return {
            "shape": [rows, *field.shape],
            "data_type": field.dtype,
            "chunk_grid": {"name": "regular", "configuration": grid},
            "chunk_key_encoding": {"name": "default"},
            "codecs": codecs,
        }


def _check_rows(chunk_rows: int, shard_rows: int | None) -> None:
    if chunk_rows < 1:
        raise ConversionError(f"chunk_rows={chunk_rows}: must be at least 1")
    if shard_rows is not None and (shard_rows < 1 or shard_rows % chunk_rows):
        raise ConversionError(
            f"shard_rows={shard_rows}: must be a multiple of chunk_rows={chunk_rows}, such as"
            f" {max(1, -(-shard_rows // chunk_rows)) * chunk_rows}"
        )


def _count_all(
    folder: OutputFolder, found: tuple[Input, ...], *, runner: object | None
) -> list[Counted]:
    """Count all files, those that an earlier run has counted aside."""
    files = [_Numbered(index, source) for index, source in enumerate(found)]
    missing = [file for file in files if _counted(folder, file) is None]
    if missing:
        work = functools.partial(_count_file, folder)
        run_pipeline(missing, work, finish=_nothing, runner=runner, progress=None)
    counts = [_counted(folder, file) for file in files]
    for file, counted in zip(files, counts, strict=True):
        if counted is None:
            raise ConversionError(
                f"{file.source.url}: was counted, but {folder.work} does not show it; all workers"
                " have to see that folder"
            )
    return [counted for counted in counts if counted is not None]


@dataclasses.dataclass(frozen=True, slots=True)
class _Numbered:
    """An input and its place among the inputs: several may have one name."""

    index: int
    source: Input


def _count_path(folder: OutputFolder, file: _Numbered) -> str:
    return os.path.join(folder.work, "counts", f"{file.index}.json")


def _count_file(folder: OutputFolder, file: _Numbered) -> None:
    counted = count(file.source)
    value = {"records": counted.records, "offsets": counted.offsets}
    folder.write_json(_count_path(folder, file), value)


def _counted(folder: OutputFolder, file: _Numbered) -> Counted | None:
    match read_json(_count_path(folder, file)):
        case {"records": int(records), "offsets": list(offsets)}:
            return Counted(file.source, records, tuple(offsets))
        case _:
            return None


def _nothing(results: list[None]) -> None:
    """The end of a pipeline that leaves its results in files."""


def _agreed_fields(folder: OutputFolder, fields: tuple[Field, ...]) -> tuple[Field, ...]:
    """`fields`, if they are those that an earlier run has begun to write."""
    path = os.path.join(folder.work, "fields.json")
    asked = [[field.name, str(field)] for field in fields]
    begun = read_json(path)
    if begun is None:
        folder.write_json(path, asked)
    elif begun != asked:
        raise ConversionError(
            f"output {folder.root}: was begun with another result of decode\n"
            f"  there:     {begun}\n"
            f"  asked for: {asked}\n"
            "Convert into another folder, or pass overwrite=True to write this one anew."
        )
    return fields


def _convert_piece(store: _Store, decode: Decode, piece: Piece) -> Part:
    key = f"rows-{piece.start}-{piece.stop}"

    def make() -> Part:
        store.write(piece, columns(piece, store.fields, decode))
        return Part(key, piece.stop - piece.start, store.files(piece))

    folder = store.folder
    return finished_part(folder, key, make, where=folder.root, at=store.unfinished)


def _write_manifest(store: _Store, plan: Plan, sizes: list[int], parts: list[Part]) -> None:
    folder = store.folder
    metadata = {}
    for field in store.fields:
        with open(store.place(f"{field.name}/{_METADATA}"), encoding="utf-8") as file:
            metadata[field.name] = json.load(file)
    group = {
        "zarr_format": 3,
        "node_type": "group",
        "attributes": {},
        "consolidated_metadata": {
            "kind": "inline",
            "must_understand": False,
            "metadata": metadata,
        },
    }
    prepared = os.path.join(folder.work, _METADATA)
    folder.write_json(prepared, group)
    names = [f"{field.name}/{_METADATA}" for field in store.fields]
    heads = [
        output_file(prepared, _METADATA, records=0),
        *(output_file(store.place(name), name, records=0) for name in names),
    ]
    # Before any of them has its final name, so that another plan finds what to remove.
    folder.finished(Part("metadata", 0, tuple(heads)))
    for field in store.fields:
        unfinished = os.path.join(store.unfinished, field.name)
        if os.path.exists(unfinished):
            publish(unfinished, folder.final(field.name))
    publish(prepared, folder.final(_METADATA))
    inputs = tuple(
        InputFile(name, size_bytes, records)
        for (name, size_bytes), records in zip(plan.inputs, sizes, strict=True)
    )
    ordered = sorted(parts, key=lambda part: int(part.key.split("-")[1]))
    chunks = [file for part in ordered for file in part.files]
    folder.finish(Manifest(plan.format, inputs, plan.settings, (*heads, *chunks)))


def _stored(future: Any, where: str) -> Any:
    """The result of a TensorStore operation; ConversionError names `where` if it fails."""
    try:
        return future.result()
    except Exception as error:  # TensorStore maps its codes to many builtin classes
        raise ConversionError(
            f"{where}: cannot be written: {error}; make room or choose another folder, and run it"
            " again: what is finished is kept"
        ) from error
