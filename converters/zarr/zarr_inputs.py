"""Arrays to convert, from a Zarr store or from a file that xarray opens.

Zarr is found and read as Windrow's sources do it, coordinates and scalars too.

Invariant: finding arrays reads metadata only, and the identity of a source changes when one of its
files is written anew.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final

import numpy as np
import tensorstore as ts
from fsspec.core import url_to_fs

from windrow.converters.job.inputs import files_below, find_inputs, version_of
from windrow.converters.job.manifest import InputId
from windrow.converters.zarr.array_inputs import (
    OTHERS,
    SUFFIXES,
    AnyArray,
    InputArray,
    InputFacts,
    XarrayFile,
    fill_attribute,
    find_variables,
    of_strings,
    plain,
    without_two_nans,
)
from windrow.converters.zarr.chunk_codecs import of_metadata
from windrow.converters.zarr.coordinates import Labelled, labels_of
from windrow.converters.zarr.layout import stored_fill
from windrow.core.optional_imports import optional
from windrow.core.redaction import Redaction, shown_url
from windrow.core.threads import shared_pool
from windrow.errors import (
    ArgumentError,
    ConversionError,
    MissingExtraError,
    NotFoundError,
    ReadError,
    SourceError,
)
from windrow.sources.chunks import Box, BoxReader
from windrow.sources.remote.paths import is_remote, local_path
from windrow.sources.signatures import NETCDF
from windrow.sources.tf_example.features import DTYPES
from windrow.sources.zarr.codecs import RefusedError, check
from windrow.sources.zarr.find import find_all
from windrow.sources.zarr.metadata import of_any_length, why_python
from windrow.sources.zarr.names import Found, FoundGroup, FoundTree, arrays_of, warn_of_differences
from windrow.sources.zarr.open_array import OpenArray, open_arrays
from windrow.sources.zarr.stores import Access

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
        labels: For each of some arrays, the names of the arrays that label it.
        label_arrays: The labels that are not in `arrays`, by name.
        left_out: For each label that cannot be converted, the reason.
    """

    arrays: Mapping[str, InputArray]
    attributes: Mapping[str, Any]
    group_attributes: Mapping[str, Mapping[str, Any]]
    id: InputId
    labels: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    label_arrays: Mapping[str, InputArray] = dataclasses.field(default_factory=dict)
    left_out: Mapping[str, str] = dataclasses.field(default_factory=dict)


