"""Finding arrays: from a path, a URL, a group or a dict to a tree of arrays that are open.

Invariant: metadata is read and nothing else. Arrays are opened side by side. What consolidated
metadata tell of an array is not read again to find it.
"""

from __future__ import annotations

import functools
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import tensorstore as ts

from windrow.errors import ArgumentError, NotFoundError, SourceError
from windrow.sources.paths import (
    UNFINISHED_MARKER,
    is_remote,
    local_path,
    refuse_left_by_tfds,
    refuse_unfinished,
    unfinished,
)
from windrow.sources.secrets import shown_url
from windrow.sources.zarr_access import Access, is_far, side_by_side
from windrow.sources.zarr_folders import Folder, LocalFolder, Look, metadata_of, store_folder
from windrow.sources.zarr_names import Found, FoundGroup, FoundTree, axis_names
from windrow.sources.zarr_reasons import bare, reason

_READ_TEXTS: Final = "bool, int4 to int64, uint8 to uint64, all floats, bfloat16 and complex"
_NOT_ROWS: Final = ("char", "byte", "string", "ustring", "json")
_TEXT_TYPE: Final = r"r\d+|[|<>]?[SUVO]\d*"
_MOST_BYTES: Final = 2**31
_MOST_GROUPS: Final = 16
_BESIDE: Final = ("attributes", "consolidated_metadata")
_PRECOMPUTED_AXES: Final = ("x", "y", "z", "channel")

T = TypeVar("T")
S = TypeVar("S")


@bare
def find_all(
    what: str, value: Any, names: Sequence[str] | None = None, access: Access | None = None
) -> FoundTree:
    """Every array that `value` names; of a group that can not be listed, those of `names`.

    Args:
        what: Name of the source, for messages.
        value: As for `ZarrDataSource`.
        names: As for `ZarrDataSource`; `zarr_names.choose` takes those from what is found.
        access: How URLs are reached; by default as they are without any settings.

    Raises:
        ArgumentError: If `value` names no array.
        NotFoundError: If a path or URL holds neither array nor group.
        SourceError: If metadata can not be read, or a group holds no arrays.
        ConversionError: If the conversion that writes the folder has not finished.
    """
    given = names if isinstance(names, list | tuple) else ()
    known = tuple(name.strip("/") for name in given if isinstance(name, str))
    return _find(access or Access(what), value, "", known)


def _find(access: Access, value: Any, name: str, known: tuple[str, ...]) -> FoundTree:
    what = access.what
    if isinstance(value, ts.TensorStore):
        return Found(what, name, _place(value), value, access=access)
    if isinstance(value, ts.Spec):
        return Found(what, name, "the spec given", value, access=access)
    if isinstance(value, ts.KvStore):
        return _find_node(store_folder(what, value, access, known), name)
    if isinstance(value, Mapping):
        if isinstance(value.get("driver"), str):
            return Found(what, name, "the spec given", dict(value), access=access)
        return _find_each(access, value, name, known)
    if isinstance(value, str | os.PathLike):
        return _find_path(access, os.fspath(value), name, known)
    raise ArgumentError(
        f"{what}: {f'{name!r} is' if name else 'got'} a {type(value).__name__}; give a path or URL"
        " of a Zarr array or group, a dict of them, or an open tensorstore.TensorStore, such as"
        " tensorstore.array(x) of an array in memory"
    )


def _find_each(
    access: Access, value: Mapping[Any, Any], name: str, known: tuple[str, ...]
) -> FoundTree:
    what = access.what
    if not value:
        raise SourceError(f"{what}: the dict {name!r} holds no arrays; give it at least one")
    for key in value:
        if not isinstance(key, str):
            raise ArgumentError(f"{what}: keys must be texts, got {key!r}")

    def found(key: str) -> FoundTree:
        inner = tuple(path[len(key) + 1 :] for path in known if path.startswith(key + "/"))
        return _find(access, value[key], _joined(name, key), inner)

    return dict(
        zip(value, _each(found, list(value), any(map(_waits, value.values()))), strict=True)
    )


def _waits(value: Any) -> bool:
    """Whether finding `value` may wait for a network."""
    return isinstance(value, str) and (is_remote(value) or "://" in value)


