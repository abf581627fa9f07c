"""An array to convert: its metadata, and boxes of its values.

It may be an array of a file that xarray opens, such as NetCDF. Then its values are not scaled or
masked, times are integers, and attributes say how to decode them, so that the copy decodes as the
file does.

Invariants: an array pickles without its open file; a box is filled whole, from chunks that are each
decoded once, or there is an error. Finding arrays reads no values; they are read one box at a time.
"""

from __future__ import annotations

import abc
import base64
import collections
import dataclasses
import math
import struct
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from windrow.converters.zarr.chunk_codecs import TEXT
from windrow.converters.zarr.coordinates import Labelled
from windrow.converters.zarr.rechunk_plan import CellBox
from windrow.core.machine import usable_cores
from windrow.core.optional_imports import optional
from windrow.core.redaction import shown_url
from windrow.errors import (
    ArgumentError,
    ConversionError,
    MissingExtraError,
    ReadError,
    SourceError,
)
from windrow.sources.chunks import Box
from windrow.sources.remote.fsspec_store import missing_package
from windrow.sources.tf_example.features import DTYPES

AnyArray = npt.NDArray[Any]
Cells: TypeAlias = tuple[int, ...]
Cast = Literal["checked", "unsafe"]

# The bytes of small chunks that are read together.
_TURN_BYTES: Final = 1 << 20
_TURN_CHUNKS: Final = 4096
_IN_FLIGHT_BYTES: Final = 8 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class InputFacts:
    """The facts of an array that are known before a value is read. Picklable.

    Args:
        name: Its name in the group; nested names are joined by `/`, and an array without a group is
            ''.
        where: Its place, for messages.
        dtype: The dtype as delivered, in this machine's byte order.
        shape: The shape of the array; () for a scalar.
        chunk_shape: The shape of the cells that are decoded together.
        shift: Cells of the first chunk that lie before cell 0.
        dims: Names of the axes, None for one without; () if they are not stored.
        attributes: As they are stored, fit for JSON.
        fill_value: As in the metadata of Zarr v3; None for an array without one.
        any_length: The data type of strings of any length, of `chunk_codecs`; '' for other values.
    """

    name: str
    where: str
    dtype: np.dtype[Any]
    shape: Cells
    chunk_shape: Cells
    shift: Cells
    dims: tuple[str | None, ...] = ()
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    fill_value: Any = None
    # Identities of inputs are made of the representation.
    any_length: str = dataclasses.field(default="", repr=False)

    @property
    def is_string(self) -> bool:
        """Whether values are strings."""
        return self.dtype.kind in "USO"

    @property
    def type_name(self) -> str:
        """The dtype as layouts have it."""
        if self.any_length:
            return self.any_length
        return self.dtype.str if self.is_string else self.dtype.name

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a decoded chunk."""
        return math.prod(self.chunk_shape) * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return math.prod(self.shape) * self.dtype.itemsize


class InputArray(abc.ABC):
    """An array whose values are read in boxes."""

    def __init__(self, facts: InputFacts) -> None:
        self.facts = facts

    @abc.abstractmethod
    def start(self, boxes: Sequence[Box]) -> Future[None]:
        """Start to fill boxes; each box lies in one chunk. The future has a ReadError."""

    def read(
        self,
        first: Sequence[int],
        out: AnyArray,
        *,
        decoders: int = 1,
        cast: Cast = "checked",
    ) -> None:
        """Fill `out` with the cells from `first` on.

        Args:
            first: The first cell.
            out: Memory, in any order of its own; of another dtype if values are to be cast.
            decoders: Chunks that may be decoded at the same time.
            cast: Whether a value that the dtype of `out` cannot hold is an error.

        Raises:
            ReadError: If a chunk cannot be read; the message names it.
            ConversionError: If a value does not fit; the message names it.
        """
        if not out.size:
            return
        turns = self._turns(first, out)
        flying: collections.deque[tuple[Future[None], list[Box], list[Box]]] = collections.deque()
        most = max(1, min(decoders, 2 * usable_cores(), _IN_FLIGHT_BYTES // _TURN_BYTES))
        try:
            for boxes in turns:
                if len(flying) == most:
                    self._end(*flying.popleft(), cast)
                raw = boxes
                if out.dtype != self.facts.dtype:
                    raw = [Box(b.first, np.empty(b.out.shape, self.facts.dtype)) for b in boxes]
                flying.append((self.start(raw), raw, boxes))
            while flying:
                self._end(*flying.popleft(), cast)
        finally:
            # After an error, no read may still write to memory that is given back.
            wait([future for future, _, _ in flying])

    def _end(self, future: Future[None], raw: list[Box], boxes: list[Box], cast: Cast) -> None:
        future.result()
        if raw is boxes:
            return
        for held, box in zip(raw, boxes, strict=True):
            box.out[...] = self._casted(held, box.out.dtype, cast)

    def _casted(self, box: Box, dtype: np.dtype[Any], cast: Cast) -> AnyArray:
        with np.errstate(all="ignore"):
            found = box.out.astype(dtype)
        if cast == "unsafe":
            return found
        wrong = unfit(box.out, found)
        if wrong.any():
            at = np.argwhere(wrong)[0]
            cell = [int(f + k) for f, k in zip(box.first, at, strict=True)]
            raise ConversionError(
                f"array {self.facts.name!r} in {self.facts.where}: the value"
                f" {box.out[tuple(at)]} at {cell} does not fit {dtype}; choose another dtype, or"
                ' cast="unsafe" to take what comes'
            )
        return found

    def _turns(self, first: Sequence[int], out: AnyArray) -> Iterator[list[Box]]:
        """Yield the parts of `out` that lie in one chunk each, some at a time, in C order of chunks."""
        turn: list[Box] = []
        held = 0
        for box in self._boxes(first, out):
            turn.append(box)
            held += max(box.out.nbytes, self.facts.chunk_bytes)
            if held >= _TURN_BYTES or len(turn) == _TURN_CHUNKS:
                yield turn
                turn, held = [], 0
        if turn:
            yield turn

    def _boxes(self, first: Sequence[int], out: AnyArray) -> Iterator[Box]:
        whole = CellBox(tuple(first), out.shape)
        for part in whole.cut(self.facts.chunk_shape, self.facts.shift):
            # With the dots it is a view also where there are no axes.
            place: tuple[Any, ...] = (..., *part.within(whole))
            yield Box(part.first, out[place])


def unfit(values: AnyArray, cast: AnyArray) -> npt.NDArray[np.bool_]:
    """Return where `cast` differs from `values` by range or cut-off; rounding of floats is ignored."""
    if cast.dtype.kind not in "biu":
        wrong = np.isnan(cast) & ~np.isnan(values) | np.isinf(cast) & ~np.isinf(values)
        return np.asarray(wrong, np.bool_)
    with np.errstate(all="ignore"):
        # An integer of another sign may come back as it was.
        wrong = (cast.astype(values.dtype) != values) | ((cast < 0) != (values < 0))
        if values.dtype.kind not in "biu" and cast.dtype.kind != "b":
            # So may a number just out of range, where a processor takes the last number in range.
            wrong |= values >= np.asarray(float(int(np.iinfo(cast.dtype).max) + 1), values.dtype)
    return np.asarray(wrong, np.bool_)


# Arrays of a file that xarray opens.


# The way out, in messages about an array that is not converted.
OTHERS: Final = "choose the others: arrays=[...] (--array)"
SUFFIXES: Final = (".nc", ".nc3", ".nc4", ".cdf", ".h5", ".hdf5", ".grib", ".grib2", ".grb")
# Values as they are stored, but characters along an axis of their own as strings.
_AS_STORED: Final[Mapping[str, bool]] = {
    **dict.fromkeys(("mask_and_scale", "decode_times", "decode_timedelta", "decode_coords"), False),
    "concat_characters": True,
}
# The bytes of a variable that are read together if a file has no chunks.
_UNCHUNKED_BYTES: Final = 1 << 20


class XarrayFile:
    """A file that xarray opens when it is first read. Picklable, thread-safe."""

    def __init__(self, url: str, storage_options: Mapping[str, Any] | None) -> None:
        self.url, self._options = url, storage_options
        self._opened: Any = None
        # The libraries of HDF5 and NetCDF take one call at a time.
        self.lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return XarrayFile, (self.url, self._options)

    def dataset(self) -> Any:
        """The open dataset; hold `lock`.

        Raises:
            ReadError: If it cannot be opened.
            MissingExtraError: If a package is missing.
        """
        if self._opened is None:
            xarray = optional("xarray", "converting what xarray opens", "netcdf")
            try:
                self._opened = xarray.open_dataset(
                    self._file(), cache=False, chunks=None, **_AS_STORED
                )
            except MissingExtraError:
                raise
            except ImportError as error:
                raise MissingExtraError(f"{shown_url(self.url)}: {error}") from error
            except (OSError, ValueError, RuntimeError, KeyError, TypeError) as error:
                raise ReadError(f"{shown_url(self.url)}: xarray cannot open it: {error}") from error
        return self._opened

    def _file(self) -> Any:
        if "://" not in self.url:
            return self.url
        import fsspec

        try:
            return fsspec.open(self.url, "rb", **(self._options or {})).open()
        except ImportError as error:
            raise missing_package(f"reading {shown_url(self.url)}", self.url, error) from error


class XarrayVariable(InputArray):
    """A variable of a file that xarray opens."""

    def __init__(self, facts: InputFacts, file: XarrayFile) -> None:
        super().__init__(facts)
        self._file = file

    def start(self, boxes: Sequence[Box]) -> Future[None]:
        """Read the boxes at once, in this thread."""
        done: Future[None] = Future()
        try:
            with self._file.lock:
                variable = self._file.dataset().variables[self.facts.name]
                for box in boxes:
                    axes = zip(box.first, box.out.shape, strict=True)
                    cut = tuple(slice(first, first + size) for first, size in axes)
                    box.out[...] = _as_stored(np.asarray(variable[cut].values), self.facts)
        except ReadError as error:
            done.set_exception(error)
        except Exception as error:  # of whatever library reads the file
            held = f"cells from {list(boxes[0].first)} on"
            message = f"array {self.facts.name!r} in {self.facts.where}: {held}: {error}"
            done.set_exception(ReadError(message, why=str(error)))
        else:
            done.set_result(None)
        return done


def _as_stored(values: AnyArray, facts: InputFacts) -> AnyArray:
    """Values as `facts` describe them; strings may be narrower, or other objects."""
    if not facts.is_string:
        return values.view(facts.dtype)
    found = values.astype(facts.dtype)
    if facts.dtype.kind != "O" and not np.array_equal(found, values):
        raise ValueError(f"its strings are longer than {facts.dtype}, as it says")
    return found


def find_variables(
    file: XarrayFile, names: Iterable[str] | None
) -> tuple[list[InputArray], dict[str, Any], dict[str, Labelled]]:
    """The variables of `file`, coordinates too, and the attributes of the whole.

    Args:
        file: The file.
        names: The variables wanted; None for all.

    Returns:
        The variables, the attributes, and what labels which: all variables as `labels_of` takes them.

    Raises:
        ArgumentError: If a name is not there.
        SourceError: If there are no arrays, or one has a dtype without a counterpart in Zarr.
    """
    with file.lock:
        dataset = file.dataset()
        there = [str(name) for name in dataset.variables]
        if not there:
            raise SourceError(
                f"{shown_url(file.url)} holds no variables outside of groups, and those in groups are"
                " not read; write them to a file or a Zarr store of their own"
            )
        wanted = there if names is None else list(names)
        for name in wanted:
            if name not in there:
                raise ArgumentError(
                    f"{shown_url(file.url)}: there is no variable {name!r}; there are"
                    f" {', '.join(sorted(there))}"
                )
        facts = [_facts(file, name, dataset.variables[name]) for name in wanted]
        attributes = plain_attributes(dataset.attrs)
        labelled = {
            str(name): Labelled(tuple(map(str, one.dims)), one.ndim, one.attrs)
            for name, one in dataset.variables.items()
        }
    return [XarrayVariable(found, file) for found in facts], attributes, labelled


def _facts(file: XarrayFile, name: str, variable: Any) -> InputFacts:
    dtype, any_length = variable.dtype.newbyteorder("="), ""
    if dtype.kind in "OT":
        of = {variable.encoding.get("dtype"), (dtype.metadata or {}).get("vlen")}
        text = dtype.kind == "T" or of & {str, bytes} or "_Encoding" in variable.encoding
        any_length = TEXT if text else ""
        dtype = np.dtype(object)
    if dtype.name not in DTYPES and dtype.kind not in "SU" and not any_length:
        raise SourceError(
            f"variable {name!r} in {shown_url(file.url)} is of dtype {variable.dtype}, which Zarr"
            f" arrays of numbers and strings do not have; {OTHERS}"
        )
    if dtype.kind in "SU" and not dtype.itemsize:
        dtype = np.dtype(f"{dtype.kind}1")  # of empty strings alone
    shape, attributes = tuple(map(int, variable.shape)), plain_attributes(variable.attrs)
    chunk = variable.encoding.get("chunksizes")
    if not chunk or len(chunk) != len(shape):
        chunk = _unchunked(shape, dtype.itemsize)
    return InputFacts(
        name=name,
        where=shown_url(file.url),
        dtype=dtype,
        shape=shape,
        chunk_shape=tuple(max(1, int(size)) for size in chunk),
        shift=(0,) * len(shape),
        dims=tuple(map(str, variable.dims)),
        attributes=of_strings(attributes) if dtype.kind in "SUO" else attributes,
        any_length=any_length,
    )


def _unchunked(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    room = max(1, _UNCHUNKED_BYTES // itemsize)
    chunk = []
    for size in reversed(shape):
        chunk.append(max(1, min(size, room)))
        room = max(1, room // chunk[-1])
    return tuple(reversed(chunk))


def plain_attributes(attributes: Mapping[Any, Any]) -> dict[str, Any]:
    """Attributes as JSON has them, as xarray writes them to Zarr v3."""
    found = {}
    for key, value in attributes.items():
        name = str(key)
        found[name] = fill_attribute(value) if name == "_FillValue" else plain(value)
    return without_two_nans(found)


def without_two_nans(attributes: dict[str, Any]) -> dict[str, Any]:
    """Return `attributes` with NaN only once.

    JSON has no NaN, so that it is stored as a string, and xarray compares strings only with strings.
    """
    if attributes.get("missing_value") == "NaN" and "_FillValue" in attributes:
        return {key: value for key, value in attributes.items() if key != "missing_value"}
    return attributes


def of_strings(attributes: Mapping[str, Any], missing: Any = None) -> dict[str, Any]:
    """Return the attributes of strings, with the string that marks missing values as `missing_value`.

    xarray cannot open a store of Zarr v3 in which strings have a `_FillValue`.

    Args:
        attributes: The attributes, as JSON values.
        missing: The fill value of Zarr v2, which serves as `_FillValue`; None for Zarr v3.
    """
    found = dict(attributes)
    missing = found.pop("_FillValue", missing)
    if isinstance(missing, str):
        found.setdefault("missing_value", missing)
    return found


def fill_attribute(value: Any) -> Any:
    """A `_FillValue` as xarray has it among the attributes of Zarr v3."""
    number = plain(np.asarray(value).reshape(-1)[0] if np.size(value) == 1 else value)
    if isinstance(number, float) or number in ("NaN", "Infinity", "-Infinity"):
        return base64.standard_b64encode(struct.pack("<d", float(number))).decode()
    return number


def plain(value: Any) -> Any:
    """Return an attribute as a JSON value; what JSON does not have, such as NaN, becomes a string."""
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return str(value)
