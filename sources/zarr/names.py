"""Arrays that were found, by name, and what describes them: their own metadata, or others.

Consolidated metadata of a group, or an open object, may show another shape than the array's own metadata,
which may have grown since.

Invariant: an array has the shape that was shown to the user, and no cell that its own metadata lack.
"""

from __future__ import annotations

import dataclasses
import json
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, Union

import numpy as np
import tensorstore as ts

from windrow.errors import NotFoundError, SourceError
from windrow.sources.zarr.error_text import reason
from windrow.sources.zarr.folders import Folder, LocalFolder, StoredObjects, metadata_of
from windrow.sources.zarr.metadata import attributes_of, is_v3, sizes_of
from windrow.sources.zarr.remote_folders import OpenedFolder, OpenedStore, RangeObjects, StoreFolder
from windrow.sources.zarr.stores import Access

Keys: TypeAlias = tuple[str, ...]
"""The keys that lead to an array or a group in a tree; () for the tree itself."""

_NO_ATTRIBUTES: Final[Mapping[str, Any]] = {}
# The entries next to the shape that say where values lie and how they are read.
_STORED: Final = ("dtype", "data_type", "chunks", "chunk_grid")
_WAY_OUT: Final = "Consolidate again (zarr.consolidate_metadata)"
_READ_DTYPES: Final = "bool, int4 to int64, uint8 to uint64, all floats, bfloat16 and complex"
_MOST_BYTES: Final = 2**31
_N5_KEYS: Final = ("dimensions", "blockSize", "dataType", "compression")
# An attribute of a group: the keys of its object name the inner groups whose arrays are the values
# and offsets of rows that differ in length. Such arrays do not hold one record per row.
RAGGED: Final = "windrow_ragged"
# An attribute of the values of tokens: what made them, as `sha256` of the tokenizer and `end_token`.
TOKENIZER: Final = "windrow_tokenizer"
# The two arrays of such an inner group.
VALUES: Final = "values"
OFFSETS: Final = "offsets"
# A third array, which may be missing: the first record of each block of values. Its attribute says how
# many values make a block.
BLOCKS: Final = "blocks"
BLOCK_VALUES: Final = "windrow_block_values"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Consolidated:
    """The consolidated metadata of a group.

    Args:
        folder: The group.
        nodes: Metadata of each node in it, by path, with the attributes of v2 (None for v3).
        attributes: The attributes of the group.
    """

    folder: Folder
    nodes: Mapping[str, tuple[Mapping[str, Any], Any]]
    attributes: Mapping[str, Any]

    def __reduce__(self) -> tuple[Any, ...]:
        # Metadata of a large group are many megabytes, and copies of a source need none of them.
        return type(None), ()

    @property
    def shown(self) -> str:
        """The metadata, for messages."""
        return f"the consolidated metadata of {self.folder.where}"


def consolidated_in(folder: Folder, meta: Mapping[str, Any]) -> Consolidated | None:
    """The consolidated metadata in `zarr.json`, or in `.zmetadata`, of a group; None without any."""
    listed = meta.get("consolidated_metadata") if is_v3(meta) else meta
    nodes = listed.get("metadata") if isinstance(listed, dict) else None
    if not isinstance(nodes, dict):
        return None
    if is_v3(meta):
        own = {path: (node, None) for path, node in nodes.items() if isinstance(node, dict)}
        return Consolidated(folder, own, attributes_of(meta, None))
    found: dict[str, tuple[Mapping[str, Any], Any]] = {}
    for key, node in nodes.items():
        path, slash, file = key.rpartition("/")
        if slash and file in (".zarray", ".zgroup") and isinstance(node, dict):
            found[path] = node, nodes.get(f"{path}/.zattrs")
    return Consolidated(folder, found, attributes_of({}, nodes.get(".zattrs")))


