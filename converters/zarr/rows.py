"""Rows: the features of records, and how their arrays are stored, block by block.

The user gives the features of rows, or the manifest of the records' folder names them. The files of
their arrays are made from rows as they come. A shard is put together from its chunks and written as
it grows, so that memory holds a block of rows at most.

Invariants: features have names that arrays of one Zarr group can have. The files are the same as if
`layout.encode_parts` made them of all rows at once, for any blocks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from windrow.converters.job.folder import BUFFER_BYTES, FinishedPart, OutputFolder, StagedFile
from windrow.converters.job.inputs import Input, manifest_beside
from windrow.converters.job.manifest import OutputFile, is_own_name
from windrow.converters.job.stages import check_integer
from windrow.converters.zarr.chunk_codecs import codecs_of, with_checksum
from windrow.converters.zarr.layout import (
    METADATA,
    NOT_STORED,
    AnyArray,
    ArrayLayout,
    encode_rows,
    fill_scalar,
    rows_layout,
    training_rows,
)
from windrow.errors import ArgumentError, ConversionError, ReadError
from windrow.sources.remote.paths import split_path
from windrow.sources.tf_example.features import Feature, features_from_json, features_to_json
from windrow.sources.zarr.names import BLOCK_VALUES, OFFSETS, VALUES
from windrow.sources.zarr.offsets import values_per_block

# Descriptions of rows.


Features = Mapping[str, Feature | Mapping[str, Any]]

# Names of files end at 255 bytes.
_LONGEST_NAME: Final = 200


@dataclasses.dataclass(frozen=True, slots=True)
class Described:
    """The facts of rows that are known before a record is read.

    Args:
        features: The features, by name.
        arrays: `attributes`, `dimension_names` and `fill_value` of arrays in Zarr, by name.
        attributes: The attributes of the group.
        group_attributes: The attributes of the groups in it, by name.
    """

    features: Mapping[str, Feature]
    arrays: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    group_attributes: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As manifests have it."""
        found = {"features": features_to_json(self.features)}
        for name in ("arrays", "attributes", "group_attributes"):
            if getattr(self, name):
                found[name] = dict(getattr(self, name))
        return found

    def dressed(self, layout: ArrayLayout) -> ArrayLayout:
        """Return the layout, with the settings of its array in `arrays`."""
        settings = self.arrays.get(layout.name)
        if settings is None:
            return layout
        dims = settings["dimension_names"]
        return dataclasses.replace(
            layout,
            attributes=settings["attributes"],
            dimension_names=None if dims is None else tuple(dims),
            fill_value=settings["fill_value"],
        )


def asked_for(features: Features) -> Described:
    """Return the features that were given.

    Raises:
        ArgumentError: If they are not features, or no array can have one of their names.
    """
    if not isinstance(features, Mapping) or not features:
        raise ArgumentError("features is a dict of one Feature or more, by name")
    found = {}
    for name, feature in features.items():
        try:
            where = f"features: {name!r:.80}"
            value = dict(feature) if isinstance(feature, Mapping) else feature
            found[name] = (
                value if isinstance(value, Feature) else Feature.from_json(value, where=where)
            )
        except ReadError as error:
            raise ArgumentError(str(error)) from error
    check_names(found)
    return Described(found)


def check_names(
    features: Mapping[str, Feature], *, hint: str = "give one another name by decode="
) -> None:
    """Refuse names that no arrays of one group can have; `hint` is the way out.

    Raises:
        ArgumentError: If there is one.
    """
    for name in features:
        if (
            not isinstance(name, str)
            or not is_own_name(name)
            or any(map(_is_no_name, name.split("/")))
        ):
            raise ArgumentError(
                f"feature {name!r:.80} cannot name a Zarr array: a name is a string, and each part of"
                f" it, between slashes, has 1 to {_LONGEST_NAME} bytes, begins neither with '.' nor"
                f" with '__', and is not {METADATA!r}; {hint}"
            )
        above = next((other for other in features if name.startswith(f"{other}/")), None)
        if above is not None:
            raise ArgumentError(
                f"features {above!r} and {name!r} cannot both be in one Zarr group: the one would lie"
                f" in the other; {hint}"
            )


def _is_no_name(part: str) -> bool:
    return (
        not 0 < len(part.encode()) <= _LONGEST_NAME
        or part.startswith((".", "__"))
        or part == METADATA
    )