def find_arrays(
    source: str | os.PathLike[str],
    *,
    names: Sequence[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    what: str = "zarr_to_zarr",
    labels: bool = False,
) -> ArrayInputs:
    """Find the arrays at `source`; only metadata is read.

    Args:
        source: A path or URL of a Zarr array or group, or of a file that xarray opens.
        names: Arrays, or groups of arrays, to find; None for all.
        storage_options: As in fsspec.
        what: The conversion that asks, for messages.
        labels: Whether to find the labels of the arrays in `names` too.

    Raises:
        NotFoundError: If there is nothing.
        ArgumentError: If a name is not there.
        SourceError: If an array is neither of numbers nor of strings.
        ReadError: If metadata cannot be read.
        ConversionError: If the conversion that writes the source has not finished.
    """
    url = os.fspath(source)
    if url.lower().endswith(SUFFIXES) or _is_netcdf(url):
        found, *others = find_inputs(url, storage_options=storage_options)
        if others:
            raise ArgumentError(
                f"{shown_url(url)}: these are {len(others) + 1} files; convert one at a time"
            )
        file = XarrayFile(found.url, storage_options)
        variables, attributes, there = find_variables(file, names)
        arrays: dict[str, InputArray] = {item.facts.name: item for item in variables}
        inputs = ArrayInputs(arrays, attributes, {}, found.id)
        if names is None or not labels:
            return inputs
        return _with_labels(what, inputs, there, lambda name: find_variables(file, [name])[0][0])
    access = Access(what, storage_options)
    tree = find_all(what, url, names, access)
    _refuse_unknown(tree, names, what)
    if names is not None and labels:
        tree = _with_more(tree, names, url, access)
    items = {item.name: item for item in arrays_of(tree)}
    chosen = [item for item in items.values() if names is None or _named(item.name, names)]
    own: list[tuple[Found, Sequence[int] | None]] = []
    arrays = {item.name: _zarr_array(item, own) for item in chosen}
    groups = _groups(tree)
    inputs = ArrayInputs(arrays, groups.pop("", {}), groups, InputId("", 0, ""))
    if names is not None and labels:
        there = _labelled(tree)
        inputs = _with_labels(what, inputs, there, lambda name: _zarr_array(items[name], own))
    warn_of_differences(own)
    every = [*inputs.arrays.values(), *inputs.label_arrays.values()]
    facts = [repr((a.facts, dict(a.facts.attributes))) for a in every]
    return dataclasses.replace(inputs, id=_identity(url, storage_options, facts))


def _is_netcdf(url: str) -> bool:
    """Return whether a local file of any name begins as NetCDF does."""
    if is_remote(url) or not os.path.isfile(path := local_path(url, what="source")):
        return False
    with open(path, "rb") as file:
        return NETCDF.begins is not None and NETCDF.begins(file.read(8))


def _with_labels(
    what: str,
    inputs: ArrayInputs,
    there: Mapping[str, Labelled],
    opened: Callable[[str], InputArray],
) -> ArrayInputs:
    """Return `inputs` with the labels of their arrays; those that cannot be converted are left out."""
    groups = {"": inputs.attributes, **inputs.group_attributes}
    labels = {name: labels_of(name, there, groups)[0] for name in inputs.arrays}
    arrays: dict[str, InputArray] = {}
    left_out = {}
    for name in dict.fromkeys(itertools.chain.from_iterable(labels.values())):
        if name not in inputs.arrays:
            try:
                arrays[name] = opened(name)
            except (SourceError, NotFoundError, MissingExtraError) as error:
                left_out[name] = str(error).removesuffix(f"; {OTHERS}").removeprefix(f"{what}: ")
    return dataclasses.replace(inputs, labels=labels, label_arrays=arrays, left_out=left_out)


def _labelled(tree: FoundTree) -> dict[str, Labelled]:
    return {
        item.name: Labelled(item.dims, len(item.dims or item.shape or ()), item.attributes)
        for item in arrays_of(tree)
    }


def _with_more(tree: FoundTree, names: Sequence[str], url: str, access: Access) -> FoundTree:
    """Return a tree with the labels of the arrays in `names`, where a group cannot be listed too."""
    known = list(names)
    while is_remote(url) and not all(item.listing for item in arrays_of(tree)):
        there, groups = _labelled(tree), _groups(tree)
        absent = [labels_of(name, there, groups)[1] for name in there if _named(name, names)]
        more = set(itertools.chain.from_iterable(absent)) - set(known)
        if not more:
            break
        known += sorted(more)
        tree = find_all(access.what, url, known, access)
    return tree


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
        f"{found.what}: {found.named} in {found.where} holds {what}, which is not converted; {OTHERS}"
    )


def _groups(tree: FoundTree) -> dict[str, dict[str, Any]]:
    """The attributes of all groups by name; the outermost one is ''."""
    groups = tree.groups if isinstance(tree, FoundGroup) else {}
    return {
        "/".join(at): {str(key): plain(value) for key, value in attributes.items()}
        for at, attributes in groups.items()
    }


# --- arrays of Zarr ------------------------------------------------------------------------------


def _zarr_array(found: Found, own: list[tuple[Found, Sequence[int] | None]]) -> InputArray:
    """An array as an input; `own` gets the shape in its own metadata."""
    metadata = found.metadata or {}
    any_length = of_metadata(metadata) or ""
    if of_any_length(metadata) and not any_length:
        raise _no_numbers(found, "objects that are not strings")
    if found.shape == ():
        return _found_scalar(found, any_length)
    (opened,) = open_arrays(found.what, (found,))
    own.append((found, opened.own_shape))
    return _ZarrArray(_facts(found, opened), found)


def _facts(found: Found, opened: OpenArray) -> InputFacts:
    _, chunk_shape, shift = opened.box_reader()
    any_length = of_metadata(found.metadata or {}) or ""
    more = _typed(found, opened.dtype, opened.fill_value, opened.missing_value, any_length)
    return InputFacts(
        name=found.name,
        where=found.where,
        shape=opened.shape,
        chunk_shape=chunk_shape,
        shift=shift,
        dims=found.dims,
        **more,
    )