@dataclasses.dataclass(frozen=True, slots=True)
class ShownGroup:
    """A group as an open object shows it.

    Args:
        place: Its path or URL, or its node in an open store.
        shown: The object, for messages.
        shapes: The shapes of arrays that it shows, by path; None if the arrays' own metadata count.
    """

    place: str | OpenedStore
    shown: str
    shapes: Mapping[str, tuple[int, ...]] | None


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Found:
    """An array that was found: its name in the source, its place for people, and how to open it.

    Args:
        what: Name of the source, for messages.
        name: Nested names are joined by `/`; a single array's name is ''.
        where: Its place, for people.
        spec: An open `ts.TensorStore`, a `ts.Spec`, or a spec as JSON or URL; None if TensorStore
            does not open it.
        folder: Its folder, if it was found on a local disk.
        dims: Names of the axes, None for an axis without a name; () if they are unknown. Two axes
            may have one name.
        attributes: As they are stored.
        shape: From the metadata; None if none were read. The array may have grown since.
        metadata: The Zarr metadata of the array as they were read, without attributes; else None.
        listing: What describes the array, for people, such as the consolidated metadata of a group; ''
            if its own metadata do.
        consolidated: These metadata, in this process; else None.
        path: Path of the array in their group.
        access: How a remote array is reached; None for an array on a local disk.
        url: The URL for fsspec; None if it is unknown.
        scales: The metadata of all scales, if it is the first scale of a precomputed volume.
        opened: Its node in an open store of zarr-python that has neither path nor URL; else None.
        refuse_missing: Whether reading a chunk that is not stored is an error.
    """

    what: str
    name: str
    where: str
    spec: Any = dataclasses.field(repr=False)  # it may hold credentials
    folder: str | None = None
    dims: tuple[str | None, ...] = ()
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=lambda: _NO_ATTRIBUTES)
    shape: tuple[int, ...] | None = None
    metadata: Mapping[str, Any] | None = None
    listing: str = ""
    consolidated: Consolidated | None = dataclasses.field(default=None, repr=False)
    path: str = ""
    access: Access | None = None
    url: str | None = dataclasses.field(default=None, repr=False)
    scales: tuple[Mapping[str, Any], ...] = ()
    opened: OpenedStore | None = None
    refuse_missing: bool = False

    @property
    def is_n5(self) -> bool:
        """Whether it was found as an array of N5, whose attributes lie among its metadata."""
        return "blockSize" in self.attributes and self.driver == "n5"

    def without_attributes(self) -> Found | None:
        """An array of N5, to be opened by its own metadata alone; None for any other array.

        TensorStore refuses an array for attributes of users that it cannot parse: NaN, or units for some axes.
        """
        known = set(_N5_KEYS) <= set(self.attributes)  # TensorStore guesses what is absent
        if not self.is_n5 or not known or not isinstance(self.spec, dict):
            return None
        metadata = {key: self.attributes[key] for key in _N5_KEYS}
        return dataclasses.replace(self, spec={**self.spec, "metadata": metadata})

    @property
    def is_precomputed(self) -> bool:
        """Whether it was found as a scale of a precomputed volume."""
        return "chunk_sizes" in self.attributes and self.driver == "neuroglancer_precomputed"

    @property
    def driver(self) -> str:
        """TensorStore's driver of it; '' if it was not found as a spec."""
        spec = self.spec.to_json() if isinstance(self.spec, ts.Spec) else self.spec
        return str(spec.get("driver", "")) if isinstance(spec, dict) else ""

    def objects(self) -> StoredObjects:
        """The objects in which it is stored, by key.

        Raises:
            SourceError: If its store cannot be opened.
        """
        access = self.access
        if self.folder is not None:
            return LocalFolder(self.what, self.folder)
        if access is None and isinstance(self.spec, dict):  # N5 and precomputed volumes
            return LocalFolder(self.what, self.spec["kvstore"]["path"])
        if access is None:
            raise TypeError("an array outside of a local folder needs an access")
        if self.opened is not None:
            return OpenedFolder(self.what, self.opened, access)
        if self.url is not None:
            return RangeObjects(access, self.url)
        kvstore = self.spec["kvstore"] if isinstance(self.spec, dict) else self.spec.kvstore
        try:
            return StoreFolder(self.what, self.where, access.opened(kvstore), access)
        except (ValueError, RuntimeError, OSError) as error:
            raise SourceError(
                f"{self.what}: {self.where} cannot be read: {access.reason(error)}"
            ) from None

    @property
    def named(self) -> str:
        """The array, for messages."""
        return f"array {self.name!r}" if self.name else "the array"

    def reason(self, error: BaseException) -> tuple[str, BaseException | None]:
        """The reason of an error, and the cause for `raise ... from`.

        The cause is None for a remote array: errors of libraries may hold secrets.
        """
        if self.access is None:
            return reason(error), error
        return self.access.reason(error), None

    def agreed_shape(self, own: Mapping[str, Any]) -> tuple[int, ...] | None:
        """The shape that counts, as it was shown; None for the array's own.

        zarr-python and xarray show the shape in the consolidated metadata of a group. The array's own
        metadata (`own`) say how it is stored, and may have grown since.

        Raises:
            SourceError: If its own metadata have fewer cells, or store it in another way.
        """
        shape, size = self.shape, own.get("shape")
        stored = sizes_of(list(size) if isinstance(size, tuple) else size)
        if not self.listing or shape is None or stored is None:
            return None
        for key in _STORED:
            then, now = (self.metadata or {}).get(key), own.get(key)
            if type(then) is type(now) and then != now and not _is_one_dtype(then, now):
                raise SourceError(
                    f"{self.what}: {self.named} in {self.where} has {key} {now} in its own metadata, and"
                    f" {then} in {self.listing}: it was written anew. {_WAY_OUT}, or open it again"
                )
        if len(shape) != len(stored) or any(a > b for a, b in zip(shape, stored, strict=True)):
            raise SourceError(
                f"{self.what}: {self.named} in {self.where} has shape {list(stored)} in its own"
                f" metadata, and {list(shape)} in {self.listing}: it was cut since, and what is gone would"
                f" read as the fill value. {_WAY_OUT}, or open it again"
            )
        return shape

    def unread(self, why: str) -> SourceError:
        """The error for an array that cannot be read, with the reason `why`."""
        return SourceError(
            f"{self.what}: {self.named} in {self.where} is not read: {why}. Arrays of"
            f" {_READ_DTYPES} are. In a group, choose the arrays to read: names=['image', ...]"
        )

    def gone(self, why: str) -> NotFoundError:
        """The error for an array that is no longer where it was found."""
        if self.listing:
            return NotFoundError(
                f"{self.what}: there is no array at {self.where}, though {self.listing} list it: {why}."
                " Consolidate again (zarr.consolidate_metadata), or choose other arrays by names=[...]"
            )
        return NotFoundError(f"{self.what}: there is no array at {self.where}: {why}")

    def refuse_absurd(
        self,
        shape: Sequence[int],
        chunk: Sequence[int | None],
        itemsize: int,
        shard: Sequence[int | None],
    ) -> None:
        """Refuse sizes that no storage has, before memory is allocated.

        Args:
            shape: The shape of the array.
            chunk: Shape of the cells that are decoded together; None along axes where it is unknown.
            itemsize: Bytes of a value.
            shard: Shape of what one stored object holds.

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
                    f"{self.what}: {self.named} in {self.where} says that {what.format(size)}, and"
                    f" at most {most:,} are read. If that is right, write it in smaller chunks;"
                    " otherwise its metadata are damaged"
                )


def _is_one_dtype(then: Any, now: Any) -> bool:
    """Whether two names are of one dtype of NumPy, as `<i1` and `|i1`."""
    try:
        return isinstance(then, str) and np.dtype(then) == np.dtype(now)
    except TypeError:
        return False


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class FoundGroup:
    """The arrays below a group of a store, or below a dict of the user.

    Args:
        arrays: The arrays by the keys that lead to them, in order. A key of a dict may have a `/`.
        groups: The attributes of each group of a store by the keys that lead to it, outer ones first.
    """

    arrays: Mapping[Keys, Found]
    groups: Mapping[Keys, Mapping[str, Any]]

    def below(self, at: Keys) -> FoundGroup:
        """The arrays and groups below a group."""
        count = len(at)
        return FoundGroup(
            {keys[count:]: item for keys, item in self.arrays.items() if keys[:count] == at},
            {keys[count:]: item for keys, item in self.groups.items() if keys[:count] == at},
        )

    def by_group(self) -> dict[Keys, dict[str, Found]]:
        """The arrays of each group and dict that has some, by their names there."""
        found: dict[Keys, dict[str, Found]] = {}
        for keys, item in self.arrays.items():
            found.setdefault(keys[:-1], {})[keys[-1]] = item
        return found


FoundTree: TypeAlias = Found | FoundGroup
ChosenTree: TypeAlias = Union[Found, "dict[str, ChosenTree]"]


def gathered(
    items: Iterable[tuple[Keys, FoundTree]], groups: Mapping[Keys, Mapping[str, Any]]
) -> FoundGroup:
    """Arrays and groups in one group; those around them have `groups`, or no attributes."""
    arrays, groups = dict[Keys, Found](), dict(groups)
    for keys, found in items:
        for count in range(1, len(keys)):
            groups.setdefault(keys[:count], _NO_ATTRIBUTES)
        if isinstance(found, Found):
            arrays[keys] = found
        elif found.arrays:
            arrays |= {(*keys, *inner): item for inner, item in found.arrays.items()}
            groups |= {(*keys, *inner): item for inner, item in found.groups.items()}
    around = {keys[:count] for keys in arrays for count in range(1, len(keys))}
    return FoundGroup({keys: item for keys, item in arrays.items() if keys not in around}, groups)


def arrays_of(tree: FoundTree | ChosenTree) -> Iterator[Found]:
    """Every array of a tree, in its order."""
    if isinstance(tree, Found):
        yield tree
    elif isinstance(tree, FoundGroup):
        yield from tree.arrays.values()
    else:
        for item in tree.values():
            yield from arrays_of(item)


def refusing(tree: FoundTree) -> FoundTree:
    """The tree, whose arrays refuse chunks that are not stored."""
    return _with_each(tree, lambda _, item: dataclasses.replace(item, refuse_missing=True))


def as_shown(tree: FoundTree, group: ShownGroup) -> FoundTree:
    """A tree whose arrays have the shapes that an open object shows."""

    def shown(path: str, item: Found) -> Found:
        shape = (group.shapes or {}).get(path, item.shape)
        if shape == item.shape:
            return item
        metadata = None if item.metadata is None else {**item.metadata, "shape": list(shape or ())}
        return dataclasses.replace(
            item, shape=shape, metadata=metadata, listing=group.shown, consolidated=None
        )

    return _with_each(tree, shown)


def _with_each(tree: FoundTree, change: Callable[[str, Found], Found]) -> FoundTree:
    """The tree with other arrays in place of its own; `change` gets the path of each."""
    if isinstance(tree, Found):
        return change("", tree)
    arrays = {keys: change("/".join(keys), item) for keys, item in tree.arrays.items()}
    return dataclasses.replace(tree, arrays=arrays)


def noted_rows(attributes: Mapping[str, Any]) -> dict[str, str]:
    """The dtypes of rows that differ in length, by name, as attributes of a group have them."""
    listed = attributes.get(RAGGED)
    notes = listed.items() if isinstance(listed, dict) else ()
    dtypes = {name: note.get("dtype") for name, note in notes if isinstance(note, dict)}
    return {name: dtype for name, dtype in dtypes.items() if isinstance(dtype, str)}


# --- what was shown, and what is stored ------------------------------------------------------------


def warn_of_differences(found: Iterable[tuple[Found, Sequence[int] | None]]) -> None:
    """Warn once if arrays have other metadata than what was shown of them.

    Args:
        found: The arrays, each with the shape in its own metadata; None to read that, where it is local.
    """
    differences = [text for item, own in found if item.listing and (text := _difference(item, own))]
    if differences:
        more = f" (and {len(differences) - 1:,} more)" if len(differences) > 1 else ""
        warnings.warn(f"{differences[0]}{more}. {_WAY_OUT} to read what is new", stacklevel=4)


def _difference(found: Found, shape: Sequence[int] | None) -> str:
    own, zattrs = _own(found)
    if shape is None:
        shape = sizes_of(own.get("shape"))
    where = f"{found.what}: {found.named} in {found.where} has"
    if shape is not None and tuple(shape) != found.shape:
        return (
            f"{where} shape {list(shape)} in its own metadata, and {list(found.shape or ())} in"
            f" {found.listing}; the latter counts"
        )
    attributes = attributes_of(own, zattrs)
    differ = [
        key
        for key in sorted({*attributes, *found.attributes})
        if _text(attributes.get(key)) != _text(found.attributes.get(key))
    ]
    if own and differ:
        return (
            f"{where} another attribute {differ[0]!r} in its own metadata than in {found.listing};"
            " the latter counts"
        )
    return ""


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)  # a NaN equals no NaN


def _own(found: Found) -> tuple[Mapping[str, Any], Any]:
    """The own metadata of a local array, and its attributes of v2; empty elsewhere."""
    if found.folder is None or found.metadata is None:
        return {}, None
    folder = LocalFolder(found.what, found.folder)
    try:
        if is_v3(found.metadata):
            return metadata_of(folder, "zarr.json") or {}, None
        return metadata_of(folder, ".zarray") or {}, metadata_of(folder, ".zattrs")
    except SourceError:
        return {}, None  # opening the array says what is wrong with it
