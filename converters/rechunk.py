"""Zarr, or what xarray opens, to Zarr: other chunks and shards, within a budget of memory.

The work is cut by the files of the target: a block, whole files of it, is read from wherever its
values lie and written at once. Where that would read much of the source again and again, a first
stage reads the source once and leaves its values, sorted by block, in files between.

Invariants: each file of the target is written whole, from one block; values are those of the source
bit for bit, unless another dtype is asked for.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Unpack

import google_crc32c
import numpy as np

from windrow.converters.array_inputs import AnyArray, Cast, InputArray
from windrow.converters.folder import OutputFolder, Part
from windrow.converters.job import RunOptions, carry_out
from windrow.converters.manifest import InputFile, Manifest, OutputFile, Plan, is_own_name
from windrow.converters.rechunk_layout import Axis, Converted, Settings, Sizes, converted
from windrow.converters.rechunk_plan import Box, RechunkPlan, plan_rechunk, runs
from windrow.converters.stages import Conversion, Expected, Report, Stage
from windrow.converters.targets import LocalTarget
from windrow.converters.zarr_inputs import Inputs, find_arrays
from windrow.converters.zarr_layout import METADATA, encode_parts, metadata_files
from windrow.errors import ArgumentError, ConversionError
from windrow.sources.zarr_names import RAGGED

MEMORY_BYTES: Final = 512 << 20
_FORMAT: Final = "zarr"
# What the interpreter, the libraries and the memory between them take, beside what is counted.
_PROCESS_BYTES: Final = 176 << 20
# Blocks at a time, so that one is read while another is written, unless memory is short.
_AT_ONCE: Final = 2
# How much of a piece between is read at a time, and by how many requests of an object store.
_PART_BYTES: Final = 4 << 20
_REQUESTS: Final = 8
# By how much one at a time must be cheaper to be chosen.
_WORTH_MORE: Final = 1.1


def zarr_to_zarr(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    arrays: Sequence[str] | Mapping[str, str] | None = None,
    record_axis: Axis | Mapping[str, Axis] = None,
    chunks: Sizes | Mapping[str, Sizes] = None,
    shards: Sizes | Mapping[str, Sizes] = None,
    codecs: str | Mapping[str, str] = "zstd:1",
    dtype: str | Mapping[str, str] | None = None,
    cast: Cast = "checked",
    select: Mapping[str, slice] | None = None,
    memory_bytes: int = MEMORY_BYTES,
    engine: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    **run: Unpack[RunOptions],
) -> Manifest:
    """Write the arrays of a Zarr store, or of a file that xarray opens, in chunks for training.

    Names of axes, attributes, coordinates and scalars are kept, and every value bit for bit. A run
    that was stopped goes on when it is called again with the same arguments.

    By default, rows of 4 KiB and more are a chunk each, smaller ones share a chunk of 4 KiB or more,
    and shards hold the rows that make about 128 MiB of all arrays together. Rows are those of the
    largest array; arrays that do not share its records keep their chunks, in shards of that size.

    Args:
        source: A path or URL of a Zarr array or group (v2 or v3), or of a file that xarray opens,
            such as NetCDF; its values are taken as they are stored, not scaled.
        output: A folder or URL, new, empty, or of an earlier run. It becomes a Zarr v3 group with
            consolidated metadata, or one array where the source is one.
        arrays: Names of arrays, or of groups of them; or a dict from new names to names of arrays.
            None for all there are.
        record_axis: Number or name of the axis that counts records, which becomes the first one; a
            dict for some arrays by their new names. None for the first.
        chunks: Records per chunk, or its size along every axis of the result; or a dict of either.
        shards: As `chunks`; 0 for no shards, so that every chunk is a file.
        codecs: 'zstd:1' (level 1), 'gzip:5', 'blosc:lz4:5' or 'none', or JSON as in Zarr v3; or a
            dict.
        dtype: For all arrays of its kind (floats, integers), or a dict for some.
        cast: 'checked' refuses values that the dtype cannot hold, 'unsafe' takes what comes.
        select: By name of an axis, which part of it to take.
        memory_bytes: The most memory that a process takes, its libraries included.
        engine: Of xarray, which then opens the source whatever its name ends in.
        storage_options: Settings of the source's file system, as in fsspec.
        **run: How it runs: `RunOptions`.

    Returns:
        The manifest, which also lies in the folder.

    Raises:
        NotFoundError: If there is nothing at `source`.
        ArgumentError: If the settings do not fit the arrays, or one that is named is not there.
        SourceError: If an array is not of numbers.
        ReadError: If a chunk of the source is damaged; the message names it.
        ConversionError: If `memory_bytes` are too few, a value does not fit its dtype, or `output`
            cannot be written or holds another conversion.
        MissingExtraError: If what is needed is not installed.

    Example:
        A day to a chunk becomes an hour to a chunk:

        >>> import tempfile, numpy as np, zarr
        >>> folder = tempfile.mkdtemp()
        >>> hours = np.zeros((48, 5, 6), np.float32)
        >>> _ = zarr.create_array(f"{folder}/days.zarr", data=hours, chunks=(24, 5, 6))
        >>> manifest = zarr_to_zarr(f"{folder}/days.zarr", f"{folder}/hours.zarr", chunks=1)
        >>> zarr.open_array(f"{folder}/hours.zarr").chunks
        (1, 5, 6)
    """
    conversion = zarr_to_zarr_conversion(
        source,
        arrays=arrays,
        record_axis=record_axis,
        chunks=chunks,
        shards=shards,
        codecs=codecs,
        dtype=dtype,
        cast=cast,
        select=select,
        memory_bytes=memory_bytes,
        engine=engine,
        storage_options=storage_options,
    )
    return carry_out(conversion, output, **run)


def zarr_to_zarr_conversion(
    source: str | os.PathLike[str],
    *,
    arrays: Sequence[str] | Mapping[str, str] | None = None,
    record_axis: Axis | Mapping[str, Axis] = None,
    chunks: Sizes | Mapping[str, Sizes] = None,
    shards: Sizes | Mapping[str, Sizes] = None,
    codecs: str | Mapping[str, str] = "zstd:1",
    dtype: str | Mapping[str, str] | None = None,
    cast: Cast = "checked",
    select: Mapping[str, slice] | None = None,
    memory_bytes: int = MEMORY_BYTES,
    engine: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Conversion:
    """The conversion that `zarr_to_zarr` carries out; arguments and errors as there."""
    if cast not in ("checked", "unsafe"):
        raise ArgumentError(f"cast must be 'checked' or 'unsafe', got {cast!r}")
    if type(memory_bytes) is not int:
        raise ArgumentError(f"memory_bytes must be an integer, got {memory_bytes!r}")
    names = None if arrays is None else _names(arrays)
    find = functools.partial(
        find_arrays, source, names=names, engine=engine, storage_options=storage_options
    )
    inputs = find()
    settings = Settings(record_axis, chunks, shards, codecs, dtype, select or {})
    named = _renamed(inputs.arrays, arrays)
    _check_new_names(named)
    found, records = converted(named, settings, apart=_ragged(inputs))
    plans, at_once = _planned(found, memory_bytes)
    jobs = tuple(_Job(*pair, cast) for pair in zip(found, plans, strict=True))
    chosen = dict(arrays) if isinstance(arrays, Mapping) else names
    plan = Plan(
        _FORMAT,
        (inputs.id,),
        {"conversion": "zarr_to_zarr", "arrays": chosen, "cast": cast, **settings.to_json()},
    )
    lead = max(range(len(jobs)), key=lambda k: jobs[k].converted.layout.nbytes)
    work = _Work(jobs, lead)
    first = Stage("read", work.reads, work.read, work.weigh_read, at_once)
    second = Stage("write", work.blocks, work.write, work.weigh_block, at_once)
    between = any(job.plan.between is not None for job in jobs)
    end = _End(plan, jobs, records, dict(inputs.attributes), inputs.group_attributes, find)
    return Conversion(
        name="zarr_to_zarr",
        plan=plan,
        stages=(first, second) if between else (second,),
        finish=end.finish,
        expected=_expected(inputs, jobs, records),
        sources=(os.fspath(source),),
        flags=_flags(arrays, settings, {"cast": cast, "engine": engine}),
    )


def _names(arrays: Sequence[str] | Mapping[str, str]) -> list[str]:
    names = list(arrays.values()) if isinstance(arrays, Mapping) else arrays
    if (
        not isinstance(names, Sequence)
        or isinstance(names, str)
        or not all(isinstance(name, str) for name in names)
        or not names
    ):
        raise ArgumentError(
            f'arrays must be a list of names such as ["image", "meta/id"], or a dict from new names'
            f" to names, got {arrays!r}"
        )
    return [name.strip("/") for name in names]


def _renamed(
    found: Mapping[str, InputArray], arrays: Sequence[str] | Mapping[str, str] | None
) -> dict[str, InputArray]:
    if not isinstance(arrays, Mapping):
        return dict(found)
    renamed = {}
    for new, old in arrays.items():
        if old.strip("/") not in found:
            raise ArgumentError(
                f"arrays: {old!r} is no array; a dict renames arrays, not groups of them; there are"
                f" {', '.join(sorted(found))}"
            )
        if not new or {"", ".", ".."} & set(new.split("/")):
            raise ArgumentError(f"arrays: {new!r} is no name for an array in a group")
        renamed[new] = found[old.strip("/")]
    for new in renamed:
        above = {"/".join(new.split("/")[:k]) for k in range(1, new.count("/") + 1)}
        if above & set(renamed):
            raise ArgumentError(f"arrays: {new!r} would lie in an array of the same dict")
    return renamed


def _check_new_names(names: Iterable[str]) -> None:
    for name in names:
        if name and (not is_own_name(name) or METADATA in name.split("/")):
            raise ArgumentError(
                f"arrays: {name!r:.200} cannot be the name of an array in the output; give it"
                " another: arrays={NEW: NAME, ...}"
            )


def _ragged(inputs: Inputs) -> set[str]:
    """The arrays whose rows are no records: those that hold rows of varying length."""
    found = set()
    for group, attributes in {"": inputs.attributes, **inputs.group_attributes}.items():
        told = attributes.get(RAGGED)
        for feature in told if isinstance(told, Mapping) else ():
            within = f"{group}/{feature}/" if group else f"{feature}/"
            found |= {name for name in inputs.arrays if name.startswith(within)}
    return found


def _flags(
    arrays: Sequence[str] | Mapping[str, str] | None,
    settings: Settings,
    more: Mapping[str, str | None],
) -> tuple[str, ...] | None:
    """The settings as the command line takes them; None where it does not."""
    if settings.select or not isinstance(settings.codecs, str):
        return None
    flags = ["--to", "zarr"]
    chosen = arrays.items() if isinstance(arrays, Mapping) else ((None, n) for n in arrays or ())
    for new, name in chosen:
        flags += ["--array", name if new is None else f"{new}={name}"]
    default = {**Settings().to_json(), "cast": "checked", "engine": None}
    for setting, value in {**settings.to_json(), **more}.items():
        if value != default[setting]:
            text = value if isinstance(value, str) else json.dumps(value)
            flags += [f"--{setting.replace('_', '-')}", text]
    return tuple(flags)


def _planned(found: Sequence[Converted], memory_bytes: int) -> tuple[list[RechunkPlan], int]:
    """A plan for each array, and how many blocks are worked on at a time."""
    room = max(0, memory_bytes - _PROCESS_BYTES)

    def plans(at_once: int) -> list[RechunkPlan]:
        return [plan_rechunk(c.grids, room // at_once, name=c.layout.name) for c in found]

    least = max((c.grids.least_bytes for c in found), default=0)
    if room < least:
        raise ConversionError(
            f"memory_bytes={memory_bytes:,} are too few for the chunks of the source and the files"
            f" of the target; give at least {least + _PROCESS_BYTES:,}, or choose smaller shards"
        )
    alone = plans(1)
    try:
        several = plans(_AT_ONCE)
    except ConversionError:
        return alone, 1
    cheap = all(a.cost <= _WORTH_MORE * b.cost for a, b in zip(several, alone, strict=True))
    return (several, _AT_ONCE) if cheap else (alone, 1)


def _expected(inputs: Inputs, jobs: Sequence[_Job], records: int) -> Expected:
    layouts = [job.converted.layout for job in jobs]
    return Expected(
        records=records,
        input_bytes=inputs.id.size_bytes,
        files=sum(math.prod(layout.file_grid) for layout in layouts),
        output_bytes=sum(layout.nbytes for layout in layouts),
        lines=tuple(job.line for job in jobs),
    )


# --- work ----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class _Job:
    """One array, and how it is rechunked."""

    converted: Converted
    plan: RechunkPlan
    cast: Cast

    @property
    def line(self) -> str:
        """What is planned, for people."""
        layout, plan = self.converted.layout, self.plan
        shards = "" if layout.shard_shape is None else f" in shards of {list(layout.shard_shape)}"
        passes = "one pass" if plan.between is None else "two passes through files between"
        return (
            f"{layout.name or 'the array'}: {layout.dtype} {list(layout.shape)}, chunks of"
            f" {list(layout.chunk_shape)}{shards}; {passes} in blocks of {list(plan.block)}, each"
            f" value decoded {plan.amplification:.2f} times"
        )

    def values(self, box: Box) -> AnyArray:
        """The values of a box of the target, read from the source."""
        found = self.converted
        out = np.empty(box.shape, found.layout.numpy_dtype)
        back = np.argsort(found.axes)
        first = [box.first[k] + s for k, s in zip(back, found.start, strict=True)]
        found.source.read(first, out.transpose(back), decoders=self.plan.decoders, cast=self.cast)
        return out

    def nbytes(self, box: Box) -> int:
        return box.cells * self.converted.layout.numpy_dtype.itemsize


@dataclasses.dataclass(frozen=True, slots=True)
class _Item:
    """A box of the array of one job."""

    job: int
    box: Box


@dataclasses.dataclass(frozen=True, slots=True)
class _Work:
    """The work of both stages. Picklable."""

    jobs: tuple[_Job, ...]
    lead: int

    def reads(self, folder: OutputFolder, results: list[Any]) -> list[_Item]:
        jobs = [(k, job) for k, job in enumerate(self.jobs) if job.plan.between is not None]
        return [_Item(k, box) for k, job in jobs for box in job.plan.reads()]

    def blocks(self, folder: OutputFolder, results: list[Any]) -> list[_Item]:
        return [_Item(k, box) for k, job in enumerate(self.jobs) for box in job.plan.blocks()]

    def weigh_read(self, item: _Item) -> int:
        return self.jobs[item.job].nbytes(item.box)

    def weigh_block(self, item: _Item) -> int:
        return self.jobs[item.job].nbytes(item.box)

    def read(self, folder: OutputFolder, item: _Item, report: Report) -> None:
        """The first of two passes: the values of a box, sorted by the block they belong to."""
        job = self.jobs[item.job]
        key = f"read-{_key(item)}"

        def make() -> Part:
            values = job.values(item.box)
            name = self._between(folder, item)
            checksum, size_bytes = 0, 0
            with folder.incoming(name) as path:
                with open(path, "wb") as file:
                    for piece, _ in job.plan.pieces_of_read(item.box):
                        for part, _ in runs(piece, _PART_BYTES // values.itemsize):
                            data = values[_cut(part, item.box)].tobytes()
                            checksum = google_crc32c.extend(checksum, data)
                            size_bytes += file.write(data)
                _put(folder, path, name)
            return Part(key, 0, (OutputFile(name, size_bytes, 0, f"{checksum:08x}"),))

        folder.part(key, make)
        report(0, job.nbytes(item.box))

    def write(self, folder: OutputFolder, item: _Item, report: Report) -> Part:
        """The second of two passes, or the only one: the files of a block."""
        job = self.jobs[item.job]
        layout = job.converted.layout
        key = f"block-{_key(item)}"

        def make() -> Part:
            if job.plan.between is None:
                values = job.values(item.box)
            else:
                values = self._gathered(folder, item)
            files = []
            encoded = encode_parts(layout, item.box.first, values, ahead_bytes=job.plan.ahead_bytes)
            for name, parts in encoded:
                rows = _rows_in_file(name, layout.name, layout.file_shape, layout.shape)
                files.append(folder.write_staged_parts(name, parts, records=rows))
            return Part(key, 0, tuple(files))

        part = folder.part(key, make)
        # Rows are counted once: by the largest array, where its other axes begin.
        counts = item.job == self.lead and item.box.first and not any(item.box.first[1:])
        report(item.box.shape[0] if counts else 0, job.nbytes(item.box))
        return part

    def _gathered(self, folder: OutputFolder, item: _Item) -> AnyArray:
        job = self.jobs[item.job]
        values = np.empty(item.box.shape, job.converted.layout.numpy_dtype)

        def gather(found: tuple[Box, Box, int]) -> None:
            read, piece, begin = found
            name = self._between(folder, _Item(item.job, read))
            start = begin * values.itemsize
            data = folder.target.read(name, start, start + piece.cells * values.itemsize)
            if data is None or len(data) != piece.cells * values.itemsize:
                raise ConversionError(
                    f"{folder.target.shown(name)}: is gone, or cut short, while it was read; let"
                    " nobody touch the folder meanwhile, and run it again"
                )
            held = np.frombuffer(data, values.dtype).reshape(piece.shape)
            values[_cut(piece, item.box)] = held

        # In parts, so that little is held of them beside the block.
        pieces = (
            (read, part, begin + at)
            for read, piece, begin in job.plan.pieces_of_block(item.box)
            for part, at in runs(piece, _PART_BYTES // values.itemsize)
        )
        if folder.target.local is not None:
            for piece in pieces:
                gather(piece)
        else:
            with ThreadPoolExecutor(_REQUESTS) as pool:  # each waits for a network
                collections.deque(pool.map(gather, pieces), maxlen=0)
        return values

    def _between(self, folder: OutputFolder, item: _Item) -> str:
        return folder.data_name(f"{_key(item)}.values")


def _key(item: _Item) -> str:
    """A name for an item that says which cells it holds."""
    axes = zip(item.box.first, item.box.shape, strict=True)
    return "-".join([str(item.job), *(f"{first}+{size}" for first, size in axes)])


def _cut(part: Box, whole: Box) -> tuple[slice, ...]:
    axes = zip(part.first, part.shape, whole.first, strict=True)
    return tuple(slice(first - w, first - w + size) for first, size, w in axes)


def _put(folder: OutputFolder, path: str, name: str) -> None:
    """Give a file between its name. It need not outlive the machine: a rerun checks its sum."""
    target = folder.target
    if isinstance(target, LocalTarget):
        target.move(os.path.relpath(path, target.root), name)
    else:
        target.put(path, name)


def _rows_in_file(name: str, array: str, file_shape: Sequence[int], shape: Sequence[int]) -> int:
    """Rows that begin in a file; the files of other cells of these rows count none."""
    at = [int(k) for k in name.removeprefix(f"{array}/" if array else "").split("/")[1:]]
    if not at or any(at[1:]):
        return 0
    return min(shape[0], (at[0] + 1) * file_shape[0]) - at[0] * file_shape[0]


@dataclasses.dataclass(frozen=True, slots=True)
class _End:
    """The end: metadata, final names, the manifest. Picklable."""

    plan: Plan
    jobs: tuple[_Job, ...]
    records: int
    attributes: Mapping[str, Any]
    group_attributes: Mapping[str, Mapping[str, Any]]
    find: Any

    def finish(self, folder: OutputFolder, parts: list[Part]) -> None:
        (before,) = self.plan.inputs
        now = self.find().id
        if now != before:
            raise ConversionError(
                f"{before.name}: was written anew while it was converted: {before} before, {now}"
                " now; leave inputs alone meanwhile, and start anew with overwrite=True"
            )
        layouts = [job.converted.layout for job in self.jobs]
        metadata = metadata_files(layouts, self.attributes, group_attributes=self.group_attributes)
        heads = tuple(folder.write_staged(name, data, records=0) for name, data in metadata.items())
        # Before any of them has its final name, so that another plan finds what to remove.
        folder.finished(Part("metadata", 0, heads))
        places = {name.split("/")[0] for name in metadata if "/" in name}
        alone = {"c"} if [layout.name for layout in layouts] == [""] else set()
        folder.publish_store([*sorted(places | alone), "zarr.json"])
        files = [file for part in parts for file in part.files]
        source = InputFile(before.name, before.size_bytes, self.records, before.version)
        folder.finish(Manifest(self.plan.format, (source,), self.plan.settings, (*heads, *files)))
