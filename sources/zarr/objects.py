"""Open arrays and groups of zarr-python, objects of xarray and arrays of NumPy, as what they stand for.

An object of a local folder or a URL stands for that path, so that the same reader reads it, and
it has the fingerprint and the states of the path. An object of xarray stands for the arrays of its store
only if it shows what the store holds: not sliced, renamed, transposed or computed. What is in memory is a
`HeldArray`, a store that the readers of Zarr read.

Invariants: neither library is imported unless the caller has. An array that has changed is refused. A
group and a dataset have the rows that they show, whatever was appended since. Values in memory are not
copied: a memory-mapped array is pickled as the place in its file, any other array with its values.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import tensorstore as ts

from windrow.core.text import listing, with_article
from windrow.errors import ArgumentError, SourceError
from windrow.sources.base import AnyArray
from windrow.sources.mapped import MappedArray, mapped
from windrow.sources.remote.paths import joined, zip_url
from windrow.sources.zarr.names import Found, ShownGroup
from windrow.sources.zarr.remote_folders import opened_store

# Settings of the event loop in which zarr-python uses a file system.
_OF_THE_LOOP: Final = ("asynchronous", "loop", "skip_instance_cache")


Labels: TypeAlias = tuple[str, AnyArray, Mapping[str, Any]]

_WITHOUT: Final[Mapping[str, Any]] = {}


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class HeldArray:
    """An array of NumPy, with names of its axes, attributes, and the labels along axes.

    Args:
        values: The array; memory-mapped too.
        dims: Names of the axes; () without names.
        attributes: As they would be stored.
        labels: The dimension, values and attributes of each coordinate of one axis, by name.
        is_decoded: Whether an object of xarray holds the values, which are never decoded.
        is_of_store: Whether the values are read from a store, in which chunks may be missing.
    """

    values: AnyArray
    dims: tuple[str | None, ...] = ()
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=lambda: _WITHOUT)
    labels: Mapping[str, Labels] = dataclasses.field(default_factory=lambda: _WITHOUT)
    is_decoded: bool = False
    is_of_store: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        place = mapped(self.values)
        values = self.values if place is None else place
        labels = dict(self.labels)
        return _again, (values, self.dims, dict(self.attributes), labels, self.is_decoded)

    def found(self, what: str, name: str) -> Found:
        """The array as one that was found.

        Raises:
            SourceError: If TensorStore has no such dtype, or the array is masked.
        """
        place = mapped(self.values)
        where = "memory" if place is None else place.path
        found = Found(
            what, name, where, self, None, self.dims, self.attributes, tuple(self.values.shape)
        )
        if isinstance(self.values, np.ma.MaskedArray):
            raise SourceError(
                f"{what}: {found.named} is a masked array, and the mask would be lost; fill it:"
                " array.filled(value)"
            )
        self.open(found)
        return found

    def open(self, found: Found) -> Any:
        """The open store over the values.

        Raises:
            SourceError: If TensorStore has no such dtype.
        """
        try:
            return ts.array(np.asarray(self.values))
        except (TypeError, ValueError) as error:
            times = self.values.dtype.kind in "mM"
            way = (
                "give its numbers: array.view('int64')" if times else "write it with another dtype"
            )
            raise SourceError(
                f"{found.what}: {found.named} in {found.where} is not read: dtype"
                f" {self.values.dtype}; {way}"
            ) from error


def _again(
    values: AnyArray | MappedArray,
    dims: tuple[str | None, ...],
    attributes: Mapping[str, Any],
    labels: Mapping[str, Labels],
    is_decoded: bool,
) -> HeldArray:
    opened = values.open() if isinstance(values, MappedArray) else values
    return HeldArray(opened, dims, attributes, labels, is_decoded)


@dataclasses.dataclass(frozen=True, slots=True)
class Standing:
    """What an object stands for.

    Args:
        arrays: A path or URL, a `HeldArray`, an `OpenedStore`, a `ShownGroup`, or a dict of these.
        names: The arrays of a group that the object has; None for all of them.
        storage_options: The settings of the object's own file system; None for a local one.
    """

    arrays: Any
    names: tuple[str, ...] | None = None
    storage_options: Mapping[str, Any] | None = dataclasses.field(default=None, repr=False)


def is_opened(value: Any) -> bool:
    """Whether `value` is a store, array or group of zarr-python, or an object of xarray."""
    stores = _classes("zarr.abc.store", "Store")
    return isinstance(value, (*_classes("zarr", "Array", "Group"), *stores, *_of_xarray()))


def standing_for(
    what: str,
    value: Any,
    names: Sequence[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    *,
    decode: bool = False,
) -> tuple[Any, Sequence[str] | None, Mapping[str, Any] | None]:
    """`value`, `names` and `storage_options`, without objects of zarr-python and xarray.

    Args:
        what: Name of the source, for messages.
        value: As for `ZarrDataSource`.
        names: As for `ZarrDataSource`.
        storage_options: As for `ZarrDataSource`; not for an object, which has its own.
        decode: Whether the source decodes values as xarray does.

    Raises:
        ArgumentError: If an object has changed, or its store may be written to.
    """
    if not _holds_opened(value):
        return value, names, storage_options
    standing = _standing(what, value, "", decode)
    if storage_options:
        raise ArgumentError(
            f"{what}: storage_options are for URLs, and an open array or group has the settings of"
            " its own store; leave storage_options out"
        )
    if standing.names is None:
        return standing.arrays, names, standing.storage_options
    if names is None:
        return standing.arrays, standing.names, standing.storage_options
    if not isinstance(names, str):
        for name in names:
            if name not in standing.names:
                raise ArgumentError(
                    f"{what}: names has {name!r}, which the xarray.Dataset does not have; it has"
                    f" {listing(standing.names)}"
                )
    return standing.arrays, names, standing.storage_options


def _classes(module: str, *names: str) -> tuple[type, ...]:
    loaded = sys.modules.get(module)
    found = (getattr(loaded, name, None) for name in names)
    return tuple(kind for kind in found if isinstance(kind, type))


def _of_xarray() -> tuple[type, ...]:
    return _classes("xarray", "Dataset", "DataArray", "Variable", "DataTree")


def _holds_opened(value: Any) -> bool:
    if isinstance(value, Mapping) and not is_opened(value):
        return any(map(_holds_opened, value.values()))
    return is_opened(value)


def _standing(what: str, value: Any, name: str, decode: bool) -> Standing:
    """What `value` stands for; `name` is its key in a dict."""
    if isinstance(value, _classes("xarray", "Dataset")):
        return _of_dataset(what, value, name, decode)
    if isinstance(value, _classes("xarray", "DataArray")):
        return _of_data_array(what, value, decode)
    if isinstance(value, _of_xarray()):
        raise ArgumentError(
            f"{what}: got an xarray.{type(value).__name__}; give an xarray.Dataset or DataArray"
        )
    if is_opened(value):
        return _of_zarr(what, value)
    if isinstance(value, Mapping):
        inner = {key: _standing(what, item, str(key), decode) for key, item in value.items()}
        options = [item.storage_options for item in inner.values() if item.storage_options]
        if any(other != options[0] for other in options[1:]):
            raise ArgumentError(
                f"{what}: the open arrays have stores with different storage options; give URLs,"
                " and one storage_options for all of them"
            )
        arrays = {key: item.arrays for key, item in inner.items()}
        return Standing(arrays, None, options[0] if options else None)
    return Standing(value)


# --- zarr-python ---------------------------------------------------------------------------------


def _of_zarr(what: str, value: Any) -> Standing:
    storage = sys.modules["zarr.storage"]
    if isinstance(value, _classes("zarr.abc.store", "Store")):
        try:
            value = sys.modules["zarr"].open(store=value, mode="r")
        except ValueError:  # such as a dtype that zarr-python lacks
            return _place(what, f"zarr.{type(value).__name__}", _innermost(value), "")
    shown, store, path = f"zarr.{type(value).__name__}", _innermost(value.store), value.path
    is_array = isinstance(value, _classes("zarr", "Array"))
    if isinstance(store, storage.MemoryStore):
        if is_array:
            return Standing(_held_zarr(value))
        if any(True for _ in value.groups()):
            raise ArgumentError(
                f"{what}: the zarr.Group lies in memory and has groups in it; give a dict of its"
                " arrays, such as {'image': group['train/image']}"
            )
        for _, array in value.arrays():
            _refuse_stale(what, array)
        return Standing({name: _held_zarr(array) for name, array in sorted(value.arrays())})
    standing = _place(what, shown, store, path)
    if is_array:
        _refuse_stale(what, value)
        return standing
    listed = value.metadata.consolidated_metadata
    shapes = None if listed is None else _shapes(listed.flattened_metadata)
    group = ShownGroup(standing.arrays, f"the open {shown}", shapes)
    return dataclasses.replace(standing, arrays=group)


def _shapes(nodes: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {path: tuple(node.shape) for path, node in nodes.items() if hasattr(node, "shape")}


def _innermost(store: Any) -> Any:
    return store._store if isinstance(store, sys.modules["zarr.storage"].LoggingStore) else store


def _place(what: str, shown: str, store: Any, path: str) -> Standing:
    """The path or URL of a node of a store."""
    storage = sys.modules["zarr.storage"]
    if isinstance(store, storage.LocalStore):
        return Standing(os.path.abspath(os.path.join(os.fspath(store.root), *path.split("/"))))
    if isinstance(store, storage.ZipStore):
        inner = f"{path}/" if path else ""
        return Standing(zip_url(os.path.abspath(os.fspath(store.path))) + inner)
    if isinstance(store, storage.FsspecStore):
        return _of_fsspec(what, shown, store, path)
    return Standing(opened_store(what, store, path))


def _refuse_stale(what: str, array: Any) -> None:
    """Refuse an array that has another shape in its store than in the object."""
    now = sys.modules["zarr"].open_array(array.store, path=array.path, mode="r")
    if now.shape != array.shape or now.dtype != array.dtype:
        raise ArgumentError(
            f"{what}: the zarr.Array was opened with shape {list(array.shape)} of {array.dtype}, and"
            f" its store now holds {list(now.shape)} of {now.dtype}; open it again, or consolidate its"
            " group again (zarr.consolidate_metadata) if it was opened by old consolidated metadata"
        )


def _held_zarr(array: Any) -> HeldArray:
    attributes = dict(array.attrs)
    dims = getattr(array.metadata, "dimension_names", None) or attributes.get("_ARRAY_DIMENSIONS")
    return HeldArray(np.asarray(array[...]), tuple(dims or ()), attributes, is_of_store=True)


def _of_fsspec(what: str, shown: str, store: Any, path: str) -> Standing:
    system = store.fs
    inner = getattr(system, "sync_fs", None)
    system = system if inner is None else inner
    protocol = system.protocol if isinstance(system.protocol, str) else system.protocol[0]
    place = joined(store.path, path) if path else store.path
    if protocol in ("file", "local"):
        return Standing(os.path.abspath(place))
    given = {k: v for k, v in system.storage_options.items() if k not in _OF_THE_LOOP}
    if protocol == "reference" and "fs" not in given:  # of kerchunk: `fo` names the references
        return Standing(f"reference://{path}", None, given)
    if {"fo", "target_protocol", "target_options", "remote_protocol", "fs"} & given.keys():
        raise ArgumentError(
            f"{what}: the {shown} lies in the file system {protocol!r} of fsspec, which reads"
            " another one; give its URL with storage_options, such as"
            " 'simplecache::s3://bucket/a.zarr'"
        )
    url = place if "://" in place else f"{protocol}://{place.lstrip('/')}"
    return Standing(url, None, given or None)


# --- xarray --------------------------------------------------------------------------------------


def _of_dataset(what: str, dataset: Any, name: str, decode: bool) -> Standing:
    chosen = {str(key): array for key, array in dataset.data_vars.items() if array.ndim}
    if not chosen:
        raise ArgumentError(
            f"{what}: the xarray.Dataset has no data variable with a dimension; give one that has,"
            " or a DataArray"
        )
    found = {key: _stored(what, array, decode) for key, array in sorted(chosen.items())}
    held = {key: item for key, item in found.items() if isinstance(item, HeldArray)}
    stored = {key: item for key, item in found.items() if not isinstance(item, HeldArray)}
    if not stored:
        return Standing(held)
    if held:
        # xarray keeps the values of an array that was computed with, and forgets its place.
        first = next(iter(stored.values()))
        again = _as_stored(what, first, {key: chosen[key] for key in held}, decode)
        held = {key: item for key, item in held.items() if key not in again}
        stored = dict(sorted({**stored, **again}.items()))
    groups = {key: _group_of(what, array) for key, array in stored.items()}
    group = next(iter(groups.values()))
    if held or any(other != group for other in groups.values()):
        why = f"{listing(list(held))} in memory" if held else "several groups"
        raise ArgumentError(
            f"{what}: the xarray.Dataset is not of one Zarr group ({why}); give a dict of DataArrays,"
            " or .load() it, which holds it all in memory"
        )
    _refuse_other_labels(what, dataset, next(iter(stored.values())))
    if name:  # names of the groups in a dict cannot be chosen one by one
        return Standing(
            {key: _of_zarr(what, array).arrays for key, array in stored.items()},
            None,
            group.storage_options,
        )
    shown = ShownGroup(group.arrays, "the open xarray.Dataset", _shapes(stored))
    return dataclasses.replace(group, arrays=shown, names=tuple(stored))


def _as_stored(what: str, sibling: Any, loaded: Mapping[str, Any], decode: bool) -> dict[str, Any]:
    """The arrays in the group of the array `sibling` that hold what DataArrays hold in memory."""
    group = sibling.path.rpartition("/")[0] or None
    fresh = sys.modules["xarray"].open_dataset(
        sibling.store, engine="zarr", group=group, chunks=None
    )
    found = {}
    for key, array in loaded.items():
        if key in fresh and fresh[key].dtype == array.dtype:
            stored = _stored(what, fresh[key], decode)
            if fresh[key].variable.equals(array.variable):
                found[key] = stored
    return found


def _of_data_array(what: str, array: Any, decode: bool) -> Standing:
    stored = _stored(what, array, decode)
    if isinstance(stored, HeldArray):
        return Standing(stored)
    _refuse_other_labels(what, array, stored)
    return _of_zarr(what, stored)


def _group_of(what: str, stored: Any) -> Standing:
    return _place(what, "zarr.Array", _innermost(stored.store), stored.path.rpartition("/")[0])


def _stored(what: str, array: Any, decode: bool) -> Any:
    """The `zarr.Array` that a DataArray shows; or a `HeldArray` if it is in memory."""
    shown = f"the xarray.DataArray {array.name!r}"
    data, chain = _unwrapped(array.variable._data)
    if isinstance(data, np.ndarray) or array.variable._in_memory:
        return _held(array)
    lazily = [item for item in chain if type(item).__name__ == "LazilyIndexedArray"]
    functions = [item for item in chain if type(item).__name__ == "_ElementwiseFunctionArray"]
    if type(data).__name__ != "ZarrArrayWrapper" or len(lazily) != 1:
        kind = f"{type(data).__module__.partition('.')[0]}.{type(data).__name__}"
        raise ArgumentError(
            f"{what}: {shown} is not an array of a Zarr store as it is stored (it is {with_article(kind)}: computed,"
            " transposed, rechunked, or of another format). Write it with .to_zarr(), hold it in"
            " memory with .load(), or give the store to WindowDataSource, which selects"
        )
    stored = data.get_array() if hasattr(data, "get_array") else data._array
    for size, key in zip(stored.shape, lazily[0].key.tuple, strict=True):
        if not isinstance(key, slice) or key.indices(size) != (0, size, 1):
            raise ArgumentError(
                f"{what}: {shown} is a part of the array in its store; give the whole, and choose"
                " the part with WindowDataSource, or .slice(...) of the dataset. Or"
                " hold it in memory: .load()"
            )
    dims = getattr(stored.metadata, "dimension_names", None)
    dims = tuple(dims or stored.attrs.get("_ARRAY_DIMENSIONS") or ())
    name = stored.path.rpartition("/")[2]
    if array.name != name or tuple(array.dims) != dims:
        raise ArgumentError(
            f"{what}: {shown} has dimensions {list(array.dims)}, and in its store the array is named"
            f" {name!r} and has {list(dims)}. Give the path of the store, and the names by"
            " fields={...} and dims=... of WindowDataSource"
        )
    if not decode and functions and _is_decoded(array, stored):
        raise ArgumentError(
            f"{what}: {shown} shows decoded values (scale_factor, add_offset or fill values), and its"
            " store holds others. Read decoded values with WindowDataSource(..., decode=True); or"
            " open it with mask_and_scale=False, to read them as they are stored"
        )
    return stored


def _unwrapped(data: Any) -> tuple[Any, list[Any]]:
    """What a variable holds at last, and what is wrapped around it."""
    chain: list[Any] = []
    layers = getattr(getattr(data, "dask", None), "layers", None)
    if layers is not None:
        # xarray names the layer of an opened array, and what it shows has the key "original-".
        key = f"original-{data.name}"
        if not str(data.name).startswith("open_dataset-") or key not in layers:
            return data, chain
        data = layers[key][key]
        data = getattr(data, "value", data)
    while type(data).__module__.startswith("xarray.") and hasattr(data, "array"):
        chain.append(data)
        data = data.array
    return data, chain


def _is_decoded(array: Any, stored: Any) -> bool:
    """Whether decoding changes values: a NaN that stands for NaN changes none."""
    if array.dtype != stored.dtype:
        return True
    given = {**stored.attrs, **array.variable.encoding}
    if given.keys() & {"scale_factor", "add_offset", "_Unsigned"}:
        return True
    fills = [given.get("_FillValue"), given.get("missing_value")]
    return any(fill is not None and np.any(np.asarray(fill) == np.asarray(fill)) for fill in fills)


def _held(array: Any) -> HeldArray:
    labels = {
        str(key): (str(label.dims[0]), np.asarray(label.values), dict(label.attrs))
        for key, label in array.coords.items()
        if label.ndim == 1 and _are_labels(np.asarray(label.values))
    }
    dims = tuple(map(str, array.dims))
    return HeldArray(np.asarray(array.values), dims, dict(array.attrs), labels, is_decoded=True)


def _are_labels(values: Any) -> bool:
    # Tuples of a MultiIndex and dates of other calendars cannot be selected.
    return values.dtype.kind != "O" or all(isinstance(value, str) for value in values.tolist())


def _refuse_other_labels(what: str, shown: Any, stored: Any) -> None:
    """Refuse coordinates that are not those in the group of the array `stored`."""
    group = stored.path.rpartition("/")[0] or None
    labels = {dim: shown[dim] for dim in shown.dims if dim in shown.coords}
    for decode_times in (True, False):
        with warnings.catch_warnings():
            # The user, who opened the object, has seen what xarray warns of.
            warnings.simplefilter("ignore")
            fresh = sys.modules["xarray"].open_dataset(
                stored.store, engine="zarr", group=group, chunks=None, decode_times=decode_times
            )
        labels = {
            dim: own
            for dim, own in labels.items()
            if dim not in fresh.coords or not own.variable.equals(fresh[dim].variable)
        }
    if labels:
        raise ArgumentError(
            f"{what}: the coordinate {next(iter(labels))!r} of the xarray object is not the one in its"
            " store; write the object with .to_zarr(), hold it in memory with .load(), or give the"
            " path, to use the coordinates of the store"
        )