def _typed(
    found: Found, dtype: np.dtype[Any], fill: Any, missing_value: Any, any_length: str
) -> dict[str, Any]:
    """The facts of an array that its dtype decides: dtype, attributes and fill value.

    Raises:
        SourceError: If its values are neither numbers, times nor strings.
    """
    if dtype.kind in "mM":
        attributes = {**_times(found, dtype), **_attributes(found, missing_value)}
        return {"dtype": np.dtype(np.int64), "attributes": attributes}
    if any_length:
        attributes = of_strings(_attributes(found, None), missing_value or None)
        return {"dtype": np.dtype(object), "attributes": attributes, "any_length": any_length}
    if dtype.kind in "SU":
        attributes = of_strings(
            _attributes(found, None), missing_value if dtype.kind == "U" else None
        )
    elif dtype.name in DTYPES:
        attributes = _attributes(found, missing_value)
    else:
        raise _no_numbers(found, f"values of dtype {dtype}")
    fill_value = stored_fill(_fill_of(fill, dtype))
    return {"dtype": dtype, "attributes": attributes, "fill_value": fill_value}


def _fill_of(fill: Any, dtype: np.dtype[Any]) -> Any:
    return np.zeros((), dtype)[()] if fill is None else np.asarray(fill, dtype)[()]


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
        # Without it, readers take lengths of time for numbers.
        return {"units": _UNITS[unit], "dtype": f"timedelta64[{unit}]"}
    return {"units": f"{_UNITS[unit]} since 1970-01-01", "calendar": "proleptic_gregorian"}


class _ZarrArray(InputArray):
    """An array of Zarr, opened when it is first read."""

    def __init__(self, facts: InputFacts, found: Found) -> None:
        super().__init__(facts)
        self._found = found
        self._opened: tuple[BoxReader, np.dtype[Any]] | None = None
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return _ZarrArray, (self.facts, self._found)

    def start(self, boxes: Sequence[Box]) -> Future[None]:
        reader, dtype = self._reading()
        if dtype != self.facts.dtype:  # times, as integers
            boxes = [Box(box.first, box.out.view(dtype)) for box in boxes]
        return reader.start(boxes, shared_pool())

    def _reading(self) -> tuple[BoxReader, np.dtype[Any]]:
        with self._lock:
            if self._opened is None:
                (opened,) = open_arrays(self._found.what, (self._found,))
                if _facts(self._found, opened) != self.facts:
                    raise ConversionError(
                        f"{self._found.named} in {self.facts.where} was written anew while it was"
                        " converted; leave inputs alone meanwhile, and start anew with overwrite=True"
                    )
                self._opened = opened.box_reader()[0], opened.dtype
            return self._opened


class _Scalar(InputArray):
    """An array of shape () of Zarr, whose value is read when it is found."""

    def __init__(self, facts: InputFacts, value: AnyArray) -> None:
        super().__init__(facts)
        self._value = value

    def start(self, boxes: Sequence[Box]) -> Future[None]:
        for box in boxes:
            box.out[...] = self._value
        done: Future[None] = Future()
        done.set_result(None)
        return done


def _scalar(found: Found) -> tuple[AnyArray, Any]:
    """The value, of shape (), and the fill value."""
    try:
        if found.spec is not None and not why_python(found.metadata or {}):
            store = ts.open(found.spec, open=True, read=True).result()
            return np.asarray(store.read().result()), store.fill_value
        place = found.folder or found.url
        if place is None:
            raise ValueError("only TensorStore reads its format, and it does not open such URLs")
        check(found.metadata or {})  # before zarr-python sees them
        zarr = optional("zarr", f"{found.what}: one value that zarr-python reads", "zarr")
        options = found.access and found.access.storage_options
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they address the writers of such arrays
            array = zarr.open_array(place, mode="r", storage_options=options or None)
            value = np.asarray(array[...])
        return value.astype(object) if value.dtype.kind == "T" else value, array.fill_value
    except RefusedError as error:
        raise _no_numbers(found, str(error)) from error
    except (ValueError, RuntimeError, OSError) as error:
        why = str(error) if found.access is None else found.access.reason(error)
        raise ReadError(f"{found.named} in {found.where} cannot be read: {why}") from error


def _found_scalar(found: Found, any_length: str) -> _Scalar:
    value, fill = _scalar(found)
    metadata = found.metadata or {}
    missing = fill if metadata.get("zarr_format") == 2 else None
    is_time = value.dtype.kind in "mM"
    if is_time and missing is not None:
        missing = metadata.get("fill_value")  # the number, not the time
    more = _typed(found, value.dtype.newbyteorder("="), fill, missing, any_length)
    if fill is None:
        more["fill_value"] = None
    facts = InputFacts(
        name=found.name,
        where=found.where,
        shape=(),
        chunk_shape=(),
        shift=(),
        **more,
    )
    return _Scalar(facts, value.view(np.int64) if is_time else value)


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
