"""Finds arrays: from a path, a URL, a group or a dict to a tree, and chooses those that give records.

xarray writes coordinates next to the data: arrays of one axis with the name of that axis, and
arrays that the attribute `coordinates` of another array lists. Coordinates label records and are
not records, so a group gives its other arrays.

Invariant: only metadata is read; nothing is opened here. To find an array that consolidated metadata
describe, its own metadata are not read.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import tensorstore as ts

from windrow.core.redaction import shown_url
from windrow.core.text import listing, with_article
from windrow.errors import ArgumentError, SourceError
from windrow.sources.remote.paths import (
    UNFINISHED_MARKER,
    is_remote,
    local_path,
    refuse_left_by_tfds,
    refuse_unfinished,
    unfinished,
)
from windrow.sources.zarr.folders import Folder, LocalFolder, MetadataLookup, metadata_of
from windrow.sources.zarr.levels import dataset_paths
from windrow.sources.zarr.metadata import (
    attributes_of,
    axis_names,
    dims_of,
    is_sharded,
    is_v3,
    sizes_of,
)
from windrow.sources.zarr.names import (
    RAGGED,
    ChosenTree,
    Consolidated,
    Found,
    FoundGroup,
    FoundTree,
    Keys,
    ShownGroup,
    as_shown,
    consolidated_in,
    gathered,
)
from windrow.sources.zarr.objects import HeldArray
from windrow.sources.zarr.remote_folders import OpenedFolder, OpenedStore, store_folder
from windrow.sources.zarr.stores import Access, bare, side_by_side
from windrow.sources.zarr.urls import is_remote_spec

_MOST_GROUPS: Final = 16
_NOT_VALUES: Final = ("attributes", "consolidated_metadata")
_PRECOMPUTED_AXES: Final = ("x", "y", "z", "channel")


@bare
def find_all(
    what: str, value: Any, names: Sequence[str] | None = None, access: Access | None = None
) -> FoundTree:
    """Every array that `value` names; in a group that cannot be listed, the arrays in `names`.

    Args:
        what: Name of the source, for messages.
        value: As for `ZarrDataSource`.
        names: As for `ZarrDataSource`; `choose` picks them from the tree.
        access: How URLs are reached; by default without any settings.

    Raises:
        ArgumentError: If `value` names no array.
        NotFoundError: If a path or URL holds neither array nor group.
        SourceError: If metadata cannot be read, or a group holds no arrays.
        ConversionError: If the conversion that writes the folder has not finished.
    """
    given = names if isinstance(names, list | tuple) else ()
    known = tuple(name.strip("/") for name in given if isinstance(name, str))
    return _find(access or Access(what), value, "", known)


def _find(
    access: Access, value: Any, name: str, known: tuple[str, ...], *, own: bool = False
) -> FoundTree:
    """As `find_all`, under `name`; with `own` the arrays' own metadata count."""
    what = access.what
    if isinstance(value, ShownGroup):
        found = _find(access, value.place, name, known, own=value.shapes is None)
        return as_shown(found, value) if value.shapes else found
    if isinstance(value, np.ndarray):
        value = HeldArray(value)
    if isinstance(value, HeldArray):
        return value.found(what, name)
    if isinstance(value, OpenedStore):
        return _find_node(OpenedFolder(what, value, access, known), name, own=own)
    if isinstance(value, ts.TensorStore):
        return Found(what, name, _place_of(value), value, access=access)
    if isinstance(value, ts.Spec):
        return Found(what, name, "the spec given", value, access=access)
    if isinstance(value, ts.KvStore):
        return _find_node(store_folder(what, value, access, known), name)
    if isinstance(value, Mapping):
        if isinstance(value.get("driver"), str):
            return Found(what, name, "the spec given", dict(value), access=access)
        return _find_each(access, value, name, known)
    if isinstance(value, str | os.PathLike):
        return _find_path(access, os.fspath(value), name, known, own=own)
    raise ArgumentError(
        f"{what}: {f'{name!r} is' if name else 'got'} {with_article(type(value).__name__)}; give a path or URL"
        " of a Zarr array or group, an open array or group of zarr-python, xarray or TensorStore, an array"
        " of NumPy, or a dict of these"
    )


