"""TFRecord to a Zarr group: one array per field, one row per record.

The work is cut by the chunks (or shards) of the output, not by the files of the input: each is
written whole, once, by one worker, which reads the records of its rows from wherever they lie.

Invariant: no two workers write one chunk or shard; a stored array has all of its chunks, so that a
chunk that is missing later is damage and not a run of zeros.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping
from typing import Any, Unpack

from windrow.converters.folder import OutputFolder, Part
from windrow.converters.inputs import Input, Paths, find_inputs, source_texts
from windrow.converters.job import RunOptions, carry_out, planned
from windrow.converters.manifest import InputFile, Manifest, Plan
from windrow.converters.rows import (
    Counted,
    Decode,
    Field,
    Piece,
    columns,
    count,
    cut,
    fields_of_first,
)
from windrow.converters.stages import Conversion, Expected, Report, Stage
from windrow.converters.zarr_layout import ArrayLayout, encode_each, metadata_files, rows_layout
from windrow.errors import ConversionError

_FORMAT = "zarr"
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
    storage_options: Mapping[str, Any] | None = None,
    **run: Unpack[RunOptions],
) -> Manifest:
    """Convert TFRecord files to one Zarr v3 group, an array per field.

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
        storage_options: Settings of the inputs' file system, as in fsspec.
        **run: How it runs: `RunOptions`.

    Returns:
        The manifest, which also lies in the folder.

    Raises:
        NotFoundError: If an input does not exist.
        ReadError: If an input is damaged; the message names file, record and offset.
        ConversionError: If a record does not decode or differs in shape, if there is no record, if
            `output` cannot be written or holds another conversion.
        MissingExtraError: If the packages of `windrow[beam]` are not installed.
    """
    conversion = tfrecord_to_zarr_conversion(
        inputs,
        decode=decode,
        chunk_rows=chunk_rows,
        shard_rows=shard_rows,
        storage_options=storage_options,
    )
    return carry_out(conversion, output, **run)


def tfrecord_to_zarr_conversion(
    inputs: Paths,
    *,
    decode: Decode,
    chunk_rows: int = 256,
    shard_rows: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Conversion:
    """The conversion that `tfrecord_to_zarr` carries out; arguments and errors as there."""
    _check_rows(chunk_rows, shard_rows)
    found = find_inputs(inputs, storage_options=storage_options, marks=(".tfrecord",))
    settings = {
        "chunk_rows": chunk_rows,
        "shard_rows": shard_rows,
        "compression": f"zstd:{_ZSTD_LEVEL}",
        "decode": getattr(decode, "__qualname__", type(decode).__qualname__),
    }
    plan = planned(_FORMAT, found, settings)
    rows = _Rows(found, decode, chunk_rows, shard_rows)
    return Conversion(
        name="tfrecord_to_zarr",
        plan=plan,
        stages=(
            Stage("count", rows.files, _count_file, _file_bytes),
            Stage("convert", rows.pieces, rows.convert, rows.piece_bytes),
        ),
        finish=functools.partial(_write_manifest, plan),
        expected=Expected(None, sum(source.size_bytes for source in found), None, None),
        sources=source_texts(inputs),
        flags=None,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Rows:
    """What is converted, and how it is to be stored."""

    found: tuple[Input, ...]
    decode: Decode
    chunk_rows: int
    shard_rows: int | None

    def files(self, folder: OutputFolder, results: list[Any]) -> tuple[Input, ...]:
        return self.found

    def pieces(self, folder: OutputFolder, results: list[Counted]) -> list[_Work]:
        by_url = {file.source.url: file for file in results}
        files = [by_url[source.url] for source in self.found]
        records = sum(file.records for file in files)
        fields = fields_of_first(files, self.decode)
        layouts = tuple(self._layout(field, records) for field in fields)
        _agree(folder, fields)
        folder.note("layouts", [layout.to_json() for layout in layouts])
        folder.note("records", [file.records for file in files])
        row_bytes = sum(field.row_bytes for field in fields)
        file_rows = self.shard_rows or self.chunk_rows
        rows = max(1, _PIECE_BYTES // (row_bytes * file_rows)) * file_rows
        return [_Work(piece, fields, layouts) for piece in cut(files, rows_per_piece=rows)]

    def _layout(self, field: Field, records: int) -> ArrayLayout:
        return rows_layout(
            field.name,
            field.dtype,
            (records, *field.shape),
            chunk_rows=self.chunk_rows,
            shard_rows=self.shard_rows,
        )

    def convert(self, folder: OutputFolder, work: _Work, report: Report) -> Part:
        piece = work.piece
        key = f"rows-{piece.start}-{piece.stop}"

        def make() -> Part:
            values = columns(piece, work.fields, self.decode)
            files = []
            for layout in work.layouts:
                origin = (piece.start, *(0 for _ in layout.shape[1:]))
                rows = layout.file_shape[0]
                starts = range(piece.start, piece.stop, rows)
                encoded = encode_each(layout, origin, values[layout.name])
                for start, (name, data) in zip(starts, encoded, strict=True):
                    records = min(start + rows, piece.stop) - start
                    files.append(folder.write_staged(name, data, records=records))
            return Part(key, piece.stop - piece.start, tuple(files))

        part = folder.part(key, make)
        report(part.records, self.piece_bytes(work))
        return part

    def piece_bytes(self, work: _Work) -> int:
        rows = work.piece.stop - work.piece.start
        return rows * sum(field.row_bytes for field in work.fields)


@dataclasses.dataclass(frozen=True, slots=True)
class _Work:
    piece: Piece
    fields: tuple[Field, ...]
    layouts: tuple[ArrayLayout, ...]


def _count_file(folder: OutputFolder, source: Input, report: Report) -> Counted:
    counted = count(source)
    report(counted.records, source.size_bytes)
    return counted


def _file_bytes(source: Input) -> int:
    return source.size_bytes


def _agree(folder: OutputFolder, fields: tuple[Field, ...]) -> None:
    """Refuse fields that are not those that an earlier run has begun to write."""
    asked = [[field.name, str(field)] for field in fields]
    begun = folder.noted("fields")
    if begun is None:
        folder.note("fields", asked)
    elif begun != asked:
        raise ConversionError(
            f"output {folder.target.shown()}: was begun with another result of decode\n"
            f"  there:     {begun}\n"
            f"  asked for: {asked}\n"
            "Convert into another folder, or pass overwrite=True to write this one anew."
        )


def _write_manifest(plan: Plan, folder: OutputFolder, parts: list[Part]) -> None:
    layouts = [ArrayLayout.from_json(value) for value in _noted_list(folder, "layouts")]
    metadata = metadata_files(layouts)
    heads = tuple(folder.write_staged(name, data, records=0) for name, data in metadata.items())
    # Before any of them has its final name, so that another plan finds what to remove.
    folder.finished(Part("metadata", 0, heads))
    folder.publish_store([*(layout.name for layout in layouts), "zarr.json"])
    inputs = tuple(
        InputFile(found.name, found.size_bytes, records, found.version)
        for found, records in zip(plan.inputs, _noted_list(folder, "records"), strict=True)
    )
    ordered = sorted(parts, key=lambda part: int(part.key.split("-")[1]))
    chunks = [file for part in ordered for file in part.files]
    folder.finish(Manifest(plan.format, inputs, plan.settings, (*heads, *chunks)))


def _noted_list(folder: OutputFolder, name: str) -> list[Any]:
    value = folder.noted(name)
    if not isinstance(value, list):
        raise ConversionError(
            f"output {folder.target.shown()}: the note {name!r} is gone; run again"
        )
    return value


def _check_rows(chunk_rows: int, shard_rows: int | None) -> None:
    if chunk_rows < 1:
        raise ConversionError(f"chunk_rows={chunk_rows}: must be at least 1")
    if shard_rows is not None and (shard_rows < 1 or shard_rows % chunk_rows):
        raise ConversionError(
            f"shard_rows={shard_rows}: must be a multiple of chunk_rows={chunk_rows}, such as"
            f" {max(1, -(-shard_rows // chunk_rows)) * chunk_rows}"
        )
