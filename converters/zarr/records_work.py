"""The work of converting records to Zarr, in three stages.

    count     counts the records of each file; if bad ones may be left out, it reads all to find them
    convert   decodes and writes the rows of some whole files of the output
    ragged    writes values, offsets and index of ragged features, from files that `convert` has left

The files of the output, not of the input, divide the work. One worker writes each of them whole and
once, and reads the records of its rows from wherever they lie.

Invariant: the output depends on records, features and layout alone, not on which worker wrote it or
on how often it was stopped. A stored array has all of its chunks.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from windrow.converters.job.folder import FinishedPart, OutputFolder
from windrow.converters.job.inputs import Input
from windrow.converters.job.job import planned
from windrow.converters.job.manifest import (
    ConversionPlan,
    InputFile,
    InputId,
    Manifest,
    OutputFile,
    Skipped,
)
from windrow.converters.job.stages import (
    Conversion,
    ConversionStage,
    Expected,
    Steps,
    dropped,
    part_stage,
)
from windrow.converters.records.record_files import (
    Bad,
    Counted,
    RecordBlock,
    RecordFormat,
    RowRange,
    cut,
    reporting_changes,
)
from windrow.converters.records.record_writing import inputs_of
from windrow.converters.zarr.decoding import (
    OFFSET_BYTES,
    SAMPLE_RECORDS,
    ColumnDecoder,
    Decode,
    ExampleDecoder,
    FunctionDecoder,
    bad_in,
    decoded,
    inferred_examples,
    inferred_rows,
)
from windrow.converters.zarr.layout import METADATA, ArrayLayout, metadata_files
from windrow.converters.zarr.ragged import (
    FilesOfRows,
    Spool,
    Spooled,
    attribute,
    block_files,
    ragged_files,
)
from windrow.converters.zarr.rows import (
    BLOCK_BYTES,
    Described,
    RowFiles,
    Storage,
    check_names,
    check_room,
    room,
    stage_metadata,
    writing_bytes,
)
from windrow.core.machine import usable_cores
from windrow.errors import ConversionError, ReadError
from windrow.sources.base import IntArray
from windrow.sources.tf_example.features import (
    Feature,
    Ragged,
    features_from_json,
    features_to_json,
)
from windrow.sources.zarr.names import BLOCKS, OFFSETS, VALUES

# Called with the plan, the folder and the results of the last stage.
Finish = Callable[[ConversionPlan, OutputFolder, list[FinishedPart]], None]

# Bytes of rows in one work item: enough to be worth a task, and quick to do again.
_PIECE_BYTES: Final = 64 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class _CountItem:
    """Files that are counted together."""

    key: str
    files: tuple[Input, ...]
    features: dict[str, Feature]

    @property
    def size_bytes(self) -> int:
        """The stored bytes of the files."""
        return sum(source.size_bytes for source in self.files)


@dataclasses.dataclass(frozen=True, slots=True)
class _ConvertItem:
    """Rows that are converted together."""

    row_range: RowRange
    features: dict[str, Feature]
    layouts: tuple[ArrayLayout, ...]
    row_bytes: int
    memory_bytes: int

    @property
    def key(self) -> str:
        """A name for these rows and records; other rows or records have another name."""
        return f"rows-{self.row_range.start}-{self.row_range.stop}-{self.row_range.digest}"

    @property
    def size_bytes(self) -> int:
        """About the bytes of these rows in memory."""
        return self.row_range.rows * self.row_bytes


@dataclasses.dataclass(frozen=True, slots=True)
class RecordsWork:
    """The work of a conversion of records to Zarr. Picklable.

    `files` reads the inputs. `known_decoder` decodes records whose features are known. Otherwise
    `decode` decodes them, or they are Examples. `checker` finds bad records at less cost than the
    decoder.
    """

    files: RecordFormat
    found: tuple[Input, ...]
    known: Described | None
    decode: Decode | None
    storage: Storage
    max_bad_records: int
    memory_bytes: int
    known_decoder: ColumnDecoder | None = None
    checker: ColumnDecoder | None = None

    @property
    def stages(self) -> tuple[ConversionStage, ...]:
        """The three stages."""
        return (
            part_stage("count", self.batches, self.count),
            # One more than cores: while some files are flushed to the disk, others are made.
            part_stage("convert", self.convert_items, self.convert, at_once=usable_cores() + 1),
            part_stage("ragged", self.ragged, self.write_ragged),
        )

    @property
    def described(self) -> Described:
        """What is known of the rows, which may be nothing."""
        return self.known or Described({})

    def decoder(self, features: dict[str, Feature]) -> ColumnDecoder:
        if self.known_decoder is not None:
            return self.known_decoder
        if self.decode is not None:
            return FunctionDecoder(features, self.decode)
        return ExampleDecoder(features, inferred=self.known is None)

    def expected(self) -> Expected:
        """Return what is known beforehand, without reading a record."""
        records = output_bytes = None
        lines: tuple[str, ...] = ()
        batches = self.files.batches(self.found)
        if self.files.counts_at_once and len(batches) == 1:
            records = sum(file.records for file in self.files.count(batches[0]))
        if self.known is not None:
            features = self.known.features
            lines = tuple(f"{name}: {feature}" for name, feature in features.items())
            if records is not None and not any(f.ragged for f in features.values()):
                output_bytes = records * sum(f.item_bytes for f in features.values())
        size = sum(file.size_bytes for file in self.found)
        return Expected(records, size, None, output_bytes, lines)

    # Counting.

    def batches(self, folder: OutputFolder, results: list[Any]) -> list[_CountItem]:
        features = self._settled(folder)
        batches = self.files.batches(self.found)
        if self.max_bad_records:
            batches = [(file,) for file in self.found]
        how = "checked" if self.max_bad_records else "frames"
        firsts = np.cumsum([0, *map(len, batches)]).tolist()
        return [
            _CountItem(f"count-{first}-{len(files)}-{how}", files, features)
            for first, files in zip(firsts, batches, strict=False)
        ]

    def _settled(self, folder: OutputFolder) -> dict[str, Feature]:
        """The features, which the folder notes with the size of their rows for all later stages."""
        features = None if self.known is None else dict(self.known.features)
        row_bytes: float = 0
        skip_bad = self.max_bad_records > 0
        if features is None or (self.found and any(f.ragged for f in features.values())):
            with reporting_changes(self.found):
                sample = self.files.first(self.found, SAMPLE_RECORDS, skip_bad=skip_bad)
            if features is None and self.decode is not None:
                features, row_bytes = inferred_rows(sample, self.decode, skip_bad=skip_bad)
            else:
                if features is None:
                    features = inferred_examples(sample, skip_bad=skip_bad)
                row_bytes = self._ragged_bytes(sample, features)
            check_names(features)
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

    def _ragged_bytes(self, sample: RecordBlock, features: dict[str, Feature]) -> float:
        """Bytes of a row of all ragged features, in the sample."""
        if not sample.records or not features:
            return 0.0
        columns = self.decoder(features).columns(sample.records, [])
        found = [column for column in columns.values() if isinstance(column, Ragged)]
        return sum(
            int(column.values.nbytes) + OFFSET_BYTES * len(column) for column in found
        ) / len(sample.records)

    def count(self, folder: OutputFolder, item: _CountItem, steps: Steps) -> FinishedPart:
        checked = self.max_bad_records > 0
        progress = (lambda records, size: steps.reach(0, size)) if not checked else dropped
        with reporting_changes(item.files):
            counted = self.files.count(item.files, progress)
            if checked:
                counted = [self._checked(file, item.features, steps) for file in counted]
        for source in item.files:
            source.check_unchanged()
        value = [file.to_json() for file in counted]
        return FinishedPart(item.key, sum(file.records for file in counted), (), {"files": value})

    def _checked(self, file: Counted, features: dict[str, Feature], steps: Steps) -> Counted:
        """The file with its bad records: all are read, and decoded."""
        bad: list[Bad] = []

        def lose(numbers: IntArray, error: ReadError) -> None:
            bad.extend(Bad(number, self.files.reason(error)) for number in numbers.tolist())

        (whole,) = cut([file], [0, file.records])
        blocks = self.files.blocks(whole.spans, BLOCK_BYTES, lose)
        for more in bad_in(self.checker or self.decoder(features), blocks):
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

    def counted(self, folder: OutputFolder, results: list[FinishedPart]) -> list[Counted]:
        """Return the files, as the first stage counted them; the folder notes their bad records.

        Raises:
            ReadError: If more records are bad than may be.
        """
        values = [value for part in results for value in part.details["files"]]
        files = [Counted.from_json(*pair) for pair in zip(self.found, values, strict=True)]
        self._check_bad(files)
        folder.note(
            "inputs",
            [[file.good, [[bad.number, bad.why] for bad in file.bad]] for file in files],
        )
        return files

    # Converting.

    def convert_items(
        self, folder: OutputFolder, results: list[FinishedPart]
    ) -> list[_ConvertItem]:
        files = self.counted(folder, results)
        features, ragged_bytes = _noted_features(folder)
        records = sum(file.good for file in files)
        layouts = self._layouts(features, ragged_bytes, records)
        fixed_bytes = sum(f.item_bytes for f in features.values() if not f.ragged)
        row_bytes = max(1, fixed_bytes + int(ragged_bytes))
        unit = max((layout.file_shape[0] for layout in layouts), default=1)
        rows = max(_PIECE_BYTES // row_bytes, 2 * max((file.group for file in files), default=1))
        group_bytes = max((file.group * file.record_bytes for file in files), default=0)
        memory = writing_bytes(layouts) + 2 * group_bytes
        check_room(
            self.memory_bytes, memory, "what is encoded of all features, and blocks of records"
        )
        bounds = [*range(0, records, -(-rows // unit) * unit), records]
        if not layouts and any(file.cuts is not None for file in files):
            bounds = cuts_apart(files, rows)
        return [
            _ConvertItem(row_range, features, layouts, row_bytes, memory)
            for row_range in cut(files, bounds)
        ]

    def _layouts(
        self, features: dict[str, Feature], ragged_bytes: float, records: int
    ) -> tuple[ArrayLayout, ...]:
        layouts = self.storage.layouts(features, ragged_bytes, records)
        return tuple(map(self.described.dressed, layouts))

    def convert(self, folder: OutputFolder, item: _ConvertItem, steps: Steps) -> FinishedPart:
        with room(self.memory_bytes).taken(item.memory_bytes):
            return self._convert(folder, item, steps)

    def _convert(self, folder: OutputFolder, item: _ConvertItem, steps: Steps) -> FinishedPart:
        row_range, decoder = item.row_range, self.decoder(item.features)
        sources = row_range.sources
        spooled: dict[str, Any] = {}
        with reporting_changes(sources), contextlib.ExitStack() as stack:
            out = {
                layout.name: stack.enter_context(
                    RowFiles(folder, layout, row_range.start, row_range.stop, counted=True)
                )
                for layout in item.layouts
            }
            spools = {
                name: stack.enter_context(Spool(folder, item.key, f"{item.key}.{number}"))
                for number, (name, feature) in enumerate(item.features.items())
                if feature.ragged
            }
            for block in self.files.blocks(row_range.spans, BLOCK_BYTES):
                for name, column in decoded(decoder, block).items():
                    if isinstance(column, Ragged):
                        spools[name].add(column)
                    else:
                        out[name].add(column)
                steps.add(len(block.records), len(block.records) * item.row_bytes)
            for source in sources:
                source.check_unchanged()
            for name, spool in spools.items():
                spooled[name] = dataclasses.asdict(spool.close())
        files = tuple(file for rows in out.values() for file in rows.files)
        return FinishedPart(item.key, row_range.rows, files, {"spooled": spooled})

    # Ragged features.

    def ragged(self, folder: OutputFolder, results: list[FinishedPart]) -> list[FilesOfRows]:
        features, ragged_bytes = _noted_features(folder)
        records = sum(part.records for part in results)
        layouts = list(self._layouts(features, ragged_bytes, records))
        files = [dataclasses.asdict(file) for part in results for file in part.files]
        items: list[FilesOfRows] = []
        for name, feature in features.items():
            if feature.ragged:
                spooled = [Spooled(**part.details["spooled"][name]) for part in results]
                total = sum(one.items for one in spooled)
                values = self.described.dressed(
                    self.storage.values_layout(f"{name}/{VALUES}", feature, total, records)
                )
                offsets = self.described.dressed(
                    self.storage.offsets_layout(f"{name}/{OFFSETS}", records)
                )
                items += ragged_files(VALUES, values, spooled)
                items += ragged_files(OFFSETS, offsets, spooled)
                layouts += [values, offsets]
                blocks = self.storage.blocks_layout(f"{name}/{BLOCKS}", values)
                if blocks.shape[0] > 1:
                    items += block_files(blocks, spooled)
                    layouts.append(blocks)
        folder.note("arrays", [layout.to_json() for layout in layouts])
        folder.note("converted", files)
        return items

    def write_ragged(self, folder: OutputFolder, item: FilesOfRows, steps: Steps) -> FinishedPart:
        with room(self.memory_bytes).taken(writing_bytes([item.layout])):
            return item.write(folder, steps)

    # The end.

    def conversion(
        self, name: str, settings: Mapping[str, Any], finish: Finish | None = None
    ) -> Conversion:
        """Return the conversion to one group; the plan has `settings`, and how arrays are stored.

        `finish` is called, in place of the method, with the plan, the folder and the last results.
        """
        # The plan does not have `max_bad_records`: what is finished stays as it is.
        plan = planned(
            "zarr", self.found, {"conversion": name, **settings, **self.storage.to_json()}
        )
        return Conversion(
            name=name,
            plan=plan,
            stages=self.stages,
            finish=functools.partial(finish or self.finish, plan),
            expected=self.expected(),
        )

    def finish(
        self, plan: ConversionPlan, folder: OutputFolder, results: list[FinishedPart]
    ) -> None:
        """Write metadata and manifest, and publish all files; it may run twice."""
        group = self.group(folder, results)
        tops = sorted({layout.name.split("/")[0] for layout in group.layouts})
        folder.publish_store([*tops, METADATA])
        folder.finish(
            Manifest(plan.format, group.inputs, plan.settings, group.files, group.skipped)
        )

    def group(self, folder: OutputFolder, results: list[FinishedPart]) -> Group:
        """Write the metadata of the group; it may run twice."""
        known = self.described
        features, _ = _noted_features(folder)
        layouts = [ArrayLayout.from_json(value) for value in folder.needed("arrays")]
        attributes = {**known.group_attributes, "": {**known.attributes, **attribute(features)}}
        metadata = metadata_files(layouts, attributes[""], group_attributes=attributes)
        heads = stage_metadata(folder, metadata)
        inputs, skipped = noted_inputs(folder, [one.id for one in self.found])
        files = [OutputFile(**value) for value in folder.needed("converted")]
        files += [file for part in results for file in part.files]
        return Group(tuple(layouts), attributes, inputs, (*heads, *files), skipped)


def cuts_apart(files: Sequence[Counted], rows: int) -> list[int]:
    """Return bounds of parts of about `rows` rows or more, only where reading can begin.

    Returns:
        Where parts begin, rising from 0, among the rows of all files; and where the last ends.
    """
    bounds, first = [0], 0
    for file in files:
        for row in places_of_cuts(file, rows):
            if first + row - bounds[-1] >= rows:
                bounds.append(first + row)
        first += file.good
    return [*bounds, first] if bounds[-1] < first else bounds


def places_of_cuts(file: Counted, rows: int = 1) -> Sequence[int]:
    """Return the rows of a file, rising from 0, at which reading can begin; every `rows`-th of many."""
    if not file.good:
        return ()
    if file.cuts is None:
        return range(0, file.good, rows)
    bad = [one.number for one in file.bad]
    good = {cut - bisect.bisect_left(bad, cut) for cut in file.cuts}
    return sorted(row for row in good if row < file.good)


# --- the end -------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """A group whose arrays are all there, as its metadata and a manifest describe it.

    `attributes` has its own attributes under the name '', and those in it under their names.
    """

    layouts: tuple[ArrayLayout, ...]
    attributes: Mapping[str, Mapping[str, Any]]
    inputs: tuple[InputFile, ...]
    files: tuple[OutputFile, ...]
    skipped: tuple[Skipped, ...]


def noted_inputs(
    folder: OutputFolder, found: Sequence[InputId]
) -> tuple[tuple[InputFile, ...], tuple[Skipped, ...]]:
    """Return the inputs `found`, and their bad records, as `RecordsWork.counted` noted them."""
    noted = folder.needed("inputs")
    return inputs_of(found, [good + len(bad) for good, bad in noted], [bad for _, bad in noted])


def _noted_features(folder: OutputFolder) -> tuple[dict[str, Feature], float]:
    """The features, and the bytes of a row of those that are ragged."""
    value = folder.needed("features")
    where = folder.target.shown("features")
    return features_from_json(value["features"], where=where), float(value["ragged_bytes"])
