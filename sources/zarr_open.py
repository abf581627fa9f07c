"""Finding arrays: from a path, a URL, a group or a dict to a tree of arrays that are open.

Invariant: metadata is read and nothing else. Arrays are opened side by side.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias, Union

import tensorstore as ts

from windrow.errors import ArgumentError, NotFoundError, SourceError
from windrow.sources.paths import (
    folder_listing,
    is_remote,
    local_path,
    refuse_unfinished,
    what_is_there,
)
from windrow.sources.zarr_read import reason

_WHAT: Final = "ZarrDataSource"
# TensorStore tries for many minutes to reach a store that is not there.
ANSWER_S = 60.0
_READ_TEXTS: Final = "bool, int4 to int64, uint8 to uint64, all floats, bfloat16 and complex"
_NOT_ROWS: Final = ("char", "byte", "string", "ustring", "json")
_TEXT_TYPE: Final = r"r\d+|[|<>]?[SUVO]\d*"
_DRIVER_URL: Final = r"\|(?:zarr|zarr2|zarr3|n5|auto)(?::[^|]*)?$"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Found:
    """An array that was found: its name in the source, its place for people, how to open it."""

    name: str
    where: str
    spec: Any  # a ts.TensorStore that is open, a ts.Spec, or a spec as JSON or URL
    folder: str | None = None  # of the array, where it was found on a local disk
    # Names of the axes, None for an axis without; () where nothing tells.
    dims: tuple[str | None, ...] = ()
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # as they are stored


FoundTree: TypeAlias = Union[Found, "dict[str, FoundTree]"]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _LocalFolder:
    """A folder of a local disk."""

    where: str

    def read(self, key: str) -> bytes | None:
        try:
            with open(os.path.join(self.where, key), "rb") as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise SourceError(
                f"{_WHAT}: {os.path.join(self.where, key)} can not be read:"
                f" {error.strerror or error}"
            ) from error

    def children(self) -> list[str]:
        with os.scandir(self.where) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())

    def child(self, path: str) -> _LocalFolder:
        return _LocalFolder(os.path.join(self.where, *path.split("/")))

    def kvstore(self) -> Any:
        return {"driver": "file", "path": self.where + "/"}

    def local(self) -> str | None:
        return self.where

    def absent(self) -> NotFoundError:
        if not os.path.exists(self.where):
            return NotFoundError(
                f"{_WHAT}: {self.where} does not exist; {what_is_there(self.where)}"
            )
        if not os.path.isdir(self.where):
            return NotFoundError(
                f"{_WHAT}: {self.where} is a file, not the folder of a Zarr array or group; give"
                " the folder that holds zarr.json or .zarray"
            )
        return NotFoundError(
            f"{_WHAT}: {self.where} is no Zarr array or group: it has no zarr.json, .zarray or"
            f" .zgroup; it holds {folder_listing(self.where)}"
        )


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _StoreFolder:
    """A folder in a key-value store of TensorStore: any URL that it opens."""

    where: str
    store: Any

    def read(self, key: str) -> bytes | None:
        try:
            found = self.store.read(key).result(timeout=ANSWER_S)
        except (ValueError, RuntimeError, OSError) as error:
            raise SourceError(
                f"{_WHAT}: {self.where}{key} can not be read: {reason(error)}"
            ) from error
        return bytes(found.value) if found.state == "value" else None

    def children(self) -> list[str]:
        raise SourceError(
            f"{_WHAT}: the group {self.where} has no consolidated metadata, and listing a remote"
            " store could take very long; consolidate it (zarr.consolidate_metadata), or give a"
            " dict of its arrays"
        )

    def child(self, path: str) -> _StoreFolder:
        return _StoreFolder(f"{self.where}{path}/", self.store / f"{path}/")

    def kvstore(self) -> Any:
        return self.store.spec(retain_context=True).to_json()

    def local(self) -> str | None:
        return None

    def absent(self) -> NotFoundError:
        return NotFoundError(
            f"{_WHAT}: {self.where} is no Zarr array or group: it has no zarr.json, .zarray or"
            " .zgroup; check the URL, and that you may read it"
        )


_Folder: TypeAlias = _LocalFolder | _StoreFolder


def find_arrays(value: Any, name: str = "") -> FoundTree:
    """The arrays that `value` names, as a tree of dicts.

    Raises:
        ArgumentError: If `value` names no array.
        NotFoundError: If a path or URL holds neither array nor group.
        SourceError: If metadata can not be read, or a group holds no arrays.
        ConversionError: If the conversion that writes the folder has not finished.
    """
    if isinstance(value, ts.TensorStore):
        return Found(name, _place(value), value)
    if isinstance(value, ts.Spec):
        return Found(name, "the spec given", value)
    if isinstance(value, Mapping):
        if isinstance(value.get("driver"), str):
            return Found(name, "the spec given", dict(value))
        return _find_each(value, name)
    if isinstance(value, str | os.PathLike):
        return _find_path(os.fspath(value), name)
    raise ArgumentError(
        f"{_WHAT}: {f'{name!r} is' if name else 'got'} a {type(value).__name__}; give a path or URL"
        " of a Zarr array or group, a dict of them, or an open tensorstore.TensorStore"
    )


def _find_each(value: Mapping[Any, Any], name: str) -> FoundTree:
    if not value:
        raise SourceError(f"{_WHAT}: the dict {name!r} holds no arrays; give it at least one")
    tree: dict[str, FoundTree] = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise ArgumentError(f"{_WHAT}: keys must be texts, got {key!r}")
        tree[key] = find_arrays(item, f"{name}/{key}" if name else key)
    return tree


def _find_path(text: str | bytes, name: str) -> FoundTree:
    if isinstance(text, str) and (is_remote(text) or ("|" in text and "://" in text)):
        if re.search(_DRIVER_URL, text):
            return Found(name, text, text)
        url = text if text.endswith(("/", ":")) else text + "/"
        try:
            store = ts.KvStore.open(url).result(timeout=ANSWER_S)
        except (ValueError, RuntimeError, OSError) as error:
            raise SourceError(f"{_WHAT}: {text!r} can not be opened: {reason(error)}") from error
        return _find_node(_StoreFolder(url, store), name)
    path = local_path(text, what=_WHAT)  # type: ignore[arg-type]  # bytes are refused there
    # The marker lies in the folder that a conversion writes, which may be the array's parent.
    for folder in (path, os.path.dirname(path)):
        refuse_unfinished(folder, what=_WHAT)
    return _find_node(_LocalFolder(path), name)


def _find_node(folder: _Folder, name: str) -> FoundTree:
    found = _try_node(folder, name)
    if found is None:
        raise folder.absent()
    return found


def _try_node(folder: _Folder, name: str) -> FoundTree | None:
    """The arrays of a node; None if `folder` is no node."""
    if (raw := folder.read("zarr.json")) is not None:
        meta = _parsed(raw, folder, "zarr.json")
        if meta.get("node_type") == "array":
            return _array(folder, name, "zarr3", meta.get("data_type"))
        if meta.get("node_type") == "group":
            listed = meta.get("consolidated_metadata")
            return _group(folder, name, _names_v3(listed))
        raise SourceError(
            f"{_WHAT}: zarr.json in {folder.where} has node_type {meta.get('node_type')!r}; it"
            " must be 'array' or 'group'"
        )
    if (raw := folder.read(".zarray")) is not None:
        return _array(folder, name, "zarr", _parsed(raw, folder, ".zarray").get("dtype"))
    if (raw := folder.read(".zmetadata")) is not None:
        return _group(folder, name, _names_v2(_parsed(raw, folder, ".zmetadata")))
    if folder.read(".zgroup") is not None:
        return _group(folder, name, None)
    return None


def _array(folder: _Folder, name: str, driver: str, dtype: Any) -> Found:
    if isinstance(dtype, str) and re.fullmatch(_TEXT_TYPE, dtype):
        # Refused before opening: TensorStore aborts the process on some of these.
        raise _unread(name, folder.where, dtype)
    spec = {"driver": driver, "kvstore": folder.kvstore()}
    return Found(name, folder.where, spec, folder.local())


def _unread(name: str, where: str, dtype: object) -> SourceError:
    named = f"array {name!r}" if name else "the array"
    return SourceError(
        f"{_WHAT}: {named} in {where} has dtype {dtype!r}, which is not read; {_READ_TEXTS} are."
        " Of a group, choose the arrays to read with a dict: {'image': path, ...}"
    )


def _parsed(raw: bytes, folder: _Folder, key: str) -> dict[str, Any]:
    try:
        meta = json.loads(raw)
    except ValueError as error:
        raise SourceError(
            f"{_WHAT}: {key} in {folder.where} is not JSON: {error}; copy or write it again"
        ) from error
    if not isinstance(meta, dict):
        raise SourceError(f"{_WHAT}: {key} in {folder.where} holds no JSON object; write it again")
    return meta


def _names_v3(listed: Any) -> list[str] | None:
    nodes = listed.get("metadata") if isinstance(listed, dict) else None
    if not isinstance(nodes, dict):
        return None
    return sorted(
        path
        for path, meta in nodes.items()
        if isinstance(meta, dict) and meta.get("node_type") == "array"
    )


def _names_v2(meta: dict[str, Any]) -> list[str] | None:
    nodes = meta.get("metadata")
    if not isinstance(nodes, dict):
        return None
    return sorted(key.removesuffix("/.zarray") for key in nodes if key.endswith("/.zarray"))


def _group(folder: _Folder, name: str, listed: list[str] | None) -> FoundTree:
    tree: dict[str, FoundTree] = {}
    for path in folder.children() if listed is None else listed:
        inner = f"{name}/{path}" if name else path
        child = folder.child(path)
        found = _try_node(child, inner) if listed is None else _find_node(child, inner)
        if found is None or found == {}:
            continue
        *above, last = path.split("/")
        at: Any = tree
        for step in above:
            at = at.setdefault(step, {})
        at[last] = found
    if not tree and not name:
        raise SourceError(f"{_WHAT}: the group {folder.where} holds no arrays")
    return tree


def open_all(found: list[Found]) -> list[Any]:
    """The open stores, opened side by side.

    Raises:
        SourceError: If an array can not be opened, has no first axis or a dtype that is not read.
        NotFoundError: If there is nothing where a URL points.
    """
    futures = [
        item.spec
        if isinstance(item.spec, ts.TensorStore)
        else ts.open(item.spec, open=True, read=True)
        for item in _parsable(found)
    ]
    return [_opened(item, future) for item, future in zip(found, futures, strict=True)]


def _parsable(found: list[Found]) -> Iterator[Found]:
    for item in found:
        if isinstance(item.spec, dict):
            try:
                ts.Spec(item.spec)
            except (ValueError, TypeError) as error:
                raise SourceError(
                    f"{_WHAT}: the spec of array {item.name!r} can not be used: {reason(error)}"
                ) from error
        yield item


def _opened(item: Found, future: Any) -> Any:
    named = f"array {item.name!r}" if item.name else "the array"
    try:
        store = future if isinstance(future, ts.TensorStore) else future.result(timeout=ANSWER_S)
    except (ValueError, RuntimeError, OSError) as error:
        why = reason(error)
        if "NOT_FOUND" in why or "Failed to detect format" in why:
            raise NotFoundError(f"{_WHAT}: there is no array at {item.where}: {why}") from error
        raise SourceError(
            f"{_WHAT}: {named} in {item.where} can not be opened: {why}. If its dtype or codec is"
            " the reason, write the array in another, or choose other arrays with a dict"
        ) from error
    if store.dtype.name in _NOT_ROWS:
        raise _unread(item.name, item.where, store.dtype.name)
    if store.rank == 0:
        raise SourceError(
            f"{_WHAT}: {named} in {item.where} has shape (), and the first axis counts records;"
            " choose the arrays to read with a dict: {'image': path, ...}"
        )
    if not store.readable:
        raise SourceError(f"{_WHAT}: {named} was opened for writing only; open it with read=True")
    return store


def _place(store: Any) -> str:
    kvstore = store.kvstore
    if kvstore is None:
        return "an open TensorStore"
    try:
        return str(kvstore.url).removeprefix("file://")
    except (NotImplementedError, ValueError):
        return "an open TensorStore"