def described_by_manifest(found: Sequence[Input]) -> Described | None:
    """Return the features in the manifest of the files' folder, if it lists all of them.

    Raises:
        ReadError: If it is damaged.
        ArgumentError: If no array can have one of the names.
    """
    manifest = manifest_beside(found)
    settings = {} if manifest is None else manifest.settings
    if settings.get("features") is None:
        return None
    where = f"the manifest in {split_path(found[0].url)[0]}: features"
    described = Described(
        features_from_json(settings["features"], where=where),
        _objects(settings.get("arrays"), where),
        _objects({"": settings.get("attributes")}, where).get("", {}),
        _objects(settings.get("group_attributes"), where),
    )
    check_names(described.features)
    _check_arrays(described, where)
    return described


def _objects(value: object, where: str) -> dict[str, Any]:
    """Return JSON objects by name; nulls are left out."""
    found = {} if value is None else value
    if isinstance(found, dict):
        kept = {name: one for name, one in found.items() if one is not None}
        if all(isinstance(one, dict) for one in kept.values()):
            return kept
    raise ReadError(f"{where}: must be objects by name, got {value!r:.80}")


def _check_arrays(described: Described, where: str) -> None:
    """Refuse settings that do not fit the arrays of the features."""
    for name, (dtype, rank) in _arrays(described.features).items():
        settings = described.arrays.get(name)
        if settings is None:
            continue
        names = ["attributes", "dimension_names", "fill_value"]
        try:
            fits = sorted(settings) == names and isinstance(settings["attributes"], dict)
            dims = settings["dimension_names"]
            fits = fits and (dims is None or len(dims) == rank)
            fits = fits and all(isinstance(dim, str | None) for dim in dims or ())
            if fits and settings["fill_value"] is not None:
                fill_scalar(settings["fill_value"], dtype)
        except (TypeError, ValueError, OverflowError, KeyError):
            fits = False
        if not fits:
            raise ReadError(
                f"{where}: the settings of array {name!r} do not fit it: {settings!r:.200}"
            )


def _arrays(features: Mapping[str, Feature]) -> dict[str, tuple[np.dtype[Any], int]]:
    """Dtype and number of axes of all arrays, by name."""
    found = {}
    for name, feature in features.items():
        rank = 1 + len(feature.item_shape)
        if feature.ragged:
            found[f"{name}/{VALUES}"] = feature.numpy_dtype, rank
            found[f"{name}/{OFFSETS}"] = np.dtype(np.int64), 1
        else:
            found[name] = feature.numpy_dtype, rank
    return found


# How they are stored.