def _find_each(
    access: Access, value: Mapping[Any, Any], name: str, known: tuple[str, ...]
) -> FoundTree:
    what = access.what
    if not value:
        raise SourceError(f"{what}: the dict {name!r} holds no arrays; give it at least one")
    for key in value:
        if not isinstance(key, str):
            raise ArgumentError(f"{what}: keys must be strings, got {key!r}")

    def find_item(key: str) -> FoundTree:
        inner = tuple(path[len(key) + 1 :] for path in known if path.startswith(key + "/"))
        return _find(access, value[key], _joined(name, key), inner)

    calls = [functools.partial(find_item, key) for key in value]
    found = side_by_side(calls, wait=any(map(_waits, value.values())))
    return gathered(zip([(key,) for key in value], found, strict=True), {})


def _waits(value: Any) -> bool:
    """Whether finding `value` may wait for a network."""
    value = value.place if isinstance(value, ShownGroup) else value
    return isinstance(value, str) and (is_remote(value) or "://" in value)


def is_url(text: str) -> bool:
    """Whether `text` is a URL, and not a local path."""
    return is_remote(text) or ("|" in text and "://" in text)


def _joined(name: str, path: str) -> str:
    return f"{name}/{path}" if name else path


def _find_path(
    access: Access, text: str | bytes, name: str, known: tuple[str, ...], *, own: bool
) -> FoundTree:
    what = access.what
    if isinstance(text, str) and is_url(text):
        if "|" in text and (route := access.route(text)).is_array:
            return Found(what, name, access.hide(text), dict(route.spec or {}), access=access)
        return _find_node(store_folder(what, text, access, known), name, own=own)
    path = local_path(text, what=what)  # type: ignore[arg-type]  # bytes are refused there
    refuse_left_by_tfds(path, what=what)
    # The marker lies in the folder that a conversion writes, which may be the array's parent.
    for folder in (path, os.path.dirname(path)):
        refuse_unfinished(folder, what=what)
    return _find_node(LocalFolder(what, path), name, own=own)


def _find_node(folder: Folder, name: str, *, own: bool = False) -> FoundTree:
    """The arrays of a node that no conversion is writing, or a scale of a volume; `own` as in `_try_node`."""
    found = _try_node(folder, name, own=own and folder.listed() is not None)
    if folder.local() is None:
        parent = folder.parent()
        folders = [folder] if parent is None else [folder, parent[0]]
        side_by_side([functools.partial(_refuse_unfinished, one) for one in folders], wait=True)
    found = found or _scale_of_parent(folder, name)
    if found is None:
        raise folder.absent()
    return found


def _refuse_unfinished(folder: Folder) -> None:
    marker = MetadataLookup(folder).read(UNFINISHED_MARKER)
    if marker is not None:
        raise unfinished(folder.where.rstrip("/"), what=folder.what, marker=marker)


def _try_node(folder: Folder, name: str, depth: int = 0, *, own: bool = False) -> FoundTree | None:
    """The arrays of a node; None if `folder` is not a node. `depth` counts the groups around it.

    With `own` it is listed, though it may have consolidated metadata.
    """
    files = MetadataLookup(folder)
    if (meta := files.metadata("zarr.json")) is not None:
        kind = meta.get("node_type")
        if kind == "array":
            return found_array(folder, name, meta)
        if kind != "group":
            raise SourceError(
                f"{folder.what}: zarr.json in {folder.where} has node_type {kind!r}; it must be"
                " 'array' or 'group'"
            )
        listed = consolidated_in(folder, meta)
        if listed is not None and not own:
            return _consolidated(listed, name)
        return _group(folder, name, attributes_of(meta, None), depth)
    if (meta := files.metadata(".zarray")) is not None:
        return found_array(folder, name, meta, files.attributes())
    if (meta := files.metadata(".zmetadata")) is not None:
        listed = consolidated_in(folder, meta)
        if listed is not None and not own:
            return _consolidated(listed, name)
    if meta is not None or files.read(".zgroup") is not None:
        return _group(folder, name, attributes_of({}, files.attributes()), depth)
    if (meta := files.metadata("attributes.json")) is not None:
        return _n5(folder, name, meta, depth)
    if (meta := files.metadata("info")) is not None and _scales(meta):
        found = _precomputed(folder, name, meta, 0)
        return dataclasses.replace(found, scales=tuple(_scales(meta)))
    if files.refused is not None:
        raise files.refused
    return None


