"""Zarr, or what xarray opens, to Zarr: other chunks and shards, within a budget of memory.

The files of the target divide the work. A block of whole files is read from wherever its values lie
and written at once. If that would read much of the source again and again, a first stage reads the
source once and leaves its values, sorted by block, in files between.

Invariants: each file of the target is written whole, from one block; values equal the source's bit
for bit, unless another dtype is asked for.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
import os
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, Unpack

import numpy as np

from windrow.converters.job.declared import declared
from windrow.converters.job.folder import FinishedPart, OutputFolder
from windrow.converters.job.inputs import refuse_changed
from windrow.converters.job.job import RunOptions, memory_of
from windrow.converters.job.manifest import (
    ConversionPlan,
    InputFile,
    Manifest,
    is_own_name,
)
from windrow.converters.job.stages import (
    Conversion,
    Expected,
    Steps,
    part_stage,
)
from windrow.converters.zarr.array_inputs import AnyArray, InputArray
from windrow.converters.zarr.layout import METADATA, ArrayLayout, encode_parts, metadata_files
from windrow.converters.zarr.rechunk_layout import (
    Axis,
    AxisUse,
    Converted,
    Settings,
    Sizes,
    converted,
    used_axes,
)
from windrow.converters.zarr.rechunk_plan import CellBox, RechunkPlan, plan_rechunk, runs
from windrow.converters.zarr.rows import PROCESS_BYTES, stage_metadata
from windrow.converters.zarr.zarr_inputs import ArrayInputs, array_names, find_arrays
from windrow.core.threads import DaemonPool
from windrow.errors import ArgumentError, ConversionError
from windrow.sources.zarr.names import RAGGED

_FORMAT: Final = "zarr"
# Blocks at a time, so that one is read while another is written, unless memory is short.
_AT_ONCE: Final = 2
# How much of a piece between is read at a time, and by how many requests of an object store.
_PART_BYTES: Final = 4 << 20
_REQUESTS: Final = 8
# The factor by which one block at a time must be cheaper to be chosen.
_WORTH_MORE: Final = 1.1


@declared
def zarr_to_zarr(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    arrays: Sequence[str] | Mapping[str, str] | None = None,
    axes: Axis | Mapping[Any, AxisUse] = None,
    chunks: Sizes | Mapping[str, Sizes] = None,
    shards: Sizes | Mapping[str, Sizes] = None,
    codecs: str | Mapping[str, str] = "zstd:1",
    dtype: str | Mapping[str, str] | None = None,
    **run: Unpack[RunOptions],
) -> Conversion:
    """Write the arrays of a Zarr store, or of a file that xarray opens, in chunks for training.

    Names of axes, attributes, coordinates and scalars are kept, and every value bit for bit. Times
    become integers with the attributes of the CF conventions. A run that was stopped resumes when it
    is called again with the same arguments.

    By default, rows of 4 KiB and more are a chunk each, smaller ones share a chunk of 4 KiB or more,
    and shards hold the rows that make about 128 MiB of all arrays together. The largest array sets
    the rows. Arrays that do not share its records keep their chunks, in shards of that size.

    Args:
        source: A path or URL of a Zarr array or group (v2 or v3), or of a file that xarray opens,
            such as NetCDF; its values are taken as they are stored, not scaled.
        output: A folder or URL, new, empty, or of an earlier run. It becomes a Zarr v3 group with
            consolidated metadata, or one array if the source is one.
        arrays: Names of arrays, or of groups of them; or a dict from new names to names of arrays.
            None for all of them. What labels these arrays comes with them: coordinates, their bounds
            and grid mappings. Other settings are for such labels only if they name them.
        axes: The name or number of the axis that counts records, which becomes the first one; None for
            the first. Or a dict from axes to "records", to a slice, which takes a part of one, or to
            a tuple of both.
        chunks: Records per chunk, or its size along every axis of the result: for all arrays that hold
            records, and not for coordinates. A dict of either is for the arrays that it names. A number
            for a dimension, `{"time": 24}`, is the size along it in all arrays that have it, as in
            xarray; its coordinate alone is named by a list, `{"time": [24]}`.
        shards: As `chunks`; 0 for no shards, so that every chunk is a file.
        codecs: 'zstd:1' (level 1), 'gzip:5', 'blosc:lz4:5' or 'none', or JSON as in Zarr v3; or a
            dict.
        dtype: For all arrays of its kind (floats, integers), or a dict for some. A value that does not
            fit is an error, unless ':unsafe' follows, as in 'int16:unsafe', which takes what comes.
        **run: How it runs: `RunOptions`.

    Returns:
        The manifest, which also lies in the folder.

    Raises:
        NotFoundError: If there is nothing at `source`.
        ArgumentError: If the settings do not fit the arrays, or one that is named is not there.
        SourceError: If an array is neither of numbers, times nor strings.
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
    memory_bytes = memory_of(run)
    chosen = list(arrays.values()) if isinstance(arrays, Mapping) else arrays
    names = array_names(chosen, arrays, "or a dict from new names to names, ")
    find = functools.partial(
        find_arrays,
        source,
        names=names,
        storage_options=run.get("storage_options"),
        labels=True,
    )
    inputs = find()
    record_axis, select = used_axes(axes)
    settings = Settings(record_axis, chunks, shards, codecs, dtype, select)
    named = _renamed(inputs.arrays, arrays)
    labels = _labels(named, inputs)
    named |= labels
    _check_new_names(named)
    found, records = converted(named, settings, apart=_ragged(inputs), labels=labels)
    plans, at_once = _planned(found, memory_bytes)
    jobs = tuple(map(_RechunkedArray, found, plans))
    stored = dict(arrays) if isinstance(arrays, Mapping) else names
    stored_settings = {
        "conversion": "zarr_to_zarr",
        "arrays": stored,
        **settings.to_json(),
        **({"coordinates": list(labels)} if labels else {}),
    }
    plan = ConversionPlan(_FORMAT, (inputs.id,), stored_settings)
    lead = max(range(len(jobs)), key=lambda k: jobs[k].converted.layout.nbytes)
    work = _RechunkWork(jobs, lead)
    first = part_stage("read", work.reads, work.read, at_once=at_once)
    second = part_stage("write", work.blocks, work.write, at_once=at_once)
    between = any(job.plan.between is not None for job in jobs)
    layouts = [one.layout for one in found]
    return Conversion(
        name="zarr_to_zarr",
        plan=plan,
        stages=(first, second) if between else (second,),
        finish=functools.partial(_finish, plan, layouts, records, find),
        expected=_expected(inputs, jobs, records),
    )