# Rows that are decoded, or read, at a time.
BLOCK_BYTES: Final = 8 << 20
# Memory of the interpreter, the libraries and the allocator, in addition to what is counted.
PROCESS_BYTES: Final = 176 << 20
# A block as records, decoded, put in line and encoded.
_COPIES: Final = 4
_SHARD_BYTES: Final = 128 << 20
_LARGEST_CHUNK_BYTES: Final = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class Storage:
    """The settings for storing arrays.

    Args:
        chunk_rows: Rows per chunk; None for the rule.
        shard_rows: Rows per shard; None for the rule, 0 for no shards.
        codecs: As `codecs_of` takes them.
    """

    chunk_rows: int | None = None
    shard_rows: int | None = None
    codecs: str = "zstd:1"

    def __post_init__(self) -> None:
        codecs_of(self.codecs)
        for name, least in (("chunk_rows", 1), ("shard_rows", 0)):
            rows = getattr(self, name)
            if rows is not None:
                check_integer(name, rows, least)
        if self.chunk_rows is not None:
            _check_multiple(self.shard_rows, self.chunk_rows)

    def to_json(self) -> dict[str, Any]:
        """As manifests have it."""
        return dataclasses.asdict(self)

    def layouts(
        self, features: Mapping[str, Feature], ragged_bytes: float, records: int
    ) -> tuple[ArrayLayout, ...]:
        """Return the arrays of the features of one shape; their shards have the same rows.

        Args:
            features: All features.
            ragged_bytes: The approximate bytes of a row of all ragged features together.
            records: The number of rows.
        """
        fixed = {name: feature for name, feature in features.items() if not feature.ragged}
        sizes = [feature.item_bytes for feature in fixed.values()]
        rule, shard_rows = training_rows([*sizes, math.ceil(ragged_bytes)], records)
        chunks = rule[:-1] if self.chunk_rows is None else (self.chunk_rows,) * len(fixed)
        shards = self._shard_rows(chunks, shard_rows, sum(sizes) + ragged_bytes, records)
        return tuple(
            rows_layout(
                name,
                feature.dtype,
                (records, *feature.item_shape),
                chunk_rows=chunk,
                shard_rows=shards,
                codecs=codecs_of(self.codecs, itemsize=feature.numpy_dtype.itemsize),
            )
            for (name, feature), chunk in zip(fixed.items(), chunks, strict=True)
        )

    def _shard_rows(
        self, chunks: Sequence[int], rule: int, row_bytes: float, records: int
    ) -> int | None:
        if self.shard_rows == 0:
            return None
        unit = max(chunks, default=1)
        if self.shard_rows is not None:
            _check_multiple(self.shard_rows, unit)
            return self.shard_rows
        if self.chunk_rows is None and chunks:
            # The rule does not know the chunks of ragged features, which are not rows.
            return max(unit, rule // unit * unit)
        wanted = int(_SHARD_BYTES // max(1.0, row_bytes)) // unit * unit
        return max(unit, min(wanted, -(-records // unit) * unit))

    def values_layout(self, name: str, feature: Feature, items: int, rows: int) -> ArrayLayout:
        """Return the array of the values of a ragged feature: `items` of them in `rows` rows.

        A chunk has about as many values as a row: a power of two that makes 4 KiB to 1 MiB.
        """
        (chunk,), _ = training_rows([feature.item_bytes], items)
        mean = items // max(1, rows)
        most = max(1, _LARGEST_CHUNK_BYTES // max(1, feature.item_bytes))
        while chunk < mean and 2 * chunk <= most:
            chunk *= 2
        return self._line(name, feature.numpy_dtype.name, (items, *feature.item_shape), chunk)

    def offsets_layout(self, name: str, rows: int) -> ArrayLayout:
        """The array of the offsets of a ragged feature."""
        (chunk,), _ = training_rows([8], rows + 1)
        return self._line(name, "int64", (rows + 1,), self.chunk_rows or chunk)

    def blocks_layout(self, name: str, values: ArrayLayout) -> ArrayLayout:
        """The array of the first record of each block of `values`, which is read as a whole."""
        size = values_per_block(values.chunk_shape[0], values.row_bytes)
        blocks = -(-values.shape[0] // size)
        chunk = min(1 << max(0, blocks - 1).bit_length(), _LARGEST_CHUNK_BYTES // 8)
        return rows_layout(
            name,
            "int64",
            (blocks,),
            chunk_rows=chunk,
            shard_rows=None,
            codecs=codecs_of(self.codecs, itemsize=8),
            attributes={BLOCK_VALUES: size},
        )

    def _line(self, name: str, dtype: str, shape: tuple[int, ...], chunk: int) -> ArrayLayout:
        """Lay out an array that is read in any runs of items."""
        whole = rows_layout(name, dtype, shape, chunk_rows=chunk, shard_rows=None)
        most = max(1, min(_SHARD_BYTES // whole.chunk_bytes, -(-shape[0] // chunk)))
        return dataclasses.replace(
            rows_layout(
                name,
                dtype,
                shape,
                chunk_rows=chunk,
                shard_rows=None if self.shard_rows == 0 else most * chunk,
            ),
            codecs=codecs_of(self.codecs, itemsize=whole.numpy_dtype.itemsize),
        )


def _check_multiple(shard_rows: int | None, chunk_rows: int) -> None:
    if shard_rows and shard_rows % chunk_rows:
        raise ArgumentError(
            f"shard_rows={shard_rows} must be a multiple of the {chunk_rows} rows of a chunk, such"
            f" as {-(-shard_rows // chunk_rows) * chunk_rows}, or 0 for no shards"
        )


class RowFiles:
    """Writes the files of rows `[start, stop)` of an array, which come in order. A context manager.

    Args:
        folder: The folder of the output.
        layout: The layout of the array.
        start: The first row, at the start of a file.
        stop: The row after the last one, at the end of a file or of the array.
        counted: Whether its rows count as records in the manifest.
    """

    def __init__(
        self, folder: OutputFolder, layout: ArrayLayout, start: int, stop: int, *, counted: bool
    ) -> None:
        self._folder, self._layout, self._stop = folder, layout, stop
        self._counted = counted
        self._at = start
        self._waiting: list[AnyArray] = []
        self._file: StagedFile | None = None
        self._lengths: list[int] = []  # of the chunks in the file
        self._unfinished = contextlib.ExitStack()
        self.files: list[OutputFile] = []
        """The files that are written."""

    def __enter__(self) -> RowFiles:
        return self

    def __exit__(self, *error: object) -> None:
        self._unfinished.close()

    def add(self, rows: AnyArray) -> None:
        """The next rows."""
        if 0 in self._layout.shape[1:]:
            return  # without values there are no files
        chunk, file = self._layout.chunk_shape[0], self._layout.file_shape[0]
        self._waiting.append(rows)
        ready = sum(map(len, self._waiting))
        if self._at + ready < self._stop:
            ready -= ready % chunk
        if not ready:
            return
        rows = np.concatenate(self._waiting) if len(self._waiting) > 1 else rows
        self._waiting = []
        done = 0
        while done < ready:
            size = min(ready - done, file - self._at % file)
            self._encode(rows[done : done + size])
            done += size
        if done < len(rows):
            self._waiting = [rows[done:].copy()]  # a view would keep all of it

    def _encode(self, rows: AnyArray) -> None:
        """Rows of one file, from a chunk's beginning on."""
        layout, file = self._layout, self._layout.file_shape[0]
        first = self._at // file
        if self._file is None:
            name = layout.key((first, *(0 for _ in layout.shape[1:])))
            self._file = self._unfinished.enter_context(self._folder.staged(name))
        for lengths, data in encode_rows(layout, rows):
            self._file.write(data)
            self._lengths += lengths
        self._at += len(rows)
        if self._at == self._stop or self._at % file == 0:
            if layout.shard_shape is not None:
                self._file.write(shard_index(self._lengths, file // layout.chunk_shape[0]))
            records = self._at - first * file if self._counted else 0
            self.files.append(self._file.finished(records=records))
            self._unfinished.close()
            self._file, self._lengths = None, []


def shard_index(lengths: Sequence[int], chunks: int) -> bytes:
    """The end of a shard: offset and length of each of its chunks, and their checksum."""
    index = np.full((chunks, 2), NOT_STORED, "<u8")
    stored = np.asarray(lengths, np.uint64)
    index[: len(stored), 0] = np.cumsum(stored) - stored
    index[: len(stored), 1] = stored
    return with_checksum(index.tobytes())


def stage_metadata(folder: OutputFolder, metadata: Mapping[str, bytes]) -> tuple[OutputFile, ...]:
    """Write the metadata files of a store, all of whose other files are there."""
    heads = tuple(folder.write_staged(name, data, records=0) for name, data in metadata.items())
    # Before any of them has its final name, so that another plan finds what to remove.
    folder.finished(FinishedPart("metadata", 0, heads))
    return heads


def writing_bytes(layouts: Sequence[ArrayLayout]) -> int:
    """Memory that it takes to write files of these arrays side by side, the blocks included."""
    shards = [layout.file_bytes for layout in layouts if layout.shard_shape is not None]
    chunks = sum(layout.chunk_bytes for layout in layouts)
    return sum(min(size, BUFFER_BYTES) for size in shards) + _COPIES * (BLOCK_BYTES + chunks)


class MemoryBudget:
    """Bytes of memory that the threads of a process share; each takes its part before it works."""

    def __init__(self, size_bytes: int) -> None:
        self._left = self._size = size_bytes
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def taken(self, size_bytes: int) -> Iterator[None]:
        """Wait for this many bytes, or for all if there are fewer, and hold them in the context."""
        size_bytes = min(size_bytes, self._size)
        with self._changed:
            self._changed.wait_for(lambda: self._left >= size_bytes)
            self._left -= size_bytes
        try:
            yield
        finally:
            with self._changed:
                self._left += size_bytes
                self._changed.notify_all()


_rooms: Final[dict[int, MemoryBudget]] = {}
_lock: Final = threading.Lock()


def room(memory_bytes: int) -> MemoryBudget:
    """Return the memory that all work of this process with this limit shares."""
    with _lock:
        return _rooms.setdefault(memory_bytes, MemoryBudget(max(1, memory_bytes - PROCESS_BYTES)))


def check_room(memory_bytes: int, needed: int, what: str) -> None:
    """Refuse work that takes more memory than there is.

    Raises:
        ConversionError: If it does.
    """
    if needed + PROCESS_BYTES > memory_bytes:
        raise ConversionError(
            f"memory_bytes={memory_bytes:,} are too few for {what}; give at least"
            f" {needed + PROCESS_BYTES:,}, or choose smaller shards by shard_rows"
        )


def ranges(start: int, stop: int, step: int) -> list[tuple[int, int]]:
    """`[start, stop)` in parts of `step`, the last one shorter."""
    bounds = [*range(start, stop, step), stop]
    return list(itertools.pairwise(bounds))