def _each(fn: Callable[[T], S], items: Sequence[T], wait: bool) -> list[S]:
    """`fn` of every item; side by side if they `wait`."""
    return side_by_side([functools.partial(fn, item) for item in items], wait=wait)


def _joined(name: str, path: str) -> str:
    return f"{name}/{path}" if name else path


def _find_path(access: Access, text: str | bytes, name: str, known: tuple[str, ...]) -> FoundTree:
    what = access.what
    if isinstance(text, str) and (is_remote(text) or ("|" in text and "://" in text)):
        if "|" in text and (way := access.way(text)).is_array:
            return Found(what, name, access.hide(text), dict(way.spec or {}), access=access)
        return _find_far(store_folder(what, text, access, known), name)
    path = local_path(text, what=what)  # type: ignore[arg-type]  # bytes are refused there
    refuse_left_by_tfds(path, what=what)
    # The marker lies in the folder that a conversion writes, which may be the array's parent.
    for folder in (path, os.path.dirname(path)):
        refuse_unfinished(folder, what=what)
    return _find_node(LocalFolder(what, path), name)


def _find_far(folder: Folder, name: str) -> FoundTree:
    """As `_find_node`, of a folder that no conversion is writing, nor the one above it."""
    found = _try_node(folder, name)
    above = folder.above()
    folders = [folder] if above is None else [folder, above[0]]
    side_by_side([functools.partial(_refuse_unfinished, one) for one in folders], wait=True)
    if found is None:
        found = _scale_above(folder, name)
    if found is None:
        raise folder.absent()
    return found


def _refuse_unfinished(folder: Folder) -> None:
    marker = Look(folder).read(UNFINISHED_MARKER)
    if marker is not None:
        raise unfinished(folder.where.rstrip("/"), what=folder.what, marker=marker)


def _find_node(folder: Folder, name: str) -> FoundTree:
    found = _try_node(folder, name)
    if found is None:
        found = _scale_above(folder, name)
    if found is None:
        raise folder.absent()
    return found


def _try_node(folder: Folder, name: str, depth: int = 0) -> FoundTree | None:
    """The arrays of a node; None if `folder` is no node. `depth` counts the groups above it."""
    look = Look(folder)
    if (meta := look.metadata("zarr.json")) is not None:
        kind = meta.get("node_type")
        if kind == "array":
            return found_array(folder, name, meta)
        if kind != "group":
            raise SourceError(
                f"{folder.what}: zarr.json in {folder.where} has node_type {kind!r}; it must be 'array'"
                " or 'group'"
            )
        attributes = _attributes(meta.get("attributes"))
        listed = meta.get("consolidated_metadata")
        nodes = listed.get("metadata") if isinstance(listed, dict) else None
        if isinstance(nodes, dict):
            return _consolidated(folder, name, _nodes_v3(nodes), attributes)
        return _group(folder, name, attributes, depth)
    if (meta := look.metadata(".zarray")) is not None:
        return found_array(folder, name, meta, look.beside(".zattrs"))
    if (meta := look.metadata(".zmetadata")) is not None:
        nodes = meta.get("metadata")
        if isinstance(nodes, dict):
            return _consolidated(folder, name, _nodes_v2(nodes), _attributes(nodes.get(".zattrs")))
    if meta is not None or look.read(".zgroup") is not None:
        return _group(folder, name, _attributes(look.beside(".zattrs")), depth)
    if (meta := look.metadata("attributes.json")) is not None:
        return _n5(folder, name, meta, depth)
    if (meta := look.metadata("info")) is not None and _scales(meta):
        return _precomputed(folder, name, meta, 0)
    if look.refused is not None:
        raise look.refused
    return None


