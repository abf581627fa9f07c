"""JSON Lines or Parquet to a Zarr group: an array for each field, a row for each record.

Invariant: row `i` of every array is record `i` of all inputs, not counting bad ones left out.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from windrow.converters.job.declared import declared
from windrow.converters.job.folder import FinishedPart, OutputFolder
from windrow.converters.job.inputs import Paths
from windrow.converters.job.job import RunOptions
from windrow.converters.job.manifest import ConversionPlan
from windrow.converters.job.stages import Conversion, check_integer
from windrow.converters.texts.fields import TOKENS
from windrow.converters.texts.inputs import TextRequest, TextWork, json_lines_work, parquet_work
from windrow.converters.texts.tokens import Tokens, refuse_no_tokens
from windrow.converters.zarr.from_records import MEMORY_BYTES
from windrow.converters.zarr.records_work import RecordsWork
from windrow.converters.zarr.rows import Described, Features, Storage
from windrow.sources.zarr.names import OFFSETS, TOKENIZER, VALUES


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
    memory_bytes: int = MEMORY_BYTES,
    storage_options: Mapping[str, Any] | None = None,
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
    work, so that many files are better than one.

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
        memory_bytes: The most memory that a process takes, its libraries included. It holds if no
            document is larger than some megabytes: a token takes some 100 bytes while it is made.
        storage_options: Settings of the file system of inputs and tokenizer, as in fsspec.
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
    asked = TextRequest(inputs, field, tokenizer, end_token, storage_options, names)
    work = json_lines_work(asked, features=features, skip_bad=max_bad_records > 0)
    storage = Storage(chunk_rows, shard_rows, codecs)
    return _conversion("json_lines_to_zarr", work, storage, max_bad_records, memory_bytes)


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
    memory_bytes: int = MEMORY_BYTES,
    storage_options: Mapping[str, Any] | None = None,
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
    work = parquet_work(TextRequest(inputs, field, tokenizer, end_token, storage_options, names))
    storage = Storage(chunk_rows, shard_rows, codecs)
    return _conversion("parquet_to_zarr", work, storage, max_bad_records, memory_bytes)


def _conversion(
    name: str, texts: TextWork, storage: Storage, max_bad_records: int, memory_bytes: int
) -> Conversion:
    check_integer("memory_bytes", memory_bytes)
    known = Described(texts.decoder.features)
    work = texts.counting(
        dataclasses.replace(known, arrays=_noted(texts.tokens)),
        storage,
        max_bad_records,
        memory_bytes,
    )
    settings = {**texts.to_json(), **known.to_json()}
    return work.conversion(name, settings, functools.partial(_finish, work, texts.tokens))


def _noted(tokens: Tokens | None) -> dict[str, dict[str, Any]]:
    """What the array of tokens says of its tokenizer, as `Described.arrays`: a state has it too."""
    if tokens is None:
        return {}
    attributes = {TOKENIZER: {"sha256": tokens.sha256, "end_token": tokens.end}}
    settings = {"attributes": attributes, "dimension_names": None, "fill_value": None}
    return {f"{TOKENS}/{VALUES}": settings}


def _finish(
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
