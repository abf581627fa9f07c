"""Arrays to convert, from a Zarr store or from a file that xarray opens.

Zarr is found and read as Windrow's sources do it, coordinates and scalars too.

Invariant: finding arrays reads metadata only, and the identity of a source changes when one of its
files is written anew.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final

import numpy as np
import tensorstore as ts
from fsspec.core import url_to_fs

from windrow.converters.job.inputs import files_below, find_inputs, version_of
from windrow.converters.job.manifest import InputId
from windrow.converters.zarr.array_inputs import (
    SUFFIXES,
    AnyArray,
    InputArray,
    InputFacts,
    XarrayFile,
    fill_attribute,
    find_variables,
    plain,
    without_two_nans,
)
from windrow.converters.zarr.layout import stored_fill
from windrow.core.daemon_threads import shared_pool
from windrow.core.optional_imports import optional
from windrow.core.redaction import Redaction, shown_url
from windrow.errors import ArgumentError, ConversionError, ReadError, SourceError
from windrow.sources.chunks import Box, BoxReader
from windrow.sources.remote.paths import is_remote, local_path
from windrow.sources.tf_example.features import DTYPES
from windrow.sources.zarr.find import find_all
from windrow.sources.zarr.metadata import of_any_length
from windrow.sources.zarr.names import Found, FoundGroup, FoundTree, arrays_of
from windrow.sources.zarr.stores import Access
from windrow.sources.zarr.tree import OpenArray, open_arrays

# File systems that list all files below a folder, with sizes, in few requests.
_LISTED: Final = ("file", "local", "memory", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss")
_DIMENSIONS_V2: Final = "_ARRAY_DIMENSIONS"
_UNITS: Final = {
    "W": "weeks",
    "D": "days",
    "h": "hours",
    "m": "minutes",
    "s": "seconds",
    "ms": "milliseconds",
    "us": "microseconds",
    "ns": "nanoseconds",
}


@dataclasses.dataclass(frozen=True, slots=True)
class ArrayInputs:
    """The arrays of a source. Picklable.

    Args:
        arrays: The arrays, by name.
        attributes: The attributes of the group.
        group_attributes: The attributes of the groups in it, by name.
        id: The identity of the source; it changes when the source is written anew.
    """

    arrays: Mapping[str, InputArray]
    attributes: Mapping[str, Any]
    group_attributes: Mapping[str, Mapping[str, Any]]
    id: InputId


def find_arrays(
    source: str | os.PathLike[str],
    *,
    names: Sequence[str] | None = None,
    engine: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    what: str = "zarr_to_zarr",
) -> ArrayInputs:
    """Find the arrays at `source`; only metadata is read.

    Args:
        source: A path or URL of a Zarr array or group, or of a file that xarray opens.
        names: Arrays, or groups of arrays, to find; None for all.
        engine: The engine of xarray, which then opens the source, whatever it is called.
        storage_options: As in fsspec.
        what: The conversion that asks, for messages.

    Raises:
        NotFoundError: If there is nothing.
        ArgumentError: If a name is not there.
        SourceError: If an array is not of numbers.
        ReadError: If metadata cannot be read.
        ConversionError: If the conversion that writes the source has not finished.
    """
    url = os.fspath(source)
    if engine is not None or url.lower().endswith(SUFFIXES):
        found, *others = find_inputs(url, storage_options=storage_options)
        if others:
            raise ArgumentError(
                f"{shown_url(url)}: these are {len(others) + 1} files; convert one at a time"
            )
        file = XarrayFile(found.url, engine=engine, storage_options=storage_options)
        variables, attributes = find_variables(file, names)
        return ArrayInputs({item.facts.name: item for item in variables}, attributes, {}, found.id)
    access = Access(what, storage_options)
    tree = find_all(what, url, names, access)
    chosen = [item for item in arrays_of(tree) if names is None or _named(item.name, names)]
    _refuse_unknown(tree, names, what)
    for item in chosen:
        if of_any_length(item.metadata or {}):
            raise _no_numbers(item, "strings or objects of any length")
    arrays = {item.name: _zarr_array(item) for item in chosen}
    groups = dict(_groups(tree))
    facts = [repr((a.facts, dict(a.facts.attributes))) for a in arrays.values()]
    return ArrayInputs(arrays, groups.pop("", {}), groups, _identity(url, storage_options, facts))


def array_names(chosen: Any, given: object, or_else: str = "") -> list[str] | None:
    """The names of arrays that were chosen; None for all of them.

    Raises:
        ArgumentError: If they are not a list of names; the message shows what was `given`, and says
            what may be given instead.
    """
    if chosen is None:
        return None
    if (
        isinstance(chosen, str)
        or not isinstance(chosen, Sequence)
        or not chosen
        or not all(isinstance(name, str) for name in chosen)
    ):
        raise ArgumentError(
            f'arrays must be a list of names such as ["image", "meta/id"], {or_else}got {given!r}'
        )
    return [name.strip("/") for name in chosen]


def _named(name: str, names: Sequence[str]) -> bool:
    return any(name == wanted or name.startswith(f"{wanted}/") for wanted in names)


def _refuse_unknown(tree: FoundTree, names: Sequence[str] | None, what: str) -> None:
    there = [item.name for item in arrays_of(tree)]
    for wanted in names or ():
        if not any(_named(name, [wanted]) for name in there):
            raise ArgumentError(
                f"{what}: there is no array {wanted!r}; there are {', '.join(sorted(there))}"
            )


def _no_numbers(found: Found, what: str) -> SourceError:
    return SourceError(
        f"{found.what}: {found.named} in {found.where} holds {what}, which is not converted; choose the"
        " others: arrays=[...]"
    )


def _groups(tree: FoundTree, name: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Names and attributes of all groups; the outermost one is ''."""
    if not isinstance(tree, FoundGroup):
        return
    yield name, {str(key): plain(value) for key, value in tree.attributes.items()}
    for key, item in tree.items.items():
        yield from _groups(item, f"{name}/{key}" if name else key)