def _renamed(
    found: Mapping[str, InputArray], arrays: Sequence[str] | Mapping[str, str] | None
) -> dict[str, InputArray]:
    if not isinstance(arrays, Mapping):
        return dict(found)
    renamed = {}
    for new, old in arrays.items():
        if old.strip("/") not in found:
            raise ArgumentError(
                f"arrays: {old!r} is not an array; a dict renames arrays, not groups of them; there are"
                f" {', '.join(sorted(found))}"
            )
        if not new or {"", ".", ".."} & set(new.split("/")):
            raise ArgumentError(f"arrays: {new!r} cannot be the name of an array in a group")
        renamed[new] = found[old.strip("/")]
    return renamed


def _labels(named: Mapping[str, InputArray], inputs: ArrayInputs) -> dict[str, InputArray]:
    """The labels of arrays that were chosen, such as coordinates, by their names in the output.

    A label stays where it is, unless its array is moved to where readers do not find it there.
    Then it lies next to the array. An array that was given the name of a label takes its place.
    """
    for label, why in inputs.left_out.items():
        warnings.warn(
            f"the output is without coordinate {label!r}: {why}", UserWarning, stacklevel=5
        )
    found: dict[str, InputArray] = {}
    for new, array in named.items():
        group = new.rpartition("/")[0]
        for label in inputs.labels.get(array.facts.name, ()):
            if label not in inputs.label_arrays:
                continue
            around, _, last = label.rpartition("/")
            place = label
            if around and not f"{group}/".startswith(f"{around}/"):
                place = f"{group}/{last}" if group else last
            if place in named:
                continue
            other = found.setdefault(place, inputs.label_arrays[label])
            if other.facts.name != label:
                raise ArgumentError(
                    f"arrays: {other.facts.name!r} and {label!r}, coordinates of arrays that were"
                    f" chosen, would both become {place!r}; give the arrays names in different"
                    " groups: arrays={GROUP/NEW: NAME, ...}"
                )
    return found


