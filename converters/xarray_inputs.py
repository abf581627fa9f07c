"""Arrays of a file that xarray opens, such as NetCDF, as they are stored.

Values are not scaled or masked, times are integers, and attributes say how all are meant, so that
the copy decodes as the file does.

Invariant: to find arrays reads no values; they are read one box at a time.
"""

from __future__ import annotations

import base64
import math
import struct
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final

import numpy as np

from windrow.converters.array_inputs import ArrayFacts, InputArray
from windrow.errors import (
    ArgumentError,
    MissingExtraError,
    ReadError,
    SourceError,
    missing_extra,
)
from windrow.sources.features import DTYPES
from windrow.sources.file_systems import missing_package
from windrow.sources.pieces import Box
from windrow.sources.secrets import shown_url

SUFFIXES: Final = (".nc", ".nc3", ".nc4", ".cdf", ".h5", ".hdf5", ".grib", ".grib2", ".grb")
# Where a file has no chunks, so much of a variable is read as one.
_UNCHUNKED_BYTES: Final = 1 << 20


class XarrayFile:
    """A file that xarray opens when it is first read. Picklable, thread-safe."""

    def __init__(
        self, url: str, *, engine: str | None, storage_options: Mapping[str, Any] | None
    ) -> None:
        self.url, self._engine, self._options = url, engine, storage_options
        self._restart()

    def __getstate__(self) -> tuple[Any, ...]:
        return self.url, self._engine, self._options

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.url, self._engine, self._options = state
        self._restart()

    def _restart(self) -> None:
        self._opened: Any = None
        # The libraries of HDF5 and NetCDF take one call at a time.
        self.lock = threading.Lock()

    def dataset(self) -> Any:
        """The open dataset; hold `lock`.

        Raises:
            ArgumentError: If xarray has no such engine.
            ReadError: If it cannot be opened.
            MissingExtraError: If a package is missing.
        """
        if self._opened is None:
            xarray = _xarray()
            engines = xarray.backends.list_engines()
            if self._engine is not None and self._engine not in engines:
                raise ArgumentError(
                    f"engine={self._engine!r} is none of those that xarray has here:"
                    f" {', '.join(sorted(engines))}"
                )
            try:
                self._opened = xarray.open_dataset(
                    self._file(), engine=self._engine, decode_cf=False, cache=False, chunks=None
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

    def __init__(self, facts: ArrayFacts, file: XarrayFile) -> None:
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
                    box.out[...] = np.asarray(variable[cut].values).view(self.facts.dtype)
        except ReadError as error:
            done.set_exception(error)
        except Exception as error:  # of whatever library reads the file
            held = f"cells from {list(boxes[0].first)} on"
            message = f"array {self.facts.name!r} in {self.facts.where}: {held}: {error}"
            done.set_exception(ReadError(message, why=str(error)))
        else:
            done.set_result(None)
        return done


def find_variables(
    file: XarrayFile, names: Iterable[str] | None
) -> tuple[list[InputArray], dict[str, Any]]:
    """The variables of `file`, coordinates too, and the attributes of the whole.

    Args:
        file: The file.
        names: The variables wanted; None for all.

    Raises:
        ArgumentError: If a name is not there, or xarray has no such engine.
        SourceError: If there are none, or one is of a dtype that Zarr has none for.
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
    return [XarrayVariable(found, file) for found in facts], attributes


def _facts(file: XarrayFile, name: str, variable: Any) -> ArrayFacts:
    dtype = variable.dtype.newbyteorder("=")
    if dtype.name not in DTYPES:
        raise SourceError(
            f"variable {name!r} in {shown_url(file.url)} is of dtype {variable.dtype}, which has no"
            " place in a Zarr array of numbers; choose the others: arrays=[...]"
        )
    shape = tuple(map(int, variable.shape))
    chunk = variable.encoding.get("chunksizes")
    if not chunk or len(chunk) != len(shape):
        chunk = _unchunked(shape, dtype.itemsize)
    return ArrayFacts(
        name=name,
        where=shown_url(file.url),
        dtype=dtype,
        shape=shape,
        chunk_shape=tuple(max(1, int(size)) for size in chunk),
        shift=(0,) * len(shape),
        dims=tuple(map(str, variable.dims)),
        attributes=plain_attributes(variable.attrs),
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
    """`attributes`, but no NaN twice: JSON has none, and xarray compares texts with no numbers."""
    if attributes.get("missing_value") == "NaN" and "_FillValue" in attributes:
        return {key: value for key, value in attributes.items() if key != "missing_value"}
    return attributes


def fill_attribute(value: Any) -> Any:
    """A `_FillValue` as xarray has it among the attributes of Zarr v3."""
    number = plain(np.asarray(value).reshape(-1)[0] if np.size(value) == 1 else value)
    if isinstance(number, float) or number in ("NaN", "Infinity", "-Infinity"):
        return base64.standard_b64encode(struct.pack("<d", float(number))).decode()
    return number


def plain(value: Any) -> Any:
    """An attribute as JSON has it; what is no number is a text, as JSON has none."""
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


def _xarray() -> Any:
    try:
        import xarray
    except ImportError as error:
        raise missing_extra("converting what xarray opens", "netcdf") from error
    return xarray