def found_array(
    folder: Folder,
    name: str,
    meta: Mapping[str, Any],
    zattrs: Mapping[str, Any] | None = None,
    *,
    consolidated: Consolidated | None = None,
    path: str = "",
) -> Found:
    """An array of Zarr, by its metadata; `zattrs` are the attributes of v2.

    With `consolidated` metadata these are its metadata at `path`.
    """
    attributes = attributes_of(meta, zattrs)
    return _found(
        folder,
        name,
        _spec("zarr3" if is_v3(meta) else "zarr", folder, **_cache_settings(folder, meta)),
        folder=folder.local(),
        dims=dims_of(meta, attributes),
        attributes=attributes,
        shape=sizes_of(meta.get("shape")),
        metadata={key: item for key, item in meta.items() if key not in _NOT_VALUES},
        listing="" if consolidated is None else consolidated.shown,
        consolidated=consolidated,
        path=path,
        url=folder.url,
        opened=folder.opened,
    )


def _found(place: Folder, name: str, spec: Any, **facts: Any) -> Found:
    """An array in a folder, which TensorStore opens by `spec`."""
    return Found(place.what, name, place.where, spec, access=place.access, **facts)


def _cache_settings(folder: Folder, meta: Mapping[str, Any]) -> dict[str, Any]:
    """TensorStore's settings for a remote array that lies in shards."""
    kvstore = folder.kvstore()
    if folder.access is None or kvstore is None or not is_sharded(meta):
        return {}
    spec = kvstore if isinstance(kvstore, dict) else kvstore.to_json()
    return folder.access.sharded if is_remote_spec(spec) else {}


def _spec(driver: str, folder: Folder, **settings: Any) -> Any:
    kvstore = folder.kvstore()
    if kvstore is None:
        return None
    if isinstance(kvstore, dict):
        return {"driver": driver, "kvstore": kvstore, **settings}
    spec = ts.Spec({"driver": driver, **settings})
    spec.update(kvstore=kvstore)  # this keeps its context, such as the data of a store in memory
    return spec


def _n5(folder: Folder, name: str, meta: Mapping[str, Any], depth: int) -> FoundTree | None:
    """An array of N5, whose attributes lie among its metadata, or a group of such arrays."""
    shape = sizes_of(meta.get("dimensions"))
    if shape is None:
        return _group(folder, name, meta, depth, bare=True)
    dims = axis_names(meta.get("axes"), len(shape))
    return _found(folder, name, _spec("n5", folder), dims=dims, attributes=meta, shape=shape)