# --- arrays of Zarr ------------------------------------------------------------------------------


def _zarr_array(found: Found) -> InputArray:
    if found.shape == ():
        return _Scalar(_scalar_facts(found), found)
    (opened,) = open_arrays(found.what, (found,))
    return _ZarrArray(_facts(found, opened), found)


def _facts(found: Found, opened: OpenArray) -> InputFacts:
    _, chunk_shape, shift = opened.box_reader()
    times = opened.dtype.kind in "mM"
    dtype = np.dtype(np.int64) if times else opened.dtype
    if dtype.name not in DTYPES:
        raise _no_numbers(found, f"values of dtype {opened.dtype}")
    attributes = _attributes(found, opened.missing_value)
    return InputFacts(
        name=found.name,
        where=found.where,
        dtype=dtype,
        shape=opened.shape,
        chunk_shape=chunk_shape,
        shift=shift,
        dims=found.dims,
        attributes={**_times(found, opened.dtype), **attributes} if times else attributes,
        fill_value=None if times else stored_fill(_fill_of(opened)),
    )


def _fill_of(opened: OpenArray) -> Any:
    fill = opened.fill_value
    return np.zeros((), opened.dtype)[()] if fill is None else np.asarray(fill, opened.dtype)[()]


def _attributes(found: Found, missing_value: Any) -> dict[str, Any]:
    """Return attributes; what Zarr v2 keeps elsewhere is put where xarray expects it in v3."""
    attributes = {str(key): plain(value) for key, value in found.attributes.items()}
    if attributes.pop(_DIMENSIONS_V2, None) is not None and missing_value is not None:
        attributes.setdefault("_FillValue", fill_attribute(missing_value))
    return without_two_nans(attributes)


def _times(found: Found, dtype: np.dtype[Any]) -> dict[str, Any]:
    """Return the attributes of the CF conventions which say that integers are times."""
    unit, count = np.datetime_data(dtype)
    if unit not in _UNITS or count != 1:
        raise SourceError(
            f"{found.what}: {found.named} in {found.where} is of {dtype}, which has no name in the CF"
            f" conventions; write it with a unit of {', '.join(_UNITS)}"
        )
    if dtype.kind == "m":
        return {"units": _UNITS[unit]}
    return {"units": f"{_UNITS[unit]} since 1970-01-01", "calendar": "proleptic_gregorian"}