def _check_new_names(names: Collection[str]) -> None:
    for name in names:
        above = {"/".join(name.split("/")[:k]) for k in range(1, name.count("/") + 1)}
        if above & set(names):
            raise ArgumentError(f"arrays: {name!r} would lie in an array of the output")
        if name and (not is_own_name(name) or METADATA in name.split("/")):
            raise ArgumentError(
                f"arrays: {name!r:.200} cannot be the name of an array in the output; give it"
                " another: arrays={NEW: NAME, ...}"
            )


def _ragged(inputs: ArrayInputs) -> set[str]:
    """Return the names of arrays that hold rows of varying length; their rows are not records."""
    found = set()
    for group, attributes in {"": inputs.attributes, **inputs.group_attributes}.items():
        ragged = attributes.get(RAGGED)
        for feature in ragged if isinstance(ragged, Mapping) else ():
            within = f"{group}/{feature}/" if group else f"{feature}/"
            found |= {name for name in inputs.arrays if name.startswith(within)}
    return found


def _planned(found: Sequence[Converted], memory_bytes: int) -> tuple[list[RechunkPlan], int]:
    """A plan for each array, and how many blocks are worked on at a time."""
    room = max(0, memory_bytes - PROCESS_BYTES)

    def plans(at_once: int) -> list[RechunkPlan]:
        return [plan_rechunk(c.grids, room // at_once, name=c.layout.name) for c in found]

    least = max((c.grids.least_bytes for c in found), default=0)
    if room < least:
        raise ConversionError(
            f"memory_bytes={memory_bytes:,} are too few for the chunks of the source and the files"
            f" of the target; give at least {least + PROCESS_BYTES:,}, or choose smaller shards"
        )
    alone = plans(1)
    try:
        several = plans(_AT_ONCE)
    except ConversionError:
        return alone, 1
    cheap = all(a.cost <= _WORTH_MORE * b.cost for a, b in zip(several, alone, strict=True))
    return (several, _AT_ONCE) if cheap else (alone, 1)


def _expected(inputs: ArrayInputs, jobs: Sequence[_RechunkedArray], records: int) -> Expected:
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
class _RechunkedArray:
    """One array, and how it is rechunked."""

    converted: Converted
    plan: RechunkPlan

    @property
    def line(self) -> str:
        """The plan as a line for people."""
        layout, plan = self.converted.layout, self.plan
        shards = "" if layout.shard_shape is None else f" in shards of {list(layout.shard_shape)}"
        passes = "one pass" if plan.between is None else "two passes through files between"
        return (
            f"{layout.name or 'the array'}: {layout.dtype} {list(layout.shape)}, chunks of"
            f" {list(layout.chunk_shape)}{shards}; {passes} in blocks of {list(plan.block)}, each"
            f" value decoded {plan.amplification:.2f} times"
        )

    def values(self, box: CellBox) -> AnyArray:
        """The values of a box of the target, read from the source."""
        found = self.converted
        out = np.empty(box.shape, found.layout.numpy_dtype)
        back = np.argsort(found.axes)
        first = [box.first[k] + s for k, s in zip(back, found.start, strict=True)]
        found.source.read(first, out.transpose(back), decoders=self.plan.decoders, cast=found.cast)
        return out

    def nbytes(self, box: CellBox) -> int:
        return box.cells * self.converted.layout.numpy_dtype.itemsize


@dataclasses.dataclass(frozen=True, slots=True)
class _RechunkItem:
    """A box of the array of job number `job`; `what` says which pass works on it."""

    what: str
    job: int
    box: CellBox
    size_bytes: int

    @property
    def key(self) -> str:
        """The key of its part."""
        return f"{self.what}-{_place(self.job, self.box)}"


@dataclasses.dataclass(frozen=True, slots=True)
class _RechunkWork:
    """The work of both stages. Picklable."""

    jobs: tuple[_RechunkedArray, ...]
    lead: int

    def reads(self, folder: OutputFolder, results: list[Any]) -> list[_RechunkItem]:
        jobs = [(k, job) for k, job in enumerate(self.jobs) if job.plan.between is not None]
        return [
            _RechunkItem("read", k, box, job.nbytes(box))
            for k, job in jobs
            for box in job.plan.reads()
        ]

    def blocks(self, folder: OutputFolder, results: list[Any]) -> list[_RechunkItem]:
        return [
            _RechunkItem("block", k, box, job.nbytes(box))
            for k, job in enumerate(self.jobs)
            for box in job.plan.blocks()
        ]

    def read(self, folder: OutputFolder, item: _RechunkItem, steps: Steps) -> FinishedPart:
        """The first of two passes: the values of a box, sorted by the block they belong to."""
        job = self.jobs[item.job]
        values = job.values(item.box)
        with folder.left(self._between(folder, item.job, item.box)) as file:
            for piece, _ in job.plan.pieces_of_read(item.box):
                for part, _ in runs(piece, _PART_BYTES // values.itemsize):
                    file.write(values[part.within(item.box)].tobytes())
            return FinishedPart(item.key, 0, (file.finished(records=0, lasting=False),))

    def write(self, folder: OutputFolder, item: _RechunkItem, steps: Steps) -> FinishedPart:
        """The second of two passes, or the only one: the files of a block."""
        job, box = self.jobs[item.job], item.box
        layout = job.converted.layout
        values = job.values(box) if job.plan.between is None else self._gathered(folder, item)
        files = []
        encoded = encode_parts(layout, box.first, values, ahead_bytes=job.plan.ahead_bytes)
        for name, parts in encoded:
            rows = _rows_in_file(name, layout.name, layout.file_shape, layout.shape)
            with folder.staged(name) as file:
                for part in parts:
                    file.write(part)
                files.append(file.finished(records=rows))
        # Rows are counted once: by the largest array, where its other axes begin.
        counts = item.job == self.lead and box.first and not any(box.first[1:])
        return FinishedPart(item.key, box.shape[0] if counts else 0, tuple(files))

    def _gathered(self, folder: OutputFolder, item: _RechunkItem) -> AnyArray:
        job = self.jobs[item.job]
        values = np.empty(item.box.shape, job.converted.layout.numpy_dtype)

        def gather(found: tuple[CellBox, CellBox, int]) -> None:
            read, piece, begin = found
            name = self._between(folder, item.job, read)
            start = begin * values.itemsize
            data = folder.read_data(name, start, start + piece.cells * values.itemsize)
            held = np.frombuffer(data, values.dtype).reshape(piece.shape)
            values[piece.within(item.box)] = held

        # In parts, so that little memory is held in addition to the block.
        pieces = (
            (read, part, begin + at)
            for read, piece, begin in job.plan.pieces_of_block(item.box)
            for part, at in runs(piece, _PART_BYTES // values.itemsize)
        )
        if folder.target.local is not None:
            for piece in pieces:
                gather(piece)
        else:
            with DaemonPool(_REQUESTS, "windrow-rechunk") as pool:  # each waits for a network
                collections.deque(pool.map(gather, pieces), maxlen=0)
        return values

    def _between(self, folder: OutputFolder, job: int, box: CellBox) -> str:
        return folder.data_name(f"{_place(job, box)}.values")


def _place(job: int, box: CellBox) -> str:
    """Return a name for a box of a job that says which cells it holds."""
    axes = zip(box.first, box.shape, strict=True)
    return "-".join([str(job), *(f"{first}+{size}" for first, size in axes)])


def _rows_in_file(name: str, array: str, file_shape: Sequence[int], shape: Sequence[int]) -> int:
    """Return the rows that begin in a file; files of other cells of these rows count no rows."""
    at = [int(k) for k in name.removeprefix(f"{array}/" if array else "").split("/")[1:]]
    if not at or any(at[1:]):
        return 0
    return min(shape[0], (at[0] + 1) * file_shape[0]) - at[0] * file_shape[0]


def _finish(
    plan: ConversionPlan,
    layouts: Sequence[ArrayLayout],
    records: int,
    find: Callable[[], ArrayInputs],
    folder: OutputFolder,
    parts: list[FinishedPart],
) -> None:
    """Write metadata and manifest, and publish all files, unless the source has changed."""
    (before,), inputs = plan.inputs, find()
    refuse_changed(before.name, before, inputs.id)
    metadata = metadata_files(layouts, inputs.attributes, group_attributes=inputs.group_attributes)
    heads = stage_metadata(folder, metadata)
    places = {name.split("/")[0] for name in metadata if "/" in name}
    alone = {"c"} if [layout.name for layout in layouts] == [""] else set()
    folder.publish_store([*sorted(places | alone), METADATA])
    files = [file for part in parts for file in part.files]
    source = InputFile(before.name, before.size_bytes, records, before.version)
    folder.finish(Manifest(plan.format, (source,), plan.settings, (*heads, *files)))