def _scales(info: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The scales of a volume of Neuroglancer; empty if `info` is another kind of file."""
    scales = info.get("scales")
    if not isinstance(scales, list) or not all(isinstance(scale, dict) for scale in scales):
        return []
    return scales


def _precomputed(folder: Folder, name: str, info: Mapping[str, Any], scale: int) -> Found:
    meta, channels = _scales(info)[scale], info.get("num_channels")
    size = sizes_of(meta.get("size"))
    shape = (*size, channels) if size is not None and isinstance(channels, int) else None
    spec = _spec("neuroglancer_precomputed", folder, scale_index=scale)
    return _found(folder, name, spec, dims=_PRECOMPUTED_AXES, attributes=meta, shape=shape)


def _scale_of_parent(folder: Folder, name: str) -> Found | None:
    """`folder` as a scale of the volume that a parent folder describes."""
    key = ""
    # The key of a scale is a relative path; writers make it of one or two names.
    for _ in range(2):
        parent = folder.parent()
        if parent is None:
            return None
        folder, last = parent
        key = f"{last}/{key}" if key else last
        info = metadata_of(folder, "info")
        for number, scale in enumerate(_scales(info or {})):
            if scale.get("key") == key:
                return _precomputed(folder, name, info or {}, number)
    return None


def _consolidated(listed: Consolidated, name: str) -> FoundTree:
    """A group whose own metadata describe all nodes in it."""
    folder, nodes = listed.folder, listed.nodes
    arrays: dict[Keys, Found] = {}
    groups: dict[Keys, Mapping[str, Any]] = {(): listed.attributes}
    for path in sorted(nodes):
        meta, zattrs = nodes[path]
        keys = tuple(path.split("/"))
        # A path that leads out of the group is not one of its nodes.
        if "shape" not in meta or {"", ".", ".."} & set(keys):
            continue
        for count in range(1, len(keys)):
            group = nodes.get("/".join(keys[:count]), ({}, None))
            groups.setdefault(keys[:count], attributes_of(*group))
        arrays[keys] = found_array(
            folder.child(path), _joined(name, path), meta, zattrs, consolidated=listed, path=path
        )
    return _filled(folder, name, gathered(arrays.items(), groups))


def _group(
    folder: Folder, name: str, attributes: Mapping[str, Any], depth: int, *, bare: bool = False
) -> FoundTree | None:
    """A group by the folders in it; if `bare`, a folder without metadata may be a group too."""
    if depth > _MOST_GROUPS:
        raise SourceError(
            f"{folder.what}: {folder.where} lies in more than {_MOST_GROUPS} nested groups; if"
            " a link leads back to an enclosing group, remove it, or give a dict of the arrays"
        )
    children = folder.listed()
    if children is None and not (children := dataset_paths(attributes)):
        raise SourceError(
            f"{folder.what}: the group {folder.where} has no consolidated metadata, and"
            " listing a remote store could take very long; consolidate it"
            " (zarr.consolidate_metadata), or choose its arrays: names=['image', ...]"
        )

    def inside(path: str) -> FoundTree | None:
        child, inner = folder.child(path), _joined(name, path)
        found = _try_node(child, inner, depth + 1)
        if found is None and bare:
            found = _group(child, inner, {}, depth + 1, bare=True)
        return found

    calls = [functools.partial(inside, path) for path in children]
    nodes = side_by_side(calls, wait=folder.access is not None)
    items = zip(children, nodes, strict=True)
    inner = [(tuple(path.split("/")), found) for path, found in items if found is not None]
    return _filled(folder, name, gathered(inner, {(): attributes}))


def _filled(folder: Folder, name: str, group: FoundGroup) -> FoundGroup:
    if not group.arrays and not name:
        if folder.known:
            shown = ", ".join(map(repr, folder.known))
            raise SourceError(
                f"{folder.what}: names has {shown}, and the group {folder.where}, which"
                " is not listed, holds no such array"
            )
        raise SourceError(f"{folder.what}: the group {folder.where} holds no arrays")
    return group


def _place_of(store: Any) -> str:
    kvstore = store.kvstore
    if kvstore is None:
        return "an open TensorStore"
    try:
        return shown_url(str(kvstore.url)).removeprefix("file://")
    except (NotImplementedError, ValueError):
        return "an open TensorStore"


# --- the choice of arrays ------------------------------------------------------------------------


def choose(
    what: str, tree: FoundTree, names: Sequence[str] | None = None
) -> tuple[ChosenTree, tuple[Found, ...]]:
    """The arrays that give records, and the arrays that do not.

    Args:
        what: Name of the source, for messages.
        tree: Everything that was found.
        names: Names of arrays or groups to take, in that order; None for all arrays that are data.
            If there is no data, all arrays with an axis are taken. Values and offsets of rows that
            differ in length are taken only if they are named.

    Raises:
        ArgumentError: If `names` is not a list of names, or there is only one array.
        SourceError: If a name is not there, or nothing is left.
    """
    if names is not None:
        names = _checked_names(what, tree, names)
    if isinstance(tree, Found):
        return tree, ()
    found = _data_of(tree) if names is None else _named(what, tree, names)
    if not found:
        ragged = sorted({item.name.rpartition("/")[0] for item in _ragged(tree)})
        if ragged and names is None:
            raise SourceError(
                f"{what}: rows of all features differ in length ({listing(ragged)}): open each"
                f" array by itself: names=['{ragged[0]}/values'], and names=['{ragged[0]}/offsets']"
            )
        raise SourceError(
            f"{what}: every array that was found has shape (), and the first axis counts records"
        )
    chosen: dict[str, ChosenTree] = {}
    for keys, item in found.items():
        into: dict[str, Any] = chosen
        for key in keys[:-1]:
            into = into.setdefault(key, {})
        into[keys[-1]] = item
    taken = set(found.values())
    return chosen, tuple(item for item in tree.arrays.values() if item not in taken)


def _data_of(group: FoundGroup) -> dict[Keys, Found]:
    """The arrays that are data; without data, the arrays that have an axis."""
    labels, ragged = set(_coordinates(group)), set(_ragged(group))
    left = {keys: item for keys, item in group.arrays.items() if item not in ragged}
    data = {keys: item for keys, item in left.items() if item not in labels}
    return data or {keys: item for keys, item in left.items() if item.shape != ()}


def data_names(tree: FoundTree) -> set[str]:
    """The names of the arrays that are data."""
    if isinstance(tree, Found):
        return {tree.name}
    return {item.name for item in _data_of(tree).values()}


def _ragged(group: FoundGroup) -> Iterator[Found]:
    """The arrays of groups whose rows differ in length."""
    for at, attributes in group.groups.items():
        listed = attributes.get(RAGGED)
        for name in listed if isinstance(listed, dict) else ():
            inside = group.below((*at, *name.split("/")))
            yield from (item for keys, item in inside.arrays.items() if keys)


def _coordinates(group: FoundGroup) -> Iterator[Found]:
    """The arrays of groups that are not data."""
    for at, arrays in group.by_group().items():
        if at not in group.groups:
            continue
        yield from (item for item in arrays.values() if item.shape == ())
        if not any(item.dims for item in arrays.values()):
            continue
        declared = [group.groups[at], *(item.attributes for item in arrays.values())]
        listed = {
            name
            for attributes in declared
            if isinstance(text := attributes.get("coordinates"), str)
            for name in text.split()
        }
        for name, item in arrays.items():
            if item.shape != () and (name in listed or item.dims == (name,)):
                yield item


def _checked_names(what: str, tree: FoundTree, names: Any) -> list[str]:
    if isinstance(tree, Found):
        raise ArgumentError(
            f"{what}: names chooses arrays of a group, and {tree.where} is one array; leave it out"
        )
    if isinstance(names, str | bytes) or not isinstance(names, Sequence):
        raise ArgumentError(
            f'{what}: names must be a list of names such as ["image", "meta/id"], got {names!r}'
        )
    for name in names:
        if not isinstance(name, str):
            raise ArgumentError(f"{what}: names must be strings, got {name!r}")
    plain = ["/".join(part for part in name.split("/") if part) for name in names]
    if not plain:
        raise ArgumentError(f"{what}: names is empty; give at least one, or leave it out for all")
    return plain


def _named(what: str, tree: FoundGroup, names: list[str]) -> dict[Keys, Found]:
    """The arrays with some names, and the data in groups with some names."""
    places: dict[str, Keys] = {}
    for keys in tree.arrays:
        for count in range(1, len(keys) + 1):
            places.setdefault("/".join(keys[:count]), keys[:count])
    chosen: dict[Keys, Found] = {}
    for number, name in enumerate(names):
        for other in names[:number]:
            if (other + "/").startswith(name + "/") or (name + "/").startswith(other + "/"):
                raise ArgumentError(f"{what}: names has {name!r} and {other!r}; give one of them")
        at = places.get(name)
        if at is None:
            raise _unknown(what, tree, name)
        if at in tree.arrays:
            chosen[at] = tree.arrays[at]
        else:
            data = _data_of(tree.below(at))
            chosen |= {(*at, *keys): item for keys, item in data.items()}
    return chosen


def _unknown(what: str, tree: FoundGroup, name: str) -> SourceError:
    there = sorted(item.name for item in tree.arrays.values())
    close = difflib.get_close_matches(name, there, n=1)
    if not close:
        close = [path for path in there if path.rpartition("/")[2] == name.rpartition("/")[2]][:1]
    meant = f"did you mean {close[0]!r}? There are" if close else "there are"
    listed = next((item.listing for item in tree.arrays.values() if item.consolidated), "")
    way = (
        f", as {listed} list them; if it is newer, consolidate again (zarr.consolidate_metadata)"
        if listed
        else ""
    )
    return SourceError(
        f"{what}: names has {name!r}, which is not there; {meant} {listing(there)}{way}"
    )
