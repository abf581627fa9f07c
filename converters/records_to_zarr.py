"""TFRecord or ArrayRecord to a Zarr group: an array for each feature, a row for each record.

    count     the records of each file; where bad ones may be left out, all are read to find them
    convert   the rows of some whole files of the output: decoded, and written
    ragged    values and offsets of what differs in length, from what `convert` has put aside

The work is cut by the files of the output, not by those of the input: each is written whole, once,
by one worker, which reads the records of its rows from wherever they lie.

Invariant: what is written depends on records, features and layout alone, not on who wrote it or on
how often that was stopped. A stored array has all of its chunks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, Unpack

import numpy as np

from windrow.converters.decoding import (
    SAMPLE_RECORDS,
    Decode,
    Decoder,
    ExampleDecoder,
    FunctionDecoder,
    bad_in,
    decoded,
    inferred_examples,
    inferred_rows,
)
from windrow.converters.features import (
    Feature,
    Ragged,
    features_from_json,
    features_to_json,
)
from windrow.converters.folder import OutputFolder, Part
from windrow.converters.inputs import Input, Paths, find_inputs, source_texts
from windrow.converters.job import RunOptions, carry_out, planned
from windrow.converters.manifest import InputFile, Manifest, OutputFile, Plan, Skipped
from windrow.converters.ragged import (
    OFFSETS,
    VALUES,
    RaggedFiles,
    Spool,
    Spooled,
    attribute,
    ragged_files,
)
from windrow.converters.record_files import (
    Bad,
    Block,
    Counted,
    Piece,
    RecordFiles,
    cut,
    files_of,
)
from windrow.converters.record_writing import Steps, check_max_bad_records
from windrow.converters.row_files import (
    BLOCK_BYTES,
    RowFiles,
    Storage,
    check_room,
    room,
    writing_bytes,
)
from windrow.converters.stages import Conversion, Expected, Report, Stage
from windrow.converters.zarr_layout import METADATA, ArrayLayout, metadata_files
from windrow.errors import ArgumentError, ConversionError, NotFoundError, ReadError
from windrow.sources.paths import is_remote, split_path

MEMORY_BYTES: Final = 512 << 20
Features = Mapping[str, Feature | Mapping[str, Any]]

_FORMAT: Final = "zarr"
_MARKS: Final = {"tfrecord": (".tfrecord",), "array_record": (".array_record", ".arrayrecord")}
# Rows of one piece of the work: worth the way to them, and not much to do again.
_PIECE_BYTES: Final = 64 << 20
_LONGEST_NAME: Final = 200


def tfrecord_to_zarr(
    inputs: Paths,
    output: str | os.PathLike[str],
    *,
    features: Features | None = None,
    decode: Decode | None = None,
    chunk_rows: int | None = None,
    shard_rows: int | None = None,
    codecs: str = "zstd:1",
    max_bad_records: int = 0,
    memory_bytes: int = MEMORY_BYTES,
    storage_options: Mapping[str, Any] | None = None,
    **run: Unpack[RunOptions],
) -> Manifest:
    """Convert TFRecord files to one Zarr v3 group, an array for each feature.

    Row `i` of every array comes from record `i`, counted through all inputs in their order. What
    differs in length from record to record (text, encoded pictures, lists) becomes two arrays:
    `NAME/values`, all rows end to end, and `NAME/offsets` (int64, records + 1), so that row `i` is
    `values[offsets[i] : offsets[i + 1]]`; the group's attribute `windrow_ragged` names them. A `/` in
    a name makes groups. A run that was stopped goes on when it is called again with the same
    arguments; one that was finished is not done again.

    By default, records of 4 KiB and more are a chunk each, of smaller ones the power of two that
    makes 4 KiB is, and shards hold the rows that make about 128 MiB of all features together.

    Args:
        inputs: A path, glob, folder or URL, or a list of them; gzip if it ends in `.gz` (which is
            slower: gzip has to be read from its beginning).
        output: A folder or URL, new, empty, or of an earlier run. The group has consolidated
            metadata.
        features: How the features of tf.train.Examples become arrays, by name: each a `Feature`, or
            what its `to_json` gives; others are left out. By default the first 256 records show it,
            and every other record has to have the same features, of the same kinds and sizes. With
            `decode`, what that gives.
        decode: From the bytes of a record, whatever they are, to a dict of arrays, numbers, texts or
            bytes by name. All records agree in names and dtypes, and in shapes but for the first
            axis of ragged ones. It is pickled by value, and must depend on the record alone.
        chunk_rows: Rows per chunk, the unit that is compressed.
        shard_rows: Rows per shard, a stored file of many chunks, a multiple of those of a chunk; 0
            for none, so that each chunk is a file.
        codecs: 'zstd:1' (level 1), 'gzip:5', 'blosc:lz4:5' or 'none', or JSON as in Zarr v3.
        max_bad_records: Records, of all inputs, that may be damaged or not decode: up to so many are
            left out, and listed in the manifest; later ones move up. All records are then read and
            decoded twice. A TFRecord of damaged length is always an error: nothing behind it can be
            found.
        memory_bytes: The most memory that a process takes, its libraries included.
        storage_options: Settings of the inputs' file system, as in fsspec.
        **run: How it runs: `RunOptions`.

    Returns:
        The manifest, which also lies in the folder.

    Raises:
        NotFoundError: If an input does not exist.
        ArgumentError: If an argument is of the wrong kind, or no array can have a feature's name.
        ReadError: If an input is damaged, or a record no Example of the features; the message names
            file, record and offset.
        ConversionError: If `decode` fails, records do not agree, `memory_bytes` are too few, or
            `output` cannot be written or holds another conversion.
        MissingExtraError: If what is needed is not installed.
    """
    conversion = tfrecord_to_zarr_conversion(
        inputs,
        features=features,
        decode=decode,
        chunk_rows=chunk_rows,
        shard_rows=shard_rows,
        codecs=codecs,
        max_bad_records=max_bad_records,
        memory_bytes=memory_bytes,
        storage_options=storage_options,
    )
    return carry_out(conversion, output, **run)


def array_record_to_zarr(
    inputs: Paths,
    output: str | os.PathLike[str],
    *,
    features: Features | None = None,
    decode: Decode | None = None,
    chunk_rows: int | None = None,
    shard_rows: int | None = None,
    codecs: str = "zstd:1",
    max_bad_records: int = 0,
    memory_bytes: int = MEMORY_BYTES,
    storage_options: Mapping[str, Any] | None = None,
    **run: Unpack[RunOptions],
) -> Manifest:
    """Convert ArrayRecord files to one Zarr v3 group, an array for each feature.

    All is as for `tfrecord_to_zarr`, but for this: of files that `zarr_to_array_record` wrote the
    features are known, so that dtypes and shapes are those it began with; and where a record group
    is damaged all of its records are bad.
    """
    conversion = array_record_to_zarr_conversion(
        inputs,
        features=features,
        decode=decode,
        chunk_rows=chunk_rows,
        shard_rows=shard_rows,
        codecs=codecs,
        max_bad_records=max_bad_records,
        memory_bytes=memory_bytes,
        storage_options=storage_options,
    )
    return carry_out(conversion, output, **run)


def tfrecord_to_zarr_conversion(
    inputs: Paths,
    *,
    features: Features | None = None,
    decode: Decode | None = None,
    chunk_rows: int | None = None,
    shard_rows: int | None = None,
    codecs: str = "zstd:1",
    max_bad_records: int = 0,
    memory_bytes: int = MEMORY_BYTES,
    storage_options: Mapping[str, Any] | None = None,
) -> Conversion:
    """The conversion that `tfrecord_to_zarr` carries out; arguments and errors as there."""
    storage = Storage(chunk_rows, shard_rows, codecs)
    found = find_inputs(inputs, storage_options=storage_options, marks=_MARKS["tfrecord"])
    work = _Work(
        "tfrecord",
        found,
        _given(features),
        decode,
        storage,
        max_bad_records,
        memory_bytes,
    )
    return _conversion(work, inputs, features is not None)


def array_record_to_zarr_conversion(
    inputs: Paths,
    *,
    features: Features | None = None,
    decode: Decode | None = None,
    chunk_rows: int | None = None,
    shard_rows: int | None = None,
    codecs: str = "zstd:1",
    max_bad_records: int = 0,
    memory_bytes: int = MEMORY_BYTES,
    storage_options: Mapping[str, Any] | None = None,
) -> Conversion:
    """The conversion that `array_record_to_zarr` carries out; arguments and errors as there."""
    storage = Storage(chunk_rows, shard_rows, codecs)
    found = find_inputs(inputs, storage_options=storage_options, marks=_MARKS["array_record"])
    given = _given(features)
    if given is None and decode is None:
        given = _written_with(found)
    work = _Work("array_record", found, given, decode, storage, max_bad_records, memory_bytes)
    return _conversion(work, inputs, features is not None)


def _conversion(work: _Work, inputs: Paths, told_features: bool) -> Conversion:
    check_max_bad_records(work.max_bad_records)
    decode, storage, features = work.decode, work.storage, work.features
    if decode is not None and not callable(decode):
        raise ArgumentError(f"decode must be a function of the bytes of a record, got {decode!r}")
    if type(work.memory_bytes) is not int:
        raise ArgumentError(f"memory_bytes must be an integer, got {work.memory_bytes!r}")
    name = getattr(decode, "__qualname__", type(decode).__qualname__)
    # How many bad records are allowed is no part of the plan: what is finished stays as it is.
    settings = {
        "conversion": f"{work.format}_to_zarr",
        "features": None if features is None else features_to_json(features),
        "decode": None if decode is None else name,
        **storage.to_json(),
    }
    plan = planned(_FORMAT, work.found, settings)
    flags: tuple[str, ...] | None = None
    if decode is None and not told_features:
        flags = ("--to", "zarr", *_flags(work))
    return Conversion(
        name=f"{work.format}_to_zarr",
        plan=plan,
        stages=(
            Stage("count", work.batches, work.count, _stored_bytes),
            Stage("convert", work.pieces, work.convert, _piece_bytes),
            Stage("ragged", work.ragged, work.write_ragged, _ragged_bytes),
        ),
        finish=functools.partial(_finish, plan, work.max_bad_records),
        expected=work.expected(),
        sources=source_texts(inputs),
        flags=flags,
    )


def _flags(work: _Work) -> list[str]:
    storage, default = work.storage, Storage()
    given = {
        "--chunk-rows": (storage.chunk_rows, None),
        "--shard-rows": (storage.shard_rows, None),
        "--codecs": (storage.codecs, default.codecs),
        "--max-bad-records": (work.max_bad_records, 0),
    }
    return [
        text
        for flag, (value, usual) in given.items()
        if value != usual
        for text in (flag, str(value))
    ]


# --- features ------------------------------------------------------------------------------------


def _given(features: Features | None) -> dict[str, Feature] | None:
    """The features that were asked for; ArgumentError if they are none, or have impossible names."""
    if features is None:
        return None
    if not isinstance(features, Mapping) or not features:
        raise ArgumentError("features is a dict of one Feature or more, by name")
    found = {}
    for name, feature in features.items():
        if not isinstance(feature, Feature):
            try:
                feature = Feature.from_json(feature, where=f"features: {name!r}")
            except ReadError as error:
                raise ArgumentError(str(error)) from error
        found[name] = feature
    _check_names(found)
    return found


def _check_names(features: Mapping[Any, Feature]) -> None:
    """Refuse names that no arrays of one group can have."""
    for name in features:
        parts = name.split("/") if isinstance(name, str) else [""]
        if any(map(_is_no_name, parts)):
            raise ArgumentError(
                f"feature {name!r:.80} cannot name a Zarr array: each part of it, between slashes, is"
                f" a text of 1 to {_LONGEST_NAME} bytes that neither begins with '_' or '.' nor ends"
                " with '.json', without backslashes; give it another name by decode="
            )
        above = next((other for other in features if name.startswith(f"{other}/")), None)
        if above is not None:
            raise ArgumentError(
                f"features {above!r} and {name!r} cannot both be in one Zarr group: the one would lie"
                " in the other; give one of them another name by decode="
            )


def _is_no_name(part: str) -> bool:
    try:
        size = len(part.encode())
    except UnicodeEncodeError:
        return True
    return (
        not 0 < size <= _LONGEST_NAME
        or part.startswith(("_", "."))
        or part.endswith(".json")
        or bool({"\\", "\0"} & set(part))
    )


def _written_with(found: Sequence[Input]) -> dict[str, Feature] | None:
    """The features that the manifest beside the files tells, if one conversion wrote them all."""
    folders = {split_path(file.url)[0] for file in found}
    if len(folders) > 1:
        return None
    (folder,) = folders
    try:
        manifest = Manifest.read(folder, storage_options=found[0].options)
    except NotFoundError:
        return None
    except ReadError:
        if is_remote(folder):  # a store that shows its files alone
            return None
        raise
    value = manifest.settings.get("features")
    if value is None or not {file.name for file in found} <= {file.name for file in manifest.files}:
        return None
    features = features_from_json(value, where=f"{folder}: the manifest: features")
    _check_names(features)
    return features


# --- work ----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class _CountItem:
    """Files that are counted together; `first` is the number of the first of them."""

    first: int
    files: tuple[Input, ...]
    features: dict[str, Feature]


@dataclasses.dataclass(frozen=True, slots=True)
class _PieceItem:
    """Rows that are converted together."""

    piece: Piece
    features: dict[str, Feature]
    layouts: tuple[ArrayLayout, ...]
    row_bytes: int
    memory_bytes: int

    @property
    def key(self) -> str:
        """Names the rows, and the records that they are: another for others."""
        spans = [(s.source.id.key, s.start, s.stop, s.skipped) for s in self.piece.spans]
        digest = hashlib.sha256(repr(spans).encode()).hexdigest()[:12]
        return f"rows-{self.piece.start}-{self.piece.stop}-{digest}"


@dataclasses.dataclass(frozen=True, slots=True)
class _Work:
    """What is converted and how. Picklable."""

    format: str
    found: tuple[Input, ...]
    features: dict[str, Feature] | None
    decode: Decode | None
    storage: Storage
    max_bad_records: int
    memory_bytes: int

    @property
    def files(self) -> RecordFiles:
        return files_of(self.format)

    def decoder(self, features: dict[str, Feature]) -> Decoder:
        if self.decode is not None:
            return FunctionDecoder(features, self.decode)
        return ExampleDecoder(features, inferred=self.features is None)

    def expected(self) -> Expected:
        """What is known beforehand, without reading a record."""
        records = output_bytes = None
        lines: tuple[str, ...] = ()
        batches = self.files.batches(self.found)
        if self.format == "array_record" and len(batches) == 1:
            records = sum(file.records for file in self.files.count(batches[0]))
        if self.features is not None:
            lines = tuple(f"{name}: {feature}" for name, feature in self.features.items())
            if records is not None and not any(f.ragged for f in self.features.values()):
                output_bytes = records * sum(f.item_bytes for f in self.features.values())
        size = sum(file.size_bytes for file in self.found)
        return Expected(records, size, None, output_bytes, lines)

    # Counting.

    def batches(self, folder: OutputFolder, results: list[Any]) -> list[_CountItem]:
        features = self._settled(folder)
        batches = self.files.batches(self.found)
        if self.max_bad_records:
            batches = [(file,) for file in self.found]
        firsts = np.cumsum([0, *map(len, batches)]).tolist()
        return [
            _CountItem(first, files, features)
            for first, files in zip(firsts, batches, strict=False)
        ]

    def _settled(self, folder: OutputFolder) -> dict[str, Feature]:
        """The features, which the folder notes with the size of their rows for all later stages."""
        features = self.features
        row_bytes: float = 0
        skip_bad = self.max_bad_records > 0
        if features is None or any(feature.ragged for feature in features.values()):
            sample = self.files.first(self.found, SAMPLE_RECORDS, skip_bad=skip_bad)
            if features is None:
                features = self._inferred(sample, skip_bad=skip_bad)
            row_bytes = self._ragged_bytes(sample, features)
        asked = features_to_json(features)
        noted = folder.noted("features")
        if isinstance(noted, dict) and noted["features"] != asked:
            raise ConversionError(
                f"output {folder.target.shown()}: was begun with other features, or with another"
                " result of decode\n"
                f"  there:     {noted['features']}\n"
                f"  asked for: {asked}\n"
                "Convert into another folder, or pass overwrite=True to write this one anew."
            )
        if noted is None:
            folder.note("features", {"features": asked, "ragged_bytes": row_bytes})
        return features

    def _inferred(self, sample: Block, *, skip_bad: bool) -> dict[str, Feature]:
        if self.decode is not None:
            features = inferred_rows(sample, self.decode, skip_bad=skip_bad)
        else:
            features = inferred_examples(sample, skip_bad=skip_bad)
        _check_names(features)
        return features

    def _ragged_bytes(self, sample: Block, features: dict[str, Feature]) -> float:
        """Bytes of a row of all ragged features, in the sample."""
        if not sample.records or not features:
            return 0.0
        columns = self.decoder(features).columns(sample.records, [])
        found = [column for column in columns.values() if isinstance(column, Ragged)]
        return sum(column.values.nbytes + 8 for column in found) / len(sample.records)

    def count(self, folder: OutputFolder, item: _CountItem, report: Report) -> Part:
        steps = Steps(report, _stored_bytes(item))
        checked = self.max_bad_records > 0
        key = f"count-{item.first}-{len(item.files)}-{'checked' if checked else 'frames'}"

        def make() -> Part:
            told = (lambda records, size: steps.reach(0, size)) if not checked else _unheard
            counted = self.files.count(item.files, told)
            if checked:
                counted = [self._checked(file, item.features, steps) for file in counted]
            for source in item.files:
                source.check_unchanged()
            value = [file.to_json() for file in counted]
            return Part(key, sum(file.records for file in counted), (), {"files": value})

        part = folder.part(key, make)
        steps.end(part.records)
        return part

    def _checked(self, file: Counted, features: dict[str, Feature], steps: Steps) -> Counted:
        """The file with its bad records: all are read, and decoded."""
        bad: list[Bad] = []
        blocks = self.files.read_all(file, bad, block_bytes=BLOCK_BYTES)
        for more in bad_in(self.decoder(features), blocks):
            bad += more
            self._check_bad([dataclasses.replace(file, bad=tuple(bad))])
            steps.add(0, 0)
        bad.sort(key=lambda one: one.number)
        return dataclasses.replace(file, bad=tuple(bad))

    def _check_bad(self, files: Sequence[Counted]) -> None:
        bad = [(file.source, one) for file in files for one in file.bad]
        if len(bad) > self.max_bad_records:
            source, one = bad[self.max_bad_records]
            raise ReadError(
                f"{source.shown}: record {one.number}: {one.why}; with it more than"
                f" max_bad_records={self.max_bad_records} are bad",
                file=source.shown,
                records=(one.number, one.number + 1),
                why=one.why,
            )

    # Converting.

    def pieces(self, folder: OutputFolder, results: list[Part]) -> list[_PieceItem]:
        ordered = sorted(results, key=lambda part: int(part.key.split("-")[1]))
        values = [value for part in ordered for value in part.told["files"]]
        files = [Counted.from_json(*pair) for pair in zip(self.found, values, strict=True)]
        self._check_bad(files)
        folder.note(
            "inputs",
            [[file.good, [[bad.number, bad.why] for bad in file.bad]] for file in files],
        )
        features, ragged_bytes = _noted_features(folder)
        records = sum(file.good for file in files)
        layouts = self.storage.layouts(features, ragged_bytes, records)
        fixed_bytes = sum(f.item_bytes for f in features.values() if not f.ragged)
        row_bytes = max(1, fixed_bytes + int(ragged_bytes))
        unit = max((layout.file_shape[0] for layout in layouts), default=1)
        rows = max(_PIECE_BYTES // row_bytes, 2 * max((file.group for file in files), default=1))
        group_bytes = max((file.group * file.record_bytes for file in files), default=0)
        memory = writing_bytes(layouts, far=folder.target.local is None) + 2 * group_bytes
        check_room(self.memory_bytes, memory, "the shards of all features, and a block of records")
        return [
            _PieceItem(piece, features, layouts, row_bytes, memory)
            for piece in cut(files, rows_per_piece=-(-rows // unit) * unit)
        ]

    def convert(self, folder: OutputFolder, item: _PieceItem, report: Report) -> Part:
        steps = Steps(report, _piece_bytes(item))

        def make() -> Part:
            with room(self.memory_bytes).taken(item.memory_bytes):
                return self._convert(folder, item, steps)

        part = folder.part(item.key, make)
        steps.end(item.piece.rows)
        return part

    def _convert(self, folder: OutputFolder, item: _PieceItem, steps: Steps) -> Part:
        piece, decoder = item.piece, self.decoder(item.features)
        out = {
            layout.name: RowFiles(folder, layout, piece.start, piece.stop, counted=True)
            for layout in item.layouts
        }
        spooled: dict[str, Any] = {}
        with contextlib.ExitStack() as stack:
            spools = {
                name: stack.enter_context(Spool(folder, item.key, f"{item.key}.{number}"))
                for number, (name, feature) in enumerate(item.features.items())
                if feature.ragged
            }
            for block in self.files.read(piece.spans, block_bytes=BLOCK_BYTES):
                for name, column in decoded(decoder, block).items():
                    if isinstance(column, Ragged):
                        spools[name].add(column)
                    else:
                        out[name].add(column)
                steps.add(len(block.records), len(block.records) * item.row_bytes)
            for source in {span.source.url: span.source for span in piece.spans}.values():
                source.check_unchanged()
            for name, spool in spools.items():
                spooled[name] = dataclasses.asdict(spool.close())
        files = tuple(file for rows in out.values() for file in rows.files)
        return Part(item.key, piece.rows, files, {"spooled": spooled})

    # What is ragged.

    def ragged(self, folder: OutputFolder, results: list[Part]) -> list[RaggedFiles]:
        ordered = sorted(results, key=lambda part: int(part.key.split("-")[1]))
        features, ragged_bytes = _noted_features(folder)
        records = sum(part.records for part in ordered)
        layouts = list(self.storage.layouts(features, ragged_bytes, records))
        files = [dataclasses.asdict(file) for part in ordered for file in part.files]
        items: list[RaggedFiles] = []
        for name, feature in features.items():
            if feature.ragged:
                spooled = [Spooled(**part.told["spooled"][name]) for part in ordered]
                total = sum(one.items for one in spooled)
                values = self.storage.values_layout(f"{name}/{VALUES}", feature, total, records)
                offsets = self.storage.offsets_layout(f"{name}/{OFFSETS}", records)
                items += ragged_files(VALUES, values, spooled)
                items += ragged_files(OFFSETS, offsets, spooled)
                layouts += [values, offsets]
        folder.note("arrays", [layout.to_json() for layout in layouts])
        folder.note("converted", files)
        return items

    def write_ragged(self, folder: OutputFolder, item: RaggedFiles, report: Report) -> Part:
        far = folder.target.local is None
        with room(self.memory_bytes).taken(writing_bytes([item.layout], far=far)):
            return item.write(folder, report)


def _stored_bytes(item: _CountItem) -> int:
    return sum(source.size_bytes for source in item.files)


def _piece_bytes(item: _PieceItem) -> int:
    return item.piece.rows * item.row_bytes


def _ragged_bytes(item: RaggedFiles) -> int:
    return item.nbytes


def _unheard(records: int, done_bytes: int) -> None:
    """Progress that comes later."""


# --- the end -------------------------------------------------------------------------------------


def _finish(
    plan: Plan,
    max_bad_records: int,
    folder: OutputFolder,
    results: list[Part],
) -> None:
    features, _ = _noted_features(folder)
    layouts = [ArrayLayout.from_json(value) for value in _noted(folder, "arrays")]
    metadata = metadata_files(layouts, attribute(features))
    heads = tuple(folder.write_staged(name, data, records=0) for name, data in metadata.items())
    # Before any of them has its final name, so that another plan finds what to remove.
    folder.finished(Part("metadata", 0, heads))
    folder.publish_store([*sorted({layout.name.split("/")[0] for layout in layouts}), METADATA])
    noted = _noted(folder, "inputs")
    inputs = tuple(
        InputFile(found.name, found.size_bytes, good, found.version, len(bad))
        for found, (good, bad) in zip(plan.inputs, noted, strict=True)
    )
    skipped = tuple(
        Skipped(found.name, number, why)
        for found, (_, bad) in zip(plan.inputs, noted, strict=True)
        for number, why in bad
    )
    files = [OutputFile(**value) for value in _noted(folder, "converted")]
    order = {layout.name: at for at, layout in enumerate(layouts)}
    files += [
        file
        for part in sorted(results, key=lambda part: _ragged_place(part, order))
        for file in part.files
    ]
    folder.finish(Manifest(plan.format, inputs, plan.settings, (*heads, *files), skipped))


def _ragged_place(part: Part, order: Mapping[str, int]) -> tuple[int, int]:
    """Number of the array, and first item, of a part of a ragged feature."""
    name, start, _ = part.key.removeprefix("ragged-").rsplit("-", 2)
    return order[name], int(start)


def _noted_features(folder: OutputFolder) -> tuple[dict[str, Feature], float]:
    """The features, and the bytes of a row of those that are ragged."""
    value = folder.noted("features")
    if not isinstance(value, dict):
        raise _note_gone(folder, "features")
    where = folder.target.shown("features")
    return features_from_json(value["features"], where=where), float(value["ragged_bytes"])


def _noted(folder: OutputFolder, name: str) -> list[Any]:
    value = folder.noted(name)
    if not isinstance(value, list):
        raise _note_gone(folder, name)
    return value


def _note_gone(folder: OutputFolder, name: str) -> ConversionError:
    return ConversionError(
        f"output {folder.target.shown()}: the note {name!r} is gone; let nobody touch the folder"
        " meanwhile, and run it again"
    )