class _ZarrArray(InputArray):
    """An array of Zarr, opened when it is first read."""

    def __init__(self, facts: InputFacts, found: Found) -> None:
        super().__init__(facts)
        self._found = found
        self._restart()

    def __getstate__(self) -> tuple[Any, ...]:
        return self.facts, self._found

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.facts, self._found = state
        self._restart()

    def _restart(self) -> None:
        self._opened: OpenArray | None = None
        self._reader: BoxReader | None = None
        self._lock = threading.Lock()

    def start(self, boxes: Sequence[Box]) -> Future[None]:
        reader, dtype = self._reading()
        if dtype != self.facts.dtype:  # times, as integers
            boxes = [Box(box.first, box.out.view(dtype)) for box in boxes]
        return reader.start(boxes, shared_pool())

    def _open(self) -> OpenArray:
        if self._opened is None:
            (opened,) = open_arrays(self._found.what, (self._found,))
            if _facts(self._found, opened) != self.facts:
                raise ConversionError(
                    f"{self._found.named} in {self.facts.where} was written anew while it was"
                    " converted; leave inputs alone meanwhile, and start anew with overwrite=True"
                )
            self._opened = opened
        return self._opened

    def _reading(self) -> tuple[BoxReader, np.dtype[Any]]:
        with self._lock:
            opened = self._open()
            if self._reader is None:
                self._reader = opened.box_reader()[0]
            return self._reader, opened.dtype


class _Scalar(InputArray):
    """An array of shape () of Zarr."""

    def __init__(self, facts: InputFacts, found: Found) -> None:
        super().__init__(facts)
        self._found = found

    def start(self, boxes: Sequence[Box]) -> Future[None]:
        done: Future[None] = Future()
        try:
            value, _ = _scalar(self._found)
            for box in boxes:
                box.out[...] = value
        except ReadError as error:
            done.set_exception(error)
        else:
            done.set_result(None)
        return done


def _scalar(found: Found) -> tuple[AnyArray, Any]:
    """The value, of shape (), and the fill value."""
    try:
        if found.spec is not None:
            store = ts.open(found.spec, open=True, read=True).result()
            return np.asarray(store.read().result()), store.fill_value
        access = found.access
        if access is None or found.url is None:
            raise ValueError("only TensorStore reads its format, and it does not open such URLs")
        zarr = optional("zarr", f"{found.what}: one value in a store of fsspec", "zarr")
        array = zarr.open_array(found.url, mode="r", storage_options=access.storage_options or None)
        return np.asarray(array[...]), array.fill_value
    except (ValueError, RuntimeError, OSError) as error:
        why = str(error) if found.access is None else found.access.reason(error)
        raise ReadError(f"{found.named} in {found.where} cannot be read: {why}") from error


def _scalar_facts(found: Found) -> InputFacts:
    value, fill = _scalar(found)
    dtype = value.dtype.newbyteorder("=")
    if dtype.name not in DTYPES:
        raise _no_numbers(found, f"a value of dtype {value.dtype}")
    missing = fill if (found.metadata or {}).get("zarr_format") == 2 else None
    return InputFacts(
        name=found.name,
        where=found.where,
        dtype=dtype,
        shape=(),
        chunk_shape=(),
        shift=(),
        attributes=_attributes(found, missing),
        fill_value=None if fill is None else stored_fill(np.asarray(fill, dtype)[()]),
    )


# --- identity ------------------------------------------------------------------------------------


def _identity(url: str, storage_options: Mapping[str, Any] | None, facts: Sequence[str]) -> InputId:
    """Return the identity of a store: its files by name, size and version, if they can be listed."""
    digest = hashlib.sha256("\n".join(sorted(facts)).encode())
    total = 0
    for name, size, version in sorted(_listed(url, storage_options)):
        digest.update(f"\n{name} {size} {version}".encode(errors="surrogateescape"))
        total += size
    name = shown_url(url).rstrip("/").rpartition("/")[2]
    return InputId(name, total, digest.hexdigest()[:16])


def _listed(url: str, storage_options: Mapping[str, Any] | None) -> Iterator[tuple[str, int, str]]:
    if url.startswith("file://") and "|" in url:
        return
    if not is_remote(url):
        try:
            for name, entry in files_below(local_path(url, what="source")):
                # A link that leads nowhere is known by itself.
                stat = entry.stat(follow_symlinks=os.path.exists(entry.path))
                yield name, stat.st_size, str(stat.st_mtime_ns)
        except OSError as error:
            raise ReadError(f"{shown_url(url)} cannot be listed: {error}") from error
        return
    if url.partition("://")[0] not in _LISTED or "|" in url or "::" in url:
        return
    try:
        fs, path = url_to_fs(url, **(storage_options or {}))
        fs.invalidate_cache()
        found = fs.find(path, detail=True)
    except ImportError:
        return  # TensorStore reads it without fsspec
    except OSError as error:
        hidden = Redaction(storage_options or {}).hide(str(error))
        raise ReadError(f"{shown_url(url)} cannot be listed: {hidden}") from error
    for name, info in found.items():
        yield name[len(path) :], int(info.get("size") or 0), version_of(info)
