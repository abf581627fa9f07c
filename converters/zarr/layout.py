"""Zarr v3 arrays as they are to be stored: their metadata, and the bytes of their files.

Files are encoded here, not by TensorStore, so that their bytes depend on the values alone: the
chunks of a shard follow one another in C order, and the shard's index comes last.

Invariants: equal layouts and values give equal bytes, for any number of threads. Every chunk that
holds a value is stored, even if all are fill values, so that a missing chunk means damage.
"""

from __future__ import annotations

import base64
import collections
import dataclasses
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from windrow.converters.zarr.chunk_codecs import (
    Step,
    bytes_codec,
    data_type,
    encoded,
    is_string,
    known_codec,
    steps_of,
    string_dtype,
    with_checksum,
    zstd,
)
from windrow.core.machine import usable_cores
from windrow.core.threads import shared_pool
from windrow.errors import ArgumentError, ConversionError
from windrow.sources.tf_example.features import DTYPES, numpy_dtype

AnyArray = npt.NDArray[Any]
Cells: TypeAlias = tuple[int, ...]
_Job = TypeVar("_Job")

METADATA: Final = "zarr.json"

# Records of this size are read one by one without waste; smaller ones share a chunk.
_LEAST_CHUNK_BYTES: Final = 4096
_SHARD_BYTES: Final = 128 << 20
# Bytes that one thread encodes at a time: enough to be worth a task, and few enough for memory.
_TURN_BYTES: Final = 1 << 20
_TURN_CHUNKS: Final = 4096
NOT_STORED: Final = 2**64 - 1  # in the index of a shard
_LITTLE: Final = {"name": "bytes", "configuration": {"endian": "little"}}
_NAMED_FLOATS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@dataclasses.dataclass(frozen=True, slots=True)
class ArrayLayout:
    """One array of a Zarr v3 group, as it is to be stored. Picklable.

    Args:
        name: Its name in the group; nested names are joined by `/`, and an array without a group is
            ''.
        dtype: One of `DTYPES`, or of `chunk_codecs`.
        shape: The shape of the array; () for a scalar.
        chunk_shape: The cells that are compressed as one: the inner chunk of an array with shards.
        shard_shape: The cells that are stored as one file, whole chunks; None if each chunk is one.
        codecs: The codecs of the bytes of a chunk, as in the metadata of Zarr v3; () for none.
        dimension_names: One per axis, or None.
        attributes: The array's attributes; values fit JSON.
        fill_value: As in the metadata of Zarr v3; None for zero.

    Raises:
        ArgumentError: If the parts do not fit together.
    """

    name: str
    dtype: str
    shape: Cells
    chunk_shape: Cells
    shard_shape: Cells | None = None
    codecs: tuple[Mapping[str, Any], ...] = zstd()
    dimension_names: tuple[str | None, ...] | None = None
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    fill_value: Any = None

    def __post_init__(self) -> None:
        what = f"array {self.name!r}"
        if self.dtype not in DTYPES and not is_string(self.dtype):
            raise ArgumentError(f"{what}: dtype {self.dtype!r} is not one of {', '.join(DTYPES)}")
        rank = len(self.shape)
        if len(self.chunk_shape) != rank or any(size < 1 for size in self.chunk_shape):
            raise ArgumentError(
                f"{what}: chunks of {list(self.chunk_shape)} do not fit the shape"
                f" {list(self.shape)}; name a size of at least 1 for each axis"
            )
        shard = self.shard_shape
        if shard is not None and (
            len(shard) != rank
            or any(s < 1 or s % c for s, c in zip(shard, self.chunk_shape, strict=True))
        ):
            raise ArgumentError(
                f"{what}: shards of {list(shard)} are not a whole number of chunks of"
                f" {list(self.chunk_shape)}; name a multiple along each axis"
            )
        if self.dimension_names is not None and len(self.dimension_names) != rank:
            raise ArgumentError(
                f"{what}: {len(self.dimension_names)} dimension names for {rank} axes"
            )
        for codec in self.codecs:
            known_codec(codec, self.name)

    @property
    def file_shape(self) -> Cells:
        """The grid of stored files: shards, or chunks of an array without shards."""
        return self.chunk_shape if self.shard_shape is None else self.shard_shape

    @property
    def file_grid(self) -> Cells:
        """Stored files along each axis."""
        return tuple(-(-n // c) for n, c in zip(self.shape, self.file_shape, strict=True))

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype in this machine's byte order."""
        return string_dtype(self.dtype) if is_string(self.dtype) else numpy_dtype(self.dtype)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in memory."""
        return math.prod(self.shape[1:]) * self.numpy_dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all values in memory."""
        return math.prod(self.shape) * self.numpy_dtype.itemsize

    @property
    def file_bytes(self) -> int:
        """Bytes of the values of one whole file in memory."""
        return math.prod(self.file_shape) * self.numpy_dtype.itemsize

    @property
    def chunk_bytes(self) -> int:
        """Bytes of the values of one whole chunk in memory."""
        return math.prod(self.chunk_shape) * self.numpy_dtype.itemsize

    @property
    def index_bytes(self) -> int:
        """Memory for the index of a shard, and for its bytes as they are stored."""
        chunks = math.prod(self.file_shape) // math.prod(self.chunk_shape)
        return 0 if self.shard_shape is None else 3 * 16 * chunks

    def key(self, at: Sequence[int]) -> str:
        """Name, in the group, of the file at coordinates `at` of the grid of files."""
        key = "/".join(["c", *map(str, at)])
        return f"{self.name}/{key}" if self.name else key

    def metadata(self) -> dict[str, Any]:
        """Return the array's `zarr.json`."""
        text = is_string(self.dtype)
        codecs: list[Any] = [bytes_codec(self.dtype) if text else _LITTLE, *self.codecs]
        if self.shard_shape is not None:
            inner = {
                "chunk_shape": list(self.chunk_shape),
                "codecs": codecs,
                "index_codecs": [_LITTLE, {"name": "crc32c"}],
                "index_location": "end",
            }
            codecs = [{"name": "sharding_indexed", "configuration": inner}]
        named = {} if self.dimension_names is None else {"dimension_names": self.dimension_names}
        found = {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(self.shape),
            "data_type": data_type(self.dtype) if text else self.dtype,
            "chunk_grid": {
                "name": "regular",
                "configuration": {"chunk_shape": list(self.file_shape)},
            },
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": self.fill_json,
            "codecs": codecs,
            **named,
            "attributes": dict(self.attributes),
        }
        copied: dict[str, Any] = json.loads(json.dumps(found))  # lists, and none of ours
        return copied

    def to_json(self) -> dict[str, Any]:
        """Return the layout as JSON values; `from_json` gives an equal layout."""
        value: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ArrayLayout:
        """Return the layout for which `to_json` gave `value`."""
        sizes = {
            name: None if value[name] is None else tuple(value[name])
            for name in ("shape", "chunk_shape", "shard_shape", "codecs", "dimension_names")
        }
        return cls(**{**value, **sizes})

    @property
    def fill_json(self) -> Any:
        """The fill value, as in the metadata of Zarr v3."""
        if self.fill_value is not None:
            return self.fill_value
        if is_string(self.dtype):
            return ""
        return stored_fill(np.zeros((), self.numpy_dtype)[()])


def stored_fill(value: Any) -> Any:
    """A NumPy scalar as a fill value in the metadata of Zarr v3, bit for bit."""
    dtype = value.dtype
    if dtype.kind == "U":
        return str(value)
    if dtype.kind == "S":
        return base64.standard_b64encode(bytes(value)).decode()
    if dtype.kind == "c":
        return [stored_fill(value.real), stored_fill(value.imag)]
    if dtype.kind in "biu":
        return value.item()
    number = float(value)
    if math.isfinite(number):
        return number
    name = next(n for n, v in _NAMED_FLOATS.items() if repr(v) == repr(number))
    if fill_scalar(name, dtype).tobytes() == value.tobytes():
        return name
    return "0x" + value.tobytes()[::-1].hex()  # a NaN with more to say


def training_rows(row_bytes: Sequence[int], records: int) -> tuple[tuple[int, ...], int]:
    """Return rows per chunk of each array, and per shard of all, to read records in any order.

    A record of 4 KiB or more is a chunk. Smaller ones share a chunk: the smallest power of two of
    them that makes 4 KiB. Shards make about 128 MiB of all arrays together, and are never longer
    than the arrays.

    Args:
        row_bytes: Bytes of a row of each array.
        records: Rows of the arrays.

    Returns:
        Rows per chunk of each array, and rows per shard, a multiple of each of them.
    """
    chunks = tuple(_chunk_rows(size) for size in row_bytes)
    unit = max(chunks, default=1)
    wanted = _SHARD_BYTES // max(1, sum(row_bytes)) // unit * unit
    needed = -(-records // unit) * unit
    return chunks, max(unit, min(wanted, needed))


def _chunk_rows(row_bytes: int) -> int:
    # An array without values has no chunks: any size does.
    return 1 << (-(-_LEAST_CHUNK_BYTES // row_bytes) - 1).bit_length() if row_bytes else 1


def rows_layout(
    name: str,
    dtype: str,
    shape: Sequence[int],
    *,
    chunk_rows: int,
    shard_rows: int | None,
    **more: Any,
) -> ArrayLayout:
    """A layout whose chunks and shards are whole rows; `more` are further fields of ArrayLayout."""
    row = tuple(max(1, size) for size in shape[1:])
    chunk = (chunk_rows, *row)
    shard = None if shard_rows is None or shard_rows == chunk_rows else (shard_rows, *row)
    return ArrayLayout(name, dtype, tuple(shape), chunk, shard, **more)


def metadata_files(
    layouts: Sequence[ArrayLayout],
    attributes: Mapping[str, Any] | None = None,
    *,
    group_attributes: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, bytes]:
    """Return names and bytes of all `zarr.json` of a group of arrays, the group's own last.

    The group's own contains the others (consolidated metadata). One array of the name '' is stored
    without a group.

    Args:
        layouts: The arrays.
        attributes: The attributes of the group.
        group_attributes: The attributes of the groups in it, by name.
    """
    if [layout.name for layout in layouts] == [""]:
        return {METADATA: _json_bytes(layouts[0].metadata())}
    nodes: dict[str, Any] = {}
    for layout in layouts:
        parents = layout.name.split("/")[:-1]
        for depth in range(1, len(parents) + 1):
            group = "/".join(parents[:depth])
            nodes[group] = _group((group_attributes or {}).get(group, {}))
        nodes[layout.name] = layout.metadata()
    found = {f"{name}/{METADATA}": _json_bytes(nodes[name]) for name in sorted(nodes)}
    inline: dict[str, Any] = {"kind": "inline", "must_understand": False}
    inline["metadata"] = {name: nodes[name] for name in sorted(nodes)}
    own = {**_group(attributes or {}), "consolidated_metadata": inline}
    return {**found, METADATA: _json_bytes(own)}


def _group(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {"zarr_format": 3, "node_type": "group", "attributes": dict(attributes)}


def _json_bytes(value: object) -> bytes:
    return json.dumps(value, indent=2).encode()


# --- files ---------------------------------------------------------------------------------------


def encode_parts(
    layout: ArrayLayout,
    origin: Sequence[int],
    block: AnyArray,
    *,
    ahead_bytes: int,
) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Yield the stored files that hold `block`: name in the group, and bytes part by part.

    Args:
        layout: The array.
        origin: Where the block begins in it: a corner of the grid of files.
        block: Whole files: along each axis it ends on the grid of files or with the array.
        ahead_bytes: Memory for chunks that are encoded ahead, in addition to the block. One chunk
            is always encoded ahead.

    Yields:
        One file after the other; the parts of one must be taken before the next. The parts of a
        shard are its chunks, and last its index.

    Raises:
        ConversionError: If the block is of another dtype, or not of whole files.
    """
    _check_block(layout, origin, block)
    steps = steps_of(layout.codecs, layout.name)
    first = [o // c for o, c in zip(origin, layout.file_shape, strict=True)]
    if layout.shard_shape is None:
        for at, data in _chunks(block, layout, steps, ahead_bytes):
            yield layout.key([a + b for a, b in zip(first, at, strict=True)]), iter((data,))
        return
    for at, cut in _cuts(block.shape, layout.shard_shape):
        key = layout.key([a + b for a, b in zip(first, at, strict=True)])
        yield (
            key,
            _shard(layout, layout.shard_shape, _chunks(block[cut], layout, steps, ahead_bytes)),
        )


def _check_block(layout: ArrayLayout, origin: Sequence[int], block: AnyArray) -> None:
    whole = block.ndim == len(layout.shape) == len(origin) and all(
        o % c == 0 and o + b <= n and ((o + b) % c == 0 or o + b == n)
        for o, b, c, n in zip(origin, block.shape, layout.file_shape, layout.shape, strict=True)
    )
    if not whole or block.dtype != layout.numpy_dtype:
        raise ConversionError(
            f"array {layout.name!r}: a block of {block.dtype} {list(block.shape)} at {list(origin)}"
            f" is not a whole number of files of {layout.dtype} {list(layout.file_shape)} in"
            f" {list(layout.shape)}"
        )


def _cuts(shape: Cells, size: Cells) -> Iterator[tuple[Cells, tuple[Any, ...]]]:
    """Yield coordinates and place of each part of `size` of an array of `shape`, in C order."""
    if not shape:
        yield (), (...,)  # which makes an array, also of an object
        return
    # NumPy ends a slice at the end of the axis.
    grid = [range(-(-n // c)) for n, c in zip(shape, size, strict=True)]
    cuts = [
        [slice(k * c, (k + 1) * c) for k in axis]
        for axis, c in zip(grid[1:], size[1:], strict=True)
    ]
    # A product holds all of its axes, and the first one may be long.
    for k in grid[0]:
        head = slice(k * size[0], (k + 1) * size[0])
        for at, rest in zip(itertools.product(*grid[1:]), itertools.product(*cuts), strict=True):
            yield (k, *at), (head, *rest)


def _shard(
    layout: ArrayLayout, shard_shape: Cells, chunks: Iterable[tuple[Cells, bytes]]
) -> Iterator[bytes]:
    grid = [s // c for s, c in zip(shard_shape, layout.chunk_shape, strict=True)]
    index = np.full((*grid, 2), NOT_STORED, "<u8")
    offset = 0
    for at, data in chunks:
        index[at] = offset, len(data)
        offset += len(data)
        yield data
    yield with_checksum(index.tobytes())


def _chunks(
    block: AnyArray, layout: ArrayLayout, steps: Sequence[Step], ahead_bytes: int
) -> Iterator[tuple[Cells, bytes]]:
    """Yield coordinates in `block` and stored bytes of its chunks, in C order."""
    # Some at a time: jobs for all tiny chunks would take far more memory than their values.
    cuts = _cuts(block.shape, layout.chunk_shape)
    turn = min(_TURN_CHUNKS, max(1, _TURN_BYTES // max(1, layout.chunk_bytes)))
    turns = iter(lambda: list(itertools.islice(cuts, turn)), [])
    pool = shared_pool()
    # Never on the main thread: there blosc starts threads of its own, and its bytes depend on them.
    jobs = (
        (some, pool.submit(_encoded, [block[cut] for _, cut in some], layout, steps))
        for some in turns
    )
    most = max(1, min(2 * usable_cores(), ahead_bytes // encoding_bytes(layout.chunk_bytes)))
    for some, job in _ahead(jobs, most):
        yield from zip((at for at, _ in some), job.result(), strict=True)


def _ahead(jobs: Iterator[_Job], most: int) -> Iterator[_Job]:
    """Yield the jobs' results in order; `most` jobs are begun before the first is awaited."""
    begun = collections.deque(itertools.islice(jobs, most))
    while begun:
        yield begun.popleft()
        begun.extend(itertools.islice(jobs, 1))


def encode_rows(layout: ArrayLayout, rows: AnyArray) -> Iterator[tuple[list[int], bytes]]:
    """Yield the stored bytes of rows whose chunks are whole rows, some chunks at a time.

    For chunks of 3 KB it is a third quicker than `encode_parts`, which cuts along every axis.

    Args:
        layout: The array; its chunks are as wide as its rows.
        rows: The rows, from the start of a chunk to the end of one or of the array.

    Yields:
        The bytes that each chunk takes, and the chunks, end to end.

    Raises:
        ConversionError: If the rows are of another dtype or shape.
    """
    if rows.dtype != layout.numpy_dtype or rows.shape[1:] != layout.shape[1:]:
        raise ConversionError(
            f"array {layout.name!r}: rows of {rows.dtype} {list(rows.shape[1:])} are not rows of"
            f" {layout.dtype} {list(layout.shape[1:])}"
        )
    if not rows.size:
        return  # without values there are no chunks
    steps = steps_of(layout.codecs, layout.name)
    whole = len(rows) // layout.chunk_shape[0]
    raw = np.ascontiguousarray(rows).reshape(-1).view(np.uint8)
    size = layout.chunk_bytes
    turn = min(_TURN_CHUNKS, max(1, _TURN_BYTES // max(1, size))) * size
    cuts = [raw[at : min(at + turn, whole * size)] for at in range(0, whole * size, turn)]
    # Never on the main thread, as in `_chunks`.
    pool = shared_pool()
    jobs = (pool.submit(_encoded_rows, cut, size, steps) for cut in cuts)
    for job in _ahead(jobs, 2 * usable_cores()):
        yield job.result()
    rest = rows[whole * layout.chunk_shape[0] :]
    if len(rest):
        (data,) = pool.submit(_encoded, [rest], layout, steps).result()
        yield [len(data)], data


def _encoded_rows(raw: AnyArray, size: int, steps: Sequence[Step]) -> tuple[list[int], bytes]:
    chunks: list[Any] = [raw[at : at + size] for at in range(0, len(raw), size)]
    for step in steps:
        chunks = step(chunks)
    return [len(chunk) for chunk in chunks], b"".join(chunks)


def encoding_bytes(chunk_bytes: int) -> int:
    """Memory for a chunk, or for small ones that are encoded together: values, and as stored."""
    return 2 * max(chunk_bytes, _TURN_BYTES)


def _encoded(parts: list[AnyArray], layout: ArrayLayout, steps: Sequence[Step]) -> list[bytes]:
    """The stored bytes of chunks; those at the array's end are filled up with the fill value."""
    found: list[Any] = []
    for part in parts:
        whole = part
        if part.shape != layout.chunk_shape:
            fill = fill_scalar(layout.fill_json, part.dtype)
            whole = np.full(layout.chunk_shape, fill, part.dtype)
            whole[tuple(slice(0, n) for n in part.shape)] = part
        if whole.dtype.kind == "O":
            found.append(encoded(whole, layout.name))
        else:
            found.append(np.ascontiguousarray(whole).reshape(-1).view(np.uint8))
    for step in steps:
        found = step(found)
    return found if steps else [values.tobytes() for values in found]


def fill_scalar(value: Any, dtype: np.dtype[Any]) -> Any:
    """The NumPy scalar of a fill value in the metadata of Zarr v3."""
    if dtype.kind == "S":
        return np.array(base64.standard_b64decode(value), dtype)[()]
    if dtype.kind in "UO":
        return np.array(value, dtype)[()]
    if isinstance(value, list):
        part = np.dtype(f"f{dtype.itemsize // 2}")
        return np.array([fill_scalar(v, part) for v in value], part).view(dtype)[0]
    if isinstance(value, str) and value.startswith("0x"):
        return np.frombuffer(bytes.fromhex(value[2:])[::-1], dtype)[0]
    return np.array(_NAMED_FLOATS.get(value, value)).astype(dtype)[()]
