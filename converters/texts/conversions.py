"""JSON Lines or Parquet to Zarr or ArrayRecord.

In Zarr each field becomes an array, and each record a row. In ArrayRecord a record becomes a line, text,
tokens or an Example.

Invariant: rows and records have the order of the records of all inputs, not counting bad ones that were
left out, which the manifest lists.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, Unpack

from windrow.converters.job.declared import declared
from windrow.converters.job.folder import FinishedPart, OutputFolder
from windrow.converters.job.inputs import Input, Paths
from windrow.converters.job.job import MEMORY_BYTES, RunOptions, memory_of, planned
from windrow.converters.job.manifest import ConversionPlan, Manifest
from windrow.converters.job.stages import Conversion, Steps
from windrow.converters.records.record_files import Counted, RowRange, cut, reporting_changes
from windrow.converters.records.record_writing import (
    FORMAT,
    WRITER_OPTIONS,
    FileTask,
    SkippedRecords,
    check_writer_options,
    common_stem,
    distinct_names,
    shard_names,
    stem_and_shard,
    writing_stage,
)
from windrow.converters.texts.fields import LINE, TOKENS
from windrow.converters.texts.inputs import TextRequest, TextWork, json_lines_work, parquet_work
from windrow.converters.texts.lines import is_compressed, without_compression
from windrow.converters.texts.tokens import Tokens, refuse_no_tokens
from windrow.converters.zarr.decoding import decoded
from windrow.converters.zarr.example_encode import encode_examples
from windrow.converters.zarr.records_work import RecordsWork, noted_inputs, places_of_cuts
from windrow.converters.zarr.rows import Described, Features, Storage
from windrow.errors import ArgumentError
from windrow.sources.tf_example.features import features_to_json
from windrow.sources.zarr.names import OFFSETS, TOKENIZER, VALUES

# Stored bytes of a plain file that become one file of the output.
FILE_BYTES: Final = 256 << 20
# Records that are decoded at a time.
_BLOCK_BYTES: Final = 4 << 20
_SUFFIX: Final = re.compile(r"\.(jsonl|ndjson|json|parquet)\Z", re.IGNORECASE)


@declared
def json_lines_to_zarr(
    inputs: Paths,
    output: str | os.PathLike[str],
    *,
    field: str | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    end_token: str | int | None = None,
    names: Sequence[str] | None = None,
    features: Features | None = None,
    chunk_rows: int | None = None,
    shard_rows: int | None = None,
    codecs: str = "zstd:1",
    max_bad_records: int = 0,
    **run: Unpack[RunOptions],
) -> Conversion:
    r"""Convert JSON Lines files to one Zarr v3 group: tokens of a document, or an array for each field.

    A record is a line with a JSON object, in UTF-8. Lines of white space alone are not records. With
    `tokenizer`, the text in `field` becomes the ragged array `tokens`: `tokens/values` has the tokens
    of all records end to end, in the smallest unsigned dtype that holds the tokenizer's ids, and
    the tokens of record `i` are `values[offsets[i] : offsets[i + 1]]`. With `field` alone, its text becomes
    ragged bytes in UTF-8 under the field's name. With neither, every field becomes an array: numbers
    as they are, strings and lists of different lengths ragged. Chunks, shards, and what a run that was
    stopped does are as for `tfrecord_to_zarr`.

    Plain files are read in parallel, in parts. A file whose name ends in `.gz`, `.gzip`, `.zst` or
    `.zstd` has to be read from its beginning: if all arrays are ragged, each of these is one unit of
    work, so that many files are better than one. `memory_bytes` holds if no document is larger than
    some megabytes: a token takes some 100 bytes while it is made. `storage_options` are for the
    tokenizer too.

    Args:
        inputs: A path, glob, folder (of files with `.jsonl` or `.ndjson` in their names) or URL, or a
            list of them.
        output: A folder or URL, new, empty, or of an earlier run.
        field: The field with the text.
        tokenizer: A path or URL of a `tokenizer.json` of Hugging Face's `tokenizers`. It makes tokens
            of the text alone, without the special tokens that it would add; the settings in the file
            for truncation and padding are not used. Its hash is in the manifest's settings.
        end_token: A token that is added to the end of every document, such as "<|endoftext|>": its name
            or its id.
        names: Fields to take in addition to `field`; by default all, or none if `field` is given.
        features: How fields become arrays, by name, instead of `names`: each a `Feature`, or what its
            `to_json` gives. By default they are inferred from the first 256 records.
        chunk_rows: Rows per chunk, the unit that is compressed.
        shard_rows: Rows per shard, a stored file of many chunks. With 0, each chunk is a file.
        codecs: 'zstd:1' (level 1), 'gzip:5', 'blosc:lz4:5' or 'none', or JSON as in Zarr v3.
        max_bad_records: The most records, of all inputs, that may be bad: not a JSON object, without
            a field that is taken, or with a value of another type there. They are left out, and listed
            in the manifest; later ones move up. All lines are then parsed twice. A compressed file
            that is damaged is always an error.
        **run: How it runs: `RunOptions`.

    Returns:
        The manifest, which also lies in the folder.

    Raises:
        NotFoundError: If an input or the tokenizer does not exist.
        ArgumentError: If an argument is of the wrong kind, or the tokenizer has no such end token.
        ReadError: If an input is damaged, a record is bad, or the tokenizer cannot be read; the
            message names file, record and byte.
        ConversionError: If the tokenizer gives no tokens, no array can be made of a field,
            `memory_bytes` are too few, or `output` cannot be written or holds another conversion.
        MissingExtraError: If what is needed is not installed.

    Example:
        >>> import tempfile
        >>> from windrow.sources import ZarrDataSource
        >>> folder = tempfile.mkdtemp()
        >>> with open(f"{folder}/a.jsonl", "w") as file:
        ...     _ = file.write('{"id": 7, "place": [0.5, 1]}\n{"id": 8, "place": [2, 3]}\n')
        >>> _ = json_lines_to_zarr(f"{folder}/a.jsonl", f"{folder}/a.zarr")
        >>> ZarrDataSource(f"{folder}/a.zarr")[1]
        {'id': np.int64(8), 'place': array([2., 3.])}
    """
    asked = TextRequest(inputs, field, tokenizer, end_token, run.get("storage_options"), names)
    work = json_lines_work(asked, features=features, skip_bad=max_bad_records > 0)
    storage = Storage(chunk_rows, shard_rows, codecs)
    return _zarr_conversion("json_lines_to_zarr", work, storage, max_bad_records, run)


@declared
def parquet_to_zarr(
    inputs: Paths,
    output: str | os.PathLike[str],
    *,
    field: str | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    end_token: str | int | None = None,
    names: Sequence[str] | None = None,
    chunk_rows: int | None = None,
    shard_rows: int | None = None,
    codecs: str = "zstd:1",
    max_bad_records: int = 0,
    **run: Unpack[RunOptions],
) -> Conversion:
    """Convert Parquet files to one Zarr v3 group: tokens of a document, or an array for each field.

    All is as for `json_lines_to_zarr`, with these exceptions. The files say what their fields are:
    numbers and booleans keep their dtypes, strings and bytes are ragged, lists of numbers too, and
    lists of a fixed size are rows. A row with a null in a field that is taken is bad. A row group is
    the unit that is read: if all arrays are ragged, none is read twice.

    Example:
        >>> import tempfile, pyarrow, pyarrow.parquet
        >>> from windrow.sources import ZarrDataSource
        >>> folder = tempfile.mkdtemp()
        >>> table = pyarrow.table({"id": [7, 8], "text": ["one", "two"]})
        >>> pyarrow.parquet.write_table(table, f"{folder}/a.parquet")
        >>> _ = parquet_to_zarr(f"{folder}/a.parquet", f"{folder}/a.zarr", names=["id"])
        >>> ZarrDataSource(f"{folder}/a.zarr")[1]
        {'id': np.int64(8)}
    """
    work = parquet_work(
        TextRequest(inputs, field, tokenizer, end_token, run.get("storage_options"), names)
    )
    storage = Storage(chunk_rows, shard_rows, codecs)
    return _zarr_conversion("parquet_to_zarr", work, storage, max_bad_records, run)


def _zarr_conversion(
    name: str, texts: TextWork, storage: Storage, max_bad_records: int, run: RunOptions
) -> Conversion:
    known = Described(texts.decoder.features)
    work = texts.counting(
        dataclasses.replace(known, arrays=_noted(texts.tokens)),
        storage,
        max_bad_records,
        memory_of(run),
    )
    settings = {**texts.to_json(), **known.to_json()}
    return work.conversion(name, settings, functools.partial(_finish_arrays, work, texts.tokens))


def _noted(tokens: Tokens | None) -> dict[str, dict[str, Any]]:
    """What the array of tokens says of its tokenizer, as `Described.arrays`: a state has it too."""
    if tokens is None:
        return {}
    attributes = {TOKENIZER: {"sha256": tokens.sha256, "end_token": tokens.end}}
    settings = {"attributes": attributes, "dimension_names": None, "fill_value": None}
    return {f"{TOKENS}/{VALUES}": settings}


def _finish_arrays(
    work: RecordsWork,
    tokens: Tokens | None,
    plan: ConversionPlan,
    folder: OutputFolder,
    results: list[FinishedPart],
) -> None:
    """Write metadata and manifest, unless there are no tokens; it may run twice."""
    if tokens is not None:
        items = {layout["name"]: layout["shape"][0] for layout in folder.needed("arrays")}
        records = items.get(f"{TOKENS}/{OFFSETS}", 1) - 1
        refuse_no_tokens(tokens, records, items.get(f"{TOKENS}/{VALUES}", 0))
    work.finish(plan, folder, results)


# To ArrayRecord.


@declared
def json_lines_to_array_record(
    inputs: Paths,
    output: str | os.PathLike[str],
    *,
    field: str | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    end_token: str | int | None = None,
    writer_options: str = WRITER_OPTIONS,
    files: int | None = None,
    max_bad_records: int = 0,
    **run: Unpack[RunOptions],
) -> Conversion:
    r"""Convert JSON Lines files to ArrayRecord files: lines, the text of a field, or tokens.

    A record is the line without its end; with `field`, the field's text in UTF-8; with `tokenizer` too,
    the tokens of the text: their bytes in the smallest unsigned dtype that holds the tokenizer's ids,
    little-endian. The manifest's settings have that dtype (`dtype`). Lines of white space alone are
    not records, and every other line has to be a JSON object in UTF-8.

    `x.jsonl` becomes `x.array_record`, and `y.jsonl.gz` becomes `y.array_record`. A plain file of
    more than 256 MB becomes several files, which are written in parallel. A run that was stopped
    resumes when it is called again with the same arguments.

    Args:
        inputs: A path, glob, folder (of files with `.jsonl` or `.ndjson` in their names) or URL, or a
            list of them; compressed if they end in `.gz`, `.gzip`, `.zst` or `.zstd`.
        output: A folder or URL, new, empty, or of an earlier run.
        field: The field with the text.
        tokenizer: As for `json_lines_to_zarr`.
        end_token: As there.
        writer_options: Options of ArrayRecordWriter.
        files: Number of files of about the same number of records; compressed files are not cut.
        max_bad_records: As for `json_lines_to_zarr`.
        **run: How it runs: `RunOptions`.

    Returns:
        The manifest, which also lies in the folder.

    Raises:
        NotFoundError: If an input or the tokenizer does not exist.
        ArgumentError: If an argument is of the wrong kind, or the tokenizer has no such end token.
        ReadError: If an input is damaged, a record is bad, or the tokenizer cannot be read; the
            message names file, record and byte.
        ConversionError: If the tokenizer gives no tokens, or `output` cannot be written or holds
            another conversion.
        MissingExtraError: If what is needed is not installed.

    Example:
        >>> import tempfile
        >>> from windrow.sources import ArrayRecordDataSource
        >>> folder = tempfile.mkdtemp()
        >>> with open(f"{folder}/a.jsonl", "w") as file:
        ...     _ = file.write('{"text": "one"}\n{"text": "two"}\n')
        >>> _ = json_lines_to_array_record(f"{folder}/a.jsonl", f"{folder}/out", field="text")
        >>> ArrayRecordDataSource(f"{folder}/out")[1]
        b'two'
    """
    check_writer_options(writer_options)
    asked = TextRequest(inputs, field, tokenizer, end_token, run.get("storage_options"))
    texts = json_lines_work(asked, whole_lines=True)
    parts = list(map(_parts, texts.found))
    return _records_conversion(
        "json_lines_to_array_record", texts, parts, writer_options, files, max_bad_records
    )


@declared
def parquet_to_array_record(
    inputs: Paths,
    output: str | os.PathLike[str],
    *,
    field: str | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    end_token: str | int | None = None,
    names: Sequence[str] | None = None,
    writer_options: str = WRITER_OPTIONS,
    files: int | None = None,
    max_bad_records: int = 0,
    **run: Unpack[RunOptions],
) -> Conversion:
    """Convert Parquet files to ArrayRecord files: Examples of rows, the text of a field, or tokens.

    All is as for `json_lines_to_array_record`, with these exceptions. Without `field`, a record is a
    tf.train.Example with a feature for each field, or for those in `names`, as `parquet_to_zarr`
    describes them; the manifest has these features, so that `array_record_to_zarr` makes arrays of
    them. A folder's files have `.parquet` in their names. Each file becomes one file, unless `files` is
    given. A row group is the unit that is read, and is not cut. A row with a null in a field that is
    taken is bad.
    """
    check_writer_options(writer_options)
    if field is not None and names is not None:
        raise ArgumentError(
            "a record is the text of field, or an Example of names; give one of them"
        )
    texts = parquet_work(
        TextRequest(inputs, field, tokenizer, end_token, run.get("storage_options"), names)
    )
    parts = [1] * len(texts.found)
    return _records_conversion(
        "parquet_to_array_record", texts, parts, writer_options, files, max_bad_records
    )


def _records_conversion(
    name: str,
    texts: TextWork,
    parts: Sequence[int],
    writer_options: str,
    files: int | None,
    max_bad_records: int,
) -> Conversion:
    """Plan the conversion; each input becomes some `parts`, unless `files` is given."""
    features = texts.decoder.features
    if files is None:
        names = file_names(texts.found, parts)
    else:
        names = shard_names(common_stem(_parted(source.name)[0] for source in texts.found), files)
    # A reader of the records takes `features` for the features of Examples.
    examples = texts.decoder.text is None and LINE not in features
    settings = {
        "conversion": name,
        **texts.to_json(),
        "dtype": None if texts.tokens is None else texts.tokens.dtype,
        **({"features": features_to_json(features)} if examples else {}),
        "writer_options": writer_options,
        "files": files,
    }
    plan = planned(FORMAT, texts.found, settings)
    counting = texts.counting(Described(features), Storage(), max_bad_records, MEMORY_BYTES)
    each = None if files is not None else tuple(parts)
    work = _Writing(texts, counting, tuple(names), each, examples)
    writing = writing_stage("convert", work.tasks, work.batches, writer_options=writer_options)
    return Conversion(
        name=name,
        plan=plan,
        stages=(counting.stages[0], writing),
        finish=functools.partial(_finish_files, plan, texts.tokens),
        expected=dataclasses.replace(counting.expected(), files=len(names)),
    )


def _parts(source: Input) -> int:
    """Return the number of files that an input of JSON Lines becomes."""
    return 1 if is_compressed(source.name) else max(1, -(-source.size_bytes // FILE_BYTES))


def file_names(found: Sequence[Input], parts: Sequence[int]) -> list[str]:
    """Return the names of the files that each input becomes."""
    own = [_parted(source.name) for source in found]
    stems = [f"{stem}.array_record{shard}" for stem, shard in own]
    distinct_names(stems, found, ", or into one set by files=...")
    return [
        name
        for whole, (stem, shard), count in zip(stems, own, parts, strict=True)
        for name in ([whole] if count == 1 else shard_names(f"{stem}{shard}", count))
    ]


def _parted(name: str) -> tuple[str, str]:
    """Return a name without endings, and its place in a numbered set."""
    stem, shard = stem_and_shard(without_compression(name))
    return _SUFFIX.sub("", stem) or "records", shard


@dataclasses.dataclass(frozen=True, slots=True)
class _Writing:
    """The second stage: writes the files `names`. Picklable.

    `counting` has counted the records; `parts` is the number of files of each input, None for files
    of about the same number of records. Records are `examples`, or the bytes of their only column.
    """

    texts: TextWork
    counting: RecordsWork
    names: tuple[str, ...]
    parts: tuple[int, ...] | None
    examples: bool

    def tasks(self, folder: OutputFolder, results: list[FinishedPart]) -> list[FileTask]:
        files = self.counting.counted(folder, results)
        if self.parts is None:
            bounds = even_bounds(files, len(self.names))
        else:
            bounds = _apart(files, self.parts)
        return [
            FileTask(name, f"{name}@{rows.digest}", rows.stored_bytes, rows)
            for name, rows in zip(self.names, cut(files, bounds), strict=True)
        ]

    def batches(
        self, folder: OutputFolder, task: FileTask, skipped: SkippedRecords, steps: Steps
    ) -> Iterator[Sequence[bytes]]:
        """Yield the records of a file, and note how many tokens they are."""
        row_range: RowRange = task.of
        rows = max(1, row_range.rows)
        features = self.texts.decoder.features
        tokens = skipped.more["tokens"] = 0
        with reporting_changes(row_range.sources):
            for block in self.texts.files.blocks(row_range.spans, _BLOCK_BYTES):
                columns = decoded(self.texts.decoder, block)
                if self.examples:
                    records = encode_examples(columns, features)
                else:
                    column: Any
                    (column,) = columns.values()
                    records = _rows(column)
                    tokens += len(column.values)
                yield records
                steps.add(len(records), task.size_bytes * len(records) // rows)
        for source in row_range.sources:
            source.check_unchanged()
        skipped.more["tokens"] = tokens


def _rows(column: Any) -> list[bytes]:
    """Return the bytes of each row of a ragged column, little-endian."""
    values = column.values.astype(column.values.dtype.newbyteorder("<"), copy=False)
    data = values.tobytes()
    ends = (column.offsets * values.itemsize).tolist()
    return [data[begin:end] for begin, end in itertools.pairwise(ends)]


def _apart(files: Sequence[Counted], parts: Sequence[int]) -> list[int]:
    """Return bounds that cut the rows of each file into its parts."""
    bounds, first = [0], 0
    for file, count in zip(files, parts, strict=True):
        bounds += [first + file.good * (at + 1) // count for at in range(count)]
        first += file.good
    return bounds


def even_bounds(files: Sequence[Counted], count: int) -> list[int]:
    """Return bounds of parts of about the same rows, only where reading can begin."""
    records = sum(file.good for file in files)
    wanted = [records * at // count for at in range(count + 1)]
    places, first = [], 0
    for file in files:
        step = 1 if file.cuts is not None else max(1, file.good // (4 * count))
        places += [first + row for row in places_of_cuts(file, step)]
        first += file.good
    places.append(records)
    found = [0]
    for place in wanted[1:-1]:
        at = bisect.bisect_left(places, place)
        near = min(places[max(0, at - 1) : at + 1], key=lambda one: abs(one - place))
        found.append(max(found[-1], near))
    return [*found, wanted[-1]]


def _finish_files(
    plan: ConversionPlan,
    tokens: Tokens | None,
    folder: OutputFolder,
    parts: Sequence[FinishedPart],
) -> None:
    """Write the manifest of the files, unless there are no tokens; it may run twice."""
    if tokens is not None:
        records = sum(part.records for part in parts)
        refuse_no_tokens(tokens, records, sum(part.details["tokens"] for part in parts))
    inputs, skipped = noted_inputs(folder, plan.inputs)
    files = tuple(file for part in parts for file in part.files)
    folder.finish(Manifest(plan.format, inputs, plan.settings, files, skipped))