def _attributes(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def sizes_of(value: Any) -> tuple[int, ...] | None:
    """A list of integers in metadata; None if it is none."""
    if isinstance(value, list) and all(type(size) is int for size in value):
        return tuple(value)
    return None


def found_array(
    folder: Folder,
    name: str,
    meta: Mapping[str, Any],
    beside: Mapping[str, Any] | None = None,
    *,
    listing: str = "",
) -> Found:
    """An array of Zarr, by its metadata; `beside` are the attributes of v2, in a file of their own.

    Axes of v2 are named by xarray's convention, those of v3 by the format.
    """
    modern = "node_type" in meta
    shape = sizes_of(meta.get("shape"))
    attributes = _attributes(meta.get("attributes") if modern else beside)
    names = meta.get("dimension_names") if modern else attributes.get("_ARRAY_DIMENSIONS")
    return Found(
        what=folder.what,
        name=name,
        where=folder.where,
        spec=_spec("zarr3" if modern else "zarr", folder, **_kept(folder, meta)),
        folder=folder.local(),
        dims=axis_names(names, -1 if shape is None else len(shape)),
        attributes=attributes,
        shape=shape,
        metadata={key: item for key, item in meta.items() if key not in _BESIDE},
        listing=listing,
        access=folder.access,
        url=folder.url,
    )


def _kept(folder: Folder, meta: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of an array far away that lies in shards."""
    codecs = meta.get("codecs")
    if folder.access is None or folder.kvstore() is None or not isinstance(codecs, list):
        return {}
    if not any(isinstance(c, dict) and c.get("name") == "sharding_indexed" for c in codecs):
        return {}
    return folder.access.sharded if is_far(_as_json(folder.kvstore())) else {}


def _as_json(spec: Any) -> Any:
    return spec if isinstance(spec, dict) else spec.to_json()


def _spec(driver: str, folder: Folder, **settings: Any) -> Any:
    kvstore = folder.kvstore()
    if kvstore is None:
        return None
    if isinstance(kvstore, dict):
        return {"driver": driver, "kvstore": kvstore, **settings}
    spec = ts.Spec({"driver": driver, **settings})
    spec.update(kvstore=kvstore)  # it keeps its context, such as the memory of a store in memory
    return spec


def _n5(folder: Folder, name: str, meta: Mapping[str, Any], depth: int) -> FoundTree | None:
    """An array of N5, whose attributes lie among its metadata, or a group of them."""
    shape = sizes_of(meta.get("dimensions"))
    if shape is None:
        return _group(folder, name, meta, depth, bare=True)
    return Found(
        what=folder.what,
        name=name,
        where=folder.where,
        spec=_spec("n5", folder),
        dims=axis_names(meta.get("axes"), len(shape)),
        attributes=meta,
        shape=shape,
        access=folder.access,
    )


def _scales(info: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The scales of a volume of Neuroglancer; none if `info` is another file."""
    scales = info.get("scales")
    if not isinstance(scales, list) or not all(isinstance(scale, dict) for scale in scales):
        return []
    return scales


def _precomputed(folder: Folder, name: str, info: Mapping[str, Any], scale: int) -> Found:
    size, channels = sizes_of(_scales(info)[scale].get("size")), info.get("num_channels")
    shape = (*size, channels) if size is not None and isinstance(channels, int) else None
    return Found(
        what=folder.what,
        name=name,
        where=folder.where,
        spec=_spec("neuroglancer_precomputed", folder, scale_index=scale),
        dims=_PRECOMPUTED_AXES,
        attributes=_scales(info)[scale],
        shape=shape,
        access=folder.access,
    )


def _scale_above(folder: Folder, name: str) -> Found | None:
    """The scale that `folder` is, of the volume that a folder above it describes."""
    key = ""
    # A key is a relative path; writers make it of one name, or of two.
    for _ in range(2):
        above = folder.above()
        if above is None:
            return None
        folder, last = above
        key = f"{last}/{key}" if key else last
        info = metadata_of(folder, "info")
        for number, scale in enumerate(_scales(info or {})):
            if scale.get("key") == key:
                return _precomputed(folder, name, info or {}, number)
    return None


def _nodes_v3(nodes: Mapping[str, Any]) -> dict[str, tuple[Mapping[str, Any], Any]]:
    """Metadata of each node below a group, by path; the second is for v2 only."""
    return {path: (meta, None) for path, meta in nodes.items() if isinstance(meta, dict)}


def _nodes_v2(nodes: Mapping[str, Any]) -> dict[str, tuple[Mapping[str, Any], Any]]:
    found: dict[str, tuple[Mapping[str, Any], Any]] = {}
    for key, meta in nodes.items():
        path, slash, file = key.rpartition("/")
        if slash and file in (".zarray", ".zgroup") and isinstance(meta, dict):
            found[path] = meta, nodes.get(f"{path}/.zattrs")
    return found


def _consolidated(
    folder: Folder,
    name: str,
    nodes: Mapping[str, tuple[Mapping[str, Any], Any]],
    attributes: Mapping[str, Any],
) -> FoundTree:
    """A group all of whose nodes are described in its own metadata."""
    items: dict[str, FoundTree] = {}
    groups: dict[str, dict[str, FoundTree]] = {"": items}

    def inside(path: str) -> dict[str, FoundTree]:
        if path not in groups:
            above, _, last = path.rpartition("/")
            groups[path] = {}
            meta, beside = nodes.get(path, ({}, None))
            told = _attributes(meta.get("attributes") if "node_type" in meta else beside)
            inside(above)[last] = FoundGroup(groups[path], told)
        return groups[path]

    for path in sorted(nodes):
        meta, beside = nodes[path]
        # A path that leads out of the group is none of its nodes.
        if "shape" in meta and not {"", ".", ".."} & set(path.split("/")):
            above, _, last = path.rpartition("/")
            inside(above)[last] = found_array(
                folder.child(path), _joined(name, path), meta, beside, listing=folder.where
            )
    return _filled(folder, name, FoundGroup(items, attributes))


def _group(
    folder: Folder, name: str, attributes: Mapping[str, Any], depth: int, *, bare: bool = False
) -> FoundTree | None:
    """A group by the folders in it; where `bare`, a folder without metadata may be a group too."""
    if depth > _MOST_GROUPS:
        raise SourceError(
            f"{folder.what}: {folder.where} lies in more than {_MOST_GROUPS} groups, one in the other; if"
            " a link leads back to a group above it, remove it, or give a dict of the arrays"
        )
    children = folder.listed()
    if children is None:
        raise SourceError(
            f"{folder.what}: the group {folder.where} has no consolidated metadata, and listing a remote"
            " store could take very long; consolidate it (zarr.consolidate_metadata), or choose"
            " its arrays: names=['image', ...]"
        )

    def inside(path: str) -> FoundTree | None:
        child, inner = folder.child(path), _joined(name, path)
        found = _try_node(child, inner, depth + 1)
        if found is None and bare:
            found = _group(child, inner, {}, depth + 1, bare=True)
        return found

    looked_at = _each(inside, children, folder.access is not None)
    items = {
        path: found
        for path, found in zip(children, looked_at, strict=True)
        if isinstance(found, Found) or (isinstance(found, FoundGroup) and found.items)
    }
    return _filled(folder, name, FoundGroup(items, attributes))


def _filled(folder: Folder, name: str, group: FoundGroup) -> FoundGroup:
    if not group.items and not name:
        if folder.known:
            shown = ", ".join(map(repr, folder.known))
            raise SourceError(
                f"{folder.what}: of names, {shown} {'are' if len(folder.known) > 1 else 'is'} not there:"
                f" the group {folder.where} is not listed, and holds no such array"
            )
        raise SourceError(f"{folder.what}: the group {folder.where} holds no arrays")
    return group


def unread(found: Found, why: str) -> SourceError:
    """The error for an array that is not read, and `why` in words."""
    return SourceError(
        f"{found.what}: {found.named} in {found.where} is not read: {why}. Arrays of {_READ_TEXTS} are."
        " Of a group, choose the arrays to read: names=['image', ...]"
    )


def refuse_absurd(
    found: Found,
    shape: Sequence[int],
    chunk: Sequence[int | None],
    itemsize: int,
    shard: Sequence[int | None],
) -> None:
    """Refuse sizes that no storage has, before memory is asked for.

    Args:
        found: The array.
        shape: Its shape.
        chunk: What is decoded as one; None along axes where that is not known.
        itemsize: Bytes of a value.
        shard: What one stored object holds.

    Raises:
        SourceError: If a chunk or the index of a shard has more than 2 GiB, or the whole 2**62.
    """
    of_chunk = math.prod(size or 1 for size in chunk) * itemsize
    chunks = math.prod(-(-(s or 1) // (c or 1)) for s, c in zip(shard, chunk, strict=True))
    for what, size, most in (
        ("a chunk has {:,} bytes", of_chunk, _MOST_BYTES),
        ("the index of a shard has {:,} bytes", 16 * chunks if chunks > 1 else 0, _MOST_BYTES),
        ("it has {:,} bytes", math.prod(max(1, size) for size in shape) * itemsize, 2**62),
    ):
        if size > most:
            raise SourceError(
                f"{found.what}: {found.named} in {found.where} says that {what.format(size)}, and at"
                f" most {most:,} are read. If that is so, write it in smaller chunks; else its"
                " metadata are damaged"
            )


@bare
def open_all(found: list[Found]) -> list[Any]:
    """The open stores, opened side by side.

    Raises:
        SourceError: If an array can not be opened, has no first axis or a dtype that is not read.
        NotFoundError: If there is nothing where a URL points.
    """
    stores = open_each(found)
    for store in stores:
        if isinstance(store, SourceError):
            raise store
    return stores


@bare
def open_each(found: list[Found]) -> list[Any]:
    """As `open_all`, but the SourceError in place of an array that TensorStore can not open.

    Raises:
        SourceError: If a dtype is not read, or a spec can not be used.
        NotFoundError: If there is nothing where a URL points.
    """
    for item in found:
        meta = item.metadata or {}
        dtype = meta.get("dtype", meta.get("data_type"))
        if isinstance(dtype, str) and re.fullmatch(_TEXT_TYPE, dtype):
            # Refused before opening: TensorStore aborts the process on some of these.
            raise unread(item, f"dtype {dtype!r}")
    futures = [_open(item) for item in _parsable(found)]
    stores = []
    for item, future in zip(found, futures, strict=True):
        try:
            stores.append(_opened(item, future))
        except SourceError as error:
            stores.append(error)
    return stores


def _open(item: Found) -> Any:
    """The open store, or a future of it."""
    if isinstance(item.spec, ts.TensorStore):
        return item.spec
    access = item.access
    if access is None:
        return ts.open(item.spec, open=True, read=True)
    return access.flight.start(
        lambda: ts.open(item.spec, open=True, read=True, context=access.context)
    )


def _parsable(found: list[Found]) -> Iterator[Found]:
    for item in found:
        if isinstance(item.spec, dict):
            try:
                ts.Spec(item.spec)
            except (ValueError, TypeError) as error:
                why = reason(error) if item.access is None else item.access.reason(error)
                raise SourceError(
                    f"{item.what}: the spec of array {item.name!r} can not be used: {why}"
                ) from (None if item.access is not None else error)
        yield item


def _opened(item: Found, future: Any) -> Any:
    named = item.named
    access = item.access
    try:
        store = future if isinstance(future, ts.TensorStore) else future.result()
    except (ValueError, RuntimeError, OSError) as error:
        why = reason(error) if access is None else access.reason(error)
        # TensorStore's errors repeat specs.
        cause = error if access is None else None
        if "NOT_FOUND" in why or "Failed to detect format" in why:
            raise gone(item, why) from cause
        raise SourceError(
            f"{item.what}: {named} in {item.where} can not be opened: {why}. If its dtype or codec is"
            " the reason, write the array in another, or choose other arrays of a group:"
            " names=['image', ...]"
        ) from cause
    if store.dtype.name in _NOT_ROWS:
        raise unread(item, f"dtype {store.dtype.name!r}")
    if store.rank == 0:
        raise SourceError(
            f"{item.what}: {named} in {item.where} has shape (), and the first axis counts records;"
            " of a group, choose the arrays to read: names=['image', ...]"
        )
    if not store.readable:
        raise SourceError(
            f"{item.what}: {named} was opened for writing only; open it with read=True"
        )
    layout, unknown = store.chunk_layout, (None,) * store.rank
    chunk = tuple(layout.read_chunk.shape or unknown)
    shard = tuple(layout.write_chunk.shape or unknown)
    refuse_absurd(item, store.shape, chunk, store.dtype.numpy_dtype.itemsize, shard)
    return store


def gone(found: Found, why: str) -> NotFoundError:
    """The error for an array that is not where it was found."""
    if found.listing:
        return NotFoundError(
            f"{found.what}: there is no array at {found.where}, which the consolidated metadata of"
            f" {found.listing} list: {why}. Consolidate again (zarr.consolidate_metadata), or"
            " choose other arrays by names=[...]"
        )
    return NotFoundError(f"{found.what}: there is no array at {found.where}: {why}")


def _place(store: Any) -> str:
    kvstore = store.kvstore
    if kvstore is None:
        return "an open TensorStore"
    try:
        return shown_url(str(kvstore.url)).removeprefix("file://")
    except (NotImplementedError, ValueError):
        return "an open TensorStore"
